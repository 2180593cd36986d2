//! `thalweg push`: runs and files, sent to a data server.

use crate::pull::{Remote, print_moved, with_progress_bar};
use crate::terminal::Failure;
use std::panic::resume_unwind;
use std::path::PathBuf;
use std::process::ExitCode;
use thalweg_remote::Moved;
use thalweg_store::builder_directories;

#[derive(Debug, clap::Args)]
#[command(after_help = "\
A file appears on the server once it is complete and its checksum agrees, a run once \
all of its segments are. After an interruption, the same command continues. Files that \
are already complete are not sent again; existing files that differ are not overwritten.

Exit code: 0 if everything was sent; 1 if something was not; 2 if there is nothing to send; 130 if interrupted.")]
pub(crate) struct Options {
    /// A file, or the directory of a run, such as runs/run-000042, which includes the data of all its builders
    #[arg(value_name = "RUN_OR_FILE")]
    path: PathBuf,
    /// Directory on the server: http://host:8042/ or http://host:8042/2026. It is created if missing
    url: String,
    /// Send a run while it is being recorded, until it has ended
    #[arg(long)]
    follow: bool,
    #[command(flatten)]
    remote: Remote,
}

pub(crate) fn run_push(options: &Options, json: bool) -> Result<ExitCode, Failure> {
    let Options { path, url, follow, remote } = options;
    let parts = builder_directories(path);
    if parts.is_empty() && !path.exists() {
        return Err(Failure::Usage(format!("{} does not exist", path.display())));
    }
    let paths = if parts.is_empty() { std::slice::from_ref(path) } else { &parts };
    let server = remote.connect_server(url)?;
    let (moved, seconds) = with_progress_bar("sending", json, |progress| {
        let push = if *follow { thalweg_remote::push_while_recorded } else { thalweg_remote::push_path };
        // During a recording all builders write at once, so all directories are sent at once.
        let moved = std::thread::scope(|scope| {
            let server = &server;
            let threads =
                paths.iter().map(|path| scope.spawn(move || push(server, path, remote.stream_count(), progress)));
            let threads: Vec<_> = threads.collect();
            let ended = threads.into_iter().map(|thread| thread.join().unwrap_or_else(|panic| resume_unwind(panic)));
            ended.collect::<Result<Vec<_>, _>>()
        })?;
        let to = if let [one] = &moved[..] { one.to.clone() } else { server.url_of_resource("") };
        Ok(moved.into_iter().fold(Moved { to, ..Moved::default() }, Moved::combined_with))
    })?;
    print_moved(&moved, seconds, "sent", json)?;
    Ok(ExitCode::SUCCESS)
}
