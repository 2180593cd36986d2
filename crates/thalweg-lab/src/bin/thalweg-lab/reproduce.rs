//! `thalweg reproduce`: repeats a paper's measurements, and compares the results with the paper's.

use crate::bench::files::Target;
use crate::bench::show::Show;
use crate::bench::{self, INTERRUPTED, stop_on_signals};
use crate::lab::sweep as lab;
use serde::Serialize;
use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;
use thalweg::terminal::{Failure, Output, outlet, progress};
use thalweg_bench::reproduce::{Experiment, ExperimentReport, Measured, Reproduction};
use thalweg_bench::{Report, Stop};
use thalweg_lab::sweep::Results;
use thalweg_lab::{Laboratory, reproduce as laboratory};
use thalweg_text::{FileFormat, format_seconds, wrap_words};

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
    /// Directory for the report: report.html, report.md, its pictures (.svg), and everything measured (report.json, .csv).
    /// Without it: reproduce-NAME
    #[arg(long, value_name = "DIR", requires = "name")]
    out: Option<PathBuf>,
    // Name of earlier versions.
    #[arg(long, value_name = "FILE", requires = "name", hide = true)]
    json_file: Option<PathBuf>,
}

#[derive(Serialize)]
#[serde(tag = "type", rename_all = "lowercase", bound = "")]
enum Line<'a, R: ExperimentReport> {
    Reproduction(&'a Reproduction<R>),
}

/// Outcomes of the measurements of an experiment.
type Outcomes<R> = Result<Vec<Measured<R>>, Failure>;

/// Repetition of an experiment.
struct Run<'a> {
    options: &'a Options,
    json: bool,
    directory: PathBuf,
    stop: Stop,
}

pub(crate) fn run_reproduce(options: &Options, json: bool) -> Result<ExitCode, Failure> {
    let Some(name) = &options.name else { return list_experiments(json) };
    if let Some(experiment) = Experiment::find_by_name(name) {
        return repeat(experiment, options, json, &[], Run::in_laboratory);
    }
    let laboratory = names::<Results>();
    if options.on.is_some() || options.jobs.is_some() {
        let those = laboratory.join(" and ");
        return Err(Failure::Usage(format!("--on and --jobs are for {those}: {name} measures this machine")));
    }
    let experiment = Experiment::find_by_name(name).ok_or_else(|| {
        let names = [names::<Report>(), laboratory].concat().join(", ");
        Failure::Usage(format!("there is no experiment '{name}'; there are {names}"))
    })?;
    repeat(experiment, options, json, &["report.html", "report.md"], Run::on_this_machine)
}

/// Repeats an experiment, and writes its report. Files in `opened` are opened first: one that cannot be written is
/// known before the measurement.
fn repeat<'a, R: ExperimentReport>(
    experiment: Experiment<R>,
    options: &'a Options,
    json: bool,
    opened: &[&str],
    measure: fn(&Run<'a>, &Experiment<R>) -> Outcomes<R>,
) -> Result<ExitCode, Failure> {
    let directory = options.out.clone().unwrap_or_else(|| format!("reproduce-{}", experiment.name).into());
    fs::create_dir_all(&directory).map_err(|error| Failure::Usage(format!("{}: {error}", directory.display())))?;
    let opened = opened.iter().map(|name| {
        let path = directory.join(name);
        let format = FileFormat::from_path(&path).map_err(Failure::usage)?;
        Ok((*name, Target::open_for_writing(&path, format)?))
    });
    let mut opened: BTreeMap<&str, Target> = opened.collect::<Result<_, Failure>>()?;
    let file = options.json_file.as_deref().map(|path| Target::open_for_writing(path, FileFormat::Json)).transpose()?;
    let run = Run { options, json, directory, stop: stop_on_signals()? };
    let measured = measure(&run, &experiment)?;

    let reproduction = experiment.build_reproduction(options.quick, measured);
    let mut out = Output::new();
    match (json, &reproduction.laboratory) {
        (false, _) => out.text(&format!("\n{}", reproduction.format_text())),
        (true, None) => out.json(&Line::Reproduction(&reproduction)),
        (true, Some(_)) => out.json(&reproduction),
    }?;
    out.flush()?;
    for (name, text) in R::files(&reproduction).map_err(Failure::broken)? {
        match opened.remove(name.as_str()) {
            Some(target) => target.write_report(&text),
            None => lab::write_report(&run.directory, &name, &text),
        }?;
    }
    let data = serde_json::to_string_pretty(&reproduction).map_err(Failure::broken)? + "\n";
    lab::write_report(&run.directory, "report.json", &data)?;
    if let Some(file) = file {
        file.write_report(&data)?;
    }
    Ok(if run.stop.is_requested() { ExitCode::from(INTERRUPTED) } else { ExitCode::SUCCESS })
}

