//! Words of a run: its comment, and a table of what the laboratory wants to know of it later.

use serde::de::Error;
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::{Map, Value};

/// Table `[run.metadata]`: any keys and values, written into `run.json` as they are. Dates and times are text there.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
#[serde(transparent)]
pub struct Metadata(Map<String, Value>);

impl Metadata {
    /// Maximum length of the table as JSON, in bytes.
    pub const MAX_BYTES: usize = 64 << 10;
    /// Maximum length of a comment, in bytes.
    pub const MAX_COMMENT_BYTES: usize = 4 << 10;
    /// Maximum number of tables and lists within each other.
    const MAX_DEPTH: usize = 16;

    /// Returns the table as JSON.
    pub fn as_json(&self) -> &Map<String, Value> {
        &self.0
    }

    /// Sets the value of a key.
    pub fn set_value(&mut self, key: &str, value: Value) {
        self.0.insert(key.to_owned(), value);
    }

    /// Returns whether there is nothing in it.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl<'de> Deserialize<'de> for Metadata {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let Value::Object(table) = convert_value(Value::deserialize(from)?, 0).map_err(D::Error::custom)? else {
            return Err(D::Error::custom("metadata is a table: write [run.metadata], and keys and values below it"));
        };
        let length = Value::Object(table.clone()).to_string().len();
        if length > Self::MAX_BYTES {
            let most = Self::MAX_BYTES >> 10;
            return Err(D::Error::custom(format!(
                "metadata has {length} bytes as JSON, and at most {most} KiB are kept: put large tables into a file of \
                 their own, and name that"
            )));
        }
        Ok(Self(table))
    }
}

/// Returns a value of TOML as JSON has it: dates and times become text.
fn convert_value(value: Value, depth: usize) -> Result<Value, String> {
    if depth > Metadata::MAX_DEPTH {
        return Err(format!("metadata has more than {} tables within each other", Metadata::MAX_DEPTH));
    }
    Ok(match value {
        // The form in which the TOML parser passes on dates and times.
        Value::Object(mut table) if table.len() == 1 && table.contains_key(DATETIME) => {
            table.remove(DATETIME).unwrap_or_default()
        }
        Value::Object(table) => {
            let converted = table.into_iter().map(|(key, value)| Ok((key, convert_value(value, depth + 1)?)));
            Value::Object(converted.collect::<Result<_, String>>()?)
        }
        Value::Array(values) => {
            let converted = values.into_iter().map(|value| convert_value(value, depth + 1));
            Value::Array(converted.collect::<Result<_, String>>()?)
        }
        Value::Null => return Err("metadata has nan or inf, which JSON does not: write it in quotation marks".into()),
        other => other,
    })
}

/// Key under which the TOML parser passes on a date or time.
const DATETIME: &str = "$__toml_private_datetime";

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, Deserialize)]
    struct Run {
        metadata: Metadata,
    }

    fn metadata(text: &str) -> Result<Value, String> {
        let run: Run = toml::from_str(&format!("[metadata]\n{text}")).map_err(|error| error.message().to_owned())?;
        Ok(Value::Object(run.metadata.0))
    }

    #[test]
    fn every_value_of_toml_has_its_value_in_json() {
        let text = "sample = \"LaB6\"\ncounts = 9223372036854775807\nleast = -9223372036854775808\nenergy = 12.4\n\
                    tuned = true\nat = 2026-11-29 03:04:05.25Z\nday = 2026-11-29\nhour = 03:04:05\n\
                    positions = [1, [2.5, \"three\"]]\nstage.x.\"in mm\" = 0.1\n";
        assert_eq!(
            metadata(text).unwrap(),
            serde_json::json!({
                "sample": "LaB6", "counts": i64::MAX, "least": i64::MIN, "energy": 12.4, "tuned": true,
                "at": "2026-11-29T03:04:05.25Z", "day": "2026-11-29", "hour": "03:04:05",
                "positions": [1, [2.5, "three"]], "stage": { "x": { "in mm": 0.1 } },
            })
        );
    }

    #[test]
    fn what_json_does_not_have_or_no_one_reads_is_refused() {
        assert!(metadata("x = nan").unwrap_err().contains("write it in quotation marks"));
        assert!(metadata(&format!("x = \"{}\"", "x".repeat(70_000))).unwrap_err().contains("at most 64 KiB"));
        let wrong = toml::from_str::<Run>("metadata = 5").unwrap_err();
        assert!(wrong.message().contains("write [run.metadata]"), "{wrong}");
        let deep = format!("x = {}1{}", "[".repeat(30), "]".repeat(30));
        assert!(metadata(&deep).unwrap_err().contains("more than 16"));
    }
}
