//! The mechanism that keeps the senders from overrunning the switch.

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};
use std::fmt;
use std::str::FromStr;
use thiserror::Error;

/// The congestion controls that the laboratory's kernel has.
pub const CONGESTION_CONTROLS: [&str; 13] = [
    "bic",
    "cubic",
    "highspeed",
    "htcp",
    "hybla",
    "lp",
    "scalable",
    "vegas",
    "veno",
    "westwood",
    "reno",
    "bbr",
    "dctcp",
];

/// Control of the senders: `"credit"`, `"credit+CONTROL"`, or `"CONTROL"` alone, with CONTROL one of
/// [`CONGESTION_CONTROLS`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Control {
    /// True if the builder asks for no more than its port can take. Otherwise it asks for everything at once.
    pub credit: bool,
    /// TCP's own congestion control.
    pub congestion: &'static str,
}

impl Default for Control {
    fn default() -> Self {
        Self { credit: true, congestion: DEFAULT }
    }
}

/// Default congestion control under credits: Thalweg's own, a window that follows the builder's credit. It is made for
/// that only, so it is not available without credits.
const DEFAULT: &str = "thalweg";

/// Error for a text that is not a control.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("'{0}' is not a control: write credit, credit+CONTROL or CONTROL, where CONTROL is one of {names}", names = CONGESTION_CONTROLS.join(", "))]
pub struct ControlError(String);

impl FromStr for Control {
    type Err = ControlError;

    fn from_str(text: &str) -> Result<Self, ControlError> {
        let (credit, name) = match text.split_once('+') {
            _ if text == "credit" => (true, DEFAULT),
            Some(("credit", name)) => (true, name),
            _ => (false, text),
        };
        let known = CONGESTION_CONTROLS.into_iter().chain(credit.then_some(DEFAULT)).find(|known| *known == name);
        known.map(|congestion| Self { credit, congestion }).ok_or_else(|| ControlError(text.to_owned()))
    }
}

impl fmt::Display for Control {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.credit, self.congestion) {
            (true, DEFAULT) => f.write_str("credit"),
            (true, name) => write!(f, "credit+{name}"),
            (false, name) => f.write_str(name),
        }
    }
}

impl Serialize for Control {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Control {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(de::Error::custom)
    }
}
