//! An answer: status, header fields, and bytes from memory or from files.

use crate::coding::Coding;
use crate::fields::{DIGEST, REPR_DIGEST};
use crate::range::{Part, select_part};
use http::header::{ACCEPT_RANGES, CONTENT_ENCODING, CONTENT_RANGE, CONTENT_TYPE};
use http::{HeaderMap, HeaderName, HeaderValue, StatusCode};
use std::fmt::Write;
use std::ops::Range;
use std::sync::Arc;
use thalweg_transfer::Stored;

/// An answer to a request.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: StatusCode,
    pub(crate) fields: Box<HeaderMap>,
    pub(crate) content: Content,
    /// Coding applied to the content while it is sent.
    pub(crate) coding: Option<Coding>,
    /// True if the connection closes after this answer: bytes that the client still sends would be mistaken for a
    /// request.
    pub(crate) close: bool,
}

/// A sequence of bytes, some of them in files.
#[derive(Debug, Clone, Default)]
pub(crate) struct Content {
    pub(crate) pieces: Vec<Piece>,
    pub(crate) length: u64,
}

/// A contiguous part of a content.
#[derive(Debug, Clone)]
pub(crate) enum Piece {
    Bytes(Vec<u8>),
    File(Arc<Stored>, Range<u64>),
}

impl Answer {
    pub(crate) fn new(status: StatusCode) -> Self {
        Self { status, fields: Box::default(), content: Content::default(), coding: None, close: false }
    }

    /// Returns an answer whose content is one sentence, for a human reader.
    pub(crate) fn with_sentence(status: StatusCode, sentence: impl Into<String>) -> Self {
        let mut text = sentence.into();
        text.push('\n');
        Self::new(status).with_field(CONTENT_TYPE, "text/plain; charset=utf-8").with_bytes(text.into_bytes())
    }

    /// Adds a field. An invalid value is omitted: all values are made here, except for names of files.
    pub(crate) fn with_field(mut self, name: HeaderName, value: impl AsRef<str>) -> Self {
        if let Ok(value) = HeaderValue::from_str(value.as_ref()) {
            self.fields.insert(name, value);
        }
        self
    }

    pub(crate) fn with_bytes(self, bytes: Vec<u8>) -> Self {
        let mut content = Content::default();
        content.push_bytes(bytes);
        self.with_content(content)
    }

    pub(crate) fn with_content(mut self, content: Content) -> Self {
        self.content = content;
        self
    }

    /// Sets the coding applied while the answer is sent. The digests are of the stored bytes and are removed.
    pub(crate) fn with_coding(mut self, coding: Coding) -> Self {
        self.coding = Some(coding);
        for digest in [REPR_DIGEST, DIGEST] {
            self.fields.remove(digest);
        }
        self.with_field(CONTENT_ENCODING, coding.field_name())
    }

    pub(crate) fn with_close(mut self) -> Self {
        self.close = true;
        self
    }

    /// Applies a `Range` field (RFC 9110, section 14) to an answer that has the whole content and status 200.
    pub(crate) fn with_range(mut self, range: Option<&str>) -> Self {
        self = self.with_field(ACCEPT_RANGES, "bytes");
        let length = self.content.length;
        match range.map_or(Part::Whole, |field| select_part(field, length)) {
            Part::Whole => self,
            Part::Unsatisfiable => {
                let answer = Self::with_sentence(StatusCode::RANGE_NOT_SATISFIABLE, format!("it has {length} bytes"));
                answer.with_field(CONTENT_RANGE, format!("bytes */{length}"))
            }
            Part::Ranges(ranges) if ranges.len() == 1 => {
                let range = ranges[0].clone();
                self.status = StatusCode::PARTIAL_CONTENT;
                self.content = self.content.content_in_range(&range);
                self.with_field(CONTENT_RANGE, format_content_range(&range, length))
            }
            Part::Ranges(ranges) => self.into_multipart(&ranges),
        }
    }

    /// Returns several ranges, each as a part with its own fields (RFC 9110, section 14.6).
    fn into_multipart(mut self, ranges: &[Range<u64>]) -> Self {
        let whole = std::mem::take(&mut self.content);
        let boundary = random_boundary(whole.length, ranges);
        let kind = self.fields.remove(CONTENT_TYPE);
        let kind = kind.as_ref().and_then(|kind| kind.to_str().ok()).unwrap_or("application/octet-stream");
        let mut content = Content::default();
        for range in ranges {
            let mut head = String::new();
            let place = format_content_range(range, whole.length);
            let _ = write!(head, "\r\n--{boundary}\r\nContent-Type: {kind}\r\nContent-Range: {place}\r\n\r\n");
            content.push_bytes(head.into_bytes());
            content.append_content(whole.content_in_range(range));
        }
        content.push_bytes(format!("\r\n--{boundary}--\r\n").into_bytes());
        self.status = StatusCode::PARTIAL_CONTENT;
        self.with_field(CONTENT_TYPE, format!("multipart/byteranges; boundary={boundary}")).with_content(content)
    }
}

