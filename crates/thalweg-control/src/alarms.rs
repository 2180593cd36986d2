//! Alarms: conditions that people must know of, with acknowledgements that survive a restart of the service.

use crate::config::AlarmLimits;
use crate::state::ExperimentState;
use crate::status::{Status, TroubleLevel};
use serde::{Deserialize, Serialize};
use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use utoipa::ToSchema;

/// Number of alarms that are kept once they are over.
const MAX_PAST_ALARMS: usize = 50;

/// An alarm.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct AlarmView {
    /// Name of the condition and its place: `source-silent:adc-1`.
    pub id: String,
    /// Severity: `minor` or `major`.
    pub severity: TroubleLevel,
    /// The condition, in a sentence.
    pub text: String,
    /// Time since which it holds: Unix time in seconds.
    pub since_at: f64,
    /// True while the condition holds.
    pub is_active: bool,
    /// True if it was acknowledged since it began.
    pub is_acknowledged: bool,
    /// Name of the token with which it was acknowledged.
    pub acknowledged_by: Option<String>,
    /// Reason given with the acknowledgement.
    pub why: String,
}

impl AlarmView {
    /// Returns its rank in a list; the lowest comes first.
    fn rank(&self) -> (bool, bool, Reverse<TroubleLevel>) {
        (!self.is_active, self.is_acknowledged, Reverse(self.severity))
    }
}

/// All alarms. They are kept in a file.
#[derive(Debug)]
pub struct Alarms {
    alarms: BTreeMap<String, AlarmView>,
    path: PathBuf,
}

/// Condition that holds.
#[derive(Debug, Clone, PartialEq)]
pub struct Condition {
    /// As in [`AlarmView::id`].
    pub id: String,
    /// Severity: `minor` or `major`.
    pub severity: TroubleLevel,
    /// The sentence.
    pub text: String,
}

impl Alarms {
    /// Reads the alarms in a directory. A file that cannot be read costs the acknowledgements in it alone.
    pub fn open(directory: &Path) -> Self {
        let path = directory.join("alarms.json");
        let alarms = match std::fs::read(&path) {
            Ok(text) => serde_json::from_slice(&text).unwrap_or_else(|error| {
                tracing::warn!("{}: {error}: earlier acknowledgements are lost", path.display());
                BTreeMap::new()
            }),
            Err(error) if error.kind() == io::ErrorKind::NotFound => BTreeMap::new(),
            Err(error) => {
                tracing::warn!("{}: {error}: earlier acknowledgements are lost", path.display());
                BTreeMap::new()
            }
        };
        Self { alarms, path }
    }

    /// Returns the alarms: those that are active and not acknowledged first, and the worst of them before others.
    pub fn views(&self) -> Vec<AlarmView> {
        let mut alarms: Vec<AlarmView> = self.alarms.values().cloned().collect();
        alarms.sort_by(|one, other| one.rank().cmp(&other.rank()).then(other.since_at.total_cmp(&one.since_at)));
        alarms
    }

    /// Takes the conditions that hold now. Returns the alarms that have begun or have ended.
    pub fn update_conditions(&mut self, conditions: &[Condition], unix: f64) -> Vec<AlarmView> {
        let mut changed = Vec::new();
        for condition in conditions {
            let alarm = self.alarms.entry(condition.id.clone()).or_default();
            if !alarm.is_active {
                *alarm =
                    AlarmView { id: condition.id.clone(), since_at: unix, is_active: true, ..AlarmView::default() };
                alarm.severity = condition.severity;
                alarm.text.clone_from(&condition.text);
                changed.push(alarm.clone());
            }
            (alarm.severity, alarm.text) = (condition.severity, condition.text.clone());
        }
        for alarm in self.alarms.values_mut() {
            if alarm.is_active && !conditions.iter().any(|condition| condition.id == alarm.id) {
                alarm.is_active = false;
                changed.push(alarm.clone());
            }
        }
        self.forget_past_alarms();
        if !changed.is_empty() {
            self.save();
        }
        changed
    }

    /// Acknowledges an alarm. Returns it; `None` if there is none of that name.
    pub fn acknowledge(&mut self, id: &str, why: &str, by: &str) -> Option<AlarmView> {
        let alarm = self.alarms.get_mut(id)?;
        alarm.is_acknowledged = true;
        alarm.acknowledged_by = Some(by.to_owned());
        why.clone_into(&mut alarm.why);
        let alarm = alarm.clone();
        self.save();
        Some(alarm)
    }

    fn forget_past_alarms(&mut self) {
        let mut past: Vec<(f64, String)> = self
            .alarms
            .values()
            .filter(|alarm| !alarm.is_active)
            .map(|alarm| (alarm.since_at, alarm.id.clone()))
            .collect();
        past.sort_by(|one, other| other.0.total_cmp(&one.0));
        for (_, id) in past.into_iter().skip(MAX_PAST_ALARMS) {
            self.alarms.remove(&id);
        }
    }

