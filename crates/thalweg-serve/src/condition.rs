//! Conditional requests (RFC 9110, section 13).
//!
//! The client may already have the representation, or expect a state that no longer exists.

use crate::answer::Answer;
use crate::coding::Coding;
use crate::fields::{DIGEST, REPR_DIGEST};
use crate::head::Head;
use crc_fast::{CrcAlgorithm, checksum};
use http::header::{
    CACHE_CONTROL, CONTENT_RANGE, CONTENT_TYPE, ETAG, IF_MATCH, IF_MODIFIED_SINCE, IF_NONE_MATCH, IF_RANGE,
    IF_UNMODIFIED_SINCE, LAST_MODIFIED, RANGE, VARY,
};
use http::{HeaderMap, HeaderName, Method, StatusCode};
use rustix::fs::Stat;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Validators that distinguish one state of a representation from another.
#[derive(Debug, Clone)]
pub(crate) struct Validators {
    /// Strong entity tag: another state has another tag.
    etag: String,
    /// Time of modification in whole seconds; `None` where a second state could have the same time.
    modified: Option<SystemTime>,
}

/// Result of a request's conditions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Condition {
    /// The request is answered.
    Go,
    /// 304: the client has the representation.
    NotModified,
    /// 412: the state is not the one that the client expects.
    Failed,
}

impl Validators {
    /// Returns the validators of a file that may be replaced or rewritten.
    pub(crate) fn from_file(stat: &Stat) -> Self {
        Self::from_state(format!("{:x}-{:x}-{:x}.{:x}", stat.st_ino, stat.st_size, stat.st_mtime, stat.st_mtime_nsec))
            .with_modification_time(stat.st_mtime)
    }

    /// Returns the validators of bytes in memory.
    pub(crate) fn from_bytes(bytes: &[u8]) -> Self {
        Self::from_state(format!("{:016x}", checksum(CrcAlgorithm::Crc64Nvme, bytes)))
    }

    /// Returns the validators of a state with this name, of characters that need no quotes.
    pub(crate) fn from_state(state: impl std::fmt::Display) -> Self {
        Self { etag: format!("\"{state}\""), modified: None }
    }

    /// Adds a time of modification, in seconds since 1970. Only a time whose second has passed distinguishes states and
    /// may be sent (RFC 9110, sections 8.8.2.1 and 8.8.2.2); the file system's clock lags behind the system clock by
    /// some milliseconds.
    pub(crate) fn with_modification_time(mut self, seconds: i64) -> Self {
        let modified = UNIX_EPOCH + Duration::from_secs(u64::try_from(seconds).unwrap_or(0));
        let over = SystemTime::now().duration_since(modified).is_ok_and(|age| age >= Duration::from_secs(2));
        self.modified = over.then_some(modified);
        self
    }

    /// Adds the coding: each coding of a representation is a state of its own (RFC 9110, section 8.8.3.3).
    pub(crate) fn with_coding(mut self, coding: Option<Coding>) -> Self {
        if let Some(coding) = coding {
            self.etag = format!("{}-{}\"", self.etag.trim_end_matches('"'), coding.field_name());
        }
        self
    }

    /// Adds the validators to an answer.
    pub(crate) fn add_to_answer(&self, answer: Answer) -> Answer {
        let answer = answer.with_field(ETAG, &self.etag);
        match self.modified {
            Some(modified) => answer.with_field(LAST_MODIFIED, httpdate::fmt_http_date(modified)),
            None => answer,
        }
    }

