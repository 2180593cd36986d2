//! A client with a thread of its own: reads its requests and answers them in order.

use crate::answer::{Answer, Piece};
use crate::client::Activity;
use crate::coding::Coding;
use crate::counters::{Counters, Ways};
use crate::head::{self, Body, Head};
use crate::limits::{HEAD_TIME, LINGER_TIME};
use crate::outgoing::{Handoff, Outgoing};
use crate::site::Site;
use crate::upload::{self, Upload};
use crate::wire::Wire;
use http::StatusCode;
use http::header::EXPECT;
use std::collections::VecDeque;
use std::io::{self, Read, Write};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};
use thalweg_transfer::{Incoming, Outward, Receiver, Sender, Stored, cached_bytes};

/// The requests of one client.
pub(crate) struct Connection<'a> {
    wire: Wire,
    site: &'a Site,
    ways: Ways,
    counters: &'a Counters,
    /// Time after which a client that sends nothing is disconnected.
    timeout: Duration,
    /// Called with each change of activity.
    note: &'a dyn Fn(Activity),
    /// Bytes that arrived and were not parsed yet.
    ahead: Vec<u8>,
    sender: Sender,
    receiver: Receiver,
}

/// The next step of the connection.
#[derive(Debug, PartialEq, Eq)]
enum Next {
    Request,
    Close,
}

impl<'a> Connection<'a> {
    pub(crate) fn new(
        wire: Wire,
        site: &'a Site,
        ways: Ways,
        counters: &'a Counters,
        timeout: Duration,
        note: &'a dyn Fn(Activity),
    ) -> Self {
        let (sender, receiver) = (Sender::new(), Receiver::new());
        Self { wire, site, ways, counters, timeout, note, ahead: Vec::new(), sender, receiver }
    }

    /// Continues what another thread began, then answers requests until the client closes or has to be disconnected
    /// (`None`), or asks for something that needs no thread: the returned handoff is for an event loop to continue.
    pub(crate) fn serve_requests(mut self, begun: Handoff) -> io::Result<Option<Handoff>> {
        self.ahead = begun.ahead;
        let begun_with_nothing = begun.answer.is_none();
        let mut next = match begun.answer {
            Some(answer) => self.count_answer(|connection| connection.send_outgoing(answer))?,
            None => Next::Request,
        };
        if begun_with_nothing && self.should_wait_in_loop() && !self.wire.read_available(&mut self.ahead)? {
            next = Next::Close;
        }
        while next == Next::Request {
            if self.should_wait_in_loop() {
                return Ok(Some(Handoff { ahead: self.ahead, answer: None }));
            }
            let Some(head) = self.read_head()? else {
                self.wire.close_until(Instant::now());
                return Ok(None);
            };
            next = match head {
                Err((status, sentence)) => self
                    .count_answer(|connection| connection.send_answer(Answer::with_sentence(status, sentence), None))?,
                Ok(head) if upload::is_upload_request(&head) => {
                    self.count_answer(|connection| connection.receive_upload(&head))?
                }
                Ok(head) => {
                    (self.note)(Activity::Answer);
                    let answer = Outgoing::new(self.site.answer_request(&head), Some(&head));
                    if self.wire.plain_descriptor().is_some() && answer.can_send_at_once(self.ways.cached) {
                        return Ok(Some(Handoff { ahead: self.ahead, answer: Some(answer) }));
                    }
                    self.count_answer(|connection| connection.send_outgoing(answer))?
                }
            };
        }
        self.wire.close_until(Instant::now() + LINGER_TIME.min(self.timeout));
        Ok(None)
    }

    /// Returns whether no complete request is here and an event loop should wait for the next one: only there an
    /// incomplete TLS record costs nothing.
    fn should_wait_in_loop(&self) -> bool {
        self.wire.is_kernel_encrypted() && matches!(head::parse_head(&self.ahead), Ok(None))
    }

    fn count_answer(&mut self, answer: impl FnOnce(&mut Self) -> io::Result<Next>) -> io::Result<Next> {
        (self.note)(Activity::Answer);
        let next = answer(self)?;
        self.counters.requests.fetch_add(1, Ordering::Relaxed);
        (self.note)(Activity::Rest);
        Ok(next)
    }

