//! Violations of the protocol by a source.

use thiserror::Error;

/// A source's violation of the protocol, after which the source cannot be relied on any longer.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum Violation {
    /// An event outside this builder's share.
    #[error("offered event {event}, which does not belong to builder {builder} of {builders}")]
    Share {
        /// Number of the event.
        event: u64,
        /// Number of this builder.
        builder: u32,
        /// Number of builders.
        builders: u32,
    },
    /// An event out of order. Events must be offered in order, beginning with the first of the run.
    #[error("offered event {0} after later ones, or before the first of the run")]
    Order(u64),
    /// An offer that runs past the highest possible event number.
    #[error("offered {count} fragments from event {first} on: the event numbers exceed 64 bits")]
    Range {
        /// Number of the first event.
        first: u64,
        /// Number of fragments.
        count: u32,
    },
    /// An offer with an impossible number of fragments or bytes.
    #[error(
        "offered {count} fragments in {bytes} bytes; this builder accepts 1 to {most} fragments of at least 64 bytes in one offer"
    )]
    Size {
        /// Number of fragments.
        count: u32,
        /// Number of bytes.
        bytes: u32,
        /// Highest number of fragments that the builder takes in an offer.
        most: u32,
    },
    /// More offers without a release than the source's slots allow.
    #[error("more than {0} offers are open, which is more than its slots can hold")]
    TooMany(u64),
    /// A gap in the ticket numbers. Every link delivers offers in the order of their tickets, so a ticket that was left
    /// out never comes.
    #[error("offered ticket {ticket} instead of ticket {next}: tickets are numbered 0, 1, 2, … without gaps")]
    Gap {
        /// The ticket that was offered.
        ticket: u64,
        /// The ticket that comes next.
        next: u64,
    },
    /// A ticket that was offered a second time with different content.
    #[error("ticket {0} was offered twice with different content")]
    Changed(u64),
    /// A part of a fragment together with other fragments. A fragment in pieces has offers of its own.
    #[error("offered part of the fragment of event {0} together with fragments of other events")]
    Piece(u64),
    /// A fragment that was delivered whole and comes again in another ticket.
    #[error("sent the whole fragment of event {0} twice, in two tickets")]
    Twice(u64),
    /// Status bits in a header that only builders may set.
    #[error("set status bits {status:#010x} in the header of event {event}: only builders set them")]
    Status {
        /// Number of the event.
        event: u64,
        /// The bits.
        status: u32,
    },
    /// Final counters that contradict the offers.
    #[error("its final counters count {counted} tickets, but it offered {offered}")]
    FinalCounters {
        /// Number of tickets in the final counters.
        counted: u64,
        /// Number of tickets that were offered.
        offered: u64,
    },
}
