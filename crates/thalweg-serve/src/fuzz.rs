//! What holds of every request, whatever bytes it is made of: called by the fuzz target `serve_request`.

use crate::condition::Validators;
use crate::head::{self, Body};
use crate::listing::parameter;
use crate::range::{Part, part};
use crate::tree::Name;
use crate::upload;
use std::path::Component;

/// Reads the bytes as the server would, and panics where something does not hold.
#[doc(hidden)]
pub fn request(bytes: &[u8]) {
    let Ok(Some((head, length))) = head::parse(bytes) else { return };
    // Where a head ends does not depend on what follows, nor on how it comes in.
    assert!(length <= bytes.len());
    assert_eq!(head::parse(&bytes[..length]).ok().flatten().map(|(_, length)| length), Some(length));
    let half = head::parse(&bytes[..length / 2]);
    assert!(matches!(half, Ok(None)), "half a request was taken for one, or refused");
    assert!(head.body != Body::Chunks || head.version > 0);
    // What it names lies beneath the root.
    assert!(head.path.starts_with('/'));
    if let Ok(Name::Entry(path, _) | Name::Runs(path) | Name::Events(path, ..)) = Name::parse(&head.path) {
        assert!(path.components().all(|part| matches!(part, Component::Normal(_))), "{}", path.display());
    }
    parameter(&head.query, "source").for_each(drop);
    // Whatever the conditions are, there is one answer to them.
    for validators in [Validators::new("a"), Validators::new("a").modified(784_111_777)] {
        validators.condition(&head.method, &head.fields);
        validators.range_counts(&head.fields);
    }
    if let Some(field) = head.fields.get(http::header::RANGE).and_then(|value| value.to_str().ok()) {
        for length in [0, 1, 10, u64::MAX] {
            if let Part::Ranges(ranges) = part(field, length) {
                assert!(ranges.iter().all(|range| range.start < range.end && range.end <= length));
                assert!(ranges.iter().map(|range| u128::from(range.end - range.start)).sum::<u128>() <= length.into());
            }
        }
    }
    upload::fuzz(&head);
}
