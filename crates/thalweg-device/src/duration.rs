//! Durations as users write them in a topology file: `"10s"`, `"500ms"`. For serde's `with`.

use serde::de::{Error, Visitor};
use serde::{Deserializer, Serializer};
use std::fmt;
use std::time::Duration;

/// Writes a duration as text.
///
/// # Errors
/// The errors of the serializer.
pub fn serialize<S: Serializer>(value: &Duration, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(&humantime::format_duration(*value))
}

/// Reads a duration from text.
///
/// # Errors
/// The text is not a duration; the error gives examples of the form.
pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Duration, D::Error> {
    deserializer.deserialize_str(Text)
}

struct Text;

impl Visitor<'_> for Text {
    type Value = Duration;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a time with its unit, \"10s\" or \"500ms\"")
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<Duration, E> {
        humantime::parse_duration(text)
            .map_err(|error| E::custom(format!("'{text}' is not a duration ({error}): write 10s or 500ms")))
    }
}

/// Durations that may be left out.
pub mod option {
    use serde::{Deserializer, Serializer};
    use std::time::Duration;

    /// Writes a duration, or none.
    ///
    /// # Errors
    /// The errors of the serializer.
    pub fn serialize<S: Serializer>(value: &Option<Duration>, serializer: S) -> Result<S::Ok, S::Error> {
        match value {
            Some(value) => super::serialize(value, serializer),
            None => serializer.serialize_none(),
        }
    }

    /// Reads a duration that was not left out.
    ///
    /// # Errors
    /// The text is not a duration.
    pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Duration>, D::Error> {
        super::deserialize(deserializer).map(Some)
    }
}
