//! `thalweg pull`: runs, files and directories, fetched from a data server.

use crate::show;
use crate::terminal::{Failure, Output, progress, signals};
use serde::Serialize;
use std::fmt::Write;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::{Duration, Instant};
use thalweg_remote::{Moved, Progress, RemoteError, Server};
use thalweg_store::{Run, VerifyReport};
use thalweg_text::{format_quantity, format_volume, parse_duration, replace_controls};

#[derive(Debug, clap::Args)]
#[command(after_help = "\
After an interruption, the same command continues: incomplete files are kept as \
.NAME.part. Files that are already complete are not fetched again; existing files that \
differ are not overwritten.

Exit code: 0 if everything was fetched; 1 if something was not, or with --verify if a \
run is damaged; 2 if the URL does not exist; 130 if interrupted.")]
pub(crate) struct Options {
    /// URL to fetch: a run, http://host:8042/runs/42, a file, or a directory with all its contents
    url: String,
    /// Local directory to fetch into
    #[arg(default_value = ".")]
    into: PathBuf,
    /// Fetch a run while it is being recorded, until it has ended; local readers can follow it at the same time
    #[arg(long)]
    follow: bool,
    /// Verify the fetched runs afterwards, as `thalweg verify` does
    #[arg(long)]
    verify: bool,
    #[command(flatten)]
    remote: Remote,
}

/// Options of requests to a server.
#[derive(Debug, clap::Args)]
pub(crate) struct Remote {
    /// Number of parallel transfers: of ranges when fetching, of files when sending
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = clap::value_parser!(u8).range(1..=64))]
    streams: u8,
    /// File with the access token [default: the environment variable THALWEG_TOKEN]
    #[arg(long, value_name = "FILE")]
    token_file: Option<PathBuf>,
    /// Certificates (PEM) to trust for the server, instead of the system's
    #[arg(long, value_name = "FILE")]
    ca_file: Option<PathBuf>,
    /// Time to retry when the server cannot be reached
    #[arg(long, value_name = "TIME", default_value = "30s", value_parser = parse_duration)]
    timeout: Duration,
}

impl Remote {
    pub(crate) fn stream_count(&self) -> usize {
        self.streams.into()
    }

    pub(crate) fn connect_server(&self, url: &str) -> Result<Server, Failure> {
        let token = match &self.token_file {
            None => std::env::var("THALWEG_TOKEN").ok(),
            Some(path) => Some(
                std::fs::read_to_string(path)
                    .map_err(|error| Failure::Usage(format!("reading {}: {error}", path.display())))?,
            ),
        };
        let token = token.map(|token| token.trim().to_owned()).filter(|token| !token.is_empty());
        let options = thalweg_remote::Options { token, ca_file: self.ca_file.clone(), timeout: self.timeout };
        Ok(Server::new(url, &options)?)
    }
}

/// Result in JSON, printed at the end.
#[derive(Debug, Serialize)]
struct MovedReport<'a> {
    #[serde(flatten)]
    moved: &'a Moved,
    seconds: f64,
    #[serde(skip_serializing_if = "Option::is_none")]
    verified: Option<Vec<VerifyReport>>,
}

pub(crate) fn run_pull(options: &Options, json: bool) -> Result<ExitCode, Failure> {
    let server = options.remote.connect_server(&options.url)?;
    let streams = options.remote.stream_count();
    let (moved, seconds) = with_progress_bar("fetching", json, |progress| {
        if options.follow {
            thalweg_remote::pull_while_recorded(&server, &options.into, streams, progress)
        } else {
            thalweg_remote::pull_entry(&server, &options.into, streams, progress)
        }
    })?;
    let verified = options.verify.then(|| verify_runs(&moved)).transpose()?;
    let intact = verified.iter().flatten().all(|report| report.consistent);
    let mut out = Output::new();
    if json {
        out.json(&MovedReport { moved: &moved, seconds, verified })?;
    } else {
        out.text(&moved_text(&moved, seconds, "fetched"))?;
        for (run, report) in moved.runs.iter().zip(verified.iter().flatten()) {
            let found = if report.consistent {
                "intact".to_owned()
            } else {
                let path = run.display();
                format!(
                    "DAMAGED, {}: `thalweg verify {path}` lists the problems",
                    format_quantity(report.problem_count, "problem")
                )
            };
            out.text(&format!("  {}: {found}\n", replace_controls(&run.display().to_string())))?;
        }
    }
    out.flush()?;
    Ok(if intact { ExitCode::SUCCESS } else { ExitCode::from(1) })
}

