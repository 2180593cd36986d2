//! The status of an experiment, made of what its nodes report.

use crate::experiment::{Experiment, Member};
use crate::rates::{NodeRates, Rates};
use crate::state::{CommandName, ExperimentState};
use crate::status::{
    BuilderView, ClockView, DiskView, Draining, IncompleteView, LedgerView, Legality, MissingView, RunView, SourceView,
    Status, Totals, TroubleLevel,
};
use std::collections::BTreeMap;
use thalweg_node::{Snapshot, SourceNodeConfig, SourceRow};

/// Number of incomplete events that are shown.
const MAX_INCOMPLETE: usize = 20;
/// Time for which a source may owe bytes before that is a trouble, in seconds.
const OWES_TOO_LONG: f64 = 0.5;

/// Sources' addresses as the service sees them, by the name of their node.
pub type Addresses = BTreeMap<String, String>;

/// Returns the part of the status that follows from the nodes. `draining_of`: events that were left when the end of the
/// run began.
pub fn experiment_status(
    experiment: &Experiment,
    rates: &Rates,
    addresses: &Addresses,
    draining_of: Option<u64>,
    unix: f64,
) -> Status {
    let topology = experiment.topology();
    let builders: Vec<(&str, Option<&Member>, NodeRates)> = topology
        .builders
        .iter()
        .map(|builder| (builder.name.as_str(), experiment.find_member(&builder.name), rates.node_rates(&builder.name)))
        .collect();
    let state = experiment.state();
    let sources: Vec<SourceView> = (0..topology.sources.len())
        .map(|index| source_view(experiment, rates, addresses, &builders, index, state))
        .collect();
    let totals = totals(&builders, state);
    let commands = CommandName::ALL.into_iter().map(|command| {
        let reason = experiment.check_command(command).err();
        (command, Legality { legal: reason.is_none(), reason: reason.unwrap_or_default() })
    });
    Status {
        state,
        sentence: experiment.state_sentence(),
        waits_for: awaited_sources(&sources, state),
        reasons: experiment.state_reasons(),
        run: run_view(experiment, unix),
        last_run: experiment.newest_runs().find(|run| run.state.is_over()).cloned(),
        directory: if topology.run.record { topology.run.directory.display().to_string() } else { String::new() },
        disk: fullest_disk(&builders),
        commands: commands.collect(),
        ledger: sum_ledgers(&sources),
        builders: builders.iter().map(|(name, member, rates)| builder_view(name, *member, rates, state)).collect(),
        incomplete_events: incomplete_views(experiment, addresses, &builders, state),
        draining: draining(experiment, draining_of),
        clocks: clock_views(experiment),
        totals,
        sources,
        ..Status::default()
    }
}

fn disk_view(free_bytes: Option<u64>, bytes_per_second: f64) -> DiskView {
    let seconds_left = free_bytes.filter(|_| bytes_per_second > 0.0).map(|free| free as f64 / bytes_per_second);
    DiskView { free_bytes, seconds_left }
}

/// Returns the disk that is full first. Builders of one host share one.
fn fullest_disk(builders: &[(&str, Option<&Member>, NodeRates)]) -> DiskView {
    let mut hosts: BTreeMap<&str, (Option<u64>, f64)> = BTreeMap::new();
    for (_, member, rates) in builders {
        let Some(member) = member else { continue };
        let (free_bytes, bytes_per_second) = hosts.entry(&member.host).or_default();
        *free_bytes = [*free_bytes, member.status.disk_free_bytes].into_iter().flatten().min();
        *bytes_per_second += rates.bytes;
    }
    let disks = hosts.into_values().map(|(free_bytes, bytes_per_second)| disk_view(free_bytes, bytes_per_second));
    let first = disks.min_by(|one, other| {
        let [one_left, other_left] = [one, other].map(|disk| disk.seconds_left.unwrap_or(f64::INFINITY));
        let [one_free, other_free] = [one, other].map(|disk| disk.free_bytes.unwrap_or(u64::MAX));
        one_left.total_cmp(&other_left).then(one_free.cmp(&other_free))
    });
    first.unwrap_or_default()
}