    /// Evaluates a request's conditions, in the order of section 13.2.2.
    pub(crate) fn evaluate_conditions(&self, method: &Method, fields: &HeaderMap) -> Condition {
        let go = match (
            self.names_this_state(fields, IF_MATCH, false),
            parse_date_field(fields, IF_UNMODIFIED_SINCE),
            self.modified,
        ) {
            (Some(is_there), ..) => is_there,
            (None, Some(date), Some(modified)) => modified <= date,
            (None, ..) => true,
        };
        let reads = method == Method::GET || method == Method::HEAD;
        let changed = match (
            self.names_this_state(fields, IF_NONE_MATCH, true),
            parse_date_field(fields, IF_MODIFIED_SINCE),
            self.modified,
        ) {
            (Some(is_there), ..) => !is_there,
            (None, Some(date), Some(modified)) if reads => modified > date,
            (None, ..) => true,
        };
        match (go, changed) {
            (true, true) => Condition::Go,
            (true, false) if reads => Condition::NotModified,
            _ => Condition::Failed,
        }
    }

    /// Returns whether a field names this state, compared weakly or strongly (section 8.8.3.2), or `None` if there is
    /// no such field. The tags made here contain no commas, and none is part of another.
    fn names_this_state(&self, fields: &HeaderMap, name: HeaderName, weakly: bool) -> Option<bool> {
        let values = fields.get_all(name).iter().map(|value| value.to_str().unwrap_or_default());
        let mut tags = values.flat_map(|value| value.split(',')).map(str::trim).peekable();
        tags.peek()?;
        Some(tags.any(|tag| {
            let strong = if weakly { tag.strip_prefix("W/").unwrap_or(tag) } else { tag };
            tag == "*" || strong == self.etag
        }))
    }

    /// Returns whether a `Range` field counts: it does not if `If-Range` names another state (section 13.1.5).
    pub(crate) fn is_range_valid(&self, fields: &HeaderMap) -> bool {
        let Some(state) = fields.get(IF_RANGE) else { return true };
        state.as_bytes() == self.etag.as_bytes()
            || self.modified.is_some() && self.modified == parse_date_field(fields, IF_RANGE)
    }

    /// Answers a `GET` or `HEAD`: applies the request's conditions and range to the answer `whole`.
    pub(crate) fn answer_conditionally(&self, head: &Head, whole: Answer) -> Answer {
        match self.evaluate_conditions(&head.method, &head.fields) {
            Condition::Failed => precondition_failed(),
            // Only fields that a cache has to know (section 15.4.5).
            Condition::NotModified => {
                let mut answer = Answer::new(StatusCode::NOT_MODIFIED).with_field(ETAG, &self.etag);
                for known in [CACHE_CONTROL, VARY] {
                    answer.fields.extend(whole.fields.get(&known).cloned().map(|value| (known, value)));
                }
                answer
            }
            Condition::Go => {
                // A range has no meaning in a HEAD request (section 14.2).
                let counts = head.method == Method::GET && self.is_range_valid(&head.fields);
                let range = head.fields.get(RANGE).and_then(|value| value.to_str().ok()).filter(|_| counts);
                let mut answer = self.add_to_answer(whole).with_range(range);
                if answer.status == StatusCode::PARTIAL_CONTENT && head.fields.contains_key(IF_RANGE) {
                    // The client has the rest of the representation, and these fields (section 15.3.7).
                    for known in [LAST_MODIFIED, REPR_DIGEST, DIGEST] {
                        answer.fields.remove(known);
                    }
                    // For several parts, this field contains their boundary and stays.
                    if answer.fields.contains_key(CONTENT_RANGE) {
                        answer.fields.remove(CONTENT_TYPE);
                    }
                }
                answer
            }
        }
    }
}

fn parse_date_field(fields: &HeaderMap, name: HeaderName) -> Option<SystemTime> {
    httpdate::parse_http_date(fields.get(name)?.to_str().ok()?).ok()
}

