//! Comparison of reports and disks with the truth.

use crate::device::{Had, fragment_payload};
use crate::hostile::MOST_OPEN_OFFERS;
use crate::instrument::{instrument_payload, trigger_of_fragment};
use crate::plan::{Fault, NodeName, Plan};
use crate::world::{Course, Death};
use std::collections::BTreeMap;
use std::time::Duration;
use thalweg_core::filter::{Decide, Simulated};
use thalweg_node::{BuilderReport, Policy};
use thalweg_store::{EventStatus, Exposure, Run, StoreError, run_directory_name, salvage_run, verify_run};
use thalweg_wire::{EventId, RunNumber, Status};

/// Violations found in a simulation.
#[derive(Debug, Clone, Default)]
pub struct Verdict {
    /// Violations, one sentence each.
    pub wrong: Vec<String>,
    /// Number of fragments that the devices had.
    pub fragments: u64,
    /// Hash of all that happened, in order.
    pub trace: u64,
}

/// Compares the nodes' reports, and the content of their disks, with the fragments of the devices.
pub fn judge_course(plan: &Plan, course: &Course) -> Verdict {
    let mut judge = Judge { plan, course, wrong: Vec::new(), triggers_before: None };
    judge.check_nodes_ended();
    for (builder, ended) in course.builders.iter().enumerate() {
        judge.check_unsynced_data(builder, ended.as_ref().is_some_and(Result::is_ok));
        match ended {
            Some(Ok(report)) => judge.check_builder_reports(builder, report),
            Some(Err(error)) => judge.check_node_error(&format!("builder b{builder}"), error),
            None => judge.check_dead_builder(builder),
        }
    }
    judge.check_aborts();
    judge.check_left_out_builders();
    judge.check_lost_leader();
    judge.check_open_offers();
    for (source, ended) in course.sources.iter().enumerate() {
        if let Some(Err(error)) = ended {
            judge.check_node_error(&format!("source s{source}"), error);
        }
    }
    let fragments = course.truths.iter().map(|truth| truth.fragments().len() as u64).sum();
    Verdict { wrong: judge.wrong, fragments, trace: course.trace }
}

/// Time within which a run has ended at all builders after one builder aborted it.
const ABORT_TIMEOUT: Duration = Duration::from_secs(8);
/// Longest time for which written data are not synced to disk, except for the step in which time advances. The next
/// constant is the same for the name of a new file.
const UNSYNCED_BYTES: Duration = Duration::from_secs(3);
const UNSYNCED_NAME: Duration = Duration::from_millis(500);

struct Judge<'a> {
    plan: &'a Plan,
    course: &'a Course,
    wrong: Vec<String>,
    /// Number of triggers before event 0, if events are numbered by time.
    triggers_before: Option<i128>,
}

/// The fragments of a run on disk: the sources of each event.
type Found = BTreeMap<u64, Vec<usize>>;

