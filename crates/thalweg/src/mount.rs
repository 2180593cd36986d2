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
Runs until Ctrl-C, or until somebody unmounts it (`fusermount3 -u DIR`, `umount DIR`). \
Nothing can be written through it. Root can mount; others can where the package fuse3 \
is installed.

A file that became another one on the server gives an error (ESTALE) to who has it \
open, and the new one to who opens it. A server that is gone for longer than --timeout \
gives EIO.

Exit code: 0 where it was unmounted; 1 where it cannot be mounted; 2 where there is no \
such URL or directory.")]
pub(crate) struct Options {
    /// URL to show: a whole server, http://host:8042/, a directory on it, or a run
    url: String,
    /// The directory that shows it; what is in it itself is hidden meanwhile
    directory: PathBuf,
    /// Show it to every user of this machine, not to this one only. Others than root need user_allow_other in
    /// /etc/fuse.conf
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
            "{} is at {}. Ctrl-C ends it.\n",
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
