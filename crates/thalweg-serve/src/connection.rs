//! One client: its requests, one after the other.

use crate::answer::{Answer, Content, Piece};
use crate::client::Doing;
use crate::head::{self, Body, Head};
use crate::server::{Counters, Ways};
use crate::site::Site;
use crate::upload::{self, Upload};
use crate::wire::Wire;
use http::header::{CONNECTION, CONTENT_LENGTH, DATE, EXPECT, SERVER};
use http::{Method, StatusCode, Version};
use std::io::{self, Read};
use std::ops::Range;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant, SystemTime};
use thalweg_transfer::{Incoming, Outward, Receiver, Sender, Stored, cached_bytes};

/// A client's requests.
pub(crate) struct Connection<'a> {
    wire: Wire,
    site: &'a Site,
    ways: Ways,
    counters: &'a Counters,
    /// How long the client may send nothing.
    patience: Duration,
    /// Told what goes on.
    note: &'a dyn Fn(Doing),
    /// Bytes that came and were not looked at yet.
    ahead: Vec<u8>,
    sender: Sender,
    receiver: Receiver,
}

/// What happens to the connection.
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
        patience: Duration,
        note: &'a dyn Fn(Doing),
    ) -> Self {
        let (sender, receiver) = (Sender::new(), Receiver::new());
        Self { wire, site, ways, counters, patience, note, ahead: Vec::new(), sender, receiver }
    }

    /// Answers requests until the client goes, or has to.
    pub(crate) fn serve(mut self) -> io::Result<()> {
        while let Some(head) = self.head()? {
            (self.note)(Doing::Answer);
            let next = match head {
                Ok(head) => self.answer(&head)?,
                Err((status, sentence)) => self.send(Answer::say(status, sentence), None)?,
            };
            self.counters.requests.fetch_add(1, Ordering::Relaxed);
            (self.note)(Doing::Rest);
            if next == Next::Close {
                self.wire.close(Instant::now() + LINGER.min(self.patience));
                break;
            }
        }
        Ok(())
    }

    /// The next request; nothing when the client has gone, or has nothing to ask.
    fn head(&mut self) -> io::Result<Option<Result<Head, head::Refused>>> {
        let head_time = HEAD_TIME.min(self.patience);
        let mut until = Instant::now() + if self.ahead.is_empty() { self.patience } else { head_time };
        let head = loop {
            match head::parse(&self.ahead) {
                Ok(Some((head, length))) => {
                    self.ahead.drain(..length);
                    break Some(Ok(head));
                }
                Ok(None) => {}
                Err(refused) => break Some(Err(refused)),
            }
            self.wire.read_until(Some(until));
            let mut buffer = [0; 4096];
            match self.wire.read(&mut buffer) {
                Ok(0) => break None,
                Ok(read) => {
                    if self.ahead.is_empty() {
                        // The rest has to come soon.
                        until = Instant::now() + head_time;
                    }
                    self.ahead.extend_from_slice(&buffer[..read]);
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::TimedOut && !self.ahead.is_empty() => {
                    break Some(Err((StatusCode::REQUEST_TIMEOUT, "the request's head took too long")));
                }
                // Nothing asked for in a long time, or it has gone.
                Err(_) => break None,
            }
        };
        self.wire.read_until(None);
        Ok(head)
    }

    fn answer(&mut self, head: &Head) -> io::Result<Next> {
        let about_upload = upload::is_about_upload(head);
        let answer = match head.method {
            Method::PUT if !about_upload => return self.put(head),
            Method::HEAD if about_upload => upload::offset(self.site, head),
            Method::DELETE if about_upload => upload::discard(self.site, head),
            _ => self.site.answer(head),
        };
        // A body that nobody wanted is not read.
        let answer = if head.body == Body::Length(0) { answer } else { answer.closing() };
        self.send(answer, Some(head))
    }

    fn put(&mut self, head: &Head) -> io::Result<Next> {
        let mut upload = match Upload::begin(self.site, head) {
            Ok(upload) => upload,
            Err(answer) => return self.send(answer.closing(), Some(head)),
        };
        let expects =
            head.fields.get(EXPECT).is_some_and(|value| value.as_bytes().eq_ignore_ascii_case(b"100-continue"));
        if expects && head.version > 0 && self.ahead.is_empty() {
            self.wire.send(b"HTTP/1.1 100 Continue\r\n\r\n", false)?;
        }
        let Body::Length(length) = head.body else { return Ok(Next::Close) };
        let first = std::mem::take(&mut self.ahead);
        let (ours, rest) = first.split_at(usize::try_from(length).unwrap_or(usize::MAX).min(first.len()));
        self.ahead = rest.to_vec();
        let received = match &mut self.wire {
            Wire::Plain(socket) => {
                let mut rest = &*socket;
                let mut incoming = Incoming { first: ours, rest: &mut rest, socket: Some(socket.stream().as_fd()) };
                upload.receive(&mut self.receiver, self.ways.inward, &mut incoming, self.note)
            }
            Wire::Tls(stream) => {
                let mut incoming = Incoming { first: ours, rest: stream, socket: None };
                upload.receive(&mut self.receiver, self.ways.inward, &mut incoming, self.note)
            }
        };
        match received {
            Ok(Ok(())) => {
                self.counters.received.fetch_add(length, Ordering::Relaxed);
                let answer = upload.finish(head);
                self.send(answer, Some(head))
            }
            Ok(Err(answer)) => self.send(answer.closing(), Some(head)),
            Err(error) => {
                tracing::info!("an upload of {} broke off: {error}", head.path);
                Ok(Next::Close)
            }
        }
    }

    /// Sends an answer, to a request or to something that is none.
    fn send(&mut self, answer: Answer, to: Option<&Head>) -> io::Result<Next> {
        let Answer { status, mut fields, content, close } = answer;
        let keep = to.is_some_and(|head| head.keep) && !close;
        let bodiless = status == StatusCode::NO_CONTENT || status == StatusCode::NOT_MODIFIED;
        if !bodiless {
            fields.insert(CONTENT_LENGTH, content.length.into());
        }
        let mut text = Vec::with_capacity(512);
        text.extend_from_slice(
            format!("{:?} {} {}\r\n", Version::HTTP_11, status.as_str(), status.canonical_reason().unwrap_or(""))
                .as_bytes(),
        );
        for (name, value) in fields.iter() {
            put_field(&mut text, name.as_str(), value.as_bytes());
        }
        put_field(&mut text, DATE.as_str(), httpdate::fmt_http_date(SystemTime::now()).as_bytes());
        put_field(&mut text, SERVER.as_str(), concat!("thalweg/", env!("CARGO_PKG_VERSION")).as_bytes());
        if !keep {
            put_field(&mut text, CONNECTION.as_str(), b"close");
        } else if to.is_some_and(|head| head.version == 0) {
            put_field(&mut text, CONNECTION.as_str(), b"keep-alive");
        }
        text.extend_from_slice(b"\r\n");
        if let Some(head) = to {
            tracing::info!("{} {} {} {}", head.method, head.path, status.as_u16(), content.length);
        }
        let without_body = bodiless || to.is_some_and(|head| head.method == Method::HEAD);
        if without_body || content.length == 0 {
            self.wire.send(&text, false)?;
        } else {
            self.content(text, content)?;
        }
        Ok(if keep { Next::Request } else { Next::Close })
    }

    /// Sends a head, and the content behind it.
    fn content(&mut self, mut before: Vec<u8>, content: Content) -> io::Result<()> {
        let mut left = content.length;
        for piece in content.pieces {
            match piece {
                Piece::Bytes(bytes) => {
                    left -= bytes.len() as u64;
                    before.extend_from_slice(&bytes);
                }
                Piece::File(file, range) => {
                    left -= range.end - range.start;
                    self.wire.send(&before, true)?;
                    before.clear();
                    self.file(&file, range, left > 0)?;
                }
            }
        }
        if before.is_empty() { Ok(()) } else { self.wire.send(&before, false) }
    }

    fn file(&mut self, file: &Arc<Stored>, range: Range<u64>, more: bool) -> io::Result<()> {
        if self.wire.clear().is_none() {
            return self.through_tls(file, range);
        }
        let mut at = range.start;
        while at < range.end {
            let piece = at..range.end.min(at + PIECE);
            let way = self.way(file, &piece);
            let Some(socket) = self.wire.clear() else { return Err(io::ErrorKind::NotConnected.into()) };
            self.sender.send(way, file, piece.clone(), socket, more || piece.end < range.end)?;
            self.counters.sent.fetch_add(piece.end - piece.start, Ordering::Relaxed);
            at = piece.end;
        }
        Ok(())
    }

    /// The way for some bytes: what the page cache holds goes out of it, the rest passes it by.
    fn way(&self, file: &Stored, piece: &Range<u64>) -> Outward {
        let length = piece.end - piece.start;
        if self.ways.cached == self.ways.uncached || length < SMALL {
            return self.ways.cached;
        }
        // A kernel without `cachestat` does not say: then it is as if it were there.
        match cached_bytes(file.file(), piece) {
            Ok(cached) if cached < length / 2 => self.ways.uncached,
            _ => self.ways.cached,
        }
    }

    fn through_tls(&mut self, file: &Stored, range: Range<u64>) -> io::Result<()> {
        use std::os::unix::fs::FileExt;
        let mut buffer = vec![0; 64 << 10];
        let mut at = range.start;
        while at < range.end {
            let length = usize::try_from(range.end - at).unwrap_or(usize::MAX).min(buffer.len());
            file.file().read_exact_at(&mut buffer[..length], at)?;
            self.wire.send(&buffer[..length], false)?;
            at += length as u64;
            self.counters.sent.fetch_add(length as u64, Ordering::Relaxed);
        }
        Ok(())
    }
}

fn put_field(text: &mut Vec<u8>, name: &str, value: &[u8]) {
    text.extend_from_slice(name.as_bytes());
    text.extend_from_slice(b": ");
    text.extend_from_slice(value);
    text.extend_from_slice(b"\r\n");
}

/// How long a request's head may take from its first byte on, and a TLS handshake.
pub(crate) const HEAD_TIME: Duration = Duration::from_secs(10);
/// How long what a refused client still sends is thrown away.
const LINGER: Duration = Duration::from_secs(2);
/// Bytes for which it is decided at once how they are sent.
const PIECE: u64 = 32 << 20;
/// Bytes that are not worth the question.
const SMALL: u64 = 64 << 10;