impl Judge<'_> {
    fn record_violation(&mut self, holds: bool, what: impl FnOnce() -> String) {
        if !holds {
            self.wrong.push(what());
        }
    }

    fn check_nodes_ended(&mut self) {
        for name in &self.course.late {
            let took = self.course.took;
            self.wrong.push(format!("{name} had not ended after {took:?}"));
        }
    }

    /// Checks that after a command to abort at one builder, without other faults, the other builders end the run soon,
    /// too.
    fn check_aborts(&mut self) {
        // The leading builder informs the others, unless it went before the run began.
        let leads = matches!(self.course.builders.first(), Some(Some(Ok(_))));
        if self.plan.hostile.is_some() || !self.plan.has_only_commands() || !leads {
            return;
        }
        let ended = self.course.builders.iter().enumerate();
        let reports: Vec<_> = ended.filter_map(|(at, ended)| Some((at, ended.as_ref()?.as_ref().ok()?))).collect();
        let aborted = reports.iter().filter(|(at, report)| {
            self.plan.is_aborted(*at) && report.reasons.iter().any(|reason| reason.starts_with("the run was aborted"))
        });
        let Some((first, soonest)) = aborted.min_by(|one, other| one.1.seconds.total_cmp(&other.1.seconds)) else {
            return;
        };
        for (other, report) in &reports {
            self.record_violation(report.seconds <= soonest.seconds + ABORT_TIMEOUT.as_secs_f64(), || {
                format!(
                    "b{first} ended the run at once after {} s, and b{other} after {} s",
                    soonest.seconds, report.seconds
                )
            });
        }
    }

    /// Checks that a dead builder got no fragment taken from a device after its death: those that were meant for it are
    /// lost.
    fn check_left_out_builders(&mut self) {
        let Some(Some(Ok(leader))) = self.course.builders.first() else { return };
        let is_silent = leader.reasons.iter().any(|reason| reason.contains("did not report within"));
        let may_be_silent = self.plan.faults.iter().any(|(_, fault)| match fault {
            Fault::Stopped(node, _) | Fault::Killed(node) => matches!(node, NodeName::Source(_)),
            Fault::Network(_) | Fault::Restarted(..) | Fault::Parted(..) => true,
            _ => false,
        });
        self.record_violation(!is_silent || may_be_silent, || {
            format!("all sources answer, and that is not so to builder 0: {:?}", leader.reasons)
        });
        for left in leader.left_out.iter().filter(|_| !is_silent) {
            let died = self.course.died.iter().find(|died| u32::try_from(died.builder) == Ok(left.builder));
            let Some(Death { next_events: next, .. }) = died else { continue };
            let mut least = 0;
            for (source, plan) in self.plan.sources.iter().enumerate() {
                let is_sure = leader.ledger.sources[source].final_counters && plan.policy == Policy::Block;
                if !is_sure || plan.acquires || self.plan.hostile == Some(source) || self.plan.is_gone(source) {
                    continue;
                }
                let had = self.course.truths[source].fragments();
                for (first, count) in &left.events {
                    let taken_after = had.range((*first).max(next[source])..);
                    least += taken_after.take_while(|(event, _)| **event < first + count).count() as u64;
                }
            }
            self.record_violation(left.lost >= least, || {
                format!("b{} died before {least} fragments were taken for it, and lost is {left:?}", left.builder)
            });
        }
    }

    /// Checks that a run whose leading builder died is INCOMPLETE for that reason at all builders.
    fn check_lost_leader(&mut self) {
        if !self.plan.only_loses_leader() {
            return;
        }
        for (builder, ended) in self.course.builders.iter().enumerate() {
            let Some(Ok(report)) = ended else { continue };
            let is_named =
                report.reasons.iter().any(|reason| reason.starts_with("builder 0, which leads the run, died"));
            self.record_violation(is_named, || {
                format!("builder b{builder} does not report that b0 died: {} for {:?}", report.state, report.reasons)
            });
        }
    }

    /// Checks that the builders keep no more offers of the hostile peer than their limit.
    fn check_open_offers(&mut self) {
        let open = self.course.open_offers;
        self.record_violation(open <= MOST_OPEN_OFFERS, || format!("{open} offers of one source are kept"));
    }

    /// Checks the data that a power failure would lose of a builder that was not stopped and had a working disk: those
    /// written in the last second or two, which is `flush` and the duration of a sync; and none at the end.
    fn check_unsynced_data(&mut self, builder: usize, has_ended: bool) {
        let Exposure { bytes, name, now } = self.course.exposed[builder];
        let unpowered = self.course.unpowered.iter().any(|(unpowered, _)| *unpowered == builder);
        if !(has_ended || unpowered) || self.plan.stops_builder(builder) {
            return;
        }
        self.record_violation(bytes <= UNSYNCED_BYTES + self.plan.step, || {
            format!("builder b{builder}: what it had written was not synced for {bytes:?}")
        });
        self.record_violation(name <= UNSYNCED_NAME + self.plan.step, || {
            format!("builder b{builder}: a file's name was not synced for {name:?}")
        });
        self.record_violation(unpowered || !now, || format!("builder b{builder} has ended, and not all is synced"));
    }

    /// Checks that a node that ended with an error had a reason to.
    fn check_node_error(&mut self, who: &str, error: &str) {
        let aborted = (0..self.plan.builders).any(|builder| self.plan.is_aborted(builder));
        let harmless = self.plan.is_orderly() && !aborted;
        self.record_violation(!harmless, || format!("{who} failed, and nothing was wrong: {error}"));
        self.record_violation(!error.contains("panicked"), || format!("{who}: {error}"));
    }

    /// Checks the reports of a builder on all its runs, and then what they are together: the events of one follow those
    /// of the other, and every fragment is in one of them.
    fn check_builder_reports(&mut self, builder: usize, last: &BuilderReport) {
        let earlier = &self.course.earlier[builder];
        let mut runs = earlier.iter().chain([last]);
        let Some(first) = runs.next() else { return };
        let mut found = self.check_builder_report(builder, first);
        let mut whole = first.clone();
        for report in runs {
            whole.ledger.merge_ledger(&report.ledger);
            whole.reasons.extend_from_slice(&report.reasons);
            if report.state != "COMPLETE" {
                whole.state.clone_from(&report.state);
            }
            let next = self.check_builder_report(builder, report);
            if let (Some(found), Some(mut next)) = (&mut found, next) {
                let (end, begin) = (found.keys().next_back(), next.keys().next());
                let overlaps = begin.is_some_and(|begin| end.is_some_and(|end| end >= begin));
                self.record_violation(!overlaps, || {
                    format!("builder b{builder}: run {} has event {begin:?}, and the one before {end:?}", report.run)
                });
                found.append(&mut next);
            }
        }
        for source in (0..self.plan.sources.len()).filter(|source| self.plan.hostile != Some(*source)) {
            let who = format!("builder b{builder}, source s{source}");
            self.compare_with_devices(&who, builder, source, &whole, found.as_ref());
        }
    }

    /// Checks the report of a builder on one run. Returns the fragments on disk, if it was recorded and can be read.
    fn check_builder_report(&mut self, builder: usize, report: &BuilderReport) -> Option<Found> {
        let who = format!("builder b{builder}, run {}", report.run);
        let complete = report.state == "COMPLETE";
        self.record_violation(complete == report.reasons.is_empty(), || {
            format!("{who}: {} for {:?}", report.state, report.reasons)
        });
        let harmless = self.plan.is_harmless();
        self.record_violation(complete || !harmless, || {
            format!("{who} is INCOMPLETE, and nothing was wrong: {:?}", report.reasons)
        });
        let found = if self.plan.record { self.check_run_on_disk(builder, report) } else { None };
        for (source, entry) in report.ledger.sources.iter().enumerate() {
            let who = format!("{who}, source s{source}");
            let aborted = self.plan.is_aborted(builder);
            self.record_violation(entry.final_counters || aborted || !self.plan.is_orderly(), || {
                format!("{who}: it was not ended, and nothing was wrong: {entry:?}")
            });
            if self.plan.hostile == Some(source) {
                continue;
            }
            self.record_violation(entry.unaccounted == 0, || {
                format!("{who}: {} unaccounted for, {entry:?}", entry.unaccounted)
            });
            // A builder that its source left out, and that resumes, reads slots that are reused by now: over shared
            // memory, and in its socket's received data, which on one host are the source's pages.
            let left_out = self.plan.by_room && !harmless;
            self.record_violation(entry.corrupt == 0 || left_out, || format!("{who}: {} corrupt", entry.corrupt));
            if let Some(found) = &found {
                let on_disk = found.values().filter(|sources| sources.contains(&source)).count() as u64;
                self.record_violation(on_disk == entry.recorded, || {
                    format!("{who}: the ledger has {} recorded, and {on_disk} are on disk", entry.recorded)
                });
            }
        }
        found
    }

    /// Compares the ledger with the fragments of the source's device.
    fn compare_with_devices(
        &mut self,
        who: &str,
        builder: usize,
        source: usize,
        report: &BuilderReport,
        found: Option<&Found>,
    ) {
        let entry = &report.ledger.sources[source];
        let alone = self.plan.builders == 1;
        let (builders, by_room) = (self.plan.builders as u64, self.plan.by_room);
        let had = self.course.truths[source].fragments();
        let own_events = |event: &u64| alone || !by_room && event % builders == builder as u64;
        let incomplete = [entry.lost, entry.late, entry.dropped_newest, entry.dropped_oldest, entry.lost_in_device];
        let complete = report.state == "COMPLETE";
        if complete && (incomplete != [0; 5] || entry.uncertain > 0) {
            self.wrong.push(format!("{who} is COMPLETE with {entry:?}"));
        }
        if self.plan.period.is_some() {
            // The events have other numbers than the triggers.
            return;
        }
        let acquires = self.plan.sources[source].acquires;
        // A self-driven device has more than its source accepts, since it continues at the end of the run.
        let accepted = if acquires { usize::try_from(entry.accepted).unwrap_or(usize::MAX) } else { usize::MAX };
        let own: Vec<Had> =
            had.iter().filter(|(event, _)| own_events(event)).map(|(_, had)| *had).take(accepted).collect();
        let [dropped, mut lost] =
            [Had::Skipped, Had::Lost].map(|outcome| own.iter().filter(|had| **had == outcome).count() as u64);
        let mut taken = own.len() as u64;
        if self.plan.is_unplugged(source) && taken < entry.accepted {
            // The device was away at the end of the run, and had no fragments of the events that the others had until
            // then.
            (taken, lost) = (entry.accepted, lost + entry.accepted - taken);
        }
        let is_final = entry.final_counters && (alone || !by_room);
        let knows = is_final && self.plan.sources[source].instrument.is_none();
        let mut wrong = Vec::new();
        if knows && entry.accepted != taken {
            wrong.push(format!("{who}: {} accepted, and its device had {taken}", entry.accepted));
        }
        let counted = entry.dropped_newest..=entry.dropped_newest.saturating_add(entry.beyond_end);
        let counted_lost = entry.lost_in_device..=entry.lost_in_device.saturating_add(entry.beyond_end);
        if knows && acquires && !counted_lost.contains(&lost) {
            wrong.push(format!("{who}: {} lost in the device, and it lost {lost}", entry.lost_in_device));
        }
        if knows && !counted.contains(&dropped) {
            wrong.push(format!("{who}: {} dropped, and its device saw {dropped}", entry.dropped_newest));
        }
        // A complete event on disk contains every fragment that the devices had.
        if let Some(found) = found.filter(|_| complete) {
            let first_missing =
                found.iter().find(|(event, sources)| had.contains_key(event) && !sources.contains(&source));
            if let Some((event, _)) = first_missing {
                wrong.push(format!("{who} is COMPLETE, and event {event} is without its fragment"));
            }
            if is_final && self.plan.levels == [None, None] {
                let end = found.keys().next_back().map_or(0, |last| last + 1);
                let missing = had.keys().find(|event| own_events(event) && **event < end && !found.contains_key(event));
                if let Some(event) = missing {
                    wrong.push(format!("{who} is COMPLETE, and event {event} is not on disk"));
                }
            }
        }
        drop(had);
        self.wrong.append(&mut wrong);
    }

    /// Checks the run on disk. Returns its fragments, or `None` if it cannot be opened.
    fn check_run_on_disk(&mut self, builder: usize, report: &BuilderReport) -> Option<Found> {
        let who = format!("builder b{builder}");
        let Some(directory) = &report.directory else {
            self.wrong.push(format!("{who} recorded nothing"));
            return None;
        };
        let run = match Run::open(directory) {
            Ok(run) => run,
            Err(error) => {
                self.wrong.push(format!("{who}: its run cannot be opened: {error}"));
                return None;
            }
        };
        let state = format!("{:?}", run.run_info().state).to_uppercase();
        self.record_violation(state == report.state, || format!("{who} says {}, its run {state}", report.state));
        Some(self.check_events(&who, builder, &run, true))
    }

    /// Checks the events of a run against the fragments of the devices.
    fn check_events(&mut self, who: &str, builder: usize, run: &Run, intact: bool) -> Found {
        if intact {
            let verified = verify_run(run);
            self.record_violation(verified.consistent, || format!("{who}: verify finds {:?}", verified.problems));
        }
        let mut found = Found::new();
        for event in run.events() {
            let event = match event {
                Ok(event) => event,
                Err(error) => {
                    self.record_violation(!intact, || format!("{who}: an event cannot be read: {error}"));
                    continue;
                }
            };
            let id = event.id.0;
            self.check_event_assignment(who, builder, id);
            let mut sources = Vec::new();
            for fragment in event.fragments.iter().filter(|fragment| !fragment.header.status.contains(Status::MISSING))
            {
                let source = usize::from(fragment.header.source.element());
                if self.plan.hostile == Some(source) {
                    sources.push(source);
                    continue;
                }
                if self.plan.sources[source].instrument.is_some() {
                    let is_certain = !fragment.header.status.contains(Status::UNCERTAIN);
                    self.check_instrument_fragment(who, (source, id), fragment.payload(), is_certain);
                    sources.push(source);
                    continue;
                }
                let right = fragment_payload(self.plan.seed, source, id, self.plan.sources[source].longest);
                self.record_violation(fragment.payload() == right, || {
                    format!("{who}: event {id} of s{source} has other bytes")
                });
                self.record_violation(
                    self.course.truths[source].fragments().get(&id) == Some(&Had::HeaderValues),
                    || format!("{who}: event {id} of s{source} was never taken from its device"),
                );
                sources.push(source);
            }
            let complete = event.status == EventStatus::Complete;
            self.record_violation(!intact || !complete || event.fragments.len() == sources.len(), || {
                format!("{who}: event {id} is complete without some fragments")
            });
            self.record_violation(found.insert(id, sources).is_none(), || format!("{who}: event {id} is there twice"));
        }
        found
    }

    /// Checks that an instrument's fragment is in the event of the trigger named in its payload, unless its number is
    /// uncertain.
    fn check_instrument_fragment(&mut self, who: &str, (source, id): (usize, u64), found: &[u8], is_certain: bool) {
        let who = format!("{who}: event {id} of s{source}");
        let Some(trigger) = trigger_of_fragment(found) else {
            self.wrong.push(format!("{who} names no trigger"));
            return;
        };
        let right = instrument_payload(self.plan.seed, source, trigger, self.plan.sources[source].longest);
        let was_sent = self.course.truths[source].fragments().get(&trigger) == Some(&Had::HeaderValues);
        self.record_violation(found.ends_with(&right) && was_sent, || {
            format!("{who} has other bytes, or ones that were never sent")
        });
        if !is_certain {
            return;
        }
        let before = i128::from(trigger) - i128::from(id);
        let expected = match self.plan.period {
            Some(_) => *self.triggers_before.get_or_insert(before),
            None => 0,
        };
        self.record_violation(before == expected, || {
            format!("{who} is of trigger {trigger}, which is {} off, and its status is good", before - expected)
        });
    }

    /// Checks that the run of a killed builder can be read and salvaged, and is correct.
    fn check_dead_builder(&mut self, builder: usize) {
        let followed = u32::try_from(self.plan.next_run_count()).unwrap_or(u32::MAX);
        (42..=42 + followed).for_each(|run| self.check_dead_run(builder, RunNumber(run)));
    }

    fn check_dead_run(&mut self, builder: usize, run: RunNumber) {
        let count = u32::try_from(self.plan.builders).unwrap_or(u32::MAX);
        let name = run_directory_name(run, u32::try_from(builder).unwrap_or(u32::MAX), count);
        let lost_power = self.course.unpowered.iter().find(|(unpowered, _)| *unpowered == builder);
        let folder = lost_power.map_or(&self.course.runs, |(_, folder)| folder);
        let directory = folder.join(name);
        let run = match Run::open(&directory) {
            Ok(run) => run,
            // The builder died before the run was created.
            Err(StoreError::NotARun(_)) => return,
            Err(error) => {
                self.wrong.push(format!("builder b{builder} died, and its run cannot be opened: {error}"));
                return;
            }
        };
        let who = format!("builder b{builder}, which died");
        let before = self.check_events(&who, builder, &run, lost_power.is_none());
        let to = directory.with_extension("salvaged");
        match salvage_run(&directory, &to) {
            Ok(None) => {}
            Ok(Some(salvaged)) => match Run::open(&salvaged.path) {
                Ok(run) => {
                    let after = self.check_events(&format!("{who}, salvaged"), builder, &run, true);
                    let lost = before.keys().find(|event| !after.contains_key(event));
                    self.record_violation(lost.is_none(), || format!("{who}: event {lost:?} was not salvaged"));
                }
                Err(error) => self.wrong.push(format!("{who}: what was salvaged cannot be opened: {error}")),
            },
            Err(error) => self.wrong.push(format!("{who}: it cannot be salvaged: {error}")),
        }
    }

    /// Checks that an event on disk belongs there.
    fn check_event_assignment(&mut self, who: &str, builder: usize, event: u64) {
        let plan = self.plan;
        let its_own = plan.by_room || event % plan.builders as u64 == builder as u64;
        self.record_violation(its_own, || format!("{who}: event {event} is another's"));
        let is_limited = plan.next_run_count() == 0;
        self.record_violation(!is_limited || plan.events.is_none_or(|end| event < end), || {
            format!("{who}: event {event} is beyond the end")
        });
        for (level, seed) in plan.levels.iter().zip([1, 2]) {
            let Some(accept) = level else { continue };
            let accepted = Simulated::new(*accept, seed).accept_event(EventId(event), &mut std::iter::empty());
            self.record_violation(accepted, || format!("{who}: event {event} was rejected, and is there"));
        }
    }
}
