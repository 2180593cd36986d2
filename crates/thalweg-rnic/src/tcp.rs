//! Streams over MPA and TCP (RFC 5044): sockets and bytes.

use crate::engine::Engine;
use crate::stream::{Carrier, OwnedPlace, StreamPath};
use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::time::{Duration, Instant};
use thalweg_iwarp::mpa::{Connection, FpduDecoder, FpduEncoder, longest_ulpdu_bytes};
use thalweg_iwarp::{SettingsError, StreamSettings};

/// Bytes of segments that are made before the socket is given them.
const OUTGOING_BYTES: usize = 256 << 10;

/// Bytes that are taken from a socket at once.
const INCOMING_BYTES: usize = 256 << 10;

/// Time for which a socket is kept after its stream has ended, so that the peer gets what was sent last: closing it with
/// bytes of the peer unread would reset the connection, and discard a Terminate message on its way.
const LINGER_TIME: Duration = Duration::from_secs(2);

/// Length of the longest TCP segment in bytes where the kernel does not say.
const DEFAULT_SEGMENT_BYTES: u32 = 1460;

/// A TCP connection that carries a stream.
#[derive(Debug)]
pub(crate) struct TcpCarrier {
    socket: TcpStream,
    encoder: FpduEncoder,
    decoder: FpduDecoder,
    /// FPDUs for the socket, and how many bytes of them it has taken.
    outgoing: Vec<u8>,
    sent_bytes: usize,
    pub(crate) readable: bool,
    pub(crate) writable: bool,
    /// Error of sending, once the peer is gone: what it had sent before is received first.
    send_error: Option<std::io::Error>,
}

/// A socket whose stream has ended.
#[derive(Debug)]
pub(crate) struct LingeringSocket {
    socket: TcpStream,
    outgoing: Vec<u8>,
    sent_bytes: usize,
    is_shut: bool,
    deadline: Option<Instant>,
}

/// Returns a stream over a TCP connection that is set up. `first` goes out before all FPDUs: the reply of the set-up.
pub(crate) fn tcp_stream(socket: TcpStream, terms: &Connection, first: Vec<u8>) -> Result<StreamPath, SettingsError> {
    let segment_bytes = socket2::SockRef::from(&socket).tcp_mss().unwrap_or(DEFAULT_SEGMENT_BYTES);
    // What the program posts goes out at once.
    let _ = socket.set_nodelay(true);
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
        outgoing: first,
        sent_bytes: 0,
        readable: true,
        writable: true,
        send_error: None,
    };
    StreamPath::new(settings, Carrier::Tcp(Box::new(carrier)))
}

impl TcpCarrier {
    /// Returns whether the socket has something for a turn.
    pub(crate) fn has_work(&self) -> bool {
        self.readable || (self.writable && self.sent_bytes < self.outgoing.len())
    }

    /// Returns whether the socket has not taken all that was to be sent.
    pub(crate) fn has_unsent(&self) -> bool {
        self.sent_bytes < self.outgoing.len()
    }

    pub(crate) fn tcp_socket(&self) -> &TcpStream {
        &self.socket
    }

    pub(crate) fn into_lingering_socket(self) -> LingeringSocket {
        let Self { socket, outgoing, sent_bytes, .. } = self;
        LingeringSocket { socket, outgoing, sent_bytes, is_shut: false, deadline: None }
    }
}

impl StreamPath {
    /// Gives the stream up if sending has failed, now that all was received. Returns whether it had.
    fn lose_carrier_after_send_error(&mut self) -> bool {
        let Carrier::Tcp(tcp) = &mut self.carrier else { return false };
        let Some(error) = tcp.send_error.take() else { return false };
        self.lose_carrier(format!("the TCP connection was lost: {error}"));
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
                self.receive_segments(queue, path, &buffer[..bytes]);
                true
            }
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => {
                tcp.readable = error.kind() == ErrorKind::Interrupted;
                error.kind() == ErrorKind::WouldBlock && path.lose_carrier_after_send_error()
            }
            Err(error) => {
                path.lose_carrier(format!("the TCP connection was lost: {error}"));
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
            if tcp.sent_bytes < tcp.outgoing.len() {
                if !tcp.writable || tcp.send_error.is_some() {
                    break;
                }
                match tcp.socket.write(&tcp.outgoing[tcp.sent_bytes..]) {
                    Ok(bytes) => {
                        tcp.sent_bytes += bytes;
                        any = true;
                    }
                    Err(error) if error.kind() == ErrorKind::WouldBlock => tcp.writable = false,
                    Err(error) if error.kind() == ErrorKind::Interrupted => {}
                    Err(error) => {
                        (tcp.writable, tcp.readable, tcp.send_error) = (false, true, Some(error));
                        any = true;
                    }
                }
                continue;
            }
            tcp.outgoing.clear();
            tcp.sent_bytes = 0;
            if !self.make_fpdus(queue, path) {
                break;
            }
        }
        any
    }

    /// Makes FPDUs of the segments that the stream has to send. Returns whether there were any.
    fn make_fpdus(&mut self, queue: u32, path: &mut StreamPath) -> bool {
        let mut payload = std::mem::take(&mut self.payload);
        let made = self.with_memory(queue, path, |stream, memory, segment, carrier| {
            let Carrier::Tcp(tcp) = carrier else { return false };
            while tcp.outgoing.len() < OUTGOING_BYTES && stream.next_segment(memory, segment) {
                payload.resize(segment.payload_bytes, 0);
                OwnedPlace::copy_all(&segment.places, &mut payload);
                tcp.encoder.append(&segment.head, &[&payload], &mut tcp.outgoing);
                segment.places.clear();
                // Copied: its requests are over before a later one can fail.
                stream.accept_segments(segment.sequence + 1);
            }
            !tcp.outgoing.is_empty()
        });
        self.payload = payload;
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
        while self.sent_bytes < self.outgoing.len() {
            match self.socket.write(&self.outgoing[self.sent_bytes..]) {
                Ok(bytes) => self.sent_bytes += bytes,
                Err(error) if error.kind() == ErrorKind::WouldBlock => return true,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(_) => return false,
            }
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
        self.sent_bytes < self.outgoing.len()
    }

    pub(crate) fn linger_deadline(&self) -> Option<Instant> {
        self.deadline
    }
}
