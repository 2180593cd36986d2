//! Run control: a service that commands the nodes of an experiment, its page, and its clients.
//!
//! The service ([`service::Service`]) is a process of its own beside the nodes, which connect to it. What it shows
//! follows from what they report: it may end and begin at any time, and runs go on.
//!
//! # Files
//!
//! | file | contents |
//! | --- | --- |
//! | `state` | The states of an experiment, and the commands that are legal in each |
//! | `experiment` | The experiment: nodes, state, commands one at a time; sans-IO |
//! | `service` | The service: carries out the actions of the experiment |
//! | `api` | The HTTP interface, the connections of nodes, the page |
//! | `server` | Connections of clients: a limited number, none that stands idle |
//! | `status` | The status as it is shown |
//! | `view` | The status, made of what nodes report |
//! | `rates` | Rates, from totals |
//! | `history` | Figures of the last hour |
//! | `alarms` | Alarms, with acknowledgements |
//! | `notices` | Notices of alarms and runs, and the destinations of these |
//! | `delivery` | Delivery to a destination that may be down: queue, retries; sans-IO |
//! | `webhook` | Posts of notices: to a webhook, to a log book |
//! | `mail` | Notices by e-mail |
//! | `records` | Records of runs |
//! | `numbers` | Numbers of runs |
//! | `storage` | Numbers and records, kept by a thread that may wait for the disk |
//! | `etcd` | Numbers, records and services in etcd |
//! | `processes` | Processes of nodes: children, by ssh, units of systemd, jobs of Slurm |
//! | `access` | Tokens with roles |
//! | `audit` | The log of requests |
//! | `config` | Table `[control]` of a topology |
//! | `metrics` | Figures for Prometheus |
//! | `client` | Client of the service: requests, and the status as it changes |
//! | `ctl` | `thalweg ctl`: commands from a shell |
//! | `top` | `thalweg top`: the screen in a terminal |
//! | `pointer` | How clients find the service |
//! | `manual` | The sections of its manual page |
#![forbid(unsafe_code)]

pub mod access;
pub mod alarms;
pub mod api;
pub mod audit;
pub mod client;
pub mod config;
pub mod ctl;
pub mod delivery;
pub mod etcd;
pub mod experiment;
pub mod history;
pub mod mail;
mod manual;
pub mod metrics;
pub mod notices;
pub mod numbers;
pub mod pointer;
pub mod processes;
pub mod rates;
pub mod records;
pub mod server;
pub mod service;
pub mod state;
pub mod status;
pub mod storage;
pub mod top;
pub mod view;
pub mod webhook;

use access::Role;
use clap::{CommandFactory, FromArgMatches, Parser, Subcommand};
use pointer::Pointer;
use service::{Service, ServiceError};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::{Arc, LazyLock};
use std::time::Duration;
use thalweg::terminal::{Failure, GlobalOptions, generate, outlet, program_name, run_program, version_text};

static VERSION: LazyLock<String> = LazyLock::new(version_text);

/// Run control of an experiment.
#[derive(Debug, Parser)]
#[command(name = "thalweg-control", version = VERSION.as_str(), max_term_width = 80)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
    #[command(flatten)]
    global: GlobalOptions,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Start the run control of a topology: a service with a page, an API and commands
    Control(ControlOptions),
    /// Send commands to a service, and show its status
    Ctl(ctl::Options),
    /// Show the status of a service in a terminal, with keys for the commands
    Top(top::Options),
    /// Write man pages and shell completions
    #[command(hide = true)]
    Generate(generate::Options),
}

#[derive(Debug, clap::Args)]
struct ControlOptions {
    /// The topology
    file: PathBuf,
    /// Address on which to listen, in place of the topology's
    #[arg(long, value_name = "HOST:PORT")]
    listen: Option<SocketAddr>,
    /// Directory of the service's files: tokens, numbers and records of runs, logs. `.control` in the directory of the
    /// runs if it is left out
    #[arg(long, value_name = "DIR")]
    directory: Option<PathBuf>,
}

