//! What a source can say that breaks the rules of the conversation.

use thiserror::Error;

/// A source broke the rules of the conversation; nothing it says can be relied on any more.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum Violation {
    /// An event that is not this builder's share.
    #[error("offered event {event}, which is not in the share of builder {builder} of {builders}")]
    Share {
        /// The event.
        event: u64,
        /// This builder.
        builder: u32,
        /// Of how many.
        builders: u32,
    },
    /// Events must be offered in order, beginning with the first of the run.
    #[error("offered event {0} after later ones, or before the first of the run")]
    Order(u64),
    /// An offer that runs past the last event number there is.
    #[error("offered {count} fragments from event {first} on: event numbers do not go so far")]
    Range {
        /// The first event.
        first: u64,
        /// Fragments.
        count: u32,
    },
    /// An offer that cannot be.
    #[error(
        "offered {count} fragments in {bytes} bytes; this builder takes 1 to {most} fragments, each of at least 64 bytes, at a time"
    )]
    Size {
        /// Fragments.
        count: u32,
        /// Bytes.
        bytes: u32,
        /// The most it takes.
        most: u32,
    },
    /// More offers without a release than its slots allow.
    #[error("more than {0} offers are open: more than its slots can hold")]
    TooMany(u64),
    /// Every link tells of offers in the order of their tickets, so one that is left out never comes.
    #[error("offered ticket {ticket} where ticket {next} comes next: tickets are numbered 0, 1, 2, … without gaps")]
    Gap {
        /// The ticket that was offered.
        ticket: u64,
        /// The one that comes next.
        next: u64,
    },
    /// A ticket was announced a second time with another content.
    #[error("ticket {0} was offered twice with different content")]
    Changed(u64),
    /// A fragment in pieces has offers of its own.
    #[error("offered a part of the fragment of event {0} together with fragments of other events")]
    Piece(u64),
    /// A fragment that was delivered whole comes again in another ticket.
    #[error("sent the fragment of event {0} whole, and then again in another ticket")]
    Twice(u64),
    /// A source must not say in a header what only a builder knows.
    #[error("set status bits {status:#010x} in the header of event {event}: only builders set them")]
    Status {
        /// The event.
        event: u64,
        /// The bits.
        status: u32,
    },
    /// Books that contradict what was offered.
    #[error("its final counters count {counted} tickets, but it offered {offered}")]
    FinalCounters {
        /// What the final counters say.
        counted: u64,
        /// What was seen.
        offered: u64,
    },
}
