//! Runs on a data server, read as if they were here.

use crate::{Options, RemoteError, Server};
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use thalweg_store::{Run, RunFiles};

/// Opens the run that a URL names, `http://host:port/runs/42`: what [`Run::open`] does with a directory.
pub fn open_run(url: &str, options: &Options) -> Result<Run, RemoteError> {
    let served = Served { server: Server::new(url, options)?, url: url.trim_end_matches('/').into() };
    Ok(Run::open_at(Arc::new(served))?)
}

/// Whether something that names a run names one on a server.
pub fn is_url(text: &str) -> bool {
    text.starts_with("http://") || text.starts_with("https://")
}

/// The files of a run on a server.
#[derive(Debug)]
struct Served {
    server: Server,
    url: PathBuf,
}

impl RunFiles for Served {
    fn path(&self) -> &Path {
        &self.url
    }

    fn info(&self) -> io::Result<Vec<u8>> {
        Ok(self.server.read("run.json", .., None)?)
    }

    fn files(&self) -> io::Result<Vec<(String, u64)>> {
        let listing = self.server.list("")?;
        Ok(listing.entries.into_iter().map(|entry| (entry.name, entry.bytes)).collect())
    }

    fn read_at(&self, file: &str, offset: u64, into: &mut [u8]) -> io::Result<usize> {
        // Blocks never change: parts of them, asked for at any time, belong together.
        let mut reader = self.server.reader(file, offset..offset.saturating_add(into.len() as u64), None)?;
        let mut there = 0;
        while there < into.len() {
            match reader.read(&mut into[there..])? {
                0 => break,
                read => there += read,
            }
        }
        Ok(there)
    }
}
