//! `thalweg mount`: recorded runs on a server, shown as files of this machine.

use crate::pull::Remote;
use crate::terminal::{Failure, Output, signals};
use serde::Serialize;
use std::path::PathBuf;
use std::process::ExitCode;
use thalweg_remote::MountError;
use thalweg_text::{format_quantity, format_volume, replace_controls};

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Runs until Ctrl-C, or until it is unmounted (`fusermount3 -u DIR`, `umount DIR`). It is \
read-only. Root can mount; other users need the package fuse3.

When a file is replaced on the server, reads of an open file fail (ESTALE) and new \
opens see the new file. Reads fail with EIO when the server is unreachable for longer \
than --timeout.

Exit code: 0 if it was unmounted; 1 if it cannot be mounted; 2 if the URL or directory does not exist.")]
pub(crate) struct Options {
    /// URL to mount: a whole server, http://host:8042/, one of its directories, or a run
    url: String,
    /// Directory to mount it on; its own contents are hidden while mounted
    directory: PathBuf,
    /// Allow access to all users of this machine. Unless you are root, this needs user_allow_other in /etc/fuse.conf
    #[arg(long)]
    allow_other: bool,
    #[command(flatten)]
    remote: Remote,
}

/// Message for programs when the files are there.
#[derive(Debug, Serialize)]
struct Ready<'a> {
    url: &'a str,
    directory: &'a std::path::Path,
}

pub(crate) fn run_mount(options: &Options, json: bool) -> Result<ExitCode, Failure> {
    let Options { url, directory, allow_other, remote } = options;
    let server = remote.connect_server(url)?;
    let mounted = thalweg_remote::mount_server(&server, directory, remote.stream_count(), *allow_other)?;
    let stop = mounted.stop_handle();
    signals::on_interrupt(move || stop.request_stop())?;
    let mut out = Output::new();
    match json {
        true => out.json(&Ready { url, directory })?,
        false => out.text(&format!(
            "{} is mounted at {}. Ctrl-C unmounts it.\n",
            replace_controls(url),
            replace_controls(&directory.display().to_string())
        ))?,
    }
    out.flush()?;
    let used = mounted.wait_until_unmounted();
    if json {
        out.json(&used)?;
    } else {
        let errors =
            if used.errors == 0 { String::new() } else { format!("; {}", format_quantity(used.errors, "error")) };
        let (opened, read, fetched) =
            (format_quantity(used.opened, "file"), format_volume(used.read_bytes), format_volume(used.fetched_bytes));
        out.text(&format!("{opened} opened: {read} read, {fetched} fetched{errors}\n"))?;
    }
    out.flush()?;
    Ok(ExitCode::SUCCESS)
}

impl From<MountError> for Failure {
    fn from(error: MountError) -> Self {
        // The text of a server may contain anything.
        let text = replace_controls(&error.to_string()).into_owned();
        if error.is_usage_error() { Self::Usage(text) } else { Self::Broken(text) }
    }
}