fn run_view(experiment: &Experiment, unix: f64) -> Option<RunView> {
    let run = experiment.current_run()?;
    Some(RunView {
        number: run.number,
        kind: run.kind.name().into(),
        note: run.note.clone(),
        asked_at: run.asked_at,
        began_at: run.began_at,
        seconds: run.began_at.map_or(0.0, |began| (unix - began).max(0.0)),
    })
}

fn awaited_sources(sources: &[SourceView], state: ExperimentState) -> Vec<String> {
    let awaited = sources.iter().filter(|source| match state {
        ExperimentState::Configured | ExperimentState::Arming => !source.is_linked,
        ExperimentState::Stopping => source.is_linked && !source.has_ended && !source.is_given_up,
        _ => false,
    });
    awaited.map(|source| source.name.clone()).collect()
}

fn totals(builders: &[(&str, Option<&Member>, NodeRates)], state: ExperimentState) -> Totals {
    let snapshots: Vec<&Snapshot> =
        builders.iter().filter_map(|(_, member, _)| Some((*member)?.counted_snapshot(state))).collect();
    let events: u64 = snapshots.iter().map(|snapshot| snapshot.events).sum();
    let bytes: u64 = snapshots.iter().map(|snapshot| snapshot.bytes).sum();
    Totals {
        events,
        events_text: events.to_string(),
        incomplete: snapshots.iter().map(|snapshot| snapshot.incomplete).sum(),
        bytes,
        bytes_text: bytes.to_string(),
        fragments: snapshots.iter().map(|snapshot| snapshot.fragments).sum(),
        events_per_second: builders.iter().map(|(_, _, rates)| rates.events).sum(),
        bytes_per_second: builders.iter().map(|(_, _, rates)| rates.bytes).sum(),
        stalls: snapshots.iter().map(|snapshot| snapshot.stalls).sum(),
        stalled_percent: builders.iter().map(|(_, _, rates)| rates.stalled * 100.0).fold(0.0, f64::max),
    }
}

/// Returns the ledger of one row. What was accepted and is in no other bucket is on its way.
fn row_ledger(row: &SourceRow) -> LedgerView {
    let mut ledger = LedgerView {
        accepted: row.accepted,
        built: row.built,
        rejected: row.rejected,
        dropped: row.dropped,
        lost_in_device: row.lost_in_device,
        late: row.late,
        corrupt: row.corrupt,
        lost: row.lost,
        beyond_end: row.beyond_end,
        on_the_way: 0,
    };
    let settled = [
        ledger.built,
        ledger.rejected,
        ledger.dropped,
        ledger.lost_in_device,
        ledger.late,
        ledger.corrupt,
        ledger.lost,
        ledger.beyond_end,
    ];
    ledger.on_the_way = ledger.accepted.saturating_sub(settled.iter().sum());
    ledger
}

fn add_ledger(sum: &LedgerView, other: &LedgerView) -> LedgerView {
    LedgerView {
        accepted: sum.accepted + other.accepted,
        built: sum.built + other.built,
        rejected: sum.rejected + other.rejected,
        dropped: sum.dropped + other.dropped,
        lost_in_device: sum.lost_in_device + other.lost_in_device,
        late: sum.late + other.late,
        corrupt: sum.corrupt + other.corrupt,
        lost: sum.lost + other.lost,
        beyond_end: sum.beyond_end + other.beyond_end,
        on_the_way: sum.on_the_way + other.on_the_way,
    }
}

fn sum_ledgers(sources: &[SourceView]) -> LedgerView {
    sources.iter().fold(LedgerView::default(), |sum, source| add_ledger(&sum, &source.ledger))
}

