//! Runs on a data server, read as if they were local.

use crate::pull::{RUN_JSON, RunJson};
use crate::{Head, Options, RemoteError, Server};
use parking_lot::Mutex;
use std::collections::HashMap;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use thalweg_store::{Part, Run, RunFiles, RunInfo, RunState, StoreError, WriterLife};

/// Opens the run that a URL names, `http://host:port/runs/42`, as [`Run::open`] opens that of a directory.
///
/// # Errors
/// As [`Server::new`] and [`Run::open_remote`].
pub fn open_remote_run(url: &str, options: &Options) -> Result<Run, RemoteError> {
    let server = Server::new(url, options)?;
    match Run::open_remote(RemoteFiles::new(server.clone())) {
        Err(error @ StoreError::NotARun(_)) => {
            let parts = builder_parts(&server)?;
            if parts.is_empty() {
                return Err(error.into());
            }
            let parts = parts.into_iter().map(|part| Part::open_remote(RemoteFiles::new(part)).map(Arc::new));
            Ok(Run::from_parts(server.url_of_resource("").into(), parts.collect::<Result<_, _>>()?)?)
        }
        run => Ok(run?),
    }
}

/// Returns the parts that the builders of a run wrote; empty if the URL does not name a run of several builders.
pub(crate) fn builder_parts(server: &Server) -> Result<Vec<Server>, RemoteError> {
    match server.list_directory("") {
        Ok(listing) => Ok(listing.parts.iter().map(|name| server.beside_name(name)).collect()),
        Err(error) if error.is_not_found() => Ok(Vec::new()),
        Err(error) => Err(error),
    }
}

/// Returns whether the name of a run is a URL on a server.
pub fn is_run_url(text: &str) -> bool {
    let mut schemes = ["http://", "https://"].into_iter();
    schemes.any(|scheme| text.get(..scheme.len()).is_some_and(|begin| begin.eq_ignore_ascii_case(scheme)))
}

/// The files of a run on a server.
#[derive(Debug)]
struct RemoteFiles {
    server: Server,
    url: PathBuf,
    known: Mutex<KnownState>,
}

/// Properties of a run seen so far, by which another run in its place is detected.
#[derive(Debug, Default)]
struct KnownState {
    /// [Identity](RunInfo::run_identity) of the run.
    run: Option<(u32, u32, u64)>,
    has_ended: bool,
    segments: HashMap<String, Segment>,
}

/// Properties of a segment when it was last seen.
#[derive(Debug, Clone)]
struct Segment {
    head: Head,
    /// True if the segment was being written: it may be longer by now.
    grows: bool,
}

impl RemoteFiles {
    fn new(server: Server) -> Arc<Self> {
        let url = server.url_of_resource("").into();
        Arc::new(Self { server, url, known: Mutex::default() })
    }

    /// Records the state in `run.json`; fails if it belongs to another run.
    fn check_identity(&self, info: &RunInfo) -> Result<(), RemoteError> {
        let mut known = self.known.lock();
        if *known.run.get_or_insert(info.run_identity()) != info.run_identity() {
            return Err(RemoteError::Changed(self.server.url_of_resource("")));
        }
        known.has_ended |= info.state != RunState::Open;
        Ok(())
    }

    fn read_segment(&self, file: &str, offset: u64, into: &mut [u8]) -> Result<usize, RemoteError> {
        let (before, grows) = {
            let known = self.known.lock();
            (known.segments.get(file).cloned(), !known.has_ended)
        };
        let same = before.as_ref().filter(|segment| !segment.grows).map(|segment| &segment.head);
        // Blocks never change: parts of a growing segment, too, fit together whenever they are read.
        let mut reader = self.server.open_reader(file, offset..offset.saturating_add(into.len() as u64), same)?;
        let head = reader.file_head().clone();
        if before.as_ref().is_some_and(|before| head.length < before.head.length) {
            return Err(RemoteError::Changed(self.server.url_of_resource(file)));
        }
        if same.is_none() {
            self.known.lock().segments.insert(file.to_owned(), Segment { head, grows });
        }
        let mut filled = 0;
        while filled < into.len() {
            match reader.read(&mut into[filled..]) {
                Ok(0) => break,
                Ok(read) => filled += read,
                Err(error) => return Err(reader.original_error(error)),
            }
        }
        Ok(filled)
    }

    /// Returns the error without the URL, for a caller that adds the place itself.
    fn error_without_url(&self, file: &str, error: RemoteError) -> io::Error {
        let text = error.to_string();
        let what = text
            .strip_prefix(&self.server.url_of_resource(file))
            .map(|what| what.trim_start_matches([':', ' ']).to_owned());
        io::Error::new(io::Error::from(error).kind(), what.unwrap_or(text))
    }
}

impl RunFiles for RemoteFiles {
    fn display_path(&self) -> &Path {
        &self.url
    }

