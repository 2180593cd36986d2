//! An answer that is being sent.

use crate::answer::{Answer, Piece};
use crate::coding::Coding;
use crate::head::Head;
use http::header::{CONNECTION, CONTENT_LENGTH, DATE, SERVER, TRANSFER_ENCODING};
use http::{HeaderValue, Method, StatusCode, Version};
use std::collections::VecDeque;
use std::ops::Range;
use std::time::SystemTime;
use thalweg_transfer::{SendMethod, Sender, seems_cached};

/// State of a client that one thread hands over to another.
#[derive(Debug, Default)]
pub(crate) struct Handoff {
    /// Bytes that the client sent and that were not answered yet.
    pub(crate) ahead: Vec<u8>,
    /// Answer to send, or the rest of one.
    pub(crate) answer: Option<Outgoing>,
}

/// The part of an answer that is left to send.
#[derive(Debug)]
pub(crate) struct Outgoing {
    /// The head, first, and the content; no two adjacent pieces are both bytes in memory.
    pub(crate) pieces: VecDeque<Piece>,
    /// Coding of all pieces after the first one, which are then sent in chunks.
    pub(crate) coding: Option<Coding>,
    /// True if another request may follow on the connection.
    pub(crate) keep: bool,
}

impl Outgoing {
    /// Prepares an answer to a request, or to bytes that are no valid request.
    pub(crate) fn new(answer: Answer, to: Option<&Head>) -> Self {
        let Answer { status, mut fields, content, coding, close } = answer;
        let keep = to.is_some_and(|head| head.keep) && !close;
        let bodiless = status == StatusCode::NO_CONTENT || status == StatusCode::NOT_MODIFIED;
        if coding.is_some() {
            fields.insert(TRANSFER_ENCODING, HeaderValue::from_static("chunked"));
        } else if !bodiless {
            fields.insert(CONTENT_LENGTH, content.length.into());
        }
        let mut text = Vec::with_capacity(512);
        text.extend_from_slice(
            format!("{:?} {} {}\r\n", Version::HTTP_11, status.as_str(), status.canonical_reason().unwrap_or(""))
                .as_bytes(),
        );
        for (name, value) in fields.iter() {
            append_field(&mut text, name.as_str(), value.as_bytes());
        }
        append_field(&mut text, DATE.as_str(), httpdate::fmt_http_date(SystemTime::now()).as_bytes());
        append_field(&mut text, SERVER.as_str(), concat!("thalweg/", env!("CARGO_PKG_VERSION")).as_bytes());
        if !keep {
            append_field(&mut text, CONNECTION.as_str(), b"close");
        } else if to.is_some_and(|head| head.version == 0) {
            append_field(&mut text, CONNECTION.as_str(), b"keep-alive");
        }
        text.extend_from_slice(b"\r\n");
        if let Some(head) = to {
            tracing::info!("{} {} {} {}", head.method, head.path, status.as_u16(), content.length);
        }
        let mut pieces = VecDeque::from([Piece::Bytes(text)]);
        let without_body = bodiless || to.is_some_and(|head| head.method == Method::HEAD);
        for piece in content.pieces.into_iter().filter(|_| !without_body) {
            match (pieces.back_mut(), piece) {
                (Some(Piece::Bytes(before)), Piece::Bytes(bytes)) => before.extend_from_slice(&bytes),
                (_, Piece::File(_, range)) if range.is_empty() => {}
                (_, piece) => pieces.push_back(piece),
            }
        }
        Self { pieces, coding: coding.filter(|_| !without_body), keep }
    }

    /// Returns whether an event loop can begin to send the answer this way: without waiting for the disk, as far as
    /// known.
    pub(crate) fn can_send_at_once(&self, way: SendMethod) -> bool {
        let mut files = self.pieces.iter().filter_map(|piece| match piece {
            Piece::Bytes(_) => None,
            Piece::File(file, range) => Some((file, range)),
        });
        self.coding.is_none()
            && files.next().is_none_or(|(file, range)| {
                Sender::supports_send_some(way) && seems_cached(file.buffered_file(), &range_of_turn(range))
            })
    }
}

/// Returns the part of a range that one client gets before others get their turn.
pub(crate) fn range_of_turn(range: &Range<u64>) -> Range<u64> {
    range.start..range.end.min(range.start + MAX_SPLICE_BYTES)
}

/// Number of bytes that one `splice` moves through a pipe of the maximum size.
const MAX_SPLICE_BYTES: u64 = 1 << 20;

fn append_field(text: &mut Vec<u8>, name: &str, value: &[u8]) {
    text.extend_from_slice(name.as_bytes());
    text.extend_from_slice(b": ");
    text.extend_from_slice(value);
    text.extend_from_slice(b"\r\n");
}
