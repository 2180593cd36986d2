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
//! | `status`, `view` | The status as it is shown, and how it is made |
//! | `rates`, `history` | Rates, and figures of the last hour |
//! | `alarms`, `webhook` | Alarms, and posts of them |
//! | `records`, `numbers` | Records of runs, and their numbers |
//! | `processes` | Processes of nodes |
//! | `access`, `audit` | Tokens with roles, and the log of requests |
//! | `config` | Table `[control]` of a topology |
//! | `metrics` | Figures for Prometheus |
//! | `ctl`, `pointer` | The client `thalweg ctl`, and how it finds the service |
#![forbid(unsafe_code)]

pub mod access;
pub mod alarms;
pub mod api;
pub mod audit;
pub mod config;
pub mod ctl;
pub mod experiment;
pub mod history;
pub mod metrics;
pub mod numbers;
pub mod pointer;
pub mod processes;
pub mod rates;
pub mod records;
pub mod service;
pub mod state;
pub mod status;
pub mod view;
pub mod webhook;

use access::Role;
use clap::{Parser, Subcommand};
use pointer::Pointer;
use service::{Service, ServiceError};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::{Arc, LazyLock};
use thalweg::terminal::{Failure, GlobalOptions, outlet, run_program, version_text};

static VERSION: LazyLock<String> = LazyLock::new(version_text);

/// Run control of an experiment.
#[derive(Debug, Parser)]
#[command(name = "thalweg", bin_name = "thalweg", version = VERSION.as_str())]
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
    /// Command a service, or ask it
    Ctl(ctl::Options),
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
    let Arguments { command, global } = Arguments::parse();
    let json = global.json;
    run_program(global, || match command {
        Command::Control(options) => run_control(&options, json),
        Command::Ctl(options) => ctl::run_ctl(&options, json),
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
    let service = Service::new(&options.file, &directory, options.listen)?;
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
    runtime.map_err(Failure::broken)?.block_on(serve(service, json))
}

async fn serve(service: Arc<Service>, json: bool) -> Result<ExitCode, Failure> {
    let address = service.listen_address();
    let listener = tokio::net::TcpListener::bind(address).await;
    let listener = listener.map_err(|error| Failure::Usage(format!("{address}: {error}")))?;
    let address = listener.local_addr().map_err(Failure::broken)?;
    service.set_listen_address(address);
    announce(&service, address, json)?;
    tokio::spawn(Arc::clone(&service).pass_time());
    let routes = api::routes(service).into_make_service_with_connect_info::<SocketAddr>();
    let mut terminated =
        tokio::signal::unix::signal(tokio::signal::unix::SignalKind::terminate()).map_err(Failure::broken)?;
    tokio::select! {
        served = axum::serve(listener, routes) => served.map_err(Failure::broken)?,
        _ = tokio::signal::ctrl_c() => {}
        _ = terminated.recv() => {}
    }
    // Runs go on, and so do the processes of nodes.
    Ok(ExitCode::SUCCESS)
}

/// Says where the service is, and keeps that for this user's clients.
fn announce(service: &Service, address: SocketAddr, json: bool) -> Result<(), Failure> {
    let host = if address.ip().is_unspecified() { "127.0.0.1".to_owned() } else { address.ip().to_string() };
    let host = if address.is_ipv6() && !address.ip().is_unspecified() { format!("[{host}]") } else { host };
    let url = format!("http://{host}:{}", address.port());
    let secret = |role| service.tokens.token_of(role).map(|token| token.secret.clone()).unwrap_or_default();
    let pointer = Pointer { url: url.clone(), token: secret(Role::Configure) };
    if let Err(error) = pointer.write() {
        tracing::warn!("{}: {error}: `thalweg ctl` needs --url", pointer::pointer_path().display());
    }
    let page = format!("{url}/#token={}", secret(Role::Configure));
    if json {
        let line = thalweg::terminal::json_line(&serde_json::json!({ "listening": url, "page": page }));
        outlet::stdout().put_text(line.map_err(Failure::broken)?);
    } else {
        outlet::stdout()
            .put_text(format!("run control at {url}\n  page:      {page}\n  terminal:  thalweg ctl status\n"));
    }
    Ok(())
}