/// Returns a 412 answer.
pub(crate) fn precondition_failed() -> Answer {
    Answer::with_sentence(StatusCode::PRECONDITION_FAILED, "it is no longer in the state that the request expects")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn validators() -> Validators {
        // Sun, 06 Nov 1994 08:49:37 GMT, as in the standard.
        Validators::from_state("a-1").with_modification_time(784_111_777)
    }

    fn fields(list: &[(&'static str, &'static str)]) -> HeaderMap {
        list.iter().map(|(name, value)| (name.parse().unwrap(), value.parse().unwrap())).collect()
    }

    const THEN: &str = "Sun, 06 Nov 1994 08:49:37 GMT";
    const BEFORE: &str = "Sun, 06 Nov 1994 08:49:36 GMT";
    const AFTER: &str = "Sun, 06 Nov 1994 08:49:38 GMT";

    #[test]
    fn a_client_that_has_it_is_told_so() {
        for (list, condition) in [
            (&[][..], Condition::Go),
            (&[("if-none-match", "\"a-1\"")], Condition::NotModified),
            (&[("if-none-match", "W/\"a-1\"")], Condition::NotModified),
            (&[("if-none-match", "\"b\", \"a-1\"")], Condition::NotModified),
            (&[("if-none-match", "*")], Condition::NotModified),
            (&[("if-none-match", "\"b\"")], Condition::Go),
            (&[("if-none-match", "\"a b")], Condition::Go),
            (&[("if-none-match", "")], Condition::Go),
            (&[("if-modified-since", THEN)], Condition::NotModified),
            (&[("if-modified-since", BEFORE)], Condition::Go),
            (&[("if-modified-since", "yesterday")], Condition::Go),
            // The tag counts, not the date.
            (&[("if-none-match", "\"b\""), ("if-modified-since", THEN)], Condition::Go),
        ] {
            assert_eq!(validators().evaluate_conditions(&Method::GET, &fields(list)), condition, "{list:?}");
        }
    }

    #[test]
    fn a_client_that_writes_is_never_told_that_it_has_it() {
        for (list, condition) in [
            (&[("if-none-match", "*")][..], Condition::Failed),
            (&[("if-none-match", "\"b\"")], Condition::Go),
            (&[("if-modified-since", THEN)], Condition::Go),
            (&[("if-unmodified-since", BEFORE)], Condition::Failed),
        ] {
            assert_eq!(validators().evaluate_conditions(&Method::PUT, &fields(list)), condition, "{list:?}");
        }
    }

    #[test]
    fn a_time_counts_once_its_second_is_over() {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs();
        assert_eq!(Validators::from_state("a").with_modification_time(now as i64).modified, None);
        assert_eq!(Validators::from_state("a").with_modification_time(now as i64 + 1000).modified, None);
        assert!(Validators::from_state("a").with_modification_time(now as i64 - 2).modified.is_some());
        let unknown = Validators::from_state("a");
        assert_eq!(
            unknown.evaluate_conditions(&Method::GET, &fields(&[("if-unmodified-since", BEFORE)])),
            Condition::Go
        );
        assert!(!unknown.is_range_valid(&fields(&[("if-range", THEN)])));
    }

    #[test]
    fn a_client_that_takes_it_for_something_else_is_refused() {
        for (list, condition) in [
            (&[("if-match", "\"a-1\"")][..], Condition::Go),
            (&[("if-match", "*")], Condition::Go),
            (&[("if-match", "\"b\"")], Condition::Failed),
            (&[("if-match", "W/\"a-1\"")], Condition::Failed),
            (&[("if-unmodified-since", BEFORE)], Condition::Failed),
            (&[("if-unmodified-since", THEN)], Condition::Go),
        ] {
            assert_eq!(validators().evaluate_conditions(&Method::GET, &fields(list)), condition, "{list:?}");
        }
    }

    #[test]
    fn a_range_counts_only_of_what_the_client_has_the_rest_of() {
        for (value, counts) in [
            ("\"a-1\"", true),
            ("W/\"a-1\"", false),
            ("\"b\"", false),
            (THEN, true),
            (BEFORE, false),
            (AFTER, false),
            ("?", false),
        ] {
            assert_eq!(validators().is_range_valid(&fields(&[("if-range", value)])), counts, "{value}");
        }
        assert!(validators().is_range_valid(&HeaderMap::new()));
    }
}
