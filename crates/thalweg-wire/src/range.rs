//! Ranges of events in the notation for users: `7`, `10..20`, `10..`, `..20`, `..`.

use crate::EventId;
use std::fmt;
use std::str::FromStr;
use thiserror::Error;

/// One or more consecutive events: those from A on and before B, written `A..B` wherever events are named, in commands,
/// URLs and Python. A or B may be omitted, and one event is named by its number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EventRange {
    /// Number of the first event.
    pub first: u64,
    /// Number of the last event, inclusive.
    pub last: u64,
}

/// Reason why a text does not name any events.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum EventRangeError {
    /// The text is neither a number nor a range.
    #[error("'{0}' is neither an event number such as 7 nor a range such as 10..20, 10.. or ..20")]
    Text(String),
    /// The text is well formed, but the range is empty.
    #[error("'{0}' contains no events: A..B begins with A and ends before B, so that A must be less than B")]
    Empty(String),
}

impl EventRange {
    /// Every event.
    pub const ALL: Self = Self { first: 0, last: u64::MAX };

    /// Returns whether `event` is in the range.
    pub fn contains(self, event: EventId) -> bool {
        (self.first..=self.last).contains(&event.0)
    }

    /// Returns whether the range is a single event, named by its number or as a range.
    pub fn is_single_event(self) -> bool {
        self.first == self.last
    }
}

impl FromStr for EventRange {
    type Err = EventRangeError;

    fn from_str(text: &str) -> Result<Self, EventRangeError> {
        match parse_bounds(text) {
            Some((first, Some(last))) if last >= first => Ok(Self { first, last }),
            Some(_) => Err(EventRangeError::Empty(text.to_owned())),
            None => Err(EventRangeError::Text(text.to_owned())),
        }
    }
}

/// Parses the numbers of the first and the last event; the latter is `None` if the range ends before event 0.
fn parse_bounds(text: &str) -> Option<(u64, Option<u64>)> {
    let Some((first, end)) = text.split_once("..") else {
        let event = parse_event_number(text)?;
        return Some((event, Some(event)));
    };
    let first = if first.is_empty() { 0 } else { parse_event_number(first)? };
    let last = if end.is_empty() { Some(u64::MAX) } else { parse_event_number(end)?.checked_sub(1) };
    Some((first, last))
}

/// Parses a number that consists of digits only.
fn parse_event_number(text: &str) -> Option<u64> {
    text.bytes().all(|byte| byte.is_ascii_digit()).then(|| text.parse().ok()).flatten()
}

impl fmt::Display for EventRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self { first, last } if first == last => write!(f, "{first}"),
            Self { first, last: u64::MAX } => write!(f, "{first}.."),
            Self { first, last } => write!(f, "{first}..{}", last + 1),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn an_event_is_named_by_its_number_and_a_range_by_its_ends() {
        let range = |first, last| Ok(EventRange { first, last });
        let cases = [
            ("7", range(7, 7)),
            ("10..20", range(10, 19)),
            ("10..", range(10, u64::MAX)),
            ("..20", range(0, 19)),
            ("..", Ok(EventRange::ALL)),
            ("18446744073709551615", range(u64::MAX, u64::MAX)),
        ];
        for (text, expected) in cases {
            assert_eq!(text.parse(), expected, "{text}");
        }
        for text in ["", "x", "-1", "+7", "1-2", "1...2", "1..x", " 7", "18446744073709551616"] {
            assert_eq!(text.parse::<EventRange>(), Err(EventRangeError::Text(text.into())), "{text}");
        }
        for text in ["2..1", "7..7", "..0"] {
            assert_eq!(text.parse::<EventRange>(), Err(EventRangeError::Empty(text.into())), "{text}");
        }
    }

    proptest! {
        #[test]
        fn what_is_written_is_read_again(one: u64, other: u64) {
            let range = EventRange { first: one.min(other), last: one.max(other) };
            prop_assert_eq!(range.to_string().parse(), Ok(range));
        }

        #[test]
        fn any_text_is_read_or_refused(text: String) {
            let _ = text.parse::<EventRange>();
        }
    }
}