fn source_view(
    experiment: &Experiment,
    rates: &Rates,
    addresses: &Addresses,
    builders: &[(&str, Option<&Member>, NodeRates)],
    index: usize,
    state: ExperimentState,
) -> SourceView {
    let config = &experiment.topology().sources[index];
    let node = config.fitted_source().unwrap_or(&config.name);
    let member = experiment.find_member(node);
    let hello = member.and_then(|member| member.hello.as_ref());
    let snapshots = builders.iter().filter_map(|(_, member, _)| Some((*member)?.counted_snapshot(state)));
    let rows: Vec<SourceRow> = snapshots.filter_map(|snapshot| snapshot.sources.get(index).copied()).collect();
    let source_rates = builders.iter().filter_map(|(_, _, rates)| rates.sources.get(index));
    let (bytes_per_second, events_per_second) =
        source_rates.fold((0.0, 0.0), |sum, rate| (sum.0 + rate.0, sum.1 + rate.1));
    let mut source = SourceView {
        name: config.name.clone(),
        id: config.id.clone(),
        host: member.map(|member| member.host.clone()).unwrap_or_default(),
        address: addresses.get(node).cloned(),
        link: config.link.to_string(),
        is_linked: experiment
            .leading_builder()
            .and_then(|leader| leader.status.snapshot.sources.get(index))
            .is_some_and(|row| row.connected),
        is_node_connected: hello.is_some(),
        has_ended: !rows.is_empty() && rows.iter().all(|row| row.ended),
        is_given_up: rows.iter().any(|row| row.given_up),
        bytes_per_second,
        events_per_second,
        backlog: rows.iter().map(|row| row.backlog).sum(),
        credit_bytes: rows.iter().map(|row| row.credit).sum(),
        owes_seconds: rows.iter().map(|row| row.owes_nanos).max().unwrap_or(0) as f64 / 1e9,
        dead_percent: hello.map(|_| rates.node_rates(node).dead * 100.0),
        sent_again_bytes: rows.iter().map(|row| row.sent_again).sum(),
        bytes: rows.iter().map(|row| row.bytes).sum(),
        ledger: rows.iter().map(row_ledger).fold(LedgerView::default(), |sum, ledger| add_ledger(&sum, &ledger)),
        silent_since_at: None,
        absent_events: rows.iter().map(|row| row.absent).sum(),
        severity: TroubleLevel::Ok,
        trouble: String::new(),
    };
    (source.severity, source.trouble) = judge_source(&source, config, member, state);
    source
}

/// Returns the worst trouble of a source, in a sentence.
fn judge_source(
    source: &SourceView,
    config: &SourceNodeConfig,
    member: Option<&Member>,
    state: ExperimentState,
) -> (TroubleLevel, String) {
    let has_node = config.device.is_some();
    let failure = member.map(|member| member.status.failure.as_str()).unwrap_or_default();
    let lost = source.ledger.lost + source.ledger.corrupt;
    use TroubleLevel::{Major, Minor};
    match () {
        () if !failure.is_empty() => (Major, failure.to_owned()),
        () if has_node && !source.is_node_connected && state != ExperimentState::Idle => {
            (Major, "its node is not connected to this service".into())
        }
        () if state.has_run() && source.is_given_up => (Major, "it was given up for this run".into()),
        () if state.has_run() && !source.is_linked && !source.has_ended => (Major, "the builder has lost it".into()),
        () if state.has_run() && source.owes_seconds > OWES_TOO_LONG => {
            (Major, format!("it owes data for {:.1} s", source.owes_seconds))
        }
        () if lost > 0 => (Major, format!("{lost} fragments are lost or damaged")),
        () if source.absent_events > 0 => (Minor, format!("{} events were closed without it", source.absent_events)),
        () if source.ledger.late > 0 => (Minor, format!("{} fragments came too late", source.ledger.late)),
        () if source.ledger.lost_in_device > 0 => {
            (Minor, format!("its device has lost {} fragments", source.ledger.lost_in_device))
        }
        () if source.ledger.dropped > 0 => (Minor, format!("it has dropped {} fragments", source.ledger.dropped)),
        () => (TroubleLevel::Ok, String::new()),
    }
}

fn builder_view(name: &str, member: Option<&Member>, rates: &NodeRates, state: ExperimentState) -> BuilderView {
    let hello = member.and_then(|member| member.hello.as_ref());
    let snapshot = member.map(|member| &member.status.snapshot);
    let is_prepared = member.is_some_and(|member| member.status.is_prepared);
    BuilderView {
        name: name.to_owned(),
        host: hello.map(|hello| hello.host.clone()).unwrap_or_default(),
        is_node_connected: hello.is_some(),
        state: snapshot.filter(|_| is_prepared).map(|snapshot| snapshot.state.into()).unwrap_or_default(),
        events: member.map_or(0, |member| member.counted_snapshot(state).events),
        incomplete: member.map_or(0, |member| member.counted_snapshot(state).incomplete),
        bytes_per_second: rates.bytes,
        stalled_percent: rates.stalled * 100.0,
        disk: disk_view(member.and_then(|member| member.status.disk_free_bytes), rates.bytes),
    }
}

