//! Options of `thalweg run` and `thalweg node` that change the topology for one run.

use crate::terminal::Failure;
use std::path::{Path, PathBuf};
use std::time::Duration;
use thalweg_node::{Setting, Topology};
use thalweg_text::parse_duration;

#[derive(Debug, clap::Args)]
#[command(next_help_heading = "Options for this run, in place of what the topology has")]
pub(crate) struct RunOptions {
    /// Duration of the run
    #[arg(long, value_name = "TIME", value_parser = parse_duration)]
    duration: Option<Duration>,
    /// Number of events after which the run ends
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=1 << 62))]
    events: Option<u64>,
    /// Number of the run
    #[arg(long, value_name = "N")]
    number: Option<u32>,
    /// Directory in which the run's directory is made
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    /// Build events, count them and let them go
    #[arg(long)]
    no_record: bool,
    /// Comment on the run, which is kept with it
    #[arg(long, value_name = "TEXT")]
    comment: Option<String>,
    /// Any key of the topology, as if it were in the file: run.warm_up=2s, source.adc-0.rate=100, source.0.rate=100,
    /// run.metadata.sample=LaB6. A value that is none of TOML is text
    #[arg(long, value_name = "KEY=VALUE", value_parser = Setting::parse_assignment)]
    set: Vec<Setting>,
}

impl RunOptions {
    /// Reads and checks a topology, for all of its nodes or only for the node with the name `node`, with these options.
    pub(crate) fn load_topology(&self, file: &Path, node: Option<&str>) -> Result<Topology, Failure> {
        let mut topology = Topology::load_with_settings(file, node, &self.settings())?;
        if let Some(directory) = &self.out {
            // Relative to the working directory, where the user named it, not to the file.
            topology.run.directory.clone_from(directory);
            topology.check_values().map_err(|(_, problem)| Failure::Usage(format!("--out: {problem}")))?;
        }
        if let Some(name) = node {
            self.check_for_node(&topology, name)?;
        }
        self.check_for_record(&topology)?;
        Ok(topology)
    }

    fn settings(&self) -> Vec<Setting> {
        let Self { duration, events, number, no_record, comment, set, .. } = self;
        let mut settings = set.clone();
        settings.extend(duration.map(|time| {
            let time = humantime::format_duration(time).to_string();
            Setting::from_run_option(format!("--duration {time}"), "duration", time)
        }));
        let events = events.and_then(|events| i64::try_from(events).ok());
        settings.extend(events.map(|events| Setting::from_run_option(format!("--events {events}"), "events", events)));
        settings.extend(
            number.map(|number| Setting::from_run_option(format!("--number {number}"), "number", i64::from(number))),
        );
        settings.extend(no_record.then(|| Setting::from_run_option("--no-record".into(), "record", false)));
        settings
            .extend(comment.iter().map(|text| Setting::from_run_option("--comment".into(), "comment", text.clone())));
        settings
    }

    /// Fails if a comment or metadata are given for a run without a record, which would keep them.
    fn check_for_record(&self, topology: &Topology) -> Result<(), Failure> {
        let settings = self.settings();
        match settings.iter().find(|setting| setting.is_kept_with_run()).filter(|_| !topology.run.record) {
            Some(setting) => Err(Failure::Usage(format!(
                "{}: this is kept in run.json, and the run is not recorded: leave it out, or record the run",
                setting.option_text()
            ))),
            None => Ok(()),
        }
    }

    /// Fails if an option is given to a node that it has no effect on.
    fn check_for_node(&self, topology: &Topology, name: &str) -> Result<(), Failure> {
        let Self { duration, events, number, out, no_record, comment, .. } = self;
        let of_leader =
            [("--duration", duration.is_some()), ("--events", events.is_some()), ("--comment", comment.is_some())];
        let of_builders = [("--number", number.is_some()), ("--out", out.is_some()), ("--no-record", *no_record)];
        let given =
            |options: &[(&'static str, bool)]| options.iter().find(|(_, given)| *given).map(|(option, _)| *option);
        let leader = topology.builders.first().map_or("", |builder| &builder.name);
        let is_builder = topology.builders.iter().any(|builder| builder.name == name);
        if let Some(option) = given(&of_leader).filter(|_| name != leader) {
            return Err(Failure::Usage(format!("{option}: builder '{leader}' decides that: give it to that node")));
        }
        if let Some(option) = given(&of_builders).filter(|_| !is_builder) {
            return Err(Failure::Usage(format!(
                "{option}: the builders record, and '{name}' is a source: give it to them"
            )));
        }
        Ok(())
    }
}
