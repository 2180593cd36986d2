//! Runs on a data server.

use std::io::{self, Read};
use std::path::{Path, PathBuf};
use thalweg_remote::{Options, RemoteError, Server};
use thalweg_store::RunFiles;

/// A run on a data server: its URL is `http://host:port/runs/42`.
#[derive(Debug)]
pub(crate) struct Served {
    server: Server,
    url: PathBuf,
}

impl Served {
    pub(crate) fn new(url: &str, options: &Options) -> Result<Self, RemoteError> {
        Ok(Self { server: Server::new(url, options)?, url: url.trim_end_matches('/').into() })
    }
}

/// Whether something that names a run names one on a server.
pub(crate) fn is_url(text: &str) -> bool {
    text.starts_with("http://") || text.starts_with("https://")
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