    /// Returns the next request, or `None` if the client has gone or has nothing to ask.
    fn read_head(&mut self) -> io::Result<Option<Result<Head, head::Refusal>>> {
        let head_time = HEAD_TIME.min(self.timeout);
        let mut until = Instant::now() + if self.ahead.is_empty() { self.timeout } else { head_time };
        let head = loop {
            match head::parse_head(&self.ahead) {
                Ok(Some((head, length))) => {
                    self.ahead.drain(..length);
                    break Some(Ok(head));
                }
                Ok(None) => {}
                Err(refused) => break Some(Err(refused)),
            }
            self.wire.set_read_deadline(Some(until));
            let mut buffer = [0; 4096];
            match self.wire.read(&mut buffer) {
                Ok(0) => break None,
                Ok(read) => {
                    if self.ahead.is_empty() {
                        // The rest of the head has to arrive soon.
                        until = Instant::now() + head_time;
                    }
                    self.ahead.extend_from_slice(&buffer[..read]);
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::TimedOut && !self.ahead.is_empty() => {
                    break Some(Err((StatusCode::REQUEST_TIMEOUT, "the request header took too long")));
                }
                // No request for a long time, or the client has gone.
                Err(_) => break None,
            }
        };
        self.wire.set_read_deadline(None);
        Ok(head)
    }

    fn receive_upload(&mut self, head: &Head) -> io::Result<Next> {
        let mut upload = match Upload::open_hidden_file(self.site, head) {
            Ok(upload) => upload,
            Err(answer) => return self.send_answer(answer.with_close(), Some(head)),
        };
        let expects =
            head.fields.get(EXPECT).is_some_and(|value| value.as_bytes().eq_ignore_ascii_case(b"100-continue"));
        if expects && head.version > 0 && self.ahead.is_empty() {
            self.wire.send_all_bytes(b"HTTP/1.1 100 Continue\r\n\r\n", false)?;
        }
        let Body::Length(length) = head.body else { return Ok(Next::Close) };
        let first = std::mem::take(&mut self.ahead);
        let (ours, rest) = first.split_at(usize::try_from(length).unwrap_or(usize::MAX).min(first.len()));
        self.ahead = rest.to_vec();
        let before = upload.received_bytes();
        let received = match &mut self.wire {
            Wire::Socket(socket) => {
                let mut rest = &*socket;
                let mut incoming = Incoming { first: ours, rest: &mut rest, socket: socket.plain_descriptor() };
                upload.receive_body(&mut self.receiver, self.ways.inward, &mut incoming, self.note)
            }
            Wire::Rustls(stream) => {
                let mut incoming = Incoming { first: ours, rest: stream, socket: None };
                upload.receive_body(&mut self.receiver, self.ways.inward, &mut incoming, self.note)
            }
        };
        self.counters.received.fetch_add(upload.received_bytes() - before, Ordering::Relaxed);
        match received {
            Ok(Ok(())) => {
                let answer = upload.publish_if_complete(head);
                self.send_answer(answer, Some(head))
            }
            Ok(Err(answer)) => self.send_answer(answer.with_close(), Some(head)),
            Err(error) => {
                // Unlocks the file: another connection may resume the upload from here on.
                drop(upload);
                tracing::info!("an upload of {} ended early: {error}", head.path);
                Ok(Next::Close)
            }
        }
    }

    /// Sends an answer, to a request or to bytes that are no valid request.
    fn send_answer(&mut self, answer: Answer, to: Option<&Head>) -> io::Result<Next> {
        self.send_outgoing(Outgoing::new(answer, to))
    }

    fn send_outgoing(&mut self, mut answer: Outgoing) -> io::Result<Next> {
        if let Some(coding) = answer.coding {
            self.send_encoded(coding, answer.pieces)?;
            return Ok(if answer.keep { Next::Request } else { Next::Close });
        }
        while let Some(piece) = answer.pieces.pop_front() {
            let more = !answer.pieces.is_empty();
            match piece {
                Piece::Bytes(bytes) => self.wire.send_all_bytes(&bytes, more)?,
                Piece::File(file, range) => self.send_file(&file, range, more)?,
            }
        }
        Ok(if answer.keep { Next::Request } else { Next::Close })
    }

    /// Sends the first piece as it is and all others coded.
    fn send_encoded(&mut self, coding: Coding, mut pieces: VecDeque<Piece>) -> io::Result<()> {
        if let Some(Piece::Bytes(head)) = pieces.pop_front() {
            self.wire.send_all_bytes(&head, true)?;
        }
        let mut buffer = vec![0; CHUNK_BYTES];
        let chunks = Chunks { connection: self, bytes: Vec::with_capacity(CHUNK_BYTES + 2), broken: false };
        let chunks = coding.encode_stream(chunks, |encoder| {
            for piece in pieces {
                match piece {
                    Piece::Bytes(bytes) => encoder.write_all(&bytes)?,
                    Piece::File(file, range) => {
                        thalweg_transfer::read_in_parts(file.buffered_file(), range, &mut buffer, |bytes| {
                            encoder.write_all(bytes)
                        })?
                    }
                }
            }
            Ok(())
        })?;
        chunks.finish_chunks()
    }

    fn send_file(&mut self, file: &Arc<Stored>, range: Range<u64>, more: bool) -> io::Result<()> {
        if self.wire.plain_descriptor().is_none() {
            return self.send_through_rustls(file, range);
        }
        let mut at = range.start;
        while at < range.end {
            let piece = at..range.end.min(at + PIECE_BYTES);
            let way = self.choose_method(file, &piece);
            let Some(socket) = self.wire.plain_descriptor() else { return Err(io::ErrorKind::NotConnected.into()) };
            self.sender.send_range(way, file, piece.clone(), socket, more || piece.end < range.end)?;
            self.wire.count_sent_bytes(piece.end - piece.start)?;
            self.counters.sent.fetch_add(piece.end - piece.start, Ordering::Relaxed);
            at = piece.end;
        }
        Ok(())
    }

    /// Returns the method for some bytes: cached bytes are sent from the page cache, others bypass it.
    fn choose_method(&self, file: &Stored, piece: &Range<u64>) -> Outward {
        let length = piece.end - piece.start;
        if self.ways.cached == self.ways.uncached || length < MIN_QUERIED_BYTES {
            return self.ways.cached;
        }
        // A kernel without `cachestat` cannot tell; the bytes are then treated as cached.
        match cached_bytes(file.buffered_file(), piece) {
            Ok(cached) if cached < length / 2 && Sender::can_send(self.ways.uncached, file) => self.ways.uncached,
            _ => self.ways.cached,
        }
    }

    fn send_through_rustls(&mut self, file: &Stored, range: Range<u64>) -> io::Result<()> {
        thalweg_transfer::read_in_parts(file.buffered_file(), range, &mut vec![0; CHUNK_BYTES], |bytes| {
            self.wire.send_all_bytes(bytes, false)?;
            self.counters.sent.fetch_add(bytes.len() as u64, Ordering::Relaxed);
            Ok(())
        })
    }
}

/// Sends all bytes written to it in chunks (RFC 9112, section 7.1).
struct Chunks<'a, 'b> {
    connection: &'a mut Connection<'b>,
    /// Bytes of the next chunk.
    bytes: Vec<u8>,
    /// True if the last chunk was not sent. An encoder tries to finish its output even then.
    broken: bool,
}

impl Chunks<'_, '_> {
    fn send_chunk(&mut self) -> io::Result<()> {
        let length = self.bytes.len();
        if std::mem::replace(&mut self.broken, true) {
            return Err(io::ErrorKind::BrokenPipe.into());
        }
        if length > 0 {
            let wire = &mut self.connection.wire;
            wire.send_all_bytes(format!("{length:x}\r\n").as_bytes(), true)?;
            self.bytes.extend_from_slice(b"\r\n");
            wire.send_all_bytes(&self.bytes, true)?;
            self.bytes.clear();
            self.connection.counters.sent.fetch_add(length as u64, Ordering::Relaxed);
        }
        self.broken = false;
        Ok(())
    }

    fn finish_chunks(mut self) -> io::Result<()> {
        self.send_chunk()?;
        self.connection.wire.send_all_bytes(b"0\r\n\r\n", false)
    }
}

impl Write for Chunks<'_, '_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.broken {
            return Err(io::ErrorKind::BrokenPipe.into());
        }
        let length = bytes.len().min(CHUNK_BYTES - self.bytes.len());
        self.bytes.extend_from_slice(&bytes[..length]);
        if self.bytes.len() == CHUNK_BYTES {
            self.send_chunk()?;
        }
        Ok(length)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Number of bytes for which the method is chosen at once.
const PIECE_BYTES: u64 = 32 << 20;
/// Number of bytes read, then encrypted or coded, at a time.
const CHUNK_BYTES: usize = 64 << 10;
/// Range length, in bytes, below which the page cache is not queried.
const MIN_QUERIED_BYTES: u64 = 64 << 10;
