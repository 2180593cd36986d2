//! Settings of a port.

use std::time::Duration;

/// Settings of a port.
#[derive(Debug, Clone, PartialEq)]
pub struct Options {
    /// Maximum length of a frame, in bytes, without the headers before it: 1500 in Ethernet frames of the usual MTU, 1472
    /// in UDP datagrams over IPv4. At least [`MIN_FRAME_BYTES`]; less counts as that. A path that carries less:
    /// [`Port::limit_frame_bytes`](crate::Port::limit_frame_bytes).
    pub max_frame_bytes: usize,
    /// The last link on the way here, if it is known. It bounds the credit of all connections together by
    /// [`LastLink::credit_bytes`], and its pace.
    pub last_link: Option<LastLink>,
    /// Bound on the credit of all connections together, in bytes, where `last_link` is not known; and on the bound that
    /// follows from it. Not more than the port below can hold for this process (socket buffer, ring).
    pub max_credit_bytes: u64,
    /// Credit that a class of an idle connection has, in bytes: what may be sent without being requested. Idle
    /// connections together have at most a quarter of the bound.
    pub standing_credit_bytes: u64,
    /// Queueing delay to which the delay window steers.
    pub target_delay: Duration,
    /// Time without a frame from the peer after which a connection has failed, also while it is opened. For one
    /// connection: [`Port::set_peer_timeout`](crate::Port::set_peer_timeout).
    pub peer_timeout: Duration,
    /// Time for which the status of few packets may wait for a frame that is sent anyway, such as one with an answer, and
    /// up to ten times as long where the upper layer has taken that long to answer; zero: it is sent with the next
    /// [`next_frame`](crate::Port::next_frame).
    pub status_delay: Duration,
    /// Maximum number of connections.
    pub max_connections: usize,
}

/// Least value of [`Options::max_frame_bytes`]: a handshake with all its private data.
pub const MIN_FRAME_BYTES: usize = crate::HEADER_BYTES
    + crate::CLASS_COUNT * crate::STATUS_BYTES
    + crate::frame::HANDSHAKE_BYTES
    + crate::MAX_PRIVATE_BYTES;

/// The last link on the way to a receiver: the switch port in which packets of many senders meet.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct LastLink {
    /// Rate of the link, in bytes per second (*C*).
    pub bytes_per_second: u64,
    /// Time from a grant to the first byte that it allows, if nothing else is on the way (*τ*).
    pub round_trip: Duration,
    /// Buffer of the switch port, in bytes (*B*): its queue stays below that.
    pub buffer_bytes: u64,
}

impl LastLink {
    /// Returns the bound on the credit of all connections together, in bytes: C·τ + B/2, as for a builder's window
    /// (`docs/n-to-one.md`). At most max(0, credit − C·τ) = B/2 of it can be in the port's queue.
    pub fn credit_bytes(&self) -> u64 {
        let on_the_way = u128::from(self.bytes_per_second) * self.round_trip.as_nanos() / 1_000_000_000;
        u64::try_from(on_the_way).unwrap_or(u64::MAX).saturating_add(self.buffer_bytes / 2)
    }
}

impl Default for Options {
    fn default() -> Self {
        Self {
            max_frame_bytes: 1472,
            last_link: None,
            max_credit_bytes: 4 << 20,
            standing_credit_bytes: 16 << 10,
            target_delay: Duration::from_millis(1),
            peer_timeout: Duration::from_secs(10),
            status_delay: Duration::ZERO,
            max_connections: 4096,
        }
    }
}
