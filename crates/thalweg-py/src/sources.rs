//! State that all events of a run share: its number, and its sources.

use crate::array::Shape;
use pyo3::exceptions::{PyKeyError, PyTypeError};
use pyo3::prelude::*;
use serde_json::Value;
use thalweg_store::RunInfo;
use thalweg_wire::SourceId;

/// Number of a run, and its sources in ascending order.
#[derive(Debug)]
pub(crate) struct Sources {
    pub(crate) run: u32,
    known: Vec<Known>,
}

/// Properties of a source that readers need.
#[derive(Debug)]
pub(crate) struct Known {
    pub(crate) id: SourceId,
    pub(crate) name: String,
    pub(crate) shape: Shape,
    pub(crate) row: Row,
}

/// Names of a fit's numbers and of its reasons to fail; empty for a source that is no fit.
#[derive(Debug, Clone, Default, FromPyObject, IntoPyObject, IntoPyObjectRef)]
pub(crate) struct Row {
    #[pyo3(item)]
    pub(crate) features: Vec<String>,
    #[pyo3(item)]
    pub(crate) failures: Vec<String>,
}

impl Row {
    /// Reads the names from a source's description.
    pub(crate) fn from_description(description: &Value) -> Self {
        if description["kind"] != "fit" {
            return Self::default();
        }
        let [features, failures] = ["features", "failures"].map(|key| {
            let names = description["metadata"][key].as_array().into_iter().flatten();
            names.filter_map(|name| Some(name.as_str()?.to_owned())).collect()
        });
        Self { features, failures }
    }
}

impl Sources {
    pub(crate) fn from_run_info(info: &RunInfo) -> Self {
        let known = info.sources.iter().map(|source| Known {
            id: source.id,
            name: source.name.clone(),
            shape: Shape::from_description(&source.description),
            row: Row::from_description(&source.description),
        });
        Self::new(info.run, known.collect())
    }

    pub(crate) fn new(run: u32, mut known: Vec<Known>) -> Self {
        known.sort_by_key(|source| source.id);
        Self { run, known }
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &Known> {
        self.known.iter()
    }

    /// Returns the source of this id.
    pub(crate) fn source_by_id(&self, id: SourceId) -> Option<&Known> {
        let at = self.known.binary_search_by_key(&id, |source| source.id).ok()?;
        self.known.get(at)
    }

    /// Returns the source of this id or name. An id takes precedence over another source's name that looks like it.
    pub(crate) fn find_source(&self, key: &Bound<'_, PyAny>) -> PyResult<&Known> {
        let key: String = key.extract().map_err(|_| {
            let kind = key.get_type().name().map(|name| name.to_string()).unwrap_or_default();
            PyTypeError::new_err(format!(
                "a source is selected by its id or name, a string such as '1.0', not by \
                {kind}"
            ))
        })?;
        let by_id = key.parse().ok().and_then(|id| self.source_by_id(id));
        by_id.or_else(|| self.known.iter().find(|source| source.name == key)).ok_or_else(|| {
            // A program that decides while a run goes on does not know its number.
            let run = if self.run == 0 { "the run".to_owned() } else { format!("run {}", self.run) };
            PyKeyError::new_err(format!("{run} has no source {key:?}; it has {}", self.list_for_message()))
        })
    }

    /// Lists the first few sources, for a message.
    fn list_for_message(&self) -> String {
        const MAX_LISTED_SOURCES: usize = 8;
        let mut listed: Vec<String> = self.known.iter().take(MAX_LISTED_SOURCES).map(ToString::to_string).collect();
        match self.known.len() {
            0 => return "none".to_owned(),
            all if all > MAX_LISTED_SOURCES => listed.push(format!("{} more", all - MAX_LISTED_SOURCES)),
            _ => {}
        }
        listed.join(", ")
    }
}

impl std::fmt::Display for Known {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { id, name, .. } = self;
        // Text quoted from a file must not contain control characters for a terminal.
        if name.is_empty() || *name == id.to_string() { write!(f, "{id}") } else { write!(f, "{id} ({name:?})") }
    }
}
