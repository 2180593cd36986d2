//! Alarms: conditions that people must know of, with acknowledgements that survive a restart of the service.
//!
//! An alarm begins when its condition is found, and ends when that has not been found for a hold time: a value that goes
//! back and forth at its limit is one alarm.

use crate::config::AlarmLimits;
use crate::experiment::Now;
use crate::notices::{self, DestinationView};
use crate::state::ExperimentState;
use crate::status::{Status, TroubleLevel};
use serde::{Deserialize, Serialize};
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;
use utoipa::ToSchema;

/// Number of alarms that are kept once they are over.
const MAX_PAST_ALARMS: usize = 50;

/// Kind of the alarms of hosts whose clock is not synchronised.
pub(crate) const UNSYNCHRONIZED_CLOCK: &str = "unsynchronized-clock";

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
    /// True while the condition holds, and for a hold time after that.
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
    /// Times at which the conditions of active alarms were found last.
    found_at: BTreeMap<String, Duration>,
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
        Self { alarms, found_at: BTreeMap::new(), path }
    }

    /// Returns the alarms: those that are active and not acknowledged first, and the worst of them before others.
    pub fn views(&self) -> Vec<AlarmView> {
        let mut alarms: Vec<AlarmView> = self.alarms.values().cloned().collect();
        alarms.sort_by(|one, other| one.rank().cmp(&other.rank()).then(other.since_at.total_cmp(&one.since_at)));
        alarms
    }

    /// Takes the conditions that are found now. Returns the alarms that have begun or have ended. An alarm ends once its
    /// condition has not been found for `hold`.
    pub fn update_conditions(&mut self, conditions: &[Condition], now: Now, hold: Duration) -> Vec<AlarmView> {
        let mut changed = Vec::new();
        for condition in conditions {
            self.found_at.insert(condition.id.clone(), now.monotonic);
            let alarm = self.alarms.entry(condition.id.clone()).or_default();
            let has_begun = !alarm.is_active;
            if has_begun {
                *alarm =
                    AlarmView { id: condition.id.clone(), since_at: now.unix, is_active: true, ..AlarmView::default() };
            }
            (alarm.severity, alarm.text) = (condition.severity, condition.text.clone());
            changed.extend(has_begun.then(|| alarm.clone()));
        }
        for alarm in self.alarms.values_mut().filter(|alarm| alarm.is_active) {
            // Those of an earlier service have their hold time, too.
            let found_at = *self.found_at.entry(alarm.id.clone()).or_insert(now.monotonic);
            let is_over = now.monotonic.saturating_sub(found_at) >= hold && found_at != now.monotonic;
            if is_over {
                alarm.is_active = false;
                self.found_at.remove(&alarm.id);
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
    if limits.unsynchronized_clock {
        let clocks = status.clocks.iter().filter(|clock| clock.is_synchronized == Some(false));
        let hosts: BTreeSet<&str> = clocks.map(|clock| clock.host.as_str()).collect();
        conditions.extend(hosts.into_iter().map(|host| {
            let text = format!("the clock of {host} is not synchronised");
            Condition { id: format!("{UNSYNCHRONIZED_CLOCK}:{host}"), severity: Minor, text }
        }));
    }
    conditions
}

/// Returns the conditions of destinations that take no notices.
pub fn find_undelivered(destinations: &[DestinationView]) -> Vec<Condition> {
    let failing = destinations.iter().filter(|destination| !destination.problem.is_empty());
    let conditions = failing.map(|DestinationView { name, waiting, left_out, problem, .. }| Condition {
        id: notices::alarm_id(name),
        severity: TroubleLevel::Minor,
        text: format!("{name} takes no notices: {problem}; {waiting} are waiting, {left_out} were left out"),
    });
    conditions.collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

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
    fn a_clock_that_is_not_synchronised_is_one_alarm_of_its_host_where_it_is_asked_for() {
        let clock = |node: &str, host: &str, is_synchronized| crate::status::ClockView {
            node: node.into(),
            host: host.into(),
            is_synchronized,
            ..Default::default()
        };
        let clocks = vec![
            clock("a", "one", Some(false)),
            clock("b", "one", Some(false)),
            clock("c", "two", Some(true)),
            clock("d", "three", None),
        ];
        let status = Status { clocks, ..Status::default() };
        for (asked, expected) in [(false, &[][..]), (true, &["unsynchronized-clock:one"][..])] {
            let limits = AlarmLimits { unsynchronized_clock: asked, ..AlarmLimits::default() };
            let conditions = find_conditions(&status, &limits, &[]);
            assert_eq!(conditions.iter().map(|condition| condition.id.as_str()).collect::<Vec<_>>(), expected);
        }
    }

    /// Time in seconds.
    fn at(seconds: f64) -> Now {
        Now { monotonic: Duration::from_secs_f64(seconds), unix: 1e9 + seconds }
    }

    const HOLD: Duration = Duration::from_secs(10);

    #[test]
    fn an_acknowledgement_survives_a_restart_and_ends_with_its_alarm() {
        let folder = tempfile::tempdir().unwrap();
        let mut alarms = Alarms::open(folder.path());
        let both = [condition("a"), condition("b")];
        assert_eq!(alarms.update_conditions(&both, at(1.0), HOLD).len(), 2);
        assert!(alarms.update_conditions(&both, at(2.0), HOLD).is_empty(), "no change");
        assert!(alarms.acknowledge("a", "known", "anna").is_some() && alarms.acknowledge("x", "", "anna").is_none());
        let mut alarms = Alarms::open(folder.path());
        let views = alarms.views();
        assert_eq!((views[0].id.as_str(), views[1].id.as_str()), ("b", "a"), "what is not acknowledged comes first");
        assert_eq!((views[1].is_acknowledged, views[1].acknowledged_by.as_deref()), (true, Some("anna")));
        assert!(alarms.update_conditions(&[condition("b")], at(3.0), HOLD).is_empty(), "it is held");
        assert_eq!(alarms.update_conditions(&[condition("b")], at(13.0), HOLD)[0].id, "a");
        assert_eq!(alarms.update_conditions(&both, at(14.0), HOLD).len(), 1, "it has begun again");
        assert!(!alarms.views().iter().any(|alarm| alarm.is_acknowledged), "and wants to be acknowledged again");
    }

    #[test]
    fn a_value_at_its_limit_is_one_alarm() {
        let folder = tempfile::tempdir().unwrap();
        let mut alarms = Alarms::open(folder.path());
        let mut changes = 0;
        for second in 0..100 {
            let found = if second % 2 == 0 { vec![condition("clock-offset:adc")] } else { Vec::new() };
            changes += alarms.update_conditions(&found, at(f64::from(second)), HOLD).len();
        }
        assert_eq!(changes, 1);
        assert_eq!(alarms.update_conditions(&[], at(108.0), HOLD).len(), 1, "it is over 10 s after it was found last");
    }

    proptest! {
        #[test]
        fn an_alarm_begins_at_once_and_ends_only_after_the_hold_time(
            steps in prop::collection::vec((any::<[bool; 3]>(), 1_u64..8000), 1..60),
        ) {
            let folder = tempfile::tempdir().unwrap();
            let mut alarms = Alarms::open(folder.path());
            let names = ["a", "b", "c"];
            let (mut time, mut found_at, mut is_active) = (Duration::ZERO, [None; 3], [false; 3]);
            for (found, pause_ms) in steps {
                time += Duration::from_millis(pause_ms);
                let conditions: Vec<Condition> =
                    names.iter().zip(found).filter(|(_, found)| *found).map(|(name, _)| condition(name)).collect();
                let changed = alarms.update_conditions(&conditions, at(time.as_secs_f64()), HOLD);
                for (place, name) in names.into_iter().enumerate() {
                    if found[place] {
                        found_at[place] = Some(time);
                    }
                    let is_held = found_at[place].is_some_and(|found_at| time - found_at < HOLD);
                    let changes: Vec<bool> =
                        changed.iter().filter(|alarm| alarm.id == name).map(|alarm| alarm.is_active).collect();
                    let expected = if is_held == is_active[place] { vec![] } else { vec![is_held] };
                    prop_assert_eq!(changes, expected);
                    is_active[place] = is_held;
                }
            }
        }
    }
}
