//! Start-up of an MPA connection: request and reply frames (RFC 5044 §7.1, RFC 6581).
//!
//! The initiator sends [`Initiator::request_frame`] and passes what it receives to [`Initiator::receive`]; the responder
//! passes what it receives to [`Responder::receive`] and sends what [`Request::accept`] or [`Request::reject`] returns.
//! Each takes no byte beyond its frame. Both have a [deadline](Initiator::deadline); the clock is the caller's.

use crate::settings::FirstMessage;
use crate::terminate::ErrorCode;
use std::time::Duration;
use thiserror::Error;

/// Most private data of a frame in bytes (RFC 5044 §7.1.1). An enhanced frame has 4 bytes less for the program.
pub const MAX_PRIVATE_DATA_BYTES: usize = 512;
/// Largest number of Reads that can be negotiated (RFC 6581 §9: 14 bits, of which all ones mean something else).
pub const MAX_READ_DEPTH: u16 = 0x3ffe;

/// Numbers of Reads and atomics at a time (RFC 6581 §9.1). None: not negotiated, the program sees to it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct ReadDepths {
    /// Of the peer, served here (IRD).
    pub inbound: Option<u16>,
    /// Of this side, on their way (ORD).
    pub outbound: Option<u16>,
}

/// Enhanced set-up that an initiator asks for (RFC 6581).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct EnhancedOffer {
    /// Numbers of Reads at a time.
    pub depths: ReadDepths,
    /// Whether either side may be the first to send: the initiator then sends a ready-to-receive message by itself.
    pub peer_to_peer: bool,
}

/// Wishes of an initiator for its connection.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StartupOffer {
    /// Whether CRCs are wanted. They are used unless neither side wants them; by default they must be wanted (RFC 5044
    /// §4.4).
    pub crc: bool,
    /// Whether the peer must send markers. Only tests ask for them.
    pub markers: bool,
    /// Bytes for the peer's program.
    pub private_data: Vec<u8>,
    /// Enhanced set-up; none for revision 1, as RFC 6581 §10 demands where nothing of it is needed.
    pub enhanced: Option<EnhancedOffer>,
    /// Reads at a time in both directions where they are not negotiated.
    pub default_depth: u16,
    /// Time that the peer has for its reply.
    pub timeout: Duration,
}

impl Default for StartupOffer {
    /// CRCs, no markers, revision 1, 10 s.
    fn default() -> Self {
        Self {
            crc: true,
            markers: false,
            private_data: Vec::new(),
            enhanced: None,
            default_depth: 16,
            timeout: Duration::from_secs(10),
        }
    }
}

/// Wishes of a responder that accepts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Acceptance {
    /// Whether CRCs are wanted. They are used unless neither side wants them.
    pub crc: bool,
    /// Whether the peer must send markers. Only tests ask for them.
    pub markers: bool,
    /// Bytes for the peer's program.
    pub private_data: Vec<u8>,
    /// Most Reads and atomics of the peer at a time (IRD).
    pub inbound_requests: u16,
    /// Most Reads and atomics of this side at a time (ORD).
    pub outbound_requests: u16,
}

impl Default for Acceptance {
    fn default() -> Self {
        Self { crc: true, markers: false, private_data: Vec::new(), inbound_requests: 16, outbound_requests: 16 }
    }
}

/// Terms of a connection that both sides have agreed on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Connection {
    /// Whether FPDUs have CRCs.
    pub crc: bool,
    /// Whether this side sends markers.
    pub send_markers: bool,
    /// Whether the peer sends markers.
    pub receive_markers: bool,
    /// Reads and atomics of the peer that are served at a time.
    pub inbound_requests: u16,
    /// Reads and atomics of this side at a time.
    pub outbound_requests: u16,
    /// First message of the stream.
    pub first_message: FirstMessage,
    /// Depths as the peer stated them; none without enhanced set-up.
    pub peer_depths: Option<ReadDepths>,
}

/// Answer of a responder.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Reply {
    /// The connection is set up.
    Accepted {
        /// Its terms.
        connection: Connection,
        /// Bytes of the peer's program.
        private_data: Vec<u8>,
    },
    /// The responder's program does not want the connection. MPA is over; TCP stays open (RFC 5044 §7.1.2 rule 3).
    Rejected {
        /// Depths that the responder wants, where the set-up is enhanced.
        depths: Option<ReadDepths>,
        /// Bytes of the peer's program.
        private_data: Vec<u8>,
    },
    /// The responder accepted on terms that this side cannot fulfil. A stream over the connection is to
    /// [terminate](crate::Stream::terminate) with the error, then TCP is closed (RFC 6581 §9).
    Unusable {
        /// Terms, for the one FPDU.
        connection: Connection,
        /// Error to report.
        error: ErrorCode,
    },
}

