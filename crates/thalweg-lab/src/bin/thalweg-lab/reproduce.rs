//! `thalweg reproduce`: repeats a paper's measurements, and compares the results with the paper's.

use crate::bench::files::Target;
use crate::bench::show::Show;
use crate::bench::{self, INTERRUPTED, stop_on_signals};
use crate::lab::sweep as lab;
use serde::Serialize;
use std::fs;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use thalweg::terminal::{Failure, Output, outlet, progress};
use thalweg_bench::reproduce::{Experiment, Measured, Reproduction};
use thalweg_lab::Laboratory;
use thalweg_lab::reproduce as laboratory;
use thalweg_text::{seconds, wrapped};

#[derive(Debug, clap::Args)]
pub(crate) struct Options {
    /// Name of the paper. Without it, those there are
    name: Option<String>,
    /// A first look: short points, and not the largest sizes. Takes seconds; tdaq and fabric, minutes
    #[arg(long, requires = "name")]
    quick: bool,
    /// Laboratory for the cells of tdaq and fabric: virtual (without it), host, ns3
    #[arg(long, value_name = "LABORATORY", requires = "name")]
    on: Option<Laboratory>,
    /// Number of these cells that run at a time. Without it: two; on the host one
    #[arg(long, value_name = "NUMBER", requires = "name")]
    jobs: Option<usize>,
    /// Directory for the report: report.html, report.md and its pictures. Without it: reproduce-NAME
    #[arg(long, value_name = "DIR", requires = "name")]
    out: Option<PathBuf>,
    /// Write everything that was measured as JSON
    #[arg(long, value_name = "FILE", requires = "name")]
    json_file: Option<PathBuf>,
}

#[derive(Serialize)]
#[serde(tag = "type", rename_all = "lowercase")]
enum Line<'a> {
    Reproduction(&'a Reproduction),
}

pub(crate) fn reproduce(options: &Options, json: bool) -> Result<ExitCode, Failure> {
    let Some(name) = &options.name else { return list(json) };
    if let Some(experiment) = laboratory::Experiment::named(name) {
        return in_the_laboratory(&experiment, options, json);
    }
    if options.on.is_some() || options.jobs.is_some() {
        let those: Vec<&str> = laboratory::Experiment::all().map(|experiment| experiment.name).collect();
        let those = those.join(" and ");
        return Err(Failure::Usage(format!("--on and --jobs are for {those}: {name} measures this machine")));
    }
    let experiment = Experiment::named(name).ok_or_else(|| {
        let mut names: Vec<String> = Experiment::all().into_iter().map(|experiment| experiment.name).collect();
        names.extend(laboratory::Experiment::all().map(|experiment| experiment.name.to_owned()));
        Failure::Usage(format!("there is no experiment '{name}'; there are {}", names.join(", ")))
    })?;
    let directory = options.out.clone().unwrap_or_else(|| format!("reproduce-{name}").into());
    fs::create_dir_all(&directory).map_err(|error| Failure::Usage(format!("{}: {error}", directory.display())))?;
    let [html, markdown] = ["report.html", "report.md"].map(|name| Target::open(&directory.join(name)));
    let (html, markdown) = (html?, markdown?);
    let file = options.json_file.as_deref().map(Target::open).transpose()?;

    let stop = stop_on_signals()?;
    let mut measured = Vec::new();
    for measure in &experiment.measures {
        let plan = measure.plan(options.quick).map_err(bench::failure)?;
        let line = measure.words(options.quick).join(" ");
        if !json {
            Output::new().text(&format!("\nthalweg bench {line}\n"))?;
        }
        let words = ["thalweg", "bench"].map(str::to_owned).into_iter().chain(measure.words(options.quick));
        let mut show = Show::new(&plan, json, false, stop.clone());
        let result = thalweg_bench::run(&plan, words.collect(), &mut show, &stop);
        let (report, error) = match result {
            Ok(report) => {
                show.end(&report)?;
                (Some(report), None)
            }
            Err(error) => {
                drop(show);
                outlet::stderr().put(progress::error_text(&error.to_string()));
                (None, Some(error.to_string()))
            }
        };
        measured.push(Measured { id: measure.id.clone(), line, report, error });
        if stop.pressed() {
            break;
        }
    }

    let reproduction = experiment.reproduction(options.quick, measured);
    let mut out = Output::new();
    match json {
        true => out.json(&Line::Reproduction(&reproduction)),
        false => out.text(&format!("\n{}", reproduction.text())),
    }?;
    out.flush()?;
    for (name, svg) in reproduction.pictures().map_err(Failure::broken)? {
        let path = directory.join(name);
        fs::write(&path, svg).map_err(|error| Failure::Broken(format!("writing {}: {error}", path.display())))?;
    }
    markdown.write(&reproduction.markdown())?;
    html.write(&reproduction.html().map_err(Failure::broken)?)?;
    if let Some(file) = file {
        file.write(&(serde_json::to_string_pretty(&reproduction).map_err(Failure::broken)? + "\n"))?;
    }
    Ok(if stop.pressed() { ExitCode::from(INTERRUPTED) } else { ExitCode::SUCCESS })
}

