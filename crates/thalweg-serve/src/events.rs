//! Events of a run, as the bytes of their records.

use crate::answer::Content;
use crc_fast::{CrcAlgorithm, Digest};
use serde::Serialize;
use std::collections::HashMap;
use std::fs::File;
use std::path::PathBuf;
use std::sync::Arc;
use thalweg_store::{EventStatus, Run, StoreError};
use thalweg_transfer::Stored;
use thalweg_wire::{EventId, HEADER_LEN, SourceId, record_bytes};

/// A range of a run's events.
#[derive(Debug)]
pub(crate) struct Selection {
    pub(crate) first: u64,
    pub(crate) last: u64,
    /// Sources whose fragments are selected; all if empty.
    pub(crate) sources: Vec<SourceId>,
}

/// Reason why events cannot be served.
#[derive(Debug, thiserror::Error)]
pub(crate) enum EventsError {
    #[error("the run has no source {0}")]
    Source(String),
    #[error("these are more than {MAX_SCATTERED_RECORDS} scattered records: request fewer events at once")]
    TooMany,
    #[error(transparent)]
    Store(#[from] StoreError),
    #[error("{0}")]
    Open(#[from] std::io::Error),
}

/// Event of the content, with the positions of its records.
#[derive(Debug, Serialize)]
pub(crate) struct Described {
    event: u64,
    status: EventStatus,
    fragments: Vec<DescribedFragment>,
}

#[derive(Debug, Serialize)]
struct DescribedFragment {
    source: String,
    name: String,
    /// Offset of the record in the content, in bytes.
    offset: u64,
    /// Length of the payload in bytes.
    length: u32,
    /// Names of the flags that are set.
    status: Vec<String>,
}

impl Selection {
    /// Selects events `first` to `last` of the sources with these names or ids.
    pub(crate) fn select_events(run: &Run, first: u64, last: u64, sources: &[String]) -> Result<Self, EventsError> {
        let sources = sources.iter().map(|name| source_named(run, name)).collect::<Result<_, _>>()?;
        Ok(Self { first, last, sources })
    }

    /// Returns the records as ranges of the files that hold them, and a number that identifies them: a checksum of
    /// their headers, which contain the payloads' checksums.
    pub(crate) fn record_ranges(&self, run: &Run) -> Result<(Content, u64), EventsError> {
        let mut files: HashMap<PathBuf, Arc<Stored>> = HashMap::new();
        let mut content = Content::default();
        let mut state = Digest::new(CrcAlgorithm::Crc64Nvme);
        self.for_each_event(run, |event| {
            for fragment in event.fragments.iter().filter(|fragment| self.selects_source(fragment.header.source)) {
                let (mapping, payload) = fragment.file_position();
                let file = match files.get(mapping.file_path()) {
                    Some(file) => file,
                    None => {
                        let file = Arc::new(Stored::new(File::open(mapping.file_path())?));
                        files.entry(mapping.file_path().to_owned()).or_insert(file)
                    }
                };
                state.update(&fragment.header.encode());
                let start = payload - HEADER_LEN as u64;
                content
                    .push_file_range(file, start..start + record_bytes(fragment.header.piece_length as usize) as u64);
            }
            if content.pieces.len() > MAX_SCATTERED_RECORDS { Err(EventsError::TooMany) } else { Ok(()) }
        })?;
        Ok((content, state.finalize()))
    }

    /// Returns the positions of all records in [`record_ranges`](Self::record_ranges).
    pub(crate) fn describe_records(&self, run: &Run) -> Result<Vec<Described>, EventsError> {
        let names: HashMap<SourceId, &str> = run.run_info().sources.iter().map(|s| (s.id, s.name.as_str())).collect();
        let mut described = Vec::new();
        let (mut offset, mut records) = (0, 0);
        self.for_each_event(run, |event| {
            let fragments = event.fragments.iter().filter(|fragment| self.selects_source(fragment.header.source));
            let fragments = fragments.map(|fragment| {
                let header = &fragment.header;
                let place = offset;
                offset += record_bytes(header.piece_length as usize) as u64;
                DescribedFragment {
                    source: header.source.to_string(),
                    name: names.get(&header.source).copied().unwrap_or_default().to_owned(),
                    offset: place,
                    length: header.piece_length,
                    status: header.status.iter_names().map(|(name, _)| name.to_lowercase()).collect(),
                }
            });
            let fragments: Vec<_> = fragments.collect();
            records += fragments.len();
            described.push(Described { event: event.id.0, status: event.status, fragments });
            if records > MAX_SCATTERED_RECORDS { Err(EventsError::TooMany) } else { Ok(()) }
        })?;
        Ok(described)
    }

    fn selects_source(&self, source: SourceId) -> bool {
        self.sources.is_empty() || self.sources.contains(&source)
    }

    fn for_each_event(
        &self,
        run: &Run,
        mut take: impl FnMut(thalweg_store::Event) -> Result<(), EventsError>,
    ) -> Result<(), EventsError> {
        let ids = run.event_ids_from(EventId(self.first)).take_while(|(id, _)| id.0 <= self.last);
        for (id, status) in ids {
            take(run.read_event(EventId(id.0), status)?)?;
        }
        Ok(())
    }
}

/// Returns the source with this name or id.
fn source_named(run: &Run, name: &str) -> Result<SourceId, EventsError> {
    let source = run.run_info().sources.iter().find(|source| source.name == name || source.id.to_string() == name);
    source.map(|source| source.id).ok_or_else(|| EventsError::Source(name.to_owned()))
}

/// Maximum number of records in one answer that are not adjacent in a file; bounds the memory that an answer takes.
const MAX_SCATTERED_RECORDS: usize = 200_000;
