//! Conditional requests (RFC 9110, section 13): whether the client has what it asks for, or asks for what is there no more.

use headers::{
    ETag, HeaderMap, HeaderMapExt, IfMatch, IfModifiedSince, IfNoneMatch, IfRange, IfUnmodifiedSince, LastModified,
};
use std::time::SystemTime;

/// What tells one state of a representation from another.
#[derive(Debug, Clone)]
pub(crate) struct Validators {
    /// Strong: another state has another one.
    pub(crate) etag: ETag,
    /// To the second.
    pub(crate) modified: SystemTime,
}

/// What becomes of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Condition {
    /// It is answered.
    Go,
    /// 304: the client has it.
    NotModified,
    /// 412: it is not what the client takes it for.
    Failed,
}

impl Validators {
    /// Evaluates the conditions of a GET or HEAD, in the order of section 13.2.2.
    pub(crate) fn condition(&self, fields: &HeaderMap) -> Condition {
        let go = match (fields.typed_get::<IfMatch>(), fields.typed_get::<IfUnmodifiedSince>()) {
            (Some(condition), _) => condition.precondition_passes(&self.etag),
            (None, Some(condition)) => condition.precondition_passes(self.modified),
            (None, None) => true,
        };
        let modified = match (fields.typed_get::<IfNoneMatch>(), fields.typed_get::<IfModifiedSince>()) {
            (Some(condition), _) => condition.precondition_passes(&self.etag),
            (None, Some(condition)) => condition.is_modified(self.modified),
            (None, None) => true,
        };
        match (go, modified) {
            (false, _) => Condition::Failed,
            (true, false) => Condition::NotModified,
            (true, true) => Condition::Go,
        }
    }

    /// Whether a `Range` field counts: it does not where `If-Range` names another state (section 13.1.5).
    pub(crate) fn range_counts(&self, fields: &HeaderMap) -> bool {
        let modified = LastModified::from(self.modified);
        match fields.get(http::header::IF_RANGE) {
            None => true,
            Some(_) => fields
                .typed_get::<IfRange>()
                .is_some_and(|condition| !condition.is_modified(Some(&self.etag), Some(&modified))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::{Duration, UNIX_EPOCH};

    fn validators() -> Validators {
        // Sun, 06 Nov 1994 08:49:37 GMT, as in the standard, and a part of a second.
        let modified = UNIX_EPOCH + Duration::from_millis(784_111_777_250);
        Validators { etag: "\"a-1\"".parse().unwrap(), modified }
    }

    fn fields(list: &[(&'static str, &'static str)]) -> HeaderMap {
        list.iter().map(|(name, value)| (name.parse().unwrap(), value.parse().unwrap())).collect()
    }

    const THEN: &str = "Sun, 06 Nov 1994 08:49:37 GMT";
    const BEFORE: &str = "Sun, 06 Nov 1994 08:49:36 GMT";

    #[test]
    fn a_client_that_has_it_is_told_so() {
        for (list, condition) in [
            (&[][..], Condition::Go),
            (&[("if-none-match", "\"a-1\"")], Condition::NotModified),
            (&[("if-none-match", "W/\"a-1\"")], Condition::NotModified),
            (&[("if-none-match", "\"b\", \"a-1\"")], Condition::NotModified),
            (&[("if-none-match", "*")], Condition::NotModified),
            (&[("if-none-match", "\"b\"")], Condition::Go),
            (&[("if-modified-since", THEN)], Condition::NotModified),
            (&[("if-modified-since", BEFORE)], Condition::Go),
            (&[("if-modified-since", "yesterday")], Condition::Go),
            // The tag counts, not the date.
            (&[("if-none-match", "\"b\""), ("if-modified-since", THEN)], Condition::Go),
        ] {
            assert_eq!(validators().condition(&fields(list)), condition, "{list:?}");
        }
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
            assert_eq!(validators().condition(&fields(list)), condition, "{list:?}");
        }
    }

    #[test]
    fn a_range_counts_only_of_what_the_client_has_the_rest_of() {
        for (value, counts) in
            [("\"a-1\"", true), ("W/\"a-1\"", false), ("\"b\"", false), (THEN, true), (BEFORE, false), ("?", false)]
        {
            assert_eq!(validators().range_counts(&fields(&[("if-range", value)])), counts, "{value}");
        }
        assert!(validators().range_counts(&HeaderMap::new()));
    }
}
