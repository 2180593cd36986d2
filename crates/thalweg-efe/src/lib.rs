//! EFE: packets delivered once, over Ethernet frames that may be lost, duplicated, delayed and reordered. No socket and
//! no clock: the caller passes in received frames and the time.
//!
//! A *packet* is a message of an upper layer that fits in one frame: a DDP segment (RFC 5041), or transaction layer
//! packets of PCI Express. A `Port` has connections to many peers. It neither divides nor joins packets.
//!
//! # How a caller uses it
//!
//! ```text
//! let mut port = Port::new(options, secret_numbers());    // for tokens that a stranger cannot guess
//! let id = port.connect(address, private, now)?;          // → Event::Connected, or Event::Failed
//! port.send(id, Class::Posted, packet)?;                  // → its sequence number; later Event::Acknowledged
//!
//! loop {
//!     for (from, frame) in received {
//!         if let Some(arrival) = port.receive(from, frame, now) {
//!             place(arrival.class, arrival.sequence, arrival.packet);            // in any order, each packet once
//!             let below = port.accept(arrival.connection, arrival.class, arrival.sequence);
//!             deliver_up_to(arrival.class, below);                               // in order
//!             // or port.refuse(…, wait): sent again after that time
//!         }
//!     }
//!     while let Some(event) = port.next_event() { … }
//!     while has_room && let Some(frame) = port.next_frame(now, &mut buffer) { transmit(frame.to, &buffer[..frame.bytes]) }
//!     wait_until(port.next_deadline());                   // then call next_frame again, which handles timeouts
//! }
//! ```
//!
//! The calls of `Port<A, P>`, where `A` is the address of a peer (an Ethernet address, or an IP address and UDP port) and
//! `P` a [`Packet`]:
//!
//! ```text
//! new(Options, random: impl FnMut() -> u64)
//! connect(A, private: &[u8], now) -> Result<ConnectionId, ConnectError>
//! accept_connection(ConnectionId, private: &[u8], now) -> Result<(), ConnectError>     // after Event::Incoming
//! reject_connection(ConnectionId, private: &[u8]) -> Result<(), ConnectError>
//! peer_address(ConnectionId) -> Option<A>
//! limit_frame_bytes(ConnectionId, bytes); set_peer_timeout(ConnectionId, Duration)     // of one connection, below the port's
//! note_path(A, bytes)                                         // a path carries no longer frames any more
//! receive(A, frame: &[u8], now) -> Option<Arrival>              // Arrival { connection, class, sequence, packet: &[u8] }
//! accept(ConnectionId, Class, sequence) -> Option<u32>          // sequence below which all were accepted; None: connection is over
//! refuse(ConnectionId, Class, sequence, wait)
//! send(ConnectionId, Class, P) -> Result<u32, SendError<P>>
//! send_room(ConnectionId, Class) -> SendRoom                    // { packets, bytes_at_once }
//! finish_sending(ConnectionId)                                  // half-close, after all packets were acknowledged
//! abort(ConnectionId, code: u32, private: &[u8])
//! next_frame(now, &mut [u8]) -> Option<Outgoing>                // { to: A, bytes }
//! next_event() -> Option<Event<P>>
//! next_deadline() -> Option<Duration>
//! connection_state(ConnectionId) -> Option<ConnectionState>; port_counters() -> PortCounters
//! ```
//!
//! `now` is the time since any instant, by a clock that never goes back. Acknowledgements are sent by `next_frame`: a
//! caller that takes frames once for each burst received sends one acknowledgement for each burst, and one that queues its
//! answers before it takes frames sends the acknowledgement with the answer. A caller that joins small messages builds a
//! packet only when `send_room` shows that it would leave at once. In the steady state nothing is allocated.
//!
//! # Files
//!
//! | file | contents |
//! | --- | --- |
//! | `port` | A port: connections in turn, their timers, and the distribution of credit |
//! | `connection` | One end of a connection: its stages, its timeouts, and the order in which it sends |
//! | `answer_wait` | The time for which a status waits for the upper layer's answer |
//! | `sending` | Sending half of a class: the window, its bitmaps, and losses found in them |
//! | `receiving` | Receiving half of a class: the window, its bitmaps, and the credit granted |
//! | `credit` | The bound on the credit of all connections, and its pace |
//! | `delay` | The delay window |
//! | `round_trip` | Estimates: the wait for an answer, the tolerance for reordering |
//! | `frame` | Bytes of a frame (`docs/efe.md`) |
//! | `packet` | Packets of the upper layer |
//! | `event` | Events of connections, and errors |
//! | `options` | Settings of a port |
//! | `counters` | Counters and state, for reports |
#![forbid(unsafe_code)]

mod answer_wait;
mod connection;
mod counters;
mod credit;
mod delay;
mod event;
mod frame;
mod options;
mod packet;
mod port;
mod receiving;
mod round_trip;
mod sending;

pub use connection::PACKET_OVERHEAD_BYTES;
pub use counters::{ConnectionCounters, ConnectionState, PortCounters};
pub use event::{ConnectError, ConnectionError, ConnectionId, Event, SendError, SendRefusal};
pub use frame::{
    CLASS_COUNT, Class, ETHER_TYPE, Echo, Ending, Frame, FrameError, HEADER_BYTES, Handshake, Header, Kind,
    MAX_PRIVATE_BYTES, STATUS_BYTES, Status, UDP_PORT, VERSION, WINDOW_PACKETS, write_frame,
};
pub use options::{LastLink, MIN_FRAME_BYTES, Options};
pub use packet::Packet;
pub use port::{Arrival, Outgoing, Port, SendRoom, secret_numbers};
