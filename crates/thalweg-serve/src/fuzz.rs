//! Invariants of every request, checked by the fuzz target `serve_request`.

use crate::condition::Validators;
use crate::head::{self, Body};
use crate::listing::query_parameter;
use crate::range::{Part, select_part};
use crate::tree::Name;
use crate::upload;
use std::path::Component;

/// Parses the bytes as the server would, and panics if an invariant is violated.
#[doc(hidden)]
pub fn check_request(bytes: &[u8]) {
    let Ok(Some((head, length))) = head::parse_head(bytes) else { return };
    // The end of a head does not depend on the bytes after it, nor on how it arrives.
    assert!(length <= bytes.len());
    assert_eq!(head::parse_head(&bytes[..length]).ok().flatten().map(|(_, length)| length), Some(length));
    let half = head::parse_head(&bytes[..length / 2]);
    assert!(matches!(half, Ok(None)), "half a request was taken for one, or refused");
    assert!(head.body != Body::Chunks || head.version > 0);
    // A parsed name lies beneath the root.
    assert!(head.path.starts_with('/'));
    if let Ok(Name::Entry(path, _) | Name::Runs(path) | Name::Events(path, ..)) = Name::from_path(&head.path) {
        assert!(path.components().all(|part| matches!(part, Component::Normal(_))), "{}", path.display());
    }
    query_parameter(&head.query, "source").for_each(drop);
    // Every combination of conditions has an answer.
    for validators in [Validators::from_state("a"), Validators::from_state("a").with_modification_time(784_111_777)] {
        validators.evaluate_conditions(&head.method, &head.fields);
        validators.is_range_valid(&head.fields);
    }
    if let Some(field) = head.fields.get(http::header::RANGE).and_then(|value| value.to_str().ok()) {
        for length in [0, 1, 10, u64::MAX] {
            if let Part::Ranges(ranges) = select_part(field, length) {
                assert!(ranges.iter().all(|range| range.start < range.end && range.end <= length));
                assert!(ranges.iter().map(|range| u128::from(range.end - range.start)).sum::<u128>() <= length.into());
            }
        }
    }
    upload::check_upload_request(&head);
}
