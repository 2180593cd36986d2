//! Reports of a builder: counts and reasons that are kept nowhere else, snapshots, and the trace of its credit.

use super::peers::Peers;
use super::setup::Setup;
use super::silence::{SilenceChange, Silences};
use super::trace::Trace;
use crate::{Completion, NodeError, SourceRow, Steady};
use std::collections::BTreeMap;
use std::time::Duration;
use thalweg_core::build::{Builder, SourceProgress};
use thalweg_core::control::RunControl;
use thalweg_link::Arrivals;
use thalweg_wire::{Losses, Refusal, SourceId};

/// Material of reports and snapshots: the figures of the steady state, the reasons why the run is incomplete, the rates
/// since the last snapshot, and the trace.
#[derive(Debug)]
pub(super) struct Reporting {
    /// Processor time of this process before this run.
    cpu_before: Duration,
    unknown_sources: u64,
    reasons: Vec<String>,
    /// Other builders that sources lost: by builder and source, the class of the refusal, if there was one.
    lost_builders: BTreeMap<u32, BTreeMap<usize, Option<Refusal>>>,
    silences: Silences,
    recorder_method: Option<String>,
    /// Counts at the end of the warm-up, with its time.
    warm: Option<Built>,
    steady: Option<Steady>,
    trace: Option<Trace>,
    /// Bytes that links copied, losses and datagrams before this run.
    links_before: LinkCounts,
}

/// Counts of what all links have moved.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct LinkCounts {
    pub(super) copied_bytes: u64,
    pub(super) losses: Losses,
    pub(super) datagrams: Arrivals,
}

impl LinkCounts {
    /// Returns the counts so far.
    fn of_peers(peers: &Peers) -> Self {
        Self { copied_bytes: peers.copied_bytes(), losses: peers.total_losses(), datagrams: peers.datagram_arrivals() }
    }
}

/// Counts of what was built so far, including the bytes received of fragments that are not built yet.
#[derive(Debug, Clone, Copy)]
struct Built {
    at: Duration,
    events: u64,
    bytes: u64,
}

impl Reporting {
    /// Creates reports of a builder with this number of sources, whose process had used `cpu_before` of its processor
    /// time.
    pub(super) fn new(sources: usize, cpu_before: Duration) -> Self {
        Self {
            cpu_before,
            unknown_sources: 0,
            reasons: Vec::new(),
            lost_builders: BTreeMap::new(),
            silences: Silences::new(sources),
            recorder_method: None,
            warm: None,
            steady: None,
            trace: None,
            links_before: LinkCounts::default(),
        }
    }

    /// Begins the figures of the next run; this process has used `cpu_before` of its processor time so far.
    pub(super) fn begin_next_run(&mut self, sources: usize, cpu_before: Duration, peers: &Peers) {
        let (trace, recorder_method) = (self.trace.take(), self.recorder_method.take());
        let links_before = LinkCounts::of_peers(peers);
        *self = Self { trace, recorder_method, links_before, ..Self::new(sources, cpu_before) };
    }

    /// Returns the counts of what links have moved in this run.
    pub(super) fn link_counts(&self, peers: &Peers) -> LinkCounts {
        let (now, before) = (LinkCounts::of_peers(peers), &self.links_before);
        LinkCounts {
            copied_bytes: now.copied_bytes - before.copied_bytes,
            losses: Losses {
                sent: now.losses.sent - before.losses.sent,
                again: now.losses.again - before.losses.again,
            },
            datagrams: now.datagrams.counted_since(before.datagrams),
        }
    }

    /// Writes a trace from now on.
    pub(super) fn start_trace(&mut self, trace: Trace) {
        self.trace = Some(trace);
    }

    /// Writes a line of the trace, if one is due.
    pub(super) fn write_trace(&mut self, builder: &Builder, now: Duration) -> Result<(), NodeError> {
        self.trace.as_mut().map_or(Ok(()), |trace| trace.write_due_line(builder, now))
    }

    /// Closes the trace.
    pub(super) fn close_trace(&mut self) -> Result<(), NodeError> {
        self.trace.take().map_or(Ok(()), Trace::close)
    }

    /// Adds a reason why the run is incomplete.
    pub(super) fn add_reason(&mut self, reason: String) {
        self.reasons.push(reason);
    }

    /// Returns the reasons so far.
    pub(super) fn reasons(&self) -> &[String] {
        &self.reasons
    }

    /// Removes and returns the reasons so far.
    pub(super) fn take_reasons(&mut self) -> Vec<String> {
        std::mem::take(&mut self.reasons)
    }