    fn save(&self) {
        let text = serde_json::to_vec_pretty(&self.alarms).unwrap_or_default();
        let new = self.path.with_extension("new");
        let saved = std::fs::write(&new, text).and_then(|()| std::fs::rename(&new, &self.path));
        if let Err(error) = saved {
            tracing::warn!("{}: {error}: acknowledgements are not kept", self.path.display());
        }
    }
}

/// Returns the conditions that hold, by a status and the limits. `silent_seconds`: for each source, the time for which it
/// has sent nothing while others did.
pub fn find_conditions(status: &Status, limits: &AlarmLimits, silent_seconds: &[f64]) -> Vec<Condition> {
    use TroubleLevel::{Major, Minor};
    let mut conditions = Vec::new();
    let has_run = status.state.has_run();
    for process in status.processes.iter().filter(|process| process.state != "up") {
        // While the experiment is being configured, nodes are being started.
        let needed = !matches!(status.state, ExperimentState::Idle | ExperimentState::Configuring);
        if needed && process.manager != "none" || has_run {
            let text = match process.pid {
                Some(_) => format!("node {} cannot take part in a run: see its log", process.node),
                None => format!("node {} is not connected to this service", process.node),
            };
            conditions.push(Condition { id: format!("process-missing:{}", process.node), severity: Major, text });
        }
    }
    for (source, silent) in status.sources.iter().zip(silent_seconds) {
        if has_run && *silent >= limits.silent_source.as_secs_f64() {
            let text = format!("source {} has sent nothing for {silent:.0} s while others do", source.name);
            conditions.push(Condition { id: format!("source-silent:{}", source.name), severity: Major, text });
        }
    }
    let totals = &status.totals;
    let share = totals.incomplete as f64 / totals.events.max(1) as f64;
    if has_run && totals.incomplete > 0 && share > limits.incomplete_share {
        let text =
            format!("{:.1} % of the events are incomplete: {} of {}", share * 100.0, totals.incomplete, totals.events);
        conditions.push(Condition { id: "incomplete-events".into(), severity: Major, text });
    }
    if let Some(left) = status.disk.seconds_left.filter(|left| *left < limits.disk_time.as_secs_f64()) {
        let text = format!("the disk of {} is full in {:.0} minutes at this rate", status.directory, left / 60.0);
        conditions.push(Condition { id: "disk-nearly-full".into(), severity: Major, text });
    }
    if !status.number_problem.is_empty() {
        let text = format!("no run can start: {}", status.number_problem);
        conditions.push(Condition { id: "no-numbers".into(), severity: Major, text });
    }
    for clock in &status.clocks {
        if let Some(offset) = clock.offset_seconds.filter(|offset| offset.abs() > limits.clock_offset.as_secs_f64()) {
            let text = format!(
                "the clock of {} ({}) differs by {offset:.3} s from that of this service",
                clock.host, clock.node
            );
            conditions.push(Condition { id: format!("clock-offset:{}", clock.node), severity: Minor, text });
        }
    }
    conditions
}

#[cfg(test)]
mod tests {
    use super::*;

    fn condition(id: &str) -> Condition {
        Condition { id: id.into(), severity: TroubleLevel::Major, text: "it hurts".into() }
    }

    #[test]
    fn a_node_is_missed_only_when_it_is_needed() {
        let process = crate::status::ProcessView { node: "adc".into(), state: "starting".into(), ..Default::default() };
        for (state, count) in [
            (ExperimentState::Idle, 0),
            (ExperimentState::Configuring, 0),
            (ExperimentState::Armed, 1),
            (ExperimentState::Running, 1),
        ] {
            let status = Status { state, processes: vec![process.clone()], ..Status::default() };
            assert_eq!(find_conditions(&status, &AlarmLimits::default(), &[]).len(), count, "{state}");
        }
    }

    #[test]
    fn an_acknowledgement_survives_a_restart_and_ends_with_its_alarm() {
        let folder = tempfile::tempdir().unwrap();
        let mut alarms = Alarms::open(folder.path());
        assert_eq!(alarms.update_conditions(&[condition("a"), condition("b")], 1.0).len(), 2);
        assert!(alarms.update_conditions(&[condition("a"), condition("b")], 2.0).is_empty(), "no change");
        assert!(alarms.acknowledge("a", "known", "anna").is_some() && alarms.acknowledge("x", "", "anna").is_none());
        let mut alarms = Alarms::open(folder.path());
        let views = alarms.views();
        assert_eq!((views[0].id.as_str(), views[1].id.as_str()), ("b", "a"), "what is not acknowledged comes first");
        assert_eq!((views[1].is_acknowledged, views[1].acknowledged_by.as_deref()), (true, Some("anna")));
        assert_eq!(alarms.update_conditions(&[condition("b")], 3.0)[0].id, "a");
        assert_eq!(alarms.update_conditions(&[condition("a"), condition("b")], 4.0).len(), 1, "it has begun again");
        assert!(!alarms.views().iter().any(|alarm| alarm.is_acknowledged), "and wants to be acknowledged again");
    }
}
