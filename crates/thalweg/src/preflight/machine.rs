//! Comparison of this machine with the requirements of a topology.

use crate::preflight::{PreflightError, Recordings, topology_needs};
use thalweg_core::filter::Condition;
use thalweg_doctor::{Finding, Level};
use thalweg_node::{BuilderNodeConfig, NodeError, Topology};
use thalweg_store::{StoreError, run_directory_name};
use thalweg_wire::RunNumber;

/// Refuses problems that would end the run, or lose data, once it has begun: missing processors, addresses, memory,
/// files or disk, a run number that is taken; for one node, or for all of them on one machine. Findings that cost only
/// speed are returned, and logged on request (`-v`).
///
/// # Errors
/// The first problem found, and its remedy.
pub fn run_preflight(topology: &Topology, node: Option<&str>) -> Result<Vec<Finding>, PreflightError> {
    let builders =
        topology.builders.iter().zip(0..).filter(|(builder, _)| node.is_none_or(|node| node == builder.name));
    if topology.run.record {
        let count = u32::try_from(topology.builders.len()).unwrap_or(u32::MAX);
        for (_, index) in builders {
            match topology.run.number {
                Some(number) => {
                    let name = run_directory_name(RunNumber(number), index, count);
                    let path = topology.run.directory.join(name);
                    if path.symlink_metadata().is_ok() {
                        return Err(NodeError::from(StoreError::Exists(path)).into());
                    }
                }
                // All builders on one machine are given one number.
                None if node.is_some() => topology.check_run_number()?,
                None => {}
            }
        }
    }
    for builder in topology.builders.iter().filter(|builder| node.is_none_or(|node| node == builder.name)) {
        check_conditions(topology, builder)?;
    }
    let findings = thalweg_doctor::examine_preflight(&topology_needs(topology, node, Recordings::Unopened));
    for finding in &findings {
        match finding.level {
            Level::Ok => {}
            Level::Degraded => {
                let Finding { name, evidence, cost, remedy, .. } = finding;
                tracing::info!(node, name, evidence, cost, remedy, "preflight: it could be faster");
            }
            Level::Missing => return Err(PreflightError::Machine(Box::new(finding.clone()))),
        }
    }
    Ok(findings)
}

/// Checks that conditions use features that exist, as far as the topology determines them.
fn check_conditions(topology: &Topology, builder: &BuilderNodeConfig) -> Result<(), NodeError> {
    for (level, mut condition) in builder.level_conditions() {
        let mut known = true;
        for variable in condition.variable_names() {
            let mut sources = topology.sources.iter();
            let source = sources.find(|source| Condition::variable_name(&source.name) == variable);
            match source.map(|source| (source, &source.device)) {
                Some((source, Some(device))) => match device.feature_names() {
                    Some(features) => condition.bind_source(variable, source.source_id(), features),
                    None => {
                        let problem = format!("source '{}' has no features, since it is not a fit", source.name);
                        return Err(condition_error(builder, level, &problem));
                    }
                },
                // The features of a source that is pushed to are known to the other program only.
                Some((_, None)) | None => known = false,
            }
        }
        if known {
            condition.check_features().map_err(|problem| condition_error(builder, level, &problem))?;
        }
    }
    Ok(())
}

fn condition_error(builder: &BuilderNodeConfig, level: &str, problem: &str) -> NodeError {
    NodeError::Config(format!("builder '{}': {level}.accept: {problem}", builder.name))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::preflight::fixture::{LAB, parse_topology};
    use std::time::Duration;

    #[test]
    fn a_run_too_large_for_the_disk_is_refused_with_one_sentence() {
        // With any number of processors on this machine.
        let mut lab = parse_topology(&LAB.replace("cpu = 1", ""));
        assert!(run_preflight(&lab, Some("adc")).is_ok(), "a source has no disk");
        lab.run.duration = Some(Duration::from_secs(1 << 40));
        let refused = run_preflight(&lab, Some("even")).unwrap_err();
        assert!(refused.is_usage());
        let text = refused.to_string();
        assert!(text.starts_with("disk space: the run writes ") && !text.contains('\n'), "{text}");
        assert!(text.contains("the disk is full after "), "{text}");
        lab.run.record = false;
        assert!(run_preflight(&lab, Some("even")).is_ok());
    }

    #[test]
    fn what_a_node_could_not_have_is_refused_before_it_begins() {
        let lab = LAB.replace("cpu = 1", "");
        let refused = |from: &str, to: &str, node: &str| {
            let error = run_preflight(&parse_topology(&lab.replacen(from, to, 1)), Some(node)).unwrap_err();
            assert!(error.is_usage(), "{error}");
            error.to_string()
        };
        assert!(refused("\"reno\"", "\"reno\"\ncpu = 9999", "adc").contains("adc to 9999"));
        assert!(refused("\"reno\"", "\"nosuch\"", "adc").contains("nosuch"));
        assert!(refused("127.0.0.1:0", "192.0.2.1:7400", "even").contains("not an address of this machine"));
        assert!(refused("\"/tmp\"", "\"/dev/null/x\"", "even").starts_with("record directory: "));
        assert!(refused("number = 987654321", "", "even").starts_with("run.number: "));
        let runs = tempfile::tempdir().unwrap();
        let numbered = parse_topology(&lab.replace("/tmp\"", &format!("{}\"", runs.path().display())));
        assert!(run_preflight(&numbered, None).is_ok());
        std::fs::create_dir(runs.path().join(run_directory_name(RunNumber(987_654_321), 1, 2))).unwrap();
        assert!(run_preflight(&numbered, None).unwrap_err().to_string().contains("exists already"));
        assert!(run_preflight(&numbered, Some("even")).is_ok(), "it is the other's");
    }

    #[test]
    fn memory_that_is_not_there_is_refused() {
        let lab = parse_topology(&LAB.replace("cpu = 1", "block = \"1GiB\"\nblocks = 4096"));
        let text = run_preflight(&lab, Some("even")).unwrap_err().to_string();
        assert!(text.starts_with("memory: 0 B for slots, 4.40 TB for blocks; "), "{text}");
        assert!(run_preflight(&lab, Some("odd")).is_ok());
    }
}