    /// Notes that a source goes on without another builder. Returns true if the loss of that builder is new.
    pub(super) fn note_lost_builder(&mut self, source: usize, builder: u32, refusal: Option<Refusal>) -> bool {
        let is_new = !self.lost_builders.contains_key(&builder);
        self.lost_builders.entry(builder).or_default().insert(source, refusal);
        is_new
    }

    /// Reports sources that are connected and silent, once for each silence: when the first event is closed without them,
    /// and when they have caught up, have ended or are disconnected.
    pub(super) fn report_silent_sources(&mut self, builder: &Builder, setup: &Setup, peers: &Peers) {
        if !self.silences.is_check_due(builder.event_counts().1) {
            return;
        }
        for source in 0..setup.ids.len() {
            let is_awaited =
                peers.connection_number(source).is_some() && !builder.has_ended(source) && !builder.is_given_up(source);
            let reached = builder.offered_until(source);
            let has_caught_up = reached >= builder.closed_until();
            let absent = builder.absent_count(source);
            let Some(change) = self.silences.check_source(source, absent, is_awaited, has_caught_up) else { continue };
            let label = setup.source_label(source);
            match change {
                SilenceChange::Begun => tracing::warn!(
                    "source {label} is connected, and has sent nothing for {} (deadline): events from {} on are closed \
                     without it",
                    humantime::format_duration(setup.config.deadline),
                    reached.0
                ),
                SilenceChange::Ended { events } => {
                    let what = if is_awaited { "sends again" } else { "is no longer waited for" };
                    tracing::warn!("source {label} {what}: {events} events were closed without it meanwhile");
                }
            }
        }
    }

    /// Returns the reasons why a run is incomplete of which sources lost other builders, apart from those that are
    /// `accounted` for.
    pub(super) fn lost_builder_reasons(&self, setup: &Setup, accounted: impl Fn(u32) -> bool) -> Vec<String> {
        let lost = self.lost_builders.iter().filter(|(builder, _)| !accounted(**builder));
        lost.flat_map(|(builder, losses)| loss_reasons(*builder, losses, setup)).collect()
    }

    /// Counts a source that is not in the topology.
    pub(super) fn count_unknown_source(&mut self) {
        self.unknown_sources += 1;
    }

    /// Returns the number of connections of sources that are not in the topology.
    pub(super) fn unknown_sources(&self) -> u64 {
        self.unknown_sources
    }

    /// Sets the method by which blocks are written.
    pub(super) fn set_recorder_method(&mut self, method: String) {
        self.recorder_method = Some(method);
    }

    /// Returns the method by which blocks were written.
    pub(super) fn recorder_method(&self) -> Option<String> {
        self.recorder_method.clone()
    }

    /// Returns the processor seconds of this run, given the processor time of the process.
    pub(super) fn cpu_seconds(&self, cpu: Duration) -> f64 {
        (cpu - self.cpu_before).as_secs_f64()
    }

    /// Ends the warm-up and the steady state, if their time has come. `running_since`: beginning of the run, while it
    /// goes on.
    pub(super) fn advance_time(
        &mut self,
        builder: &mut Builder,
        setup: &Setup,
        running_since: Option<Duration>,
        now: Duration,
    ) {
        let Some(began_at) = running_since else { return };
        if self.warm.is_none() && now >= began_at + setup.run.warm_up {
            self.warm = Some(Built::count_built(builder, now));
            builder.clear_completion_times();
        }
        // Only the leading builder ends the run. The others learn of it after the data that are under way.
        if setup.steady_end().is_some_and(|length| now >= began_at + length) {
            self.end_steady(builder, now);
        }
    }

    /// Ends the steady state, unless it has ended already.
    pub(super) fn end_steady(&mut self, builder: &Builder, now: Duration) {
        let steady = self.steady_figures(builder, now);
        self.steady = Some(steady);
    }

    /// Returns the figures of the steady state: from the end of the warm-up until now, if it has not ended.
    pub(super) fn steady_figures(&self, builder: &Builder, now: Duration) -> Steady {
        if let Some(steady) = self.steady {
            return steady;
        }
        let Some(warm) = self.warm else { return Steady::default() };
        let built = Built::count_built(builder, now);
        let completion = builder.completion_times();
        let micros = |nanos: u64| nanos as f64 / 1e3;
        Steady {
            seconds: (built.at - warm.at).as_secs_f64(),
            // The event filter may have rejected some of the events that were counted at the end of the warm-up.
            events: built.events.saturating_sub(warm.events),
            payload_bytes: built.bytes.saturating_sub(warm.bytes),
            completion: Completion {
                p50_us: micros(completion.value_at_quantile(0.5)),
                p99_us: micros(completion.value_at_quantile(0.99)),
                max_us: micros(completion.max()),
                distribution: builder.completion_distribution(),
            },
        }
    }