fn verify_runs(moved: &Moved) -> Result<Vec<VerifyReport>, Failure> {
    let reports = moved.runs.iter().map(|path| Run::open(path).map(|run| show::verified(&run)));
    reports.map(|report| report.map_err(Failure::broken)).collect()
}

/// Prints what was sent.
pub(crate) fn print_moved(moved: &Moved, seconds: f64, done: &str, json: bool) -> Result<(), Failure> {
    let mut out = Output::new();
    match json {
        true => out.json(&MovedReport { moved, seconds, verified: None })?,
        false => out.text(&moved_text(moved, seconds, done))?,
    }
    out.flush()
}

fn moved_text(moved: &Moved, seconds: f64, done: &str) -> String {
    let Moved { to, unended, abandoned, files, same_files, bytes, resumed_bytes, .. } = moved;
    #[expect(
        clippy::cast_precision_loss,
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "for people"
    )]
    let rate = (*bytes as f64 / seconds.max(1e-3)) as u64;
    let mut out =
        format!("{}: {} {done}, {}", replace_controls(to), format_quantity(*files, "file"), format_volume(*bytes));
    let _ = write!(out, " in {seconds:.1} s ({}/s)", format_volume(rate));
    if *resumed_bytes > 0 {
        let _ = write!(out, "; {} were fetched earlier", format_volume(*resumed_bytes));
    }
    if *same_files > 0 {
        let _ = write!(out, "; {} already complete", format_quantity(*same_files, "file"));
    }
    out.push('\n');
    for run in abandoned {
        let _ =
            writeln!(out, "  {}: its writer died; no more data follow", replace_controls(&run.display().to_string()));
    }
    for run in unended {
        let _ = writeln!(
            out,
            "  {}: had not ended; --follow fetches the rest if it is still being recorded",
            replace_controls(&run.display().to_string())
        );
    }
    out
}

/// Does the work, with a progress bar on standard error if that is a terminal. Also returns the seconds that it took.
pub(crate) fn with_progress_bar(
    doing: &'static str,
    json: bool,
    work: impl FnOnce(&Progress) -> Result<Moved, RemoteError> + Send,
) -> Result<(Moved, f64), Failure> {
    end_on_signals(json)?;
    let begun = Instant::now();
    let progress = Progress::default();
    let bar = progress::bar(progress::BYTES).with_message(doing);
    let moved = std::thread::scope(|scope| {
        let (done, is_done) = channel::<()>();
        let progress = &progress;
        let worker = scope.spawn(move || {
            let _done = done;
            work(progress)
        });
        while is_done.recv_timeout(REDRAW) == Err(RecvTimeoutError::Timeout) {
            bar.set_length(progress.total_bytes());
            bar.set_position(progress.moved_bytes());
        }
        worker.join()
    });
    bar.finish_and_clear();
    match moved {
        Ok(moved) => Ok((moved?, begun.elapsed().as_secs_f64())),
        Err(panic) => std::panic::resume_unwind(panic),
    }
}

/// Makes an interrupt end the program at once: the progress so far was recorded, and is there for the next time.
fn end_on_signals(json: bool) -> Result<(), Failure> {
    signals::on_interrupt(move || {
        eprintln!("thalweg: interrupted; run the same command again to continue");
        if json {
            println!("{}", serde_json::json!({ "error": "interrupted" }));
        }
        std::process::exit(INTERRUPTED);
    })
}

impl From<RemoteError> for Failure {
    fn from(error: RemoteError) -> Self {
        // The text of a server may contain anything.
        let text = replace_controls(&error.to_string()).into_owned();
        if error.is_usage_error() || error.is_not_found() { Self::Usage(text) } else { Self::Broken(text) }
    }
}

/// Exit code that shells use for a program that SIGINT ended.
const INTERRUPTED: i32 = 130;
/// Time from one look at the progress to the next.
const REDRAW: Duration = Duration::from_millis(100);
