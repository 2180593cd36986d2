//! A range of a file on a server as a stream that survives broken connections.

use crate::RemoteError;
use crate::server::{Head, PreparedRequest, Retries, Server, header_field, refusal_error};
use std::fmt;
use std::io::{self, Read};
use std::ops::Range;
use ureq::http::{Response, StatusCode, header};
use ureq::{Body, BodyReader};

/// A range of a file, as it arrives.
pub struct Reader {
    server: Server,
    url: String,
    /// Properties that every answer has to match, if the file must not change.
    same: Option<Head>,
    head: Head,
    /// Offset of the next byte.
    at: u64,
    /// Offset after the last byte.
    end: u64,
    answer: Option<BodyReader<'static>>,
    timeout: Retries,
}

impl Reader {
    pub(crate) fn open_stream(
        server: Server,
        url: String,
        range: Range<u64>,
        same: Option<&Head>,
    ) -> Result<Self, RemoteError> {
        let mut timeout = server.new_retries();
        let head = Head { length: 0, etag: None, modified: None, crc32c: None };
        let Range { start: at, end } = range;
        let mut reader =
            Self { timeout: server.new_retries(), server, url, same: same.cloned(), head, at, end, answer: None };
        while let Err(error) = reader.request_remaining() {
            timeout.wait_or_fail(error)?;
        }
        Ok(reader)
    }

    /// Returns the properties of the whole file.
    pub fn file_head(&self) -> &Head {
        &self.head
    }

    /// Returns the number of bytes left.
    pub fn remaining_bytes(&self) -> u64 {
        self.end - self.at
    }

    /// Requests the bytes that are left.
    fn request_remaining(&mut self) -> Result<(), RemoteError> {
        let mut prepared = PreparedRequest::new(self.url.clone());
        if self.at > 0 || self.end < u64::MAX {
            let last = if self.end < u64::MAX {
                (self.end.max(self.at.saturating_add(1)) - 1).to_string()
            } else {
                String::new()
            };
            prepared = prepared.with_field(header::RANGE, format!("bytes={}-{last}", self.at));
        }
        match &self.same {
            Some(Head { etag: Some(etag), .. }) => prepared = prepared.with_field(header::IF_MATCH, etag),
            Some(Head { modified: Some(modified), .. }) => {
                prepared = prepared.with_field(header::IF_UNMODIFIED_SINCE, httpdate::fmt_http_date(*modified));
            }
            _ => {}
        }
        let response = self.server.send_get(&prepared)?;
        let (range, total) = match response.status() {
            StatusCode::OK => {
                let head =
                    Head::from_response(&response).ok_or_else(|| self.invalid_answer("a file of unknown length"))?;
                match (self.at, head.length) {
                    // An empty file has no ranges.
                    (at, 0) => (at..at, 0),
                    (0, length) => (0..length, length),
                    _ => return Err(self.invalid_answer("the whole file although a part was requested")),
                }
            }
            StatusCode::PARTIAL_CONTENT => {
                parse_content_range(&response).ok_or_else(|| self.invalid_answer("a part at an unknown position"))?
            }
            // No bytes exist after the end.
            StatusCode::RANGE_NOT_SATISFIABLE => {
                let total = parse_total_length(&response)
                    .ok_or_else(|| self.invalid_answer("a part after the end of a file of unknown length"))?;
                if total > self.at && self.end > self.at {
                    return Err(self.invalid_answer("an existing part is reported as missing"));
                }
                (self.at..self.at, total)
            }
            StatusCode::PRECONDITION_FAILED => return Err(RemoteError::Changed(self.url.clone())),
            StatusCode::MOVED_PERMANENTLY => return Err(RemoteError::Directory(self.url.clone())),
            _ => return Err(refusal_error(&self.url, response)),
        };
        if range.start != self.at {
            return Err(self.invalid_answer("a different part than requested"));
        }
        self.head = Head::from_response_with_length(&response, total);
        if self.same.as_ref().is_some_and(|same| same.contradicts_head(&self.head)) {
            return Err(RemoteError::Changed(self.url.clone()));
        }
        self.end = self.end.min(range.end);
        self.answer = (range.end > range.start).then(|| response.into_body().into_reader());
        Ok(())
    }

    fn invalid_answer(&self, what: &'static str) -> RemoteError {
        RemoteError::Answer { url: self.url.clone(), what }
    }

    /// Converts an error of [`Read`] to the error that it stands for.
    pub(crate) fn original_error(&self, error: io::Error) -> RemoteError {
        let (kind, text) = (error.kind(), error.to_string());
        match error.into_inner().map(|inner| inner.downcast::<RemoteError>()) {
            Some(Ok(error)) => *error,
            _ => RemoteError::BrokeOff { url: self.url.clone(), error: io::Error::new(kind, text) },
        }
    }
}

impl Read for Reader {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let most = usize::try_from(self.remaining_bytes()).unwrap_or(usize::MAX).min(into.len());
        if most == 0 {
            return Ok(0);
        }
        loop {
            let read = match &mut self.answer {
                None => self.request_remaining().map(|()| 0),
                Some(answer) => match answer.read(&mut into[..most]) {
                    Ok(0) => Err(io::Error::from(io::ErrorKind::UnexpectedEof)),
                    read => read,
                }
                .map_err(|error| RemoteError::BrokeOff { url: self.url.clone(), error }),
            };
            match read {
                // The rest was requested again, and no longer exists.
                Ok(0) if self.answer.is_none() => return Ok(0),
                Ok(0) => {}
                Ok(read) => {
                    self.at += read as u64;
                    self.timeout.reset_after_progress();
                    return Ok(read);
                }
                Err(error) => {
                    self.answer = None;
                    self.timeout.wait_or_fail(error)?;
                }
            }
        }
    }
}

impl fmt::Debug for Reader {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { url, same, head, at, end, .. } = self;
        f.debug_struct("Reader")
            .field("url", url)
            .field("same", same)
            .field("head", head)
            .field("at", at)
            .field("end", end)
            .finish()
    }
}

/// Parses `bytes 0-99/1000`: the range of the part, and the length of the file.
fn parse_content_range(response: &Response<Body>) -> Option<(Range<u64>, u64)> {
    let (range, total) = header_field(response, header::CONTENT_RANGE)?.strip_prefix("bytes ")?.split_once('/')?;
    let (first, last) = range.split_once('-')?;
    let (first, last, total): (u64, u64, u64) = (first.parse().ok()?, last.parse().ok()?, total.parse().ok()?);
    (first <= last && last < total).then(|| (first..last + 1, total))
}

/// Parses `bytes */1000`: the length of the file.
fn parse_total_length(response: &Response<Body>) -> Option<u64> {
    header_field(response, header::CONTENT_RANGE)?.strip_prefix("bytes */")?.parse().ok()
}