/// Error of a start-up. The TCP connection is to be closed (RFC 5044 §7.1.2).
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum StartupError {
    /// The private data of this side is too long for a frame.
    #[error("{bytes} bytes of private data: at most {limit} (RFC 5044 §7.1.1, RFC 6581 §9)")]
    OwnPrivateData {
        /// Length in bytes.
        bytes: usize,
        /// Limit in bytes.
        limit: usize,
    },
    /// A depth of this side has more than 14 bits.
    #[error("{depth} Reads at a time: at most {MAX_READ_DEPTH} can be negotiated (RFC 6581 §9)")]
    OwnDepth {
        /// Depth given.
        depth: u16,
    },
    /// The peer sends something else than MPA.
    #[error("the peer does not speak MPA: its first bytes are no {expected} frame (RFC 5044 §7.1.1)")]
    Key {
        /// Kind of frame expected.
        expected: &'static str,
    },
    /// Both sides want to be the initiator.
    #[error("both sides are initiators (RFC 5044 §7.1.2 rule 8): one of them must listen")]
    BothInitiators,
    /// A revision that cannot be spoken.
    #[error("MPA revision {found}; {expected} (RFC 5044 §7.1.1)")]
    Revision {
        /// Revision in the frame.
        found: u8,
        /// Revisions that are spoken.
        expected: &'static str,
    },
    /// The private data of the peer is too long, or too short for what it must begin with.
    #[error("a frame with {bytes} bytes of private data, {reason}")]
    PrivateData {
        /// Length in bytes.
        bytes: usize,
        /// Reason, as the rest of a sentence.
        reason: &'static str,
    },
    /// A reply in another form than the request.
    #[error("the reply to an enhanced request is not enhanced (RFC 6581 §10)")]
    NotEnhanced,
    /// The peer's frame has not come in time.
    #[error("no complete frame of the peer within {} ms (RFC 5044 §7.1.2 rule 10)", timeout.as_millis())]
    TimedOut {
        /// Time that it had.
        timeout: Duration,
    },
}

const KEY_BYTES: usize = 16;
const REQUEST_KEY: [u8; KEY_BYTES] = *b"MPA ID Req Frame";
const REPLY_KEY: [u8; KEY_BYTES] = *b"MPA ID Rep Frame";
const FRAME_HEADER_BYTES: usize = 20;
const ENHANCED_BYTES: usize = 4;
const MARKERS_FLAG: u8 = 0x80;
const CRC_FLAG: u8 = 0x40;
const REJECTED_FLAG: u8 = 0x20;
const ENHANCED_FLAG: u8 = 0x10;
/// Flags of the two words of enhanced data (RFC 6581 §9): A and B, then C and D.
const PEER_TO_PEER_FLAG: u16 = 0x8000;
const WRITE_RTR_FLAG: u16 = 0x8000;
const READ_RTR_FLAG: u16 = 0x4000;
/// Number that means: not negotiated (RFC 6581 §9.1).
const NOT_NEGOTIATED: u16 = 0x3fff;

/// Enhanced data of a frame (RFC 6581 §9).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct EnhancedData {
    depths: ReadDepths,
    peer_to_peer: bool,
    /// Ready-to-receive messages: a Write, a Read. A Send of no bytes is never offered: it would have to consume no
    /// receive.
    by_write: bool,
    by_read: bool,
}

impl EnhancedData {
    fn parse_words(bytes: [u8; ENHANCED_BYTES]) -> Self {
        let [a, b, c, d] = bytes;
        let (inbound, outbound) = (u16::from_be_bytes([a, b]), u16::from_be_bytes([c, d]));
        // §9.2: without A the other flags are ignored.
        let peer_to_peer = inbound & PEER_TO_PEER_FLAG != 0;
        Self {
            depths: ReadDepths { inbound: parse_depth(inbound), outbound: parse_depth(outbound) },
            peer_to_peer,
            by_write: peer_to_peer && outbound & WRITE_RTR_FLAG != 0,
            by_read: peer_to_peer && outbound & READ_RTR_FLAG != 0,
        }
    }

