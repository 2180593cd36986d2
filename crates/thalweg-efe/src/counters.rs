//! Counters of a port and of its connections.

use std::time::Duration;

/// Counters of a connection since it was begun.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ConnectionCounters {
    /// Number of frames sent.
    pub frames_sent: u64,
    /// Number of frames received.
    pub frames_received: u64,
    /// Number of packets sent, repeated ones included.
    pub packets_sent: u64,
    /// Number of packets sent again, for any reason.
    pub sent_again: u64,
    /// Number of packets sent again of which an earlier copy is known to have arrived.
    pub sent_in_vain: u64,
    /// Number of packets sent again since no answer of any kind came in time.
    pub sent_by_timer: u64,
    /// Number of refusals of packets by the peer's upper layer.
    pub refused_by_peer: u64,
    /// Number of frames that only asked for an answer.
    pub probes_sent: u64,
    /// Number of packets received, each counted once, or again after a refusal.
    pub packets_received: u64,
    /// Number of packets received that had arrived before, and were dropped.
    pub repeated: u64,
    /// Number of packets received that were ahead of the window, and were dropped.
    pub beyond_window: u64,
    /// Number of packets received for which the peer had no credit, and that were dropped.
    pub beyond_credit: u64,
}

/// State of a connection, for reports.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ConnectionState {
    /// Smoothed round trip, if one was measured.
    pub round_trip: Option<Duration>,
    /// Delay window, in bytes.
    pub window_bytes: u64,
    /// Bytes sent that have neither arrived nor been found lost, as far as is known here.
    pub in_flight_bytes: u64,
    /// Counters since the beginning.
    pub counters: ConnectionCounters,
}

/// Counters of a port since it was created.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct PortCounters {
    /// Number of frames received that were damaged, and so are lost.
    pub damaged: u64,
    /// Number of received byte strings that were no frames.
    pub foreign: u64,
    /// Number of frames of another version of the protocol.
    pub other_version: u64,
    /// Number of frames that named no connection of this port, or had a wrong token or address.
    pub unknown: u64,
    /// Number of attempts to connect that were given up, since more came than can be kept.
    pub evicted_attempts: u64,
}
