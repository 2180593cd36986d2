//! Address of this user's service: a small file that the service writes and its clients read.

use serde::{Deserialize, Serialize};
use std::fs::{self, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::PathBuf;

/// Address and token of a service, for clients of the same user.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Pointer {
    /// Address: `http://HOST:PORT`.
    pub url: String,
    /// Secret of a token.
    pub token: String,
}

/// Returns the path of the file.
pub fn pointer_path() -> PathBuf {
    let state = match std::env::var_os("XDG_STATE_HOME").filter(|path| !path.is_empty()) {
        Some(state) => PathBuf::from(state),
        None => PathBuf::from(std::env::var_os("HOME").unwrap_or_else(|| "/".into())).join(".local/state"),
    };
    state.join("thalweg/service.json")
}

impl Pointer {
    /// Reads the file.
    ///
    /// # Errors
    /// There is none, or it cannot be read.
    pub fn read_file() -> io::Result<Self> {
        serde_json::from_slice(&fs::read(pointer_path())?).map_err(io::Error::other)
    }

    /// Writes the file, which its owner alone can read.
    ///
    /// # Errors
    /// It cannot be written.
    pub fn write_file(&self) -> io::Result<()> {
        let path = pointer_path();
        path.parent().map_or(Ok(()), fs::create_dir_all)?;
        let new = path.with_extension(format!("{}.new", std::process::id()));
        let mut file = OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&new)?;
        file.write_all(&serde_json::to_vec(self)?)?;
        fs::rename(&new, &path)
    }
}
