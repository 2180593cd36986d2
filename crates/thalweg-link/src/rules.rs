//! Rules for a source's messages that a builder checks over every link. The texts go to the source's author, with the
//! refusal.

use crate::LinkError;
use crate::offered::FetchRequest;
use thalweg_wire::{Announcement, Disposition, HEADER_LEN, Hello, RECORD_ALIGN};

/// Checks that a source has a slot, and that a slot has room for a fragment.
///
/// # Errors
/// It has none.
pub fn check_hello(hello: &Hello) -> Result<(), LinkError> {
    let Hello { slots, slot_bytes, .. } = *hello;
    if slots == 0 || (slot_bytes as usize) < HEADER_LEN {
        return Err(LinkError::Protocol(format!(
            "the hello announces {slots} slots of {slot_bytes} bytes: a source has at least one slot, of at least \
             {HEADER_LEN} bytes"
        )));
    }
    Ok(())
}

/// Checks that an offer consists of whole records, and is taken back only by a source that announced that it may do so.
///
/// # Errors
/// It breaks one of these rules.
pub fn check_offer(offer: &Announcement, withdraws: bool) -> Result<(), LinkError> {
    let Announcement { ticket, bytes, disposition, .. } = *offer;
    if !(bytes as usize).is_multiple_of(RECORD_ALIGN) {
        return Err(LinkError::Protocol(format!(
            "ticket {ticket} was offered with {bytes} bytes, which is not a multiple of {RECORD_ALIGN}: count the \
             padding after each record"
        )));
    }
    if disposition == Disposition::DroppedOldest && !withdraws {
        return Err(LinkError::Protocol(format!(
            "ticket {ticket} was dropped to make room, but the hello lacks the capability *withdraws*: set it"
        )));
    }
    Ok(())
}

/// Checks that data come in the order of the fetches, each fetch answered as a whole.
pub(crate) fn check_fetch_order(sent: FetchRequest, asked: FetchRequest) -> Result<(), LinkError> {
    if sent == asked {
        return Ok(());
    }
    Err(LinkError::Protocol(format!(
        "received bytes {}+{} of ticket {} instead of the requested {}+{} of ticket {}: answer fetches in order, each \
         as a whole",
        sent.offset, sent.length, sent.ticket, asked.offset, asked.length, asked.ticket
    )))
}
