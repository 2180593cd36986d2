//! Standard output, standard error and the terminal, as this program and the instruments' (`thalweg-lab`) use them.
//!
//! [`run_program`] is the frame of both: it applies the global options, starts the log, and turns a [`Failure`] into a
//! message and an exit code.

pub mod generate;
mod json_log;
pub mod outlet;
mod output;
pub mod progress;
pub mod recent_log;
pub mod service_manager;
pub mod signals;

pub use output::{Output, json_line};

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use tracing_subscriber::EnvFilter;
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::util::SubscriberInitExt as _;

/// Options that every command has.
#[derive(Debug, Clone, Default, clap::Args)]
pub struct GlobalOptions {
    /// Print one JSON object as the last line of standard output, instead of text for people
    #[arg(long, global = true)]
    pub json: bool,
    /// Log more on standard error; twice for everything
    #[arg(short, long, global = true, action = clap::ArgAction::Count)]
    pub verbose: u8,
    /// Print errors only on standard error: no progress, no warnings
    #[arg(short, long, global = true, conflicts_with = "verbose")]
    pub quiet: bool,
    #[command(flatten)]
    color: colorchoice_clap::Color,
}

/// Returns the text of `--version`: the release, the commit it was built from if known, and whether it is optimised.
pub fn version_text() -> String {
    let commit = git_version::git_version!(args = ["--always", "--dirty=-modified"], fallback = "unknown commit");
    let optimised = if cfg!(debug_assertions) { ", not optimised" } else { "" };
    format!("{} ({commit}{optimised})", env!("CARGO_PKG_VERSION"))
}

/// Returns the name by which this process was called: `thalweg` where that program became this one, whose own name is
/// `default`.
pub fn program_name(default: &str) -> String {
    let path = std::env::args_os().next().map(PathBuf::from);
    let name = path.as_ref().and_then(|path| path.file_name());
    name.map_or_else(|| default.to_owned(), |name| name.to_string_lossy().into_owned())
}

/// Runs a command, and returns the exit code of its program: that of the command, or that of its [`Failure`], which is
/// printed.
pub fn run_program(options: GlobalOptions, command: impl FnOnce() -> Result<ExitCode, Failure>) -> ExitCode {
    // A write beyond a limit (`ulimit -f`, a file system's) returns an error, and does not end the process.
    let _ = signal_hook::flag::register(signal_hook::consts::SIGXFSZ, Arc::default());
    // The log is coloured as this decides.
    progress::set_up(options.color, options.quiet);
    start_log(&options);
    let mut code = command().unwrap_or_else(|failure| {
        // If both go to one terminal, the message comes after earlier output.
        let _ = outlet::stdout().flush(outlet::LOG_TIME);
        if is_log_json() {
            tracing::error!("{failure}");
        } else {
            outlet::stderr().put_text(progress::error_text(&failure.to_string()));
        }
        if options.json {
            let error = json_line(&serde_json::json!({ "error": failure.to_string() }));
            outlet::stdout().put_text(error.unwrap_or_default());
        }
        ExitCode::from(failure.code())
    });
    match outlet::stdout().flush(outlet::RESULT_TIME) {
        Err(error) if error.kind() != std::io::ErrorKind::BrokenPipe => {
            outlet::stderr().put_text(format!("thalweg: writing to standard output: {error}\n"));
            // The earlier exit code tells more, unless it is success.
            if code == ExitCode::SUCCESS {
                code = ExitCode::FAILURE;
            }
        }
        _ => {}
    }
    let _ = outlet::stderr().flush(outlet::LOG_TIME);
    code
}

/// Starts writing the log to standard error.
fn start_log(options: &GlobalOptions) {
    let level = match options.verbose {
        0 if options.quiet => "error",
        0 => "warn",
        1 => "info",
        _ => "debug",
    };
    // fuser warns of every request of the kernel that a file system may leave unanswered.
    // A problem with a server's certificate is reported once, with the remedy.
    let level = format!("{level},fuser=error,rustls_platform_verifier=off");
    let filter = EnvFilter::try_from_env("THALWEG_LOG").unwrap_or_else(|_| EnvFilter::new(level));
    let is_json = is_log_json();
    let text = tracing_subscriber::fmt::layer()
        .with_writer(outlet::Log)
        .with_ansi(progress::stderr_is_coloured())
        .with_target(false);
    let (text, json) = ((!is_json).then_some(text), is_json.then_some(json_log::JsonLog));
    tracing_subscriber::registry().with(filter).with(text).with(json).with(recent_log::RecentLog).init();
    if is_json {
        outlet::stderr().set_json();
    }
    match std::env::var(LOG_FORMAT_VARIABLE).unwrap_or_default().as_str() {
        "" | "text" | "json" => {}
        other => tracing::warn!("{LOG_FORMAT_VARIABLE}={other}: no such format; the log is text: write text or json"),
    }
}

/// Environment variable of the log's format: `text` or `json`.
const LOG_FORMAT_VARIABLE: &str = "THALWEG_LOG_FORMAT";

fn is_log_json() -> bool {
    std::env::var(LOG_FORMAT_VARIABLE).is_ok_and(|format| format == "json")
}

/// Lets this process, and those that it starts, have as many files open as the system allows them: the limit that most
/// begin with is meant for programs that use `select`.
pub fn raise_open_file_limit() {
    let Rlimit { maximum, .. } = getrlimit(Resource::Nofile);
    // If the limit cannot be raised, the preflight reports whether it matters.
    let _ = setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum });
}

/// Reason why a command could not do what it was asked to do.
#[derive(Debug)]
pub enum Failure {
    /// The request is impossible: exit code 2.
    Usage(String),
    /// The command failed while it ran: exit code 1.
    Broken(String),
    /// The command failed because another node ended, which knows the reason: exit code 1.
    Consequence(String),
}

impl Failure {
    /// Returns the exit code of a program whose command failed.
    pub fn code(&self) -> u8 {
        match self {
            Self::Usage(_) => 2,
            Self::Broken(_) | Self::Consequence(_) => 1,
        }
    }

    /// Returns the failure of an impossible request.
    pub fn usage(error: impl std::fmt::Display) -> Self {
        Self::Usage(error.to_string())
    }

    /// Returns the failure of a command that failed while it ran.
    pub fn broken(error: impl std::fmt::Display) -> Self {
        Self::Broken(error.to_string())
    }

    /// Returns the failure of a request that is impossible because of a file.
    pub fn file_usage(path: &Path, error: impl std::fmt::Display) -> Self {
        Self::Usage(format!("{}: {error}", path.display()))
    }

    /// Returns the failure of a command that failed because of a file.
    pub fn file_broken(path: &Path, error: impl std::fmt::Display) -> Self {
        Self::Broken(format!("{}: {error}", path.display()))
    }
}

impl std::fmt::Display for Failure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (Self::Usage(text) | Self::Broken(text) | Self::Consequence(text)) = self;
        f.write_str(text)
    }
}

/// Starts a thread.
///
/// # Errors
/// Fails if the system has no room for another thread.
pub fn start_thread(work: impl FnOnce() + Send + 'static) -> Result<(), Failure> {
    let started = std::thread::Builder::new().spawn(work);
    started
        .map(drop)
        .map_err(|error| Failure::broken(format!("starting a thread: {error} (see pids.max and ulimit -u)")))
}
