//! Metadata and samples of a SigMF recording: from two files, an archive, or a collection (SigMF 1.2, *SigMF Files*,
//! *SigMF Archives*, *SigMF Collections*).

use crate::file::{InputFile, file_error};
use crate::{DeviceError, SigmfConfig};
use serde_json::Value;
use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};

/// Maximum length of metadata, in bytes. Real metadata have a few KiB; annotations can make them some MiB.
pub(crate) const MAX_METADATA: usize = 16 << 20;
/// Maximum number of bytes of an archive that are not its files' content: the headers of some 100 000 files.
const MAX_HEADERS: u64 = 64 << 20;

/// Metadata and samples of a recording.
#[derive(Debug)]
pub(crate) struct Parts {
    /// Path of the metadata, for messages.
    pub(crate) meta: PathBuf,
    pub(crate) meta_bytes: Vec<u8>,
    data: Data,
}

#[derive(Debug)]
enum Data {
    /// A file beside the metadata.
    File(PathBuf),
    /// Part of the archive, if it contains one.
    Part(Option<InputFile>),
}

impl Parts {
    /// Returns the parts of the recording that `config` names.
    pub(crate) fn open_configured(config: &SigmfConfig) -> Result<Self, DeviceError> {
        let (file, wanted) = (&config.file, config.recording.as_deref());
        match Container::from_file_name(file) {
            Some(Container::Archive) => Self::from_archive(file, wanted),
            Some(Container::Collection) => {
                let name = choose_recording(file, wanted, collection_streams(file)?)?;
                Self::from_files(&file.with_file_name(name))
            }
            None if wanted.is_some() => {
                let problem = "goes with an archive (.sigmf) or a collection (.sigmf-collection)".to_owned();
                Err(DeviceError::Option { option: "recording", problem })
            }
            None => Self::from_files(file),
        }
    }

    fn from_files(path: &Path) -> Result<Self, DeviceError> {
        let (meta, data) = recording_file_names(path);
        let meta_bytes = InputFile::open(&meta)?.read_head(MAX_METADATA + 1)?;
        Ok(Self { meta, meta_bytes, data: Data::File(data) })
    }

    fn from_archive(archive: &Path, wanted: Option<&str>) -> Result<Self, DeviceError> {
        let mut recordings = archive_members(archive)?;
        let name = choose_recording(archive, wanted, recordings.keys().cloned().collect())?;
        let Some(Member { meta: Some(meta), data }) = recordings.remove(&name) else {
            return Err(DeviceError::Recording { file: archive.into(), wanted: Some(name), recordings: Vec::new() });
        };
        let meta_bytes = open_archive_part(archive, meta)?.read_head(MAX_METADATA + 1)?;
        let data = data.map(|data| open_archive_part(archive, data)).transpose()?;
        Ok(Self { meta: archive.join(format!("{name}.sigmf-meta")), meta_bytes, data: Data::Part(data) })
    }

    /// Returns the samples: from the file `dataset`, if the metadata name one (`core:dataset`).
    pub(crate) fn into_samples(self, dataset: Option<&str>) -> Result<InputFile, DeviceError> {
        match (self.data, dataset) {
            (Data::File(_), Some(name)) => InputFile::open(&self.meta.with_file_name(name)),
            (Data::File(data), None) => InputFile::open(&data),
            (Data::Part(Some(data)), None) => Ok(data),
            (Data::Part(_), _) => Err(DeviceError::Metadata {
                file: self.meta,
                field: "the recording's .sigmf-data".to_owned(),
                found: "missing".to_owned(),
                expected: "in the archive beside it",
            }),
        }
    }
}

/// Opens the part of an archive with this offset and length, in bytes.
fn open_archive_part(archive: &Path, (at, len): (u64, u64)) -> Result<InputFile, DeviceError> {
    let file = InputFile::open(archive)?;
    let (needed, left) = (at.saturating_add(len), file.len());
    let what = "the archive up to the recording's end";
    file.into_part(at, len).ok_or_else(|| DeviceError::Truncated {
        file: archive.to_owned(),
        at: 0,
        what,
        needed,
        left,
    })
}

/// Returns the two files of the recording that `path` names: by either of them, or by their name without ending.
pub(crate) fn recording_file_names(path: &Path) -> (PathBuf, PathBuf) {
    let known = path.extension().is_some_and(|ending| ending == "sigmf-meta" || ending == "sigmf-data");
    let stem = if known { path.with_extension("") } else { path.to_owned() };
    let [meta, data] = [".sigmf-meta", ".sigmf-data"].map(|ending| {
        let mut name = stem.clone().into_os_string();
        name.push(ending);
        PathBuf::from(name)
    });
    (meta, data)
}

/// A file that may stand for several recordings.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Container {
    Archive,
    Collection,
}

