//! Arrival of a ticket's bytes: its records are entered into their events one by one.

use super::Builder;
use crate::build::Violation;
use crate::build::config::{Check, Hold};
use crate::build::events::{Answer, OpenEvents};
use crate::build::source::{self, Piece, Source, Ticket};
use thalweg_wire::{EventId, FragmentHeader, RecordBytes, Records, SourceId, Status};

/// Records of a ticket whose bytes have arrived. Iterating enters them into their events, and returns each good record
/// before the end of the run: its offset in the bytes, and its header. Any other content is counted, and the events do
/// not wait for it. [`finish`](Self::finish) ends the fetch.
#[derive(Debug)]
#[must_use = "records are entered by iterating, and `finish` ends the fetch"]
pub struct Arrival<'a, B: ?Sized> {
    builder: &'a mut Builder,
    source: usize,
    id: SourceId,
    /// Ticket that was fetched; `None` if none was, or its fetch was cancelled since.
    ticket: Option<Ticket>,
    records: Records<'a, B>,
    /// Index and number of the next record's event.
    index: u64,
    event: EventId,
    /// Index after the last event whose record is entered.
    end: u64,
    /// Record that no source may send.
    violation: Option<Violation>,
}

impl Builder {
    /// Begins to take the bytes of a ticket, which are in place: the records are those of the returned iterator. Bytes
    /// of a ticket that was not fetched, or whose fetch was cancelled since, have none.
    pub fn arrived<'a, B: RecordBytes + ?Sized>(
        &'a mut self,
        source: usize,
        number: u64,
        bytes: &'a B,
    ) -> Arrival<'a, B> {
        let ticket = self.finish_fetch(source, number);
        if let Some(ticket) = &ticket {
            self.short = false;
            self.credit.count_completed(source, ticket.counted_bytes());
        }
        Arrival {
            source,
            id: self.config.sources[source].0,
            records: Records::new(bytes),
            index: ticket.as_ref().map_or(0, |ticket| ticket.first),
            event: ticket.as_ref().map_or(EventId(0), |ticket| ticket.offer.first),
            end: ticket.as_ref().map_or(0, Ticket::end_index),
            ticket,
            violation: None,
            builder: self,
        }
    }

    /// Keeps the rest of a ticket, from event `index` on; it is lost when its source is given up.
    fn keep_rest(&mut self, source: usize, ticket: Ticket, index: u64) {
        #[expect(clippy::cast_possible_truncation, reason = "a part of it")]
        let count = (ticket.end_index() - index) as u32;
        source::insert_ticket(&mut self.sources[source].fetching, Ticket { first: index, count, ..ticket });
        self.renew_due(source);
    }
}

impl<B: RecordBytes + ?Sized> Iterator for Arrival<'_, B> {
    /// Offset of the record, and its header.
    type Item = (u32, FragmentHeader);

    // Into each caller's loop: a call for each record costs a fifth of what is done for it.
    #[inline(always)]
    fn next(&mut self) -> Option<Self::Item> {
        while self.index < self.end {
            let Ok((at, header, payload)) = self.records.next()? else { return None };
            let Builder { events, sources, config, .. } = &mut *self.builder;
            let entry = &mut sources[self.source];
            let index = self.index;
            let good = header.run == config.run
                && header.source == self.id
                && header.event == self.event
                && header.total_length <= config.max_payload
                && (config.check == Check::Headers
                    || header.crc_matches(|| self.records.bytes().crc32c_of_range(payload)));
            // The bytes after a bad record can still be found, since its header gives its length.
            let entered = if !good {
                entry.count_damaged(events, index, self.source);
                Entered::Counted
            } else if header.status.intersects(Status::SET_BY_BUILDERS) {
                self.stop(Violation::Status { event: self.event.0, status: header.status.bits() });
                return None;
            } else {
                enter(events, entry, self.source, index, &header)
            };
            if matches!(entered, Entered::Twice) {
                self.stop(Violation::Twice(self.event.0));
                return None;
            }
            self.index += 1;
            self.event.0 += u64::from(config.builders);
            if matches!(entered, Entered::New) {
                #[expect(clippy::cast_possible_truncation, reason = "a slot is shorter than 2^32 bytes")]
                return Some((at as u32, header));
            }
        }
        None
    }
}

impl<B: RecordBytes + ?Sized> Arrival<'_, B> {
    /// Stops at a record that no source may send.
    #[cold]
    fn stop(&mut self, violation: Violation) {
        self.end = self.index;
        self.violation = Some(violation);
    }

    /// Enters the records that are left, and ends the fetch.
    ///
    /// # Errors
    /// A record that no source may send. The records before it stay built; the rest of the ticket is lost when the
    /// caller [gives the source up](Builder::give_up_source).
    pub fn finish(mut self) -> Result<(), Violation> {
        self.by_ref().for_each(drop);
        let Self { builder, source, ticket, index, violation, .. } = self;
        let Some(ticket) = ticket else { return Ok(()) };
        if let Some(violation) = violation {
            builder.keep_rest(source, ticket, index);
            return Err(violation);
        }
        let Builder { events, sources, config, expired, .. } = builder;
        let entry = &mut sources[source];
        for index in index..ticket.end_index() {
            entry.count_damaged(events, index, source);
        }
        if config.hold == Hold::UntilClosed && ticket.count > 0 {
            source::insert_ticket(&mut entry.held, ticket);
        }
        entry.settle_pieces(events, ticket.event_indices(), *expired, source);
        builder.renew_due(source);
        Ok(())
    }
}

/// Result of entering a good record.
enum Entered {
    /// The record is to be recorded.
    New,
    /// The record is of no use, and was counted.
    Counted,
    /// The record is a whole fragment that had arrived already.
    Twice,
}

/// Enters a good record of a source.
#[inline]
fn enter(events: &mut OpenEvents, entry: &mut Source, source: usize, index: u64, header: &FragmentHeader) -> Entered {
    match events.answer_of(index, source) {
        Answer::None => {
            let whole = header.is_whole_fragment() && !entry.is_in_pieces(index);
            match if whole { Piece::Last } else { entry.accept_piece(index, header) } {
                Piece::New => return Entered::New,
                Piece::Last => {
                    entry.count_built(index, header);
                    events.mark_present(index, source);
                    return Entered::New;
                }
                Piece::Repeated => entry.ledger.duplicates += 1,
                Piece::Contradicts => entry.count_damaged(events, index, source),
            }
        }
        Answer::Present if header.is_whole_fragment() => return Entered::Twice,
        Answer::Present => entry.ledger.duplicates += 1,
        _ if header.is_whole_fragment() && entry.has_built(index) => return Entered::Twice,
        Answer::Rejected | Answer::Missing | Answer::Forgotten => entry.count_unwanted(events, index, source),
    }
    Entered::Counted
}
