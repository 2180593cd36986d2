//! Listings of directories and runs on a server.

use serde::{Deserialize, Deserializer, de::Error};
use std::borrow::Cow;
use std::collections::HashSet;
use thalweg_store::{RunInfo, RunState, WriterLife};

/// Listing of a directory or a run, as the server sends it.
#[derive(Debug, Clone, Deserialize)]
pub struct Listing {
    /// Path on the server.
    pub path: String,
    /// Entries, with distinct names.
    #[serde(deserialize_with = "entries")]
    pub entries: Vec<Entry>,
    /// Content of `run.json`, if it is a run.
    #[serde(default)]
    pub info: Option<RunInfo>,
    /// State of the writer, if it is an open run.
    #[serde(default)]
    pub writer: Option<WriterLife>,
    /// Names of the parts that the builders of a run wrote, which are runs beside it; for a run of several builders.
    #[serde(default, deserialize_with = "names")]
    pub parts: Vec<String>,
}

/// An entry of a directory.
#[derive(Debug, Clone, Deserialize)]
pub struct Entry {
    /// Name: a single component, usable as the name of a local file.
    #[serde(deserialize_with = "name")]
    pub name: String,
    /// Kind of the entry.
    pub kind: Kind,
    /// Length in bytes; for a run, the number of bytes in its segments.
    #[serde(default)]
    pub bytes: u64,
    /// Time of the last change, in the format of RFC 3339.
    #[serde(default)]
    pub modified: String,
    /// Number of the run, if it is one.
    #[serde(default)]
    pub run: Option<u32>,
    /// Number of the builder whose part of a run it is, if it is a run.
    #[serde(default)]
    pub builder: Option<u32>,
    /// State of the run, if it is one: being written, or how it ended.
    #[serde(default)]
    pub state: Option<RunState>,
    /// Number of closed events, if it is a run.
    #[serde(default)]
    pub events: Option<u64>,
}

/// Kind of an entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    /// A regular file.
    File,
    /// A directory that is not a run.
    Directory,
    /// A run's directory.
    Run,
    /// A kind that only newer servers know.
    #[serde(other)]
    Other,
}

/// Deserializes a name that leads nowhere else, since the server's names become names of local files.
fn name<'de, D: Deserializer<'de>>(deserializer: D) -> Result<String, D::Error> {
    let name = Cow::<str>::deserialize(deserializer)?;
    if is_plain_name(&name) {
        return Ok(name.into_owned());
    }
    Err(D::Error::custom(format_args!(
        "{name:?} is not allowed as a file name: it is hidden, or leads to another \
        directory"
    )))
}

fn names<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<String>, D::Error> {
    #[derive(Deserialize)]
    struct Name(#[serde(deserialize_with = "name")] String);
    Ok(Vec::<Name>::deserialize(deserializer)?.into_iter().map(|Name(name)| name).collect())
}

/// Deserializes entries that can exist in one local directory.
fn entries<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<Entry>, D::Error> {
    let entries = Vec::<Entry>::deserialize(deserializer)?;
    let mut names = HashSet::new();
    match entries.iter().find(|entry| !names.insert(entry.name.as_str())) {
        Some(Entry { name, .. }) => Err(D::Error::custom(format_args!("{name:?} is there twice"))),
        None => Ok(entries),
    }
}

/// Returns whether `name` is the name of a single file that is not hidden.
pub(crate) fn is_plain_name(name: &str) -> bool {
    !name.is_empty() && name.len() <= 255 && !name.starts_with('.') && !name.contains(['/', '\0'])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn listing(name: &str) -> Result<Listing, serde_json::Error> {
        let entry = serde_json::json!({"name": name, "kind": "file", "bytes": 1, "modified": "2026-11-22T08:00:00Z"});
        serde_json::from_value(serde_json::json!({"path": "/", "entries": [entry]}))
    }

    #[test]
    fn a_directory_is_read_with_its_runs_and_files() {
        // The example of docs/data-server.md.
        let text = r#"{"path": "/", "entries": [
            {"name": "run-000042", "kind": "run", "modified": "2026-11-22T08:00:00Z", "run": 42, "builder": 0,
             "state": "COMPLETE", "events": 1000, "bytes": 1048576},
            {"name": "export.h5", "kind": "file", "bytes": 4096, "modified": "2026-11-22T08:00:00Z"},
            {"name": "later", "kind": "tape", "robot": 7}]}"#;
        let listing: Listing = serde_json::from_str(text).unwrap();
        let [run, file, other] = &listing.entries[..] else { panic!("{listing:?}") };
        assert_eq!(
            (run.kind, run.run, run.builder, run.state),
            (Kind::Run, Some(42), Some(0), Some(RunState::Complete))
        );
        assert_eq!((file.kind, file.bytes, file.run), (Kind::File, 4096, None));
        assert_eq!(other.kind, Kind::Other);
    }

    #[test]
    fn names_that_lead_elsewhere_are_refused() {
        let long = "a".repeat(256);
        for name in ["", ".", "..", "../a", "a/b", "/etc/passwd", ".hidden", "a\0b", &long] {
            let error = listing(name).unwrap_err().to_string();
            assert!(error.contains("not allowed as a file name"), "{name}: {error}");
        }
        for name in ["a b", "a..b", "é", "00000.seg", "a\\b"] {
            assert_eq!(listing(name).unwrap().entries[0].name, name);
        }
    }

    #[test]
    fn a_name_is_there_once() {
        let entry = serde_json::json!({"name": "a", "kind": "file"});
        let twice = serde_json::json!({"path": "/", "entries": [entry, entry]});
        let error = serde_json::from_value::<Listing>(twice).unwrap_err().to_string();
        assert!(error.contains("there twice"), "{error}");
    }

    #[test]
    fn anything_else_is_an_error_and_no_panic() {
        for text in ["", "[]", "{}", r#"{"path": 1, "entries": []}"#, r#"{"path": "/", "entries": {}}"#] {
            assert!(serde_json::from_str::<Listing>(text).is_err(), "{text}");
        }
        let deep = format!(r#"{{"path": "/", "entries": {}"#, "[".repeat(100_000));
        assert!(serde_json::from_str::<Listing>(&deep).is_err());
    }
}