impl Container {
    /// Recognises a container by its name, as the standard defines it.
    pub(crate) fn from_file_name(path: &Path) -> Option<Self> {
        match path.extension()?.to_str()? {
            "sigmf" => Some(Self::Archive),
            "sigmf-collection" => Some(Self::Collection),
            _ => None,
        }
    }

    /// Returns the names of the container's recordings.
    pub(crate) fn recording_names(self, path: &Path) -> Result<Vec<String>, DeviceError> {
        match self {
            Self::Archive => Ok(archive_members(path)?.into_keys().collect()),
            Self::Collection => collection_streams(path),
        }
    }
}

/// Returns the wanted name, or the only one.
fn choose_recording(file: &Path, wanted: Option<&str>, recordings: Vec<String>) -> Result<String, DeviceError> {
    match (wanted, &recordings[..]) {
        (_, []) => Err(DeviceError::Empty { file: file.to_owned() }),
        (None, [only]) => Ok(only.clone()),
        (Some(wanted), names) if names.iter().any(|name| name == wanted) => Ok(wanted.to_owned()),
        (wanted, _) => {
            let wanted = wanted.map(str::to_owned);
            Err(DeviceError::Recording { file: file.to_owned(), wanted, recordings })
        }
    }
}

/// Returns the names in the `core:streams` of a collection.
fn collection_streams(path: &Path) -> Result<Vec<String>, DeviceError> {
    let bytes = InputFile::open(path)?.read_head(MAX_METADATA + 1)?;
    if bytes.len() > MAX_METADATA {
        return Err(streams_error(path, "more than 16 MiB"));
    }
    let document: Value =
        serde_json::from_slice(&bytes).map_err(|error| DeviceError::Json { file: path.to_owned(), error })?;
    let streams = document.pointer("/collection/core:streams").and_then(Value::as_array);
    let streams = streams.ok_or_else(|| streams_error(path, "missing, or not an array"))?;
    let names = streams.iter().map(|stream| {
        let name = stream.get("name").and_then(Value::as_str).filter(|name| is_file_name(name));
        name.map(str::to_owned).ok_or_else(|| streams_error(path, &stream.to_string()))
    });
    names.collect()
}

fn streams_error(path: &Path, found: &str) -> DeviceError {
    DeviceError::Metadata {
        file: path.to_owned(),
        field: "collection core:streams".to_owned(),
        // The text comes from an untrusted file, so it is shortened.
        found: found.chars().take(60).collect(),
        expected: "an array of objects, each with the name of a recording beside this file",
    }
}

/// Returns whether an untrusted text names a file of the same directory, and no other.
pub(crate) fn is_file_name(name: &str) -> bool {
    !name.contains('\0') && Path::new(name).file_name().is_some_and(|last| last == name)
}

/// Places of a recording's two files in the archive: offset and length, in bytes.
#[derive(Debug, Default)]
struct Member {
    meta: Option<(u64, u64)>,
    data: Option<(u64, u64)>,
}

/// Returns the recordings of an archive, by the name of their files without ending.
fn archive_members(path: &Path) -> Result<BTreeMap<String, Member>, DeviceError> {
    let file = InputFile::open(path)?.into_inner();
    read_archive_members(file).map_err(|error| file_error("reading the archive", path, error))
}

fn read_archive_members(file: File) -> io::Result<BTreeMap<String, Member>> {
    let mut archive = tar::Archive::new(Frugal { file, left: MAX_HEADERS });
    let mut recordings: BTreeMap<String, Member> = BTreeMap::new();
    for entry in archive.entries_with_seek()? {
        let entry = entry?;
        let name = entry.path()?.into_owned();
        // Any other entry, such as a sparse file, has no bytes that could be played.
        if !entry.header().entry_type().is_file() {
            continue;
        }
        let Some(stem) = name.file_stem().and_then(|stem| stem.to_str()) else { continue };
        let place = Some((entry.raw_file_position(), entry.size()));
        match name.extension().and_then(|ending| ending.to_str()) {
            Some("sigmf-meta") => recordings.entry(stem.to_owned()).or_default().meta = place,
            Some("sigmf-data") => recordings.entry(stem.to_owned()).or_default().data = place,
            _ => {}
        }
    }
    recordings.retain(|_, member| member.meta.is_some());
    Ok(recordings)
}

/// A file of which only `left` bytes may be read: content is skipped, so that more can only come from false headers.
struct Frugal<R> {
    file: R,
    left: u64,
}

impl<R: Read> Read for Frugal<R> {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        let read = self.file.read(bytes)?;
        self.left = self.left.checked_sub(read as u64).ok_or_else(|| io::Error::other("its headers are too long"))?;
        Ok(read)
    }
}

impl<R: Seek> Seek for Frugal<R> {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        self.file.seek(to)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn config(file: &Path, recording: Option<&str>) -> SigmfConfig {
        SigmfConfig {
            file: file.to_owned(),
            recording: recording.map(str::to_owned),
            samples_per_fragment: None,
            looped: false,
        }
    }