    fn encode_words(self) -> [u8; ENHANCED_BYTES] {
        let mut inbound = self.depths.inbound.unwrap_or(NOT_NEGOTIATED);
        let mut outbound = self.depths.outbound.unwrap_or(NOT_NEGOTIATED);
        // §9.2: without A the other flags are zero.
        if self.peer_to_peer {
            inbound |= PEER_TO_PEER_FLAG;
            outbound |= if self.by_write { WRITE_RTR_FLAG } else { 0 };
            outbound |= if self.by_read { READ_RTR_FLAG } else { 0 };
        }
        let ([a, b], [c, d]) = (inbound.to_be_bytes(), outbound.to_be_bytes());
        [a, b, c, d]
    }
}

fn parse_depth(word: u16) -> Option<u16> {
    Some(word & NOT_NEGOTIATED).filter(|depth| *depth != NOT_NEGOTIATED)
}

fn check_depth(depth: u16) -> Result<(), StartupError> {
    if depth > MAX_READ_DEPTH { Err(StartupError::OwnDepth { depth }) } else { Ok(()) }
}

/// Makes a frame (RFC 5044 §7.1.1, RFC 6581 §6).
fn encode_frame(
    key: [u8; KEY_BYTES],
    flags: u8,
    revision: u8,
    enhanced: Option<EnhancedData>,
    private_data: &[u8],
) -> Result<Vec<u8>, StartupError> {
    let enhanced_bytes = enhanced.map_or(0, |_| ENHANCED_BYTES);
    let (bytes, limit) = (private_data.len(), MAX_PRIVATE_DATA_BYTES - enhanced_bytes);
    if bytes > limit {
        return Err(StartupError::OwnPrivateData { bytes, limit });
    }
    let mut frame = key.to_vec();
    frame.extend([flags | enhanced.map_or(0, |_| ENHANCED_FLAG), revision]);
    // At most 512, see above.
    frame.extend(((bytes + enhanced_bytes) as u16).to_be_bytes());
    frame.extend(enhanced.iter().flat_map(|data| data.encode_words()));
    frame.extend(private_data);
    Ok(frame)
}

/// A frame of the peer.
#[derive(Debug)]
struct Frame {
    flags: u8,
    revision: u8,
    enhanced: Option<EnhancedData>,
    private_data: Vec<u8>,
}

/// A frame that is being received.
#[derive(Debug)]
struct FrameReader {
    key: [u8; KEY_BYTES],
    bytes: Vec<u8>,
}

impl FrameReader {
    fn new(key: [u8; KEY_BYTES]) -> Self {
        Self { key, bytes: Vec::new() }
    }

    /// Takes bytes of the frame, and none after it. Returns how many, and the frame once it is complete.
    fn take_bytes(&mut self, input: &[u8]) -> Result<(usize, Option<Frame>), StartupError> {
        let mut taken = 0;
        loop {
            let wanted = self.wanted_bytes()?;
            if self.bytes.len() == wanted {
                return self.parse_frame().map(|frame| (taken, Some(frame)));
            }
            let now = (wanted - self.bytes.len()).min(input.len() - taken);
            if now == 0 {
                return Ok((taken, None));
            }
            self.bytes.extend(&input[taken..taken + now]);
            taken += now;
            self.check_key()?;
        }
    }

    /// Checks as much of the key as there is, so that a foreign protocol is found at its first bytes.
    fn check_key(&self) -> Result<(), StartupError> {
        let found = &self.bytes[..self.bytes.len().min(KEY_BYTES)];
        if self.key.starts_with(found) {
            Ok(())
        } else if self.key == REPLY_KEY && REQUEST_KEY.starts_with(found) {
            Err(StartupError::BothInitiators)
        } else {
            Err(StartupError::Key { expected: if self.key == REPLY_KEY { "MPA reply" } else { "MPA request" } })
        }
    }

    /// Length of the frame in bytes, as far as it is known.
    fn wanted_bytes(&self) -> Result<usize, StartupError> {
        let Some(header) = self.bytes.first_chunk::<FRAME_HEADER_BYTES>() else { return Ok(FRAME_HEADER_BYTES) };
        let bytes = usize::from(u16::from_be_bytes([header[18], header[19]]));
        if bytes > MAX_PRIVATE_DATA_BYTES {
            return Err(StartupError::PrivateData { bytes, reason: "more than 512 (RFC 5044 §7.1.1)" });
        }
        Ok(FRAME_HEADER_BYTES + bytes)
    }

