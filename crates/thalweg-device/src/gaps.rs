//! What of a fragment did not come, in words.

use std::fmt::Write;

/// Ranges of bytes that are written out.
const MOST_RANGES: usize = 8;

/// Returns the ranges of bytes, each with its end behind it, that are missing of a fragment of so many: "bytes 8 to 16, 32 to
/// 40 of 64".
pub fn gaps_text(gaps: &[(usize, usize)], length: usize) -> String {
    let mut text = String::from("bytes ");
    for (at, (begin, end)) in gaps.iter().take(MOST_RANGES).enumerate() {
        let _ = write!(text, "{}{begin} to {end}", if at == 0 { "" } else { ", " });
    }
    if gaps.len() > MOST_RANGES {
        let _ = write!(text, " and {} more ranges", gaps.len() - MOST_RANGES);
    }
    let _ = write!(text, " of {length}");
    text
}
