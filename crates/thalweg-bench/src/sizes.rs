//! Parser of sizes: `64KiB`, `1,512,4KiB`, `1..128KiB:x2`, `1KiB..16KiB:+1KiB`.

use std::fmt;
use std::str::FromStr;
use thalweg_text::{ByteSize, ByteSizeError};
use thiserror::Error;

/// Largest number of sizes in one list: a typing error must not request a day's work.
const MAX_SIZE_COUNT: usize = 1024;

/// One or more sizes in bytes, in the order in which they were given.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Sizes(pub Vec<u64>);

impl Sizes {
    /// Returns the largest size; 0 for an empty list.
    pub fn largest_size(&self) -> u64 {
        self.0.iter().copied().max().unwrap_or(0)
    }
}

/// Error of parsing a list of sizes.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum SizesError {
    /// Text that is not a size.
    #[error(transparent)]
    Size(#[from] ByteSizeError),
    /// Step that does not advance.
    #[error("'{0}' is not a step: write x2 (or more) to multiply, or +1KiB to add")]
    Step(String),
    /// Range whose end comes before its beginning, or that begins with 0 and multiplies.
    #[error("'{0}' is an empty range: write FROM..TO with FROM at least 1 and at most TO")]
    Empty(String),
    /// List of more than `MAX_SIZE_COUNT` sizes.
    #[error("'{0}' has more than {MAX_SIZE_COUNT} sizes")]
    TooMany(String),
}

impl FromStr for Sizes {
    type Err = SizesError;

    fn from_str(text: &str) -> Result<Self, SizesError> {
        let mut sizes = Vec::new();
        for part in text.split(',') {
            match part.split_once("..") {
                Some((from, rest)) => parse_range(part, from, rest, &mut sizes)?,
                None => sizes.push(parse_size(part)?),
            }
            if sizes.len() > MAX_SIZE_COUNT {
                return Err(SizesError::TooMany(text.to_owned()));
            }
        }
        Ok(Self(sizes))
    }
}

fn parse_range(whole: &str, from: &str, rest: &str, sizes: &mut Vec<u64>) -> Result<(), SizesError> {
    let (to, step) = rest.split_once(':').unwrap_or((rest, "x2"));
    let (from, to) = (parse_size(from)?, parse_size(to)?);
    let parsed = match (step.strip_prefix('x'), step.strip_prefix('+')) {
        (Some(factor), _) => factor.parse().ok().filter(|factor| *factor > 1).map(Step::Multiply),
        (_, Some(add)) => parse_size(add).ok().filter(|add| *add > 0).map(Step::Add),
        _ => None,
    };
    let step = parsed.ok_or_else(|| SizesError::Step(step.to_owned()))?;
    if from == 0 || from > to {
        return Err(SizesError::Empty(whole.to_owned()));
    }
    let all = std::iter::successors(Some(from), |size| match step {
        Step::Multiply(factor) => size.checked_mul(factor),
        Step::Add(bytes) => size.checked_add(bytes),
    });
    sizes.extend(all.take_while(|size| *size <= to).take(MAX_SIZE_COUNT + 1));
    Ok(())
}

/// Step from one size of a range to the next.
enum Step {
    Multiply(u64),
    Add(u64),
}

fn parse_size(text: &str) -> Result<u64, SizesError> {
    Ok(text.parse::<ByteSize>()?.0)
}

impl fmt::Display for Sizes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, size) in self.0.iter().enumerate() {
            write!(f, "{}{size}", if at > 0 { "," } else { "" })?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn sizes(text: &str) -> Vec<u64> {
        text.parse::<Sizes>().unwrap().0
    }

    #[test]
    fn ranges_multiply_or_add_and_lists_keep_their_order() {
        assert_eq!(sizes("64KiB"), [65536]);
        assert_eq!(sizes("64K,1m"), [65536, 1 << 20], "as iperf3 and fio");
        assert_eq!(sizes("1..8"), [1, 2, 4, 8]);
        assert_eq!(sizes("1..100:x10"), [1, 10, 100]);
        assert_eq!(sizes("1..128KiB:x2").len(), 18);
        assert_eq!(sizes("1KiB..4KiB:+1KiB"), [1024, 2048, 3072, 4096]);
        assert_eq!(sizes("1MiB,1,3..9:x3"), [1 << 20, 1, 3, 9]);
    }

    #[test]
    fn nonsense_is_named() {
        let error = |text: &str| text.parse::<Sizes>().unwrap_err().to_string();
        assert_eq!(error("8..1"), "'8..1' is an empty range: write FROM..TO with FROM at least 1 and at most TO");
        assert_eq!(error("0..8"), "'0..8' is an empty range: write FROM..TO with FROM at least 1 and at most TO");
        assert_eq!(error("1..8:x1"), "'x1' is not a step: write x2 (or more) to multiply, or +1KiB to add");
        assert_eq!(error("1..8:+0"), "'+0' is not a step: write x2 (or more) to multiply, or +1KiB to add");
        assert_eq!(error("1..1GiB:+1"), "'1..1GiB:+1' has more than 1024 sizes");
        assert!(error("").starts_with("'' is not a size"));
        assert!(error("-1").starts_with("'-1' is not a size"));
        assert!(error("18446744073709551615MiB").contains("is not a whole number"));
    }

    proptest! {
        #[test]
        fn any_text_is_parsed_or_refused(text in "[0-9kKMGiB.,:x+ -]{0,24}") {
            if let Ok(Sizes(sizes)) = text.parse() {
                prop_assert!(!sizes.is_empty() && sizes.len() <= MAX_SIZE_COUNT);
                prop_assert_eq!(Sizes(sizes.clone()).to_string().parse(), Ok(Sizes(sizes)));
            }
        }
    }
}