    fn parse_frame(&self) -> Result<Frame, StartupError> {
        let (flags, revision) = (self.bytes[KEY_BYTES], self.bytes[KEY_BYTES + 1]);
        let private_data = &self.bytes[FRAME_HEADER_BYTES..];
        // RFC 6581 §6: the flag means something from revision 2 on. Before, it is a reserved bit, and not checked.
        if flags & ENHANCED_FLAG == 0 || revision < 2 {
            return Ok(Frame { flags, revision, enhanced: None, private_data: private_data.to_vec() });
        }
        let Some((data, private_data)) = private_data.split_first_chunk::<ENHANCED_BYTES>() else {
            let reason = "too few for the 4 bytes of enhanced set-up (RFC 6581 §9)";
            return Err(StartupError::PrivateData { bytes: private_data.len(), reason });
        };
        let enhanced = Some(EnhancedData::parse_words(*data));
        Ok(Frame { flags, revision, enhanced, private_data: private_data.to_vec() })
    }
}

/// Time that a frame of the peer may take.
#[derive(Debug, Clone, Copy)]
struct Timeout {
    timeout: Duration,
    deadline: Duration,
}

impl Timeout {
    fn new(timeout: Duration, now: Duration) -> Self {
        Self { timeout, deadline: now.saturating_add(timeout) }
    }

    fn check_time(self, now: Duration) -> Result<(), StartupError> {
        if now < self.deadline { Ok(()) } else { Err(StartupError::TimedOut { timeout: self.timeout }) }
    }
}

/// The side that sends the request.
#[derive(Debug)]
pub struct Initiator {
    offer: StartupOffer,
    enhanced: Option<EnhancedData>,
    request_frame: Vec<u8>,
    reader: FrameReader,
    timeout: Timeout,
}

impl Initiator {
    /// Returns an initiator whose peer has time from `now` on, the time since any instant.
    ///
    /// # Errors
    ///
    /// Private data or depths of the offer exceed what a frame can hold.
    pub fn new(offer: StartupOffer, now: Duration) -> Result<Self, StartupError> {
        let enhanced = offer.enhanced.map(|wished| EnhancedData {
            depths: wished.depths,
            peer_to_peer: wished.peer_to_peer,
            by_write: true,
            // RFC 6581 §9.2: all that this side can send. A Read is one of those that the ORD counts.
            by_read: wished.depths.outbound.unwrap_or(offer.default_depth) > 0,
        });
        if let Some(EnhancedData { depths, .. }) = enhanced {
            depths.inbound.into_iter().chain(depths.outbound).try_for_each(check_depth)?;
        }
        let flags = markers_flag(offer.markers) | crc_flag(offer.crc);
        // RFC 6581 §6: without enhancement the revision may be 1, which all understand.
        let revision = if enhanced.is_some() { 2 } else { 1 };
        let request_frame = encode_frame(REQUEST_KEY, flags, revision, enhanced, &offer.private_data)?;
        let timeout = Timeout::new(offer.timeout, now);
        Ok(Self { offer, enhanced, request_frame, reader: FrameReader::new(REPLY_KEY), timeout })
    }

    /// Frame to send first. Nothing is to be sent after it until the reply is there.
    pub fn request_frame(&self) -> &[u8] {
        &self.request_frame
    }

    /// Time at which [`check_deadline`](Self::check_deadline) is to be called.
    pub fn deadline(&self) -> Duration {
        self.timeout.deadline
    }

    /// Checks that the peer still has time.
    ///
    /// # Errors
    ///
    /// The deadline has passed.
    pub fn check_deadline(&self, now: Duration) -> Result<(), StartupError> {
        self.timeout.check_time(now)
    }

    /// Returns an initiator of revision 1 for a new TCP connection, where the peer has closed this one instead of
    /// replying to an enhanced request: it may not know RFC 6581 (§10). Depths are then the default ones, and without
    /// peer-to-peer set-up the program of this side must be the first to send.
    pub fn fall_back(&self, now: Duration) -> Option<Self> {
        let unenhanced = self.enhanced.is_some() && self.reader.bytes.is_empty();
        let offer = StartupOffer { enhanced: None, ..self.offer.clone() };
        if unenhanced { Self::new(offer, now).ok() } else { None }
    }

