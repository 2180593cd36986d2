//! Durations as people write them in a topology file: `"10s"`, `"500ms"`. For serde's `with`.

use serde::de::{Error, Visitor};
use serde::{Deserializer, Serializer};
use std::fmt;
use std::time::Duration;

/// Writes one.
///
/// # Errors
/// Those of the serializer.
pub fn serialize<S: Serializer>(value: &Duration, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(&humantime::format_duration(*value))
}

/// Reads one.
///
/// # Errors
/// It is none; the text says what one looks like.
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

/// The same, of what may be left out.
pub mod option {
    use serde::{Deserializer, Serializer};
    use std::time::Duration;

    /// Writes one, or that there is none.
    ///
    /// # Errors
    /// Those of the serializer.
    pub fn serialize<S: Serializer>(value: &Option<Duration>, serializer: S) -> Result<S::Ok, S::Error> {
        match value {
            Some(value) => super::serialize(value, serializer),
            None => serializer.serialize_none(),
        }
    }

    /// Reads one that was not left out.
    ///
    /// # Errors
    /// It is none.
    pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Duration>, D::Error> {
        super::deserialize(deserializer).map(Some)
    }
}
