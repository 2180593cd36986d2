//! Streams over MPA and TCP (RFC 5044): sockets and bytes.

use crate::engine::Engine;
use crate::stream::{Carrier, PlaceReader, StreamPath};
use rustix::event::epoll;
use socket2::TcpKeepalive;
use std::io::{self, ErrorKind, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::time::{Duration, Instant};
use thalweg_iwarp::mpa::{Connection, FpduDecoder, FpduEncoder, longest_ulpdu_bytes};
use thalweg_iwarp::{OutgoingSegment, SettingsError, StreamSettings};

/// Bytes of FPDUs from which on the socket is given them, before others are made: they fit the processor's cache.
const OUTGOING_BYTES: usize = 192 << 10;

/// Bytes that are taken from a socket at once.
const INCOMING_BYTES: usize = 256 << 10;

/// Time for which a socket is kept after its stream has ended, so that the peer gets what was sent last: closing it with
/// bytes of the peer unread would reset the connection, and discard a Terminate message on its way.
const LINGER_TIME: Duration = Duration::from_secs(2);

/// Part of the peer's time-out after which a connection at rest asks for a sign of life.
const KEEP_ALIVE_PART: u32 = 4;

/// Length of the longest TCP segment in bytes where the kernel does not say.
const DEFAULT_SEGMENT_BYTES: u32 = 1460;

/// A TCP connection that carries a stream.
#[derive(Debug)]
pub(crate) struct TcpCarrier {
    socket: TcpStream,
    encoder: FpduEncoder,
    decoder: FpduDecoder,
    outgoing: OutgoingBytes,
    peer_timeout: Duration,
    readable: bool,
    writable: bool,
    /// Whether the kernel has reported the end of the connection, which is behind the bytes that are left to be read.
    has_ended: bool,
    /// Error of sending, once the peer is gone: what it had sent before is received first.
    send_error: Option<io::Error>,
}

/// A socket whose stream has ended.
#[derive(Debug)]
pub(crate) struct LingeringSocket {
    socket: TcpStream,
    outgoing: OutgoingBytes,
    is_shut: bool,
    deadline: Option<Instant>,
}

/// Bytes for a socket, in order: a part of a buffer that is used again when the socket has taken them.
#[derive(Debug, Default)]
struct OutgoingBytes {
    buffer: Vec<u8>,
    begin: usize,
    end: usize,
}

impl OutgoingBytes {
    fn unsent(&self) -> &[u8] {
        &self.buffer[self.begin..self.end]
    }

    fn is_empty(&self) -> bool {
        self.begin == self.end
    }

    /// Returns room for this number of bytes behind the others.
    fn room(&mut self, bytes: usize) -> &mut [u8] {
        let end = self.end + bytes;
        if self.buffer.len() < end {
            self.buffer.resize(end, 0);
        }
        &mut self.buffer[self.end..end]
    }

    /// Notes that the first bytes of the room were written.
    fn note_written(&mut self, bytes: usize) {
        self.end += bytes;
    }

    fn note_sent(&mut self, bytes: usize) {
        self.begin += bytes;
        if self.is_empty() {
            (self.begin, self.end) = (0, 0);
        }
    }

    /// Gives a socket what it takes. Returns the number of bytes taken: fewer than there were if it has no more room.
    fn send_to(&mut self, mut socket: &TcpStream) -> io::Result<usize> {
        let mut sent = 0;
        while !self.is_empty() {
            match socket.write(self.unsent()) {
                Ok(bytes) => {
                    self.note_sent(bytes);
                    sent += bytes;
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(sent)
    }
}

/// Returns a stream over a TCP connection that is set up. `first` goes out before all FPDUs: the reply of the set-up.
pub(crate) fn tcp_stream(
    socket: TcpStream,
    terms: &Connection,
    first: Vec<u8>,
    peer_timeout: Duration,
) -> Result<StreamPath, SettingsError> {
    let segment_bytes = socket2::SockRef::from(&socket).tcp_mss().unwrap_or(DEFAULT_SEGMENT_BYTES);
    // What the program posts goes out at once.
    let _ = socket.set_nodelay(true);
    watch_peer(&socket, peer_timeout);
    let outgoing = OutgoingBytes { end: first.len(), buffer: first, begin: 0 };
    let settings = StreamSettings {
        segment_limit_bytes: longest_ulpdu_bytes(segment_bytes as usize, terms.send_markers),
        inbound_requests: terms.inbound_requests,
        outbound_requests: terms.outbound_requests,
        first_message: terms.first_message,
        wait_for_receives: false,
        send_with_immediate: true,
        segments_ahead: 0,
    };
    let carrier = TcpCarrier {
        socket,
        encoder: FpduEncoder::new(terms.crc, terms.send_markers),
        decoder: FpduDecoder::new(terms.crc, terms.receive_markers),
        outgoing,
        peer_timeout,
        readable: true,
        writable: true,
        has_ended: false,
        send_error: None,
    };
    StreamPath::new(settings, Carrier::Tcp(Box::new(carrier)))
}

/// Has the kernel end a connection whose peer acknowledges nothing for this time: no bytes sent, and no question where
/// there are none (`TCP_USER_TIMEOUT`, `SO_KEEPALIVE`: tcp(7)).
fn watch_peer(socket: &TcpStream, peer_timeout: Duration) {
    let socket = socket2::SockRef::from(socket);
    // The kernel counts in seconds here.
    let interval = (peer_timeout / KEEP_ALIVE_PART).max(Duration::from_secs(1));
    let questions = TcpKeepalive::new().with_time(interval).with_interval(interval);
    let watched = socket.set_tcp_user_timeout(Some(peer_timeout)).and(socket.set_tcp_keepalive(&questions));
    if let Err(error) = watched {
        tracing::warn!("RNIC: a peer that is gone is noticed late: {error}");
    }
}

impl TcpCarrier {
    /// Returns whether the socket has something for a turn.
    pub(crate) fn has_work(&self) -> bool {
        self.readable || (self.writable && !self.outgoing.is_empty())
    }

    /// Takes note of what the kernel reports.
    pub(crate) fn note_events(&mut self, flags: epoll::EventFlags) {
        let ended = epoll::EventFlags::RDHUP | epoll::EventFlags::HUP | epoll::EventFlags::ERR;
        self.has_ended |= flags.intersects(ended);
        self.readable |= !flags.difference(epoll::EventFlags::OUT).is_empty();
        self.writable |= flags.contains(epoll::EventFlags::OUT);
    }

    /// Returns the reason of an error of the socket, in words.
    fn loss_reason(&self, error: &io::Error) -> String {
        if error.kind() == ErrorKind::TimedOut {
            let timeout = self.peer_timeout;
            return format!(
                "the peer acknowledged nothing for {timeout:?} (peer_timeout): its host or the network is down"
            );
        }
        format!("the TCP connection was lost: {error}")
    }

    /// Returns whether the socket has not taken all that was to be sent.
    pub(crate) fn has_unsent(&self) -> bool {
        !self.outgoing.is_empty()
    }

    pub(crate) fn tcp_socket(&self) -> &TcpStream {
        &self.socket
    }

    pub(crate) fn into_lingering_socket(self) -> LingeringSocket {
        let Self { socket, outgoing, .. } = self;
        LingeringSocket { socket, outgoing, is_shut: false, deadline: None }
    }
}

impl StreamPath {
    /// Gives the stream up if sending has failed, now that all was received. Returns whether it had.
    fn lose_carrier_after_send_error(&mut self) -> bool {
        let Carrier::Tcp(tcp) = &mut self.carrier else { return false };
        let Some(error) = tcp.send_error.take() else { return false };
        let reason = tcp.loss_reason(&error);
        self.lose_carrier(reason);
        true
    }
}

impl Engine {
    /// Takes bytes from the socket of a stream over TCP. Returns whether there were any.
    pub(crate) fn receive_bytes(&mut self, queue: u32, path: &mut StreamPath) -> bool {
        let Carrier::Tcp(tcp) = &mut path.carrier else { return false };
        if !tcp.readable || path.lost.is_some() {
            return false;
        }
        let mut buffer = std::mem::take(&mut self.incoming);
        buffer.resize(INCOMING_BYTES, 0);
        let any = match tcp.socket.read(&mut buffer) {
            Ok(0) => {
                tcp.readable = false;
                path.stream.close_by_peer();
                path.lose_carrier_after_send_error();
                true
            }
            Ok(bytes) => {
                // The socket is empty, and the kernel reports the next bytes; the end it reports once.
                tcp.readable = bytes == buffer.len() || tcp.has_ended || tcp.send_error.is_some();
                self.receive_segments(queue, path, &buffer[..bytes]);
                true
            }
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => {
                tcp.readable = error.kind() == ErrorKind::Interrupted;
                error.kind() == ErrorKind::WouldBlock && path.lose_carrier_after_send_error()
            }
            Err(error) => {
                let reason = tcp.loss_reason(&error);
                path.lose_carrier(reason);
                true
            }
        };
        self.incoming = buffer;
        any
    }

    fn receive_segments(&mut self, queue: u32, path: &mut StreamPath, mut bytes: &[u8]) {
        self.with_memory(queue, path, |stream, memory, _, carrier| {
            let Carrier::Tcp(tcp) = carrier else { return };
            loop {
                match tcp.decoder.next_ulpdu(&mut bytes) {
                    // Messages for which there is no receive end the stream: none is presented again.
                    Ok(Some(segment)) => _ = stream.receive_next(segment, memory),
                    Ok(None) => break,
                    Err(error) => {
                        stream.terminate(error.error_code());
                        break;
                    }
                }
            }
        });
    }

    /// Sends what a stream over TCP has to send, as far as the socket takes it. Returns whether it took any.
    pub(crate) fn transmit_bytes(&mut self, queue: u32, path: &mut StreamPath) -> bool {
        let mut any = false;
        while path.lost.is_none() {
            let Carrier::Tcp(tcp) = &mut path.carrier else { break };
            if tcp.outgoing.is_empty() {
                if !self.make_fpdus(queue, path) {
                    break;
                }
                continue;
            }
            if !tcp.writable {
                break;
            }
            match tcp.outgoing.send_to(&tcp.socket) {
                Ok(sent) => {
                    any |= sent > 0;
                    tcp.writable = tcp.outgoing.is_empty();
                }
                Err(error) => {
                    (tcp.writable, tcp.readable, tcp.send_error) = (false, true, Some(error));
                    any = true;
                }
            }
        }
        any
    }

    /// Makes FPDUs of the segments that the stream has to send. Returns whether there were any.
    fn make_fpdus(&mut self, queue: u32, path: &mut StreamPath) -> bool {
        let made = self.with_memory(queue, path, |stream, memory, segment, carrier| {
            let Carrier::Tcp(tcp) = carrier else { return false };
            while tcp.outgoing.end < OUTGOING_BYTES && stream.next_segment(memory, segment) {
                let OutgoingSegment { head, places, payload_bytes, .. } = segment;
                let room = tcp.outgoing.room(tcp.encoder.fpdu_bytes(head.len() + *payload_bytes));
                let mut reader = PlaceReader::new(places);
                let written = tcp.encoder.write_fpdu(head, *payload_bytes, |part| reader.read_bytes(part), room);
                tcp.outgoing.note_written(written);
                segment.places.clear();
                // Copied: its requests are over before a later one can fail.
                stream.accept_segments(segment.sequence + 1);
            }
            !tcp.outgoing.is_empty()
        });
        made.unwrap_or(false)
    }

    /// Goes on with sockets whose streams have ended.
    pub(crate) fn serve_lingering_sockets(&mut self, now: Instant) {
        let mut buffer = std::mem::take(&mut self.incoming);
        buffer.resize(INCOMING_BYTES, 0);
        self.lingering.retain_mut(|lingering| lingering.serve_socket(now, &mut buffer));
        self.incoming = buffer;
    }
}

impl LingeringSocket {
    /// Sends what is left, then waits for the peer's end. Returns false once the socket can be closed.
    fn serve_socket(&mut self, now: Instant, buffer: &mut [u8]) -> bool {
        if now >= *self.deadline.get_or_insert(now + LINGER_TIME) {
            return false;
        }
        if self.outgoing.send_to(&self.socket).is_err() {
            return false;
        }
        if !self.outgoing.is_empty() {
            return true;
        }
        if !std::mem::replace(&mut self.is_shut, true) && self.socket.shutdown(Shutdown::Write).is_err() {
            return false;
        }
        // What the peer still sends is dropped: the stream is over (RFC 5041 section 7.1).
        loop {
            match self.socket.read(buffer) {
                Ok(0) => return false,
                Ok(_) => {}
                Err(error) => return matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted),
            }
        }
    }

    /// Returns whether the socket has not taken all that was to be sent.
    pub(crate) fn has_unsent(&self) -> bool {
        !self.outgoing.is_empty()
    }

    pub(crate) fn linger_deadline(&self) -> Option<Instant> {
        self.deadline
    }
}