    /// Takes bytes of the reply, and none after it. Returns how many, and the answer once it is complete.
    ///
    /// # Errors
    ///
    /// The reply is not valid. TCP is to be closed.
    pub fn receive(&mut self, input: &[u8]) -> Result<(usize, Option<Reply>), StartupError> {
        let (taken, frame) = self.reader.take_bytes(input)?;
        let reply = frame.map(|frame| self.evaluate_reply(frame)).transpose()?;
        Ok((taken, reply))
    }

    fn evaluate_reply(&self, frame: Frame) -> Result<Reply, StartupError> {
        let Frame { flags, revision, enhanced, private_data } = frame;
        let (expected, wanted) = if self.enhanced.is_some() { (2, "2 was asked for") } else { (1, "1 was asked for") };
        if revision != expected {
            return Err(StartupError::Revision { found: revision, expected: wanted });
        }
        if self.enhanced.is_some() && enhanced.is_none() {
            return Err(StartupError::NotEnhanced);
        }
        let peer_depths = enhanced.map(|data| data.depths);
        if flags & REJECTED_FLAG != 0 {
            return Ok(Reply::Rejected { depths: peer_depths, private_data });
        }
        let own = self.enhanced.map(|data| data.depths).unwrap_or_default();
        let inbound_requests = own.inbound.unwrap_or(self.offer.default_depth);
        let outbound_limit = own.outbound.unwrap_or(self.offer.default_depth);
        let peer = peer_depths.unwrap_or_default();
        let mut connection = Connection {
            crc: self.offer.crc || flags & CRC_FLAG != 0,
            send_markers: flags & MARKERS_FLAG != 0,
            receive_markers: self.offer.markers,
            inbound_requests,
            // RFC 6581 §9.1: at most the responder's IRD; unchanged where that is not negotiated.
            outbound_requests: peer.inbound.filter(|_| own.outbound.is_some()).unwrap_or(u16::MAX).min(outbound_limit),
            first_message: FirstMessage::Either,
            peer_depths,
        };
        // At least the responder's ORD. What was offered is all there is.
        if own.inbound.is_some() && peer.outbound.is_some_and(|outbound| outbound > inbound_requests) {
            return Ok(Reply::Unusable { connection, error: ErrorCode::MPA_INSUFFICIENT_IRD });
        }
        if let (Some(own), Some(peer)) = (self.enhanced, enhanced)
            && own.peer_to_peer
        {
            connection.first_message = match peer {
                EnhancedData { by_write: true, .. } => FirstMessage::ReadyByWrite,
                EnhancedData { by_read: true, .. } if own.by_read && connection.outbound_requests > 0 => {
                    FirstMessage::ReadyByRead
                }
                _ => return Ok(Reply::Unusable { connection, error: ErrorCode::MPA_NO_MATCHING_RTR }),
            };
        }
        Ok(Reply::Accepted { connection, private_data })
    }
}

fn markers_flag(markers: bool) -> u8 {
    if markers { MARKERS_FLAG } else { 0 }
}

fn crc_flag(crc: bool) -> u8 {
    if crc { CRC_FLAG } else { 0 }
}

/// The side that waits for a request.
#[derive(Debug)]
pub struct Responder {
    reader: FrameReader,
    timeout: Timeout,
}

impl Responder {
    /// Returns a responder whose peer has so much time from `now` on, the time since any instant.
    pub fn new(timeout: Duration, now: Duration) -> Self {
        Self { reader: FrameReader::new(REQUEST_KEY), timeout: Timeout::new(timeout, now) }
    }

    /// Time at which [`check_deadline`](Self::check_deadline) is to be called.
    pub fn deadline(&self) -> Duration {
        self.timeout.deadline
    }

    /// Checks that the peer still has time.
    ///
    /// # Errors
    ///
    /// The deadline has passed.
    pub fn check_deadline(&self, now: Duration) -> Result<(), StartupError> {
        self.timeout.check_time(now)
    }

    /// Takes bytes of the request, and none after it. Returns how many, and the request once it is complete.
    ///
    /// # Errors
    ///
    /// The request is not valid. TCP is to be closed.
    pub fn receive(&mut self, input: &[u8]) -> Result<(usize, Option<Request>), StartupError> {
        let (taken, frame) = self.reader.take_bytes(input)?;
        let Some(Frame { flags, revision, enhanced, private_data }) = frame else { return Ok((taken, None)) };
        if !(1..=2).contains(&revision) {
            return Err(StartupError::Revision { found: revision, expected: "1 and 2 are understood" });
        }
        // RFC 5044 §7.1.1: the reject bit and the reserved ones are not checked in a request.
        Ok((taken, Some(Request { flags, revision, enhanced, private_data })))
    }
}