/// Runs an experiment of the laboratory. Each of its sweeps has a directory of its own, and goes on where it was
/// interrupted.
fn in_the_laboratory(experiment: &laboratory::Experiment, options: &Options, json: bool) -> Result<ExitCode, Failure> {
    let name = experiment.name;
    let directory = options.out.clone().unwrap_or_else(|| format!("reproduce-{name}").into());
    let file = options.json_file.as_deref().map(Target::open).transpose()?;
    let stop = Arc::new(AtomicBool::new(false));
    crate::lab::heed_signals(stop.clone())?;
    let sweeps = experiment.sweeps(options.on.unwrap_or_default(), options.quick).map_err(Failure::broken)?;
    let jobs = options.jobs;
    let cells: usize = sweeps.iter().map(|(sweep, _)| sweep.cells.len()).sum();
    let all: Duration = sweeps.iter().map(|(sweep, on)| lab::How { on: *on, jobs }.estimate(sweep)).sum();
    let time = seconds(all.as_secs_f64().round());
    outlet::stderr().put(format!("{name}: {cells} cells; where none is done yet, about {time} in all\n"));
    let mut measured = Vec::new();
    for (sweep, on) in sweeps {
        let own = directory.join(&sweep.name);
        measured.push(lab::run(sweep, lab::How { on, jobs }, &own, &stop)?);
    }
    let reproduction = experiment.reproduction(measured);
    let mut out = Output::new();
    match json {
        true => out.json(&reproduction)?,
        false => out.text(&format!("\n{}", reproduction.text()))?,
    }
    out.flush()?;
    lab::write(&directory, "report.html", &reproduction.html())?;
    if let Some(file) = file {
        file.write(&(serde_json::to_string_pretty(&reproduction).map_err(Failure::broken)? + "\n"))?;
    }
    Ok(if stop.load(Ordering::Relaxed) { ExitCode::from(INTERRUPTED) } else { ExitCode::SUCCESS })
}

fn list(json: bool) -> Result<ExitCode, Failure> {
    let mut out = Output::new();
    let all = Experiment::all().into_iter().map(|one| [one.name, one.title, one.source]);
    let those = laboratory::Experiment::all();
    let all = all.chain(those.map(|one| [one.name, one.title(), one.source()].map(str::to_owned)));
    if json {
        let all: Vec<_> = all
            .map(|[name, title, source]| serde_json::json!({ "name": name, "title": title, "source": source }))
            .collect();
        out.json(&serde_json::json!({ "experiments": all }))?;
    } else {
        for [name, title, source] in all {
            out.text(&wrapped(&format!("{name:<12}"), &title))?;
            out.text(&wrapped("            ", &source))?;
        }
    }
    out.flush()?;
    Ok(ExitCode::SUCCESS)
}
