//! `thalweg salvage`: copies the undamaged part of a damaged run into a new one.

use super::place::{containing_directory, explained_error};
use crate::terminal::{Failure, Output, progress::Busy};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use thalweg_store::{RunInfo, SalvageError, Salvaged, StoreError, builder_directories};
use thalweg_text::{format_count, format_quantity, replace_controls, wrap_words};

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Every intact record is kept: of runs with bad blocks, truncated segments, lost footers or missing segment files, and \
of runs whose writer died. An event that lost fragments is kept as INCOMPLETE, with the remaining ones. The new run \
is INCOMPLETE, its reasons state what was lost, and `thalweg verify` finds no damage in it. RUN itself is not \
changed. For a run of several builders, such as run-000042, the data of each builder are salvaged separately.

Exit code: 0, also if RUN is intact and nothing was written; 1 if it cannot be read, or the new run cannot be written; 2 if the run does not exist or is being written, or if DIR exists.")]
pub(crate) struct Options {
    /// A run's directory, such as runs/run-000042
    #[arg(value_name = "RUN")]
    run: PathBuf,
    /// Directory of the new run [default: runs/salvaged/run-000042]
    #[arg(long, value_name = "DIR")]
    to: Option<PathBuf>,
}

pub(super) fn run_salvage(options: &Options, json: bool, out: &mut Output) -> Result<ExitCode, Failure> {
    let Options { run, to } = options;
    let whole = &containing_directory(run);
    let to = match to {
        Some(to) => to.clone(),
        None => default_target(whole)?,
    };
    let parts = builder_directories(whole);
    if parts.is_empty() {
        salvage_directory(options, whole, &to, json, out)?;
        return Ok(ExitCode::SUCCESS);
    }
    // For several builders, the part of each of them: `run-000042-b1` to `DIR-b1`.
    let named = whole.file_name().unwrap_or_default().as_encoded_bytes().len();
    for part in &parts {
        let name = part.file_name().unwrap_or_default().to_string_lossy();
        let mut to_part = to.clone().into_os_string();
        to_part.push(name.get(named..).unwrap_or_default());
        salvage_directory(options, part, Path::new(&to_part), json, out)?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Salvages the run, or one builder's part of it, in this directory.
fn salvage_directory(options: &Options, run: &Path, to: &Path, json: bool, out: &mut Output) -> Result<(), Failure> {
    if let Err(error @ StoreError::NotARun(_)) = RunInfo::read_run_json(run) {
        return Err(explained_error(&options.run, &error));
    }
    let busy = Busy::new(format!("salvaging {}", run.display()));
    let salvaged = thalweg_store::salvage_run(run, to).map_err(|error| match error {
        SalvageError::Store(error) => explained_error(run, &error),
        SalvageError::Exists(_) | SalvageError::BeingWritten(_) => Failure::usage(error),
        SalvageError::Unsound { .. } => Failure::broken(error),
    })?;
    drop(busy);
    match (&salvaged, json) {
        (_, true) => out.json(&serde_json::json!({ "run": run, "salvaged": salvaged })),
        (Some(salvaged), false) => out.text(&salvage_text(run, salvaged)),
        (None, false) => {
            let run = replace_controls(&run.display().to_string()).into_owned();
            out.text(&format!("{run}: intact, and needs no salvage; nothing was written\n"))
        }
    }
}

/// Returns the default directory for the new run. It has the run's name, and so its number.
fn default_target(run: &Path) -> Result<PathBuf, Failure> {
    // Resolves the name of `.`.
    let whole = if run.file_name().is_none() { run.canonicalize().ok() } else { Some(run.to_owned()) };
    let place = whole.and_then(|whole| Some(whole.parent()?.join("salvaged").join(whole.file_name()?)));
    place.ok_or_else(|| Failure::Usage(format!("{}: name the new run's directory with --to", run.display())))
}

fn salvage_text(run: &Path, salvaged: &Salvaged) -> String {
    let Salvaged { path, events, torn_events, unclosed_events, lost_events, .. } = salvaged;
    let Salvaged { fragments, lost_fragments, lost_blocks, .. } = salvaged;
    let mut out = format!("{}\n", replace_controls(&format!("{}: salvaged to {}", run.display(), path.display())));
    let torn = match torn_events {
        0 => String::new(),
        torn => format!(" ({} with lost fragments)", format_count(torn)),
    };
    let unclosed = match unclosed_events {
        0 => String::new(),
        unclosed => format!(" ({} possibly not closed)", format_count(unclosed)),
    };
    out.push_str(&format!(
        "  {}{torn}{unclosed}, {}\n",
        format_quantity(*events, "event"),
        format_quantity(*fragments, "fragment")
    ));
    let mut lost = vec![format_quantity(*lost_events, "event")];
    lost.extend(lost_fragments.map(|fragments| format_quantity(fragments, "fragment")));
    lost.push(format_quantity(*lost_blocks, "block"));
    out.push_str(&format!("  lost: {}\n", lost.join(", ")));
    for problem in salvaged.left_behind.iter().take(SHOWN) {
        out.push_str(&wrap_words("  ", &replace_controls(&problem.to_string())));
    }
    let more = salvaged.problem_count.saturating_sub(salvaged.left_behind.len().min(SHOWN) as u64);
    if more > 0 {
        out.push_str(&format!(
            "  and {} more; --json lists the first {}\n",
            format_count(more),
            salvaged.left_behind.len()
        ));
    }
    out
}

/// Maximum number of problems that a person is shown one by one.
const SHOWN: usize = 20;
