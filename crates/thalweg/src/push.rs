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
A file appears on the server when all of it is there and agrees with its checksum, \
a run when all of its segments do. Whatever ends it, the same command goes on from \
where it was. What is there and the same is not sent again; what is there and is \
another is not overwritten.

Exit code: 0 where everything is there; 1 where something is not; 2 where there is \
nothing to send; 130 where it was interrupted.")]
pub(crate) struct Options {
    /// A run's directory, such as runs/run-000042, which is also what all of its builders wrote, or a file
    #[arg(value_name = "RUN_OR_FILE")]
    path: PathBuf,
    /// The directory on the server that it is put into: http://host:8042/ or http://host:8042/2026. It is made where it
    /// is not there
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
