//! Text that lists the missing bytes of a fragment.

use std::fmt::Write;

/// Maximum number of ranges of bytes that are written out.
const MAX_SHOWN_RANGES: usize = 8;

/// Returns the missing ranges of bytes of a fragment of `length` bytes as text, each with its exclusive end: "bytes 8
/// to 16, 32 to 40 of 64".
pub fn gaps_text(gaps: &[(usize, usize)], length: usize) -> String {
    let mut text = String::from("bytes ");
    for (at, (begin, end)) in gaps.iter().take(MAX_SHOWN_RANGES).enumerate() {
        let _ = write!(text, "{}{begin} to {end}", if at == 0 { "" } else { ", " });
    }
    if gaps.len() > MAX_SHOWN_RANGES {
        let _ = write!(text, " and {} more ranges", gaps.len() - MAX_SHOWN_RANGES);
    }
    let _ = write!(text, " of {length}");
    text
}
