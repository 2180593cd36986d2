//! `thalweg doctor`: capabilities of this machine, and conditions on it that would lose data.

use crate::node::check_node_name;
use crate::preflight::{Recordings, topology_needs};
use crate::print;
use crate::terminal::{Failure, Output};
use std::fmt::Write;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;
use thalweg_doctor::{Finding, Level, Needs, examine_machine, worst_level};
use thalweg_text::{ByteRate, TEXT_COLUMNS, parse_duration, replace_controls, wrap_words};

#[derive(Debug, clap::Args)]
pub(crate) struct Options {
    /// A topology to examine this machine for: its addresses, processors, memory, disk and rates
    #[arg(long = "for", value_name = "FILE")]
    topology: Option<PathBuf>,
    /// Only what this node of the topology needs here; without it, all of its nodes run on this machine
    #[arg(long, value_name = "NAME", requires = "topology")]
    node: Option<String>,
    /// Directory in which runs will be recorded, instead of that of the topology or `runs`
    #[arg(long, value_name = "DIR")]
    directory: Option<PathBuf>,
    /// Rate at which data will be recorded, such as 800MB/s or 10Gbit/s, instead of what the topology states
    #[arg(long, value_name = "RATE")]
    rate: Option<ByteRate>,
    /// Duration of the run, such as 8h, instead of what the topology states
    #[arg(long, value_name = "TIME", value_parser = parse_duration)]
    for_time: Option<Duration>,
    /// Measure the write speed of the directory, with an unnamed file, for at most 2 s
    #[arg(long)]
    measure_disk: bool,
    /// Show checks without problems, too
    #[arg(long)]
    all: bool,
}

/// Examines this machine. Exit code 0: nothing is wrong; 3: something could be better; 4: something would lose data, or
/// cannot run.
pub(crate) fn run_doctor(options: &Options, json: bool) -> Result<ExitCode, Failure> {
    let needs = requested_needs(options)?;
    let findings = examine_machine(&needs);
    let level = worst_level(&findings);
    let mut out = Output::new();
    match json {
        true => out.json(&serde_json::json!({ "level": level, "findings": findings }))?,
        false => out.text(&findings_text(&findings, options.all))?,
    }
    out.flush()?;
    Ok(ExitCode::from(match level {
        Level::Ok => 0,
        Level::Degraded => 3,
        Level::Missing => 4,
    }))
}

/// Returns the requirements that the options put on this machine.
fn requested_needs(options: &Options) -> Result<Needs, Failure> {
    let mut needs = match &options.topology {
        None => Needs::default(),
        Some(file) => {
            let topology = thalweg_node::Topology::load(file, options.node.as_deref())?;
            let node = options.node.as_deref();
            node.map_or(Ok(()), |name| check_node_name(&topology, name))?;
            topology_needs(&topology, node, Recordings::Opened)
        }
    };
    if let Some(directory) = &options.directory {
        needs.directory.clone_from(directory);
    }
    // A user who names a directory, a rate or a time means to record.
    needs.record |= options.directory.is_some() || options.rate.is_some() || options.for_time.is_some();
    if options.rate.is_some() || options.for_time.is_some() {
        // A stated number of events belongs to the topology's own rate.
        needs.data.bytes = None;
        needs.data.at_most &= options.rate.is_none();
        needs.data.bytes_per_second = options.rate.map(|rate| rate.0).or(needs.data.bytes_per_second);
        needs.data.duration = options.for_time.or(needs.data.duration);
    }
    needs.measure_disk = options.measure_disk;
    Ok(needs)
}

fn findings_text(findings: &[Finding], all: bool) -> String {
    let counts =
        [(Level::Missing, "missing"), (Level::Degraded, "degraded"), (Level::Ok, "ok")].map(|(level, word)| {
            match findings.iter().filter(|finding| finding.level == level).count() {
                0 => format!("0 {word}"),
                some => format!("{some} {}", print::paint_verdict(word)),
            }
        });
    let mut out = counts.join(", ");
    out.push_str(if all { "\n" } else { " (--all shows them all)\n" });
    let mut section = None;
    for finding in findings.iter().filter(|finding| all || finding.requested || finding.level != Level::Ok) {
        if section.replace(finding.section) != Some(finding.section) {
            let _ = write!(out, "\n{}\n", finding.section);
        }
        let evidence = replace_controls(&finding.evidence);
        let level = finding.level.to_string();
        let space = " ".repeat(10_usize.saturating_sub(level.len()));
        out.push_str(&wrap_words(
            &format!("  {}{space}", print::paint_verdict(&level)),
            &format!("{}: {evidence}", replace_controls(&finding.name)),
        ));
        if let Some(cost) = &finding.cost {
            out.push_str(&wrap_words("            cost: ", &replace_controls(cost)));
        }
        if let Some(remedy) = &finding.remedy {
            // A command is not broken into lines, so that it can be copied.
            let line = format!("            fix: {}", replace_controls(remedy));
            let short = line.chars().count() <= TEXT_COLUMNS;
            let _ = writeln!(
                out,
                "{}",
                if short { line } else { format!("            fix:\n  {}", replace_controls(remedy)) }
            );
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use thalweg_doctor::Section;

    #[test]
    fn a_person_reads_first_what_is_wrong_and_what_to_do() {
        let finding = |section, name: &str, level, evidence: &str| Finding {
            section,
            name: name.to_owned(),
            level,
            evidence: evidence.to_owned(),
            cost: (level != Level::Ok).then(|| "slots use 4 KiB pages: more page-table entries".to_owned()),
            remedy: (level != Level::Ok)
                .then(|| "echo advise > /sys/kernel/mm/transparent_hugepage/shmem_enabled".into()),
            requested: false,
        };
        let findings = [
            finding(Section::Kernel, "version", Level::Ok, "Linux 6.18.44 (uname)"),
            finding(
                Section::Memory,
                "transparent huge pages",
                Level::Degraded,
                "shared memory: never; anonymous: madvise",
            ),
        ];
        insta::assert_snapshot!(findings_text(&findings, false), @r"
        0 missing, 1 degraded, 1 ok (--all shows them all)

        memory
          degraded  transparent huge pages: shared memory: never; anonymous: madvise
                    cost: slots use 4 KiB pages: more page-table entries
                    fix: echo advise > /sys/kernel/mm/transparent_hugepage/shmem_enabled
        ");
        assert!(findings_text(&findings, true).contains("\nkernel\n  ok        version: Linux 6.18.44 (uname)\n"));
        let requested = Finding { requested: true, ..findings[0].clone() };
        assert!(findings_text(&[requested], false).ends_with("\nkernel\n  ok        version: Linux 6.18.44 (uname)\n"));
    }
}