fn incomplete_views(
    experiment: &Experiment,
    addresses: &Addresses,
    builders: &[(&str, Option<&Member>, NodeRates)],
    state: ExperimentState,
) -> Vec<IncompleteView> {
    let mut views: Vec<IncompleteView> = Vec::new();
    for (name, member, _) in builders {
        for event in member.iter().flat_map(|member| &member.counted_snapshot(state).incomplete_events) {
            views.push(IncompleteView {
                event: event.event,
                event_text: event.event.to_string(),
                builder: (*name).to_owned(),
                missing: event
                    .missing
                    .iter()
                    .filter_map(|source| missing_view(experiment, addresses, *source))
                    .collect(),
            });
        }
    }
    views.sort_by_key(|view| std::cmp::Reverse(view.event));
    views.truncate(MAX_INCOMPLETE);
    views
}

fn missing_view(experiment: &Experiment, addresses: &Addresses, source: usize) -> Option<MissingView> {
    let config = experiment.topology().sources.get(source)?;
    let node = config.fitted_source().unwrap_or(&config.name);
    Some(MissingView {
        source: config.name.clone(),
        host: experiment.find_member(node).map(|member| member.host.clone()).unwrap_or_default(),
        address: addresses.get(node).cloned(),
    })
}

/// Returns the number of events that the leading builder has to close before the run is over; `None` unless it is being
/// brought to its end.
pub fn events_left(experiment: &Experiment) -> Option<u64> {
    let snapshot = &experiment.leading_builder()?.status.snapshot;
    let is_ending = matches!(experiment.state(), ExperimentState::Stopping | ExperimentState::Closing);
    is_ending.then(|| snapshot.end_event.map_or(0, |end| end.saturating_sub(snapshot.oldest_event)))
}

fn draining(experiment: &Experiment, of: Option<u64>) -> Option<Draining> {
    let left = events_left(experiment)?;
    Some(Draining { left, of: of.unwrap_or(left).max(left) })
}

fn clock_views(experiment: &Experiment) -> Vec<ClockView> {
    let nodes = experiment.expected_nodes().filter_map(|name| Some((name, experiment.find_member(name)?)));
    nodes
        .filter_map(|(name, member)| {
            Some(ClockView {
                node: name.to_owned(),
                host: member.hello.as_ref()?.host.clone(),
                offset_seconds: member.clock.seconds(),
                is_synchronized: member.status.is_clock_synchronised,
            })
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_accepted_fragment_is_in_one_bucket() {
        let row = SourceRow {
            accepted: 100,
            built: 50,
            rejected: 1,
            dropped: 2,
            lost_in_device: 3,
            late: 4,
            corrupt: 5,
            lost: 6,
            beyond_end: 7,
            ..SourceRow::default()
        };
        assert_eq!(row_ledger(&row).on_the_way, 22);
        assert_eq!(row_ledger(&SourceRow { accepted: 9, ..row }).on_the_way, 0, "buckets ran ahead of what is offered");
    }

    #[test]
    fn the_disk_that_is_full_first_is_shown_and_builders_of_a_host_share_one() {
        let member = |host: &str, free_bytes| {
            let mut member = Member::default();
            member.host = host.into();
            member.status.disk_free_bytes = free_bytes;
            member
        };
        let rates = |bytes| NodeRates { bytes, ..NodeRates::default() };
        let (one, two, three) = (member("a", Some(1000)), member("a", Some(990)), member("b", Some(500)));
        let builders =
            [("b0", Some(&one), rates(60.0)), ("b1", Some(&two), rates(39.0)), ("b2", Some(&three), rates(20.0))];
        assert_eq!(fullest_disk(&builders), DiskView { free_bytes: Some(990), seconds_left: Some(10.0) });
        let still = [("b0", Some(&one), rates(0.0)), ("b2", Some(&three), rates(0.0)), ("b3", None, rates(0.0))];
        assert_eq!(fullest_disk(&still), DiskView { free_bytes: Some(500), seconds_left: None });
        assert_eq!(fullest_disk(&[]), DiskView::default());
    }
}