impl Run<'_> {
    fn on_this_machine(&self, experiment: &Experiment<Report>) -> Outcomes<Report> {
        let Self { options, json, stop, .. } = self;
        let mut measured = Vec::new();
        for measure in &experiment.measures {
            let plan = measure.plan(options.quick).map_err(bench::failure)?;
            let words = measure.words(options.quick);
            let line = words.join(" ");
            if !json {
                Output::new().text(&format!("\nthalweg bench {line}\n"))?;
            }
            let words = ["thalweg", "bench"].map(str::to_owned).into_iter().chain(words);
            let mut show = Show::new(&plan, *json, false, stop.clone());
            let (report, error) = match thalweg_bench::measure_plan(&plan, words.collect(), &mut show, stop) {
                Ok(report) => {
                    show.finish_display(&report)?;
                    (Some(report), None)
                }
                Err(error) => {
                    drop(show);
                    outlet::stderr().put_text(progress::error_text(&error.to_string()));
                    (None, Some(error.to_string()))
                }
            };
            measured.push(Measured { id: measure.id.clone(), line, report, error });
            if stop.is_requested() {
                break;
            }
        }
        Ok(measured)
    }

    /// Runs an experiment of the laboratory. Each of its sweeps has a directory of its own, and goes on where it was
    /// interrupted.
    fn in_laboratory(&self, experiment: &Experiment<Results>) -> Outcomes<Results> {
        let Options { quick, on, jobs, .. } = *self.options;
        let sweeps = laboratory::sweeps(experiment, on.unwrap_or_default(), quick).map_err(Failure::broken)?;
        let cells: usize = sweeps.iter().map(|(sweep, _)| sweep.cells.len()).sum();
        let all: Duration = sweeps.iter().map(|(sweep, on)| lab::How { on: *on, jobs }.estimate_duration(sweep)).sum();
        let (name, time) = (&experiment.name, format_seconds(all.as_secs_f64().round()));
        outlet::stderr().put_text(format!("{name}: {cells} cells; where none is done yet, about {time} in all\n"));
        let run = sweeps.into_iter().map(|(sweep, on)| {
            let own = self.directory.join(&sweep.name);
            Ok(laboratory::measured(lab::run_sweep_into(sweep, lab::How { on, jobs }, &own, &self.stop.shared_flag())?))
        });
        run.collect()
    }
}

fn names<R: ExperimentReport>() -> Vec<String> {
    Experiment::<R>::all_experiments().map(|experiment| experiment.name).collect()
}

fn summaries<R: ExperimentReport>() -> impl Iterator<Item = [String; 3]> {
    Experiment::<R>::all_experiments().map(|one| [one.name, one.title, one.source])
}

fn list_experiments(json: bool) -> Result<ExitCode, Failure> {
    let mut out = Output::new();
    let all = summaries::<Report>().chain(summaries::<Results>());
    if json {
        let all: Vec<_> = all
            .map(|[name, title, source]| serde_json::json!({ "name": name, "title": title, "source": source }))
            .collect();
        out.json(&serde_json::json!({ "experiments": all }))?;
    } else {
        for [name, title, source] in all {
            out.text(&wrap_words(&format!("{name:<12}"), &title))?;
            out.text(&wrap_words("            ", &source))?;
        }
    }
    out.flush()?;
    Ok(ExitCode::SUCCESS)
}