/// A request for a connection, to be accepted or rejected.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Request {
    flags: u8,
    revision: u8,
    enhanced: Option<EnhancedData>,
    private_data: Vec<u8>,
}

impl Request {
    /// Revision of MPA that the initiator speaks.
    pub fn revision(&self) -> u8 {
        self.revision
    }

    /// Bytes of the initiator's program.
    pub fn private_data(&self) -> &[u8] {
        &self.private_data
    }

    /// Depths as the initiator stated them: its own. None without enhanced set-up.
    pub fn depths(&self) -> Option<ReadDepths> {
        self.enhanced.map(|data| data.depths)
    }

    /// Whether the initiator will send a ready-to-receive message by itself.
    pub fn is_peer_to_peer(&self) -> bool {
        self.enhanced.is_some_and(|data| data.peer_to_peer)
    }

    /// Most private data of a reply, in bytes.
    pub fn private_data_limit(&self) -> usize {
        MAX_PRIVATE_DATA_BYTES - self.enhanced.map_or(0, |_| ENHANCED_BYTES)
    }

    /// Returns the reply to send and the terms of the connection.
    ///
    /// # Errors
    ///
    /// Private data or depths exceed what a frame can hold.
    pub fn accept(&self, acceptance: &Acceptance) -> Result<(Vec<u8>, Connection), StartupError> {
        let Acceptance { crc, markers, inbound_requests, outbound_requests, .. } = *acceptance;
        let mut connection = Connection {
            crc: crc || self.flags & CRC_FLAG != 0,
            send_markers: self.flags & MARKERS_FLAG != 0,
            receive_markers: markers,
            inbound_requests,
            outbound_requests,
            first_message: FirstMessage::AwaitPeer,
            peer_depths: self.depths(),
        };
        let enhanced = self.enhanced.map(|asked| {
            // RFC 6581 §9.1: a number that is not negotiated is answered by the same. Else as many Reads as the
            // initiator wants, one for a ready-to-receive message at least, as far as there is room for them; and no
            // more of this side's own than the initiator serves.
            if let Some(wanted) = asked.depths.outbound {
                connection.inbound_requests = inbound_requests.min(wanted.max(1));
            }
            connection.outbound_requests = asked.depths.inbound.unwrap_or(u16::MAX).min(outbound_requests);
            EnhancedData {
                depths: ReadDepths {
                    inbound: asked.depths.outbound.map(|_| connection.inbound_requests),
                    outbound: asked.depths.inbound.map(|_| connection.outbound_requests),
                },
                // §9.2: all that this side can receive.
                peer_to_peer: asked.peer_to_peer,
                by_write: true,
                by_read: connection.inbound_requests > 0,
            }
        });
        if let Some(EnhancedData { depths, .. }) = enhanced {
            depths.inbound.into_iter().chain(depths.outbound).try_for_each(check_depth)?;
        }
        // Where CRCs are used they are declared: the initiator may have looked only at the reply.
        let flags = markers_flag(markers) | crc_flag(connection.crc);
        let frame = encode_frame(REPLY_KEY, flags, self.revision, enhanced, &acceptance.private_data)?;
        Ok((frame, connection))
    }

    /// Returns the reply that rejects the request: TCP then stays open, without MPA (RFC 5044 §7.1.2 rule 2). The depths
    /// are those that would be needed (RFC 6581 §9.1); without enhanced set-up they are not sent.
    ///
    /// # Errors
    ///
    /// Private data or depths exceed what a frame can hold.
    pub fn reject(&self, private_data: &[u8], depths: ReadDepths) -> Result<Vec<u8>, StartupError> {
        depths.inbound.into_iter().chain(depths.outbound).try_for_each(check_depth)?;
        let enhanced = self.enhanced.map(|asked| EnhancedData {
            depths,
            peer_to_peer: asked.peer_to_peer,
            by_write: true,
            by_read: true,
        });
        encode_frame(REPLY_KEY, (self.flags & CRC_FLAG) | REJECTED_FLAG, self.revision, enhanced, private_data)
    }
}
