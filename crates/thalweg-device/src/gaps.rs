//! Text that lists the missing bytes of a fragment.

use std::fmt::Write;
use std::ops::Range;

/// Maximum number of ranges of bytes that are written out.
const MAX_LISTED_GAPS: usize = 8;

/// Returns the missing ranges of bytes of a fragment of `length` bytes as text, each with its exclusive end: "bytes 8
/// to 16, 32 to 40 of 64".
pub fn describe_gaps(gaps: &[Range<u64>], length: usize) -> String {
    let mut text = String::from("bytes ");
    for (at, Range { start, end }) in gaps.iter().take(MAX_LISTED_GAPS).enumerate() {
        let _ = write!(text, "{}{start} to {end}", if at == 0 { "" } else { ", " });
    }
    if gaps.len() > MAX_LISTED_GAPS {
        let _ = write!(text, " and {} more ranges", gaps.len() - MAX_LISTED_GAPS);
    }
    let _ = write!(text, " of {length}");
    text
}
