//! `thalweg cc`: TCP congestion controls loaded into the running kernel.

use serde::Serialize;
use std::fmt::Write;
use std::process::ExitCode;
use thalweg::terminal::{Failure, Output, outlet, progress};
use thalweg_lab::congestion::{
    CONTROLS, Control, Kernel, LoadError, Loaded, Standing, find_control, load_control, unload_control,
};
use thalweg_text::{replace_controls, wrap_words};

#[derive(Debug, clap::Subcommand)]
pub(crate) enum Command {
    /// Show what congestion controls the kernel has, by whom, and which can be loaded
    List,
    /// Load congestion controls into the kernel, for every program on this machine, until unloaded or restarted
    Load(Names),
    /// Take out congestion controls that were loaded; connections that use one keep it until they end
    Unload(Names),
}

#[derive(Debug, clap::Args)]
pub(crate) struct Names {
    /// Names, or 'all'
    #[arg(required = true, value_name = "NAME|all")]
    names: Vec<String>,
}

/// Executes the command. Exit code 0: the request is fulfilled; 1: it is not for one of the names; 2: there is no such
/// name.
pub(crate) fn run_cc(command: Command, json: bool) -> Result<ExitCode, Failure> {
    let mut out = Output::new();
    let code = match command {
        Command::List => {
            let entries = list_controls()?;
            match json {
                true => out.json(&serde_json::json!({ "controls": entries }))?,
                false => out.text(&controls_text(&entries))?,
            }
            ExitCode::SUCCESS
        }
        Command::Load(options) => print_outcomes(&options.load_controls()?, json, &mut out)?,
        Command::Unload(options) => print_outcomes(&options.unload_controls()?, json, &mut out)?,
    };
    out.flush()?;
    Ok(code)
}

/// One congestion control, which the kernel has, which can be loaded, or both.
#[derive(Debug, Serialize)]
struct Entry {
    name: String,
    standing: Standing,
    /// True if Thalweg has a program for it.
    loadable: bool,
    about: Option<&'static str>,
    source: Option<&'static str>,
}

fn list_controls() -> Result<Vec<Entry>, Failure> {
    let kernel = Kernel::read_state().map_err(LoadError::Kernel).map_err(Failure::broken)?;
    let ours = CONTROLS.iter().map(|control| control.name);
    let others = kernel.available_names().filter(|name| find_control(name).is_none());
    let entries = others.chain(ours).map(|name| {
        let known = find_control(name);
        Entry {
            name: name.to_owned(),
            standing: kernel.control_standing(name),
            loadable: known.is_some(),
            about: known.map(|control| control.about),
            source: known.map(|control| control.source),
        }
    });
    Ok(entries.collect())
}

fn controls_text(entries: &[Entry]) -> String {
    let mut out = String::new();
    for entry in entries {
        let name = replace_controls(&entry.name);
        let standing = match entry.standing {
            Standing::Thalweg => "loaded by thalweg cc".to_owned(),
            Standing::Kernel => "in the kernel".to_owned(),
            Standing::Module => "a module of the kernel".to_owned(),
            Standing::Unknown => "loaded; only root can see by which program".to_owned(),
            Standing::ModuleNotLoaded => format!("not loaded; the kernel has a module: modprobe tcp_{name}"),
            Standing::Absent => format!("not loaded: thalweg cc load {name}"),
        };
        let _ = writeln!(out, "{name:10} {standing}");
        if let (Some(about), Some(source)) = (entry.about, entry.source) {
            out.push_str(&wrap_words("           ", &format!("{about} ({source})")));
        }
    }
    out
}

/// Outcome of a request for one name.
#[derive(Debug, Serialize)]
struct Outcome {
    name: &'static str,
    /// True if the name is now in the requested state.
    done: bool,
    #[serde(rename = "said")]
    message: String,
}

impl Names {
    fn requested_controls(&self) -> Result<Vec<&'static Control>, Failure> {
        if self.names.iter().any(|name| name == "all") {
            return Ok(CONTROLS.iter().collect());
        }
        let controls = self.names.iter().map(|name| {
            find_control(name).ok_or_else(|| {
                let all: Vec<_> = CONTROLS.iter().map(|control| control.name).collect();
                Failure::Usage(format!("there is no congestion control '{name}': choose one of {}", all.join(", ")))
            })
        });
        controls.collect()
    }

    fn load_controls(&self) -> Result<Vec<Outcome>, Failure> {
        let outcomes = self.requested_controls()?.into_iter().map(|control| {
            let name = control.name;
            let (done, message) = match load_control(control) {
                Ok(Loaded::Now) => (true, format!("{name}: loaded")),
                Ok(Loaded::Already) => (true, format!("{name}: already loaded")),
                Ok(Loaded::ByKernel) => (true, format!("{name}: the kernel has its own, which is equivalent")),
                Err(error) => (false, error.to_string()),
            };
            Outcome { name, done, message }
        });
        Ok(outcomes.collect())
    }

    /// Unloads the named controls; 'all' stands for those that are loaded.
    fn unload_controls(&self) -> Result<Vec<Outcome>, Failure> {
        let mut controls = self.requested_controls()?;
        if self.names.iter().any(|name| name == "all") {
            let kernel = Kernel::read_state().map_err(LoadError::Kernel).map_err(Failure::broken)?;
            controls.retain(|control| {
                matches!(kernel.control_standing(control.name), Standing::Thalweg | Standing::Unknown)
            });
        }
        let outcomes = controls.into_iter().map(|control| match unload_control(control) {
            Ok(()) => Outcome { name: control.name, done: true, message: format!("{}: unloaded", control.name) },
            Err(error) => Outcome { name: control.name, done: false, message: error.to_string() },
        });
        Ok(outcomes.collect())
    }
}

fn print_outcomes(outcomes: &[Outcome], json: bool, out: &mut Output) -> Result<ExitCode, Failure> {
    if json {
        out.json(&serde_json::json!({ "controls": outcomes }))?;
    } else {
        for outcome in outcomes {
            match outcome.done {
                true => out.text(&format!("{}\n", outcome.message))?,
                false => outlet::stderr().put_text(progress::error_text(&outcome.message)),
            }
        }
    }
    Ok(ExitCode::from(u8::from(outcomes.iter().any(|outcome| !outcome.done))))
}