/// Runs the command that the program's arguments name, and returns its exit code.
pub fn main() -> ExitCode {
    thalweg::register_kinds();
    let matches = Arguments::command().bin_name(program_name("thalweg-control")).get_matches();
    let Arguments { command, global } = Arguments::from_arg_matches(&matches).unwrap_or_else(|error| error.exit());
    let json = global.json;
    run_program(global, || match command {
        Command::Control(options) => run_control(&options, json),
        Command::Ctl(options) => ctl::run_ctl(&options, json),
        Command::Top(options) => top::run_top(&options, json),
        Command::Generate(options) => generate::generate_package_files(Arguments::command(), &manual::MANUAL, &options),
    })
}

impl From<ServiceError> for Failure {
    fn from(error: ServiceError) -> Self {
        match error {
            ServiceError::File { .. } => Self::broken(error),
            _ => Self::usage(error),
        }
    }
}

fn run_control(options: &ControlOptions, json: bool) -> Result<ExitCode, Failure> {
    let directory = match &options.directory {
        Some(directory) => directory.clone(),
        None => service::default_directory(&options.file).map_err(Failure::Usage)?,
    };
    thalweg::terminal::raise_open_file_limit();
    let service = Service::new(&options.file, &directory, options.listen)?;
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
    let runtime = runtime.map_err(Failure::broken)?;
    let ended = runtime.block_on(serve(service, json));
    // A disk that does not answer holds up the end no longer.
    runtime.shutdown_background();
    ended
}

/// Longest wait at the end of the service for records that are being written.
const FINISH_TIME: Duration = Duration::from_secs(10);

async fn serve(service: Arc<Service>, json: bool) -> Result<ExitCode, Failure> {
    let address = service.listen_address();
    let listener = tokio::net::TcpListener::bind(address).await;
    let listener = listener.map_err(|error| Failure::Usage(format!("{address}: {error}")))?;
    let address = listener.local_addr().map_err(Failure::broken)?;
    service.set_listen_address(address);
    announce(&service, address, json)?;
    thalweg::terminal::service_manager::report_ready();
    let routes = api::service_routes(Arc::clone(&service));
    let mut terminated =
        tokio::signal::unix::signal(tokio::signal::unix::SignalKind::terminate()).map_err(Failure::broken)?;
    tokio::select! {
        served = server::serve_clients(listener, routes) => served.map_err(Failure::broken)?,
        () = service.pass_time() => {}
        () = service.manage_processes() => {}
        _ = tokio::signal::ctrl_c() => {}
        _ = terminated.recv() => {}
    }
    // Runs go on, and so do the processes of nodes.
    let written = tokio::task::spawn_blocking(move || service.finish_records(FINISH_TIME));
    let is_written = tokio::select! {
        written = written => matches!(written, Ok(true)),
        _ = tokio::signal::ctrl_c() => false,
        _ = terminated.recv() => false,
    };
    if !is_written {
        tracing::warn!("the last changes of the records of runs are not written");
    }
    Ok(ExitCode::SUCCESS)
}

/// Prints the address of the service, and keeps it for this user's clients.
fn announce(service: &Service, address: SocketAddr, json: bool) -> Result<(), Failure> {
    let host = if address.ip().is_unspecified() { "127.0.0.1".to_owned() } else { address.ip().to_string() };
    let host = if address.is_ipv6() && !address.ip().is_unspecified() { format!("[{host}]") } else { host };
    let url = format!("http://{host}:{}", address.port());
    let token = service.tokens.token_of(Role::Configure).map(|token| token.secret.clone()).unwrap_or_default();
    let page = format!("{url}/#token={token}");
    let pointer = Pointer { url: url.clone(), token };
    if let Err(error) = pointer.write_file() {
        tracing::warn!("{}: {error}: `thalweg ctl` needs --url", pointer::pointer_path().display());
    }
    if json {
        let line = thalweg::terminal::json_line(&serde_json::json!({ "listening": url, "page": page }));
        outlet::stdout().put_text(line.map_err(Failure::broken)?);
    } else {
        outlet::stdout().put_text(format!(
            "run control at {url}\n  page:      {page}\n  terminal:  thalweg top, thalweg ctl status\n"
        ));
    }
    Ok(())
}