    fn archive(files: &[(&str, &[u8])]) -> Vec<u8> {
        let mut builder = tar::Builder::new(Vec::new());
        for (name, content) in files {
            let mut header = tar::Header::new_ustar();
            header.set_size(content.len() as u64);
            builder.append_data(&mut header, name, *content).unwrap();
        }
        builder.into_inner().unwrap()
    }

    fn written(name: &str, bytes: &[u8]) -> (tempfile::TempDir, PathBuf) {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join(name);
        std::fs::write(&path, bytes).unwrap();
        (dir, path)
    }

    #[test]
    fn an_archive_has_its_recordings_in_place() {
        let files: [(&str, &[u8]); 5] = [
            ("a/a.sigmf-meta", b"{}"),
            ("a/a.sigmf-data", b"AAAA"),
            ("b/b.sigmf-data", b"BB"),
            ("b/b.sigmf-meta", b"[]"),
            ("b/notes.txt", b"no recording"),
        ];
        let (_dir, path) = written("two.sigmf", &archive(&files));
        assert_eq!(Container::from_file_name(&path).unwrap().recording_names(&path).unwrap(), ["a", "b"]);
        let parts = Parts::open_configured(&config(&path, Some("b"))).unwrap();
        assert_eq!(parts.meta_bytes, b"[]");
        assert_eq!(parts.into_samples(None).unwrap().read_head(10).unwrap(), b"BB");
        let error = Parts::open_configured(&config(&path, None)).unwrap_err().to_string();
        assert!(error.contains("two.sigmf: more than one recording; it has 'a', 'b'"), "{error}");
        let error = Parts::open_configured(&config(&path, Some("c"))).unwrap_err().to_string();
        assert!(error.contains("no recording 'c'"), "{error}");
        let (_dir, path) = written("half.sigmf", &archive(&files[..1]));
        let error = Parts::open_configured(&config(&path, None)).unwrap().into_samples(None).unwrap_err().to_string();
        assert!(error.contains("a.sigmf-meta: the recording's .sigmf-data is missing"), "{error}");
    }

    #[test]
    fn a_collection_names_recordings_beside_it_and_no_others() {
        let (dir, path) = written("all.sigmf-collection", br#"{"collection": {"core:streams": [{"name": "x"}]}}"#);
        std::fs::write(dir.path().join("x.sigmf-meta"), "{}").unwrap();
        assert_eq!(Parts::open_configured(&config(&path, None)).unwrap().meta, dir.path().join("x.sigmf-meta"));
        for wrong in [
            r#"{"collection": {"core:streams": [{"name": "../x"}]}}"#,
            r#"{"collection": {"core:streams": [{"name": "/x"}]}}"#,
            r#"{"collection": {"core:streams": [{"name": ".."}]}}"#,
            r#"{"collection": {"core:streams": [{}]}}"#,
            r#"{"collection": {}}"#,
        ] {
            std::fs::write(&path, wrong).unwrap();
            let error = Parts::open_configured(&config(&path, None)).unwrap_err().to_string();
            assert!(error.contains("core:streams") && error.contains("beside this file"), "{error}");
        }
        let error = Parts::open_configured(&config(&dir.path().join("x"), Some("x"))).unwrap_err().to_string();
        assert!(error.contains("option recording: goes with an archive"), "{error}");
    }

    #[test]
    fn a_name_that_is_longer_than_any_header_is_refused() {
        let mut header = tar::Header::new_gnu();
        header.set_entry_type(tar::EntryType::GNULongName);
        header.set_size(1 << 40);
        header.set_cksum();
        let (_dir, path) = written("long.sigmf", header.as_bytes());
        let file = std::fs::OpenOptions::new().write(true).open(&path).unwrap();
        file.set_len(1 << 40).unwrap();
        let error = Parts::open_configured(&config(&path, None)).unwrap_err().to_string();
        assert!(error.contains("its headers are too long"), "{error}");
    }

    proptest! {
        #[test]
        fn a_damaged_archive_is_read_or_refused(
            damage in proptest::collection::vec((any::<proptest::sample::Index>(), any::<u8>()), 0..4),
            cut in any::<proptest::sample::Index>(),
        ) {
            let mut bytes = archive(&[("a/a.sigmf-meta", b"{}"), ("a/a.sigmf-data", b"AAAA")]);
            for (place, value) in damage {
                let place = place.index(bytes.len());
                bytes[place] = value;
            }
            bytes.truncate(cut.index(bytes.len() * 2));
            let (_dir, path) = written("damaged.sigmf", &bytes);
            if let Ok(parts) = Parts::open_configured(&config(&path, None))
                && let Ok(data) = parts.into_samples(None)
            {
                prop_assert!(data.len() <= bytes.len() as u64);
                prop_assert!(data.read_head(1 << 20).is_ok());
            }
        }
    }
}
