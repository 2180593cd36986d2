//! What a directory or a run on a server holds.

use serde::{Deserialize, Deserializer, de::Error};
use std::borrow::Cow;
use std::collections::HashSet;
use thalweg_store::{RunInfo, RunState, WriterLife};

/// A directory or a run, as the server lists it.
#[derive(Debug, Clone, Deserialize)]
pub struct Listing {
    /// Where it is on the server.
    pub path: String,
    /// What it holds. No two have the same name.
    #[serde(deserialize_with = "entries")]
    pub entries: Vec<Entry>,
    /// The content of `run.json`, of a run.
    #[serde(default)]
    pub info: Option<RunInfo>,
    /// Of a run that is open, whether anybody still writes it.
    #[serde(default)]
    pub writer: Option<WriterLife>,
    /// Of a run of several builders, what each of them wrote: the names of runs that lie beside it.
    #[serde(default, deserialize_with = "names")]
    pub parts: Vec<String>,
}

/// Something in a directory.
#[derive(Debug, Clone, Deserialize)]
pub struct Entry {
    /// Its name: a single one, which can be used as the name of a file here.
    #[serde(deserialize_with = "name")]
    pub name: String,
    /// What it is.
    pub kind: Kind,
    /// How long it is; of a run, the bytes in its segments.
    #[serde(default)]
    pub bytes: u64,
    /// When it was changed last, as RFC 3339 has it.
    #[serde(default)]
    pub modified: String,
    /// The run's number, of a run.
    #[serde(default)]
    pub run: Option<u32>,
    /// Which builder's part of the run it is, of a run.
    #[serde(default)]
    pub builder: Option<u32>,
    /// Whether it is being written, or how it ended, of a run.
    #[serde(default)]
    pub state: Option<RunState>,
    /// Closed events, of a run.
    #[serde(default)]
    pub events: Option<u64>,
}

/// What something in a directory is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    /// A file.
    File,
    /// A directory.
    Directory,
    /// A run's directory.
    Run,
    /// Something a newer server knows of.
    #[serde(other)]
    Other,
}

/// A name that leads nowhere else: what a server says becomes the name of a file here.
fn name<'de, D: Deserializer<'de>>(deserializer: D) -> Result<String, D::Error> {
    let name = Cow::<str>::deserialize(deserializer)?;
    if is_plain(&name) {
        return Ok(name.into_owned());
    }
    Err(D::Error::custom(format_args!("{name:?} is no name of a file: it would lead somewhere else, or be hidden")))
}

fn names<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<String>, D::Error> {
    #[derive(Deserialize)]
    struct Name(#[serde(deserialize_with = "name")] String);
    Ok(Vec::<Name>::deserialize(deserializer)?.into_iter().map(|Name(name)| name).collect())
}

/// Entries that can lie in one directory here.
fn entries<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<Entry>, D::Error> {
    let entries = Vec::<Entry>::deserialize(deserializer)?;
    let mut names = HashSet::new();
    match entries.iter().find(|entry| !names.insert(entry.name.as_str())) {
        Some(Entry { name, .. }) => Err(D::Error::custom(format_args!("{name:?} is there twice"))),
        None => Ok(entries),
    }
}

/// Whether `name` is the name of a single file that is not hidden.
pub(crate) fn is_plain(name: &str) -> bool {
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
            assert!(error.contains("no name of a file"), "{name}: {error}");
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