fn format_content_range(range: &Range<u64>, length: u64) -> String {
    format!("bytes {}-{}/{length}", range.start, range.end - 1)
}

/// Returns a boundary that the author of the file could not foresee, since it is random for each answer.
fn random_boundary(length: u64, ranges: &[Range<u64>]) -> String {
    use std::hash::{BuildHasher, RandomState};
    let state = RandomState::new();
    format!("thalweg{:016x}{:016x}", state.hash_one(length), state.hash_one(ranges.len()))
}

impl Content {
    pub(crate) fn push_bytes(&mut self, bytes: Vec<u8>) {
        self.length += bytes.len() as u64;
        if !bytes.is_empty() {
            self.pieces.push(Piece::Bytes(bytes));
        }
    }

    /// Appends a range of a file; a range that continues the last one is merged with it.
    pub(crate) fn push_file_range(&mut self, file: &Arc<Stored>, range: Range<u64>) {
        self.length += range.end - range.start;
        match self.pieces.last_mut() {
            Some(Piece::File(last, before)) if Arc::ptr_eq(last, file) && before.end == range.start => {
                before.end = range.end;
            }
            _ => self.pieces.push(Piece::File(Arc::clone(file), range)),
        }
    }

    fn append_content(&mut self, mut other: Self) {
        self.length += other.length;
        self.pieces.append(&mut other.pieces);
    }

    /// Returns the bytes of a range, which must lie within the content.
    pub(crate) fn content_in_range(&self, range: &Range<u64>) -> Self {
        let mut cut = Self::default();
        let mut at = 0;
        for piece in &self.pieces {
            let length = piece.length_bytes();
            let from = range.start.saturating_sub(at).min(length);
            let until = range.end.saturating_sub(at).min(length);
            at += length;
            if from < until {
                match piece {
                    Piece::Bytes(bytes) => cut.push_bytes(bytes[from as usize..until as usize].to_vec()),
                    Piece::File(file, within) => cut.push_file_range(file, within.start + from..within.start + until),
                }
            }
        }
        cut
    }
}

impl Piece {
    fn length_bytes(&self) -> u64 {
        match self {
            Self::Bytes(bytes) => bytes.len() as u64,
            Self::File(_, range) => range.end - range.start,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answer() -> Answer {
        let mut content = Content::default();
        content.push_bytes(b"01234".to_vec());
        content.push_bytes(b"56789".to_vec());
        Answer::new(StatusCode::OK).with_field(CONTENT_TYPE, "text/plain").with_content(content)
    }

    fn text(content: &Content) -> String {
        let bytes = content.pieces.iter().flat_map(|piece| match piece {
            Piece::Bytes(bytes) => bytes.clone(),
            Piece::File(..) => unreachable!("there is no file here"),
        });
        let text = String::from_utf8(bytes.collect()).unwrap();
        assert_eq!(text.len() as u64, content.length);
        text
    }

    #[test]
    fn one_range_is_answered_with_its_bytes() {
        let answer = answer().with_range(Some("bytes=3-6"));
        assert_eq!(answer.status, StatusCode::PARTIAL_CONTENT);
        assert_eq!(answer.fields[CONTENT_RANGE], "bytes 3-6/10");
        assert_eq!(text(&answer.content), "3456");
    }

    #[test]
    fn several_ranges_are_answered_with_several_parts() {
        let answer = answer().with_range(Some("bytes=0-0,-2"));
        let kind = answer.fields[CONTENT_TYPE].to_str().unwrap().to_owned();
        let boundary = kind.strip_prefix("multipart/byteranges; boundary=").unwrap();
        let expected = format!(
            "\r\n--{boundary}\r\nContent-Type: text/plain\r\nContent-Range: bytes 0-0/10\r\n\r\n0\
             \r\n--{boundary}\r\nContent-Type: text/plain\r\nContent-Range: bytes 8-9/10\r\n\r\n89\
             \r\n--{boundary}--\r\n"
        );
        assert_eq!(text(&answer.content), expected);
    }

    #[test]
    fn what_lies_behind_the_end_is_refused_with_the_length() {
        let answer = answer().with_range(Some("bytes=10-"));
        assert_eq!(answer.status, StatusCode::RANGE_NOT_SATISFIABLE);
        assert_eq!(answer.fields[CONTENT_RANGE], "bytes */10");
    }

    #[test]
    fn without_a_range_it_is_all_of_it() {
        let answer = answer().with_range(None);
        assert_eq!((answer.status, text(&answer.content).as_str()), (StatusCode::OK, "0123456789"));
        assert_eq!(answer.fields[ACCEPT_RANGES], "bytes");
    }
}