    /// Returns when the warm-up or the steady state ends, or a line of the trace is due.
    pub(super) fn next_due_time(&self, setup: &Setup, running_since: Option<Duration>) -> Option<Duration> {
        let warm_up = Some(setup.run.warm_up).filter(|_| self.warm.is_none());
        let steady = setup.steady_end().filter(|_| self.steady.is_none());
        let ends = running_since.and_then(|began_at| Some(began_at + warm_up.into_iter().chain(steady).min()?));
        ends.into_iter().chain(self.trace.as_ref().map(Trace::next_line_time)).min()
    }
}

impl Built {
    fn count_built(builder: &Builder, at: Duration) -> Self {
        let bytes = builder.progress_counts().0 + builder.partial_slot_bytes();
        Self { at, events: builder.event_counts().0, bytes }
    }
}

/// Returns the row of a snapshot for a source.
pub(super) fn source_row(source: usize, builder: &Builder, peers: &Peers, now: Duration) -> SourceRow {
    let SourceProgress { ledger, offered: accepted, built, open_offers: backlog, ended, given_up } =
        builder.progress_of(source);
    let owes = peers.owing_duration(source, builder, now);
    SourceRow {
        connected: peers.connection_number(source).is_some(),
        given_up,
        ended,
        backlog,
        credit: builder.bytes_in_flight_of(source),
        owes_nanos: u64::try_from(owes.as_nanos()).unwrap_or(u64::MAX),
        sent_again: peers.source_losses(source).map_or(0, |losses| losses.again),
        bytes: ledger.bytes,
        accepted,
        built,
        rejected: ledger.rejected,
        dropped: ledger.dropped_newest.saturating_add(ledger.dropped_oldest),
        lost_in_device: ledger.lost_in_device,
        late: ledger.late,
        corrupt: ledger.corrupt,
        lost: ledger.lost,
        beyond_end: ledger.beyond_end,
        absent: builder.absent_count(source),
    }
}

/// Returns a sentence that names the sources that the state waits for; empty if it waits for none.
pub(super) fn waits_text(control: &RunControl, ids: &[(SourceId, String)]) -> String {
    let names: Vec<&str> = control.awaited_sources().map(|source| ids[source].1.as_str()).collect();
    if names.is_empty() { String::new() } else { format!("waits for {}", list_names(&names)) }
}

/// Returns the first names, and the number of the others.
fn list_names(names: &[&str]) -> String {
    const MAX_NAMES: usize = 3;
    let shown = names.iter().take(MAX_NAMES).copied().collect::<Vec<_>>().join(", ");
    match names.len().checked_sub(MAX_NAMES) {
        None | Some(0) => shown,
        Some(more) => format!("{shown} and {more} more"),
    }
}

/// Returns a sentence for each way in which sources lost a builder.
fn loss_reasons(builder: u32, losses: &BTreeMap<usize, Option<Refusal>>, setup: &Setup) -> Vec<String> {
    let (builder, consequence) = match builder {
        0 => ("builder 0, which leads the run,".to_owned(), "they ended their parts of the run"),
        _ => (format!("builder {builder}"), "their fragments of its events are lost"),
    };
    let ways = [
        (&[None][..], "died, hung or was disconnected"),
        (
            &[Some(Refusal::Ended)],
            "left the run before its end (it ended its own part, was started anew or excluded sources)",
        ),
        (
            &[Refusal::UnknownSource, Refusal::AlreadyConnected, Refusal::Mismatch, Refusal::Protocol, Refusal::Busy]
                .map(Some),
            "and sources broke off their connections, since one did not follow the protocol",
        ),
    ];
    let mut reasons = Vec::new();
    for (refusals, happened) in ways {
        let sources = losses.iter().filter(|(_, refusal)| refusals.contains(refusal));
        let names: Vec<&str> = sources.map(|(source, _)| setup.ids[*source].1.as_str()).collect();
        if !names.is_empty() {
            let (count, all) = (names.len(), setup.ids.len());
            reasons.push(format!(
                "{builder} {happened}: {count} of {all} sources lost it ({}), and {consequence}",
                list_names(&names)
            ));
        }
    }
    reasons
}