    fn read_run_json(&self) -> io::Result<Vec<u8>> {
        let (_, text) = RunJson::fetch_text(&self.server).map_err(|error| self.error_without_url(RUN_JSON, error))?;
        // A `run.json` that cannot be parsed is reported by the caller.
        if let Ok(info) = serde_json::from_slice(&text) {
            self.check_identity(&info).map_err(|error| self.error_without_url("", error))?;
        }
        Ok(text)
    }

    fn list_files(&self) -> io::Result<Vec<(String, u64)>> {
        let listing = self.server.list_directory("").map_err(|error| self.error_without_url("/", error))?;
        if let Some(info) = &listing.info {
            self.check_identity(info).map_err(|error| self.error_without_url("", error))?;
        }
        Ok(listing.entries.into_iter().map(|entry| (entry.name, entry.bytes)).collect())
    }

    fn writer_life(&self) -> WriterLife {
        self.server.list_directory("").ok().and_then(|listing| listing.writer).unwrap_or(WriterLife::Unknown)
    }

    fn read_file_at(&self, file: &str, offset: u64, into: &mut [u8]) -> io::Result<usize> {
        self.read_segment(file, offset, into).map_err(|error| self.error_without_url(file, error))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{BufRead, BufReader, Write};
    use std::net::TcpListener;

    /// A run on a server that sends these answers, one for each request.
    fn served(answers: Vec<String>) -> RemoteFiles {
        let door = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}/1", door.local_addr().unwrap());
        std::thread::spawn(move || {
            for (client, answer) in door.incoming().map_while(Result::ok).zip(answers) {
                let lines = BufReader::new(&client).lines().map_while(Result::ok);
                lines.take_while(|line| !line.is_empty()).for_each(drop);
                let _ = (&client).write_all(answer.as_bytes());
            }
        });
        let options = Options { timeout: std::time::Duration::ZERO, ..Options::default() };
        RemoteFiles { server: Server::new(&url, &options).unwrap(), url: url.into(), known: Mutex::default() }
    }

    /// Returns the first byte of a segment of `length` bytes.
    fn part(etag: u32, length: u64) -> String {
        format!(
            "HTTP/1.1 206 Partial Content\r\nConnection: close\r\nContent-Length: 1\r\nETag: \"{etag}\"\r\n\
             Content-Range: bytes 0-0/{length}\r\n\r\n1"
        )
    }

    fn info(state: RunState, began: u64) -> RunInfo {
        let info = serde_json::json!({
            "format": "thalweg-run", "version": 1, "run": 1, "builder": 0, "builders": 1, "state": state, "began": began,
            "writer": {}, "recorder": {},
        });
        serde_json::from_value(info).unwrap()
    }

    /// Returns for each read in turn whether it succeeded, and the error of the last one, if any.
    fn reads(served: &RemoteFiles, count: usize) -> (Vec<bool>, String) {
        let results: Vec<_> = (0..count).map(|_| served.read_file_at("00000.seg", 0, &mut [0])).collect();
        let error = results.last().and_then(|last| last.as_ref().err()).map(ToString::to_string);
        (results.iter().map(Result::is_ok).collect(), error.unwrap_or_default())
    }

    #[test]
    fn a_run_that_has_ended_does_not_change() {
        for other in [part(2, 9), part(1, 10)] {
            let served = served(vec![part(1, 9), part(1, 9), other]);
            served.check_identity(&info(RunState::Complete, 1)).unwrap();
            let changed = "changed on the server in the meantime".to_owned();
            assert_eq!(reads(&served, 3), (vec![true, true, false], changed));
        }
    }

    #[test]
    fn a_run_that_is_recorded_only_grows_until_it_has_ended() {
        let served = served(vec![part(1, 9), part(2, 10), part(3, 9), part(3, 10), part(4, 11)]);
        served.check_identity(&info(RunState::Open, 1)).unwrap();
        assert_eq!(reads(&served, 3).0, [true, true, false]);
        served.check_identity(&info(RunState::Complete, 1)).unwrap();
        assert_eq!(reads(&served, 2).0, [true, false]);
    }

    #[test]
    fn another_run_in_its_place_is_told_from_it() {
        let served = served(Vec::new());
        served.check_identity(&info(RunState::Open, 1)).unwrap();
        served.check_identity(&info(RunState::Complete, 1)).unwrap();
        assert!(matches!(served.check_identity(&info(RunState::Complete, 2)), Err(RemoteError::Changed(_))));
    }

    #[test]
    fn an_error_leaves_the_name_to_who_tells_it() {
        let unused = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let options = Options { timeout: std::time::Duration::ZERO, ..Options::default() };
        let url = format!("http://{unused}/1");
        let error = open_remote_run(&url, &options).unwrap_err().to_string();
        assert_eq!(error.matches(&url).count(), 1, "{error}");
    }

    #[test]
    fn a_url_is_one_in_any_case() {
        assert!(is_run_url("http://h/1") && is_run_url("HTTPS://h/1"));
        assert!(!is_run_url("runs/1") && !is_run_url("http:/") && !is_run_url("é".repeat(8).as_str()));
    }
}
