//! Reactions of builders that share a run to the messages that their sources relay.

use std::time::Duration;
use thalweg_core::control::{Cause, Command, Config, Facts, Order, Refused, RunControl, SourceCommand, State};
use thalweg_wire::EventId;

/// Sources that have offered what they have accepted, up to an event, and events that are closed up to another.
struct Offered {
    until: u64,
    closed: u64,
}

impl Facts for Offered {
    fn offered_until(&self, _source: usize) -> EventId {
        EventId(self.until)
    }

    fn closed_until(&self) -> EventId {
        EventId(self.closed)
    }

    fn is_settled(&self, _source: usize) -> bool {
        false
    }

    fn owes_bytes(&self, _source: usize) -> bool {
        false
    }

    fn is_finished(&self) -> bool {
        false
    }
}

const SECOND: Duration = Duration::from_secs(1);

/// Returns events that were offered, none of which is closed.
fn offered(until: u64) -> Offered {
    Offered { until, closed: 0 }
}

/// Returns one of two builders of three sources, in a run that is under way; builder 0 leads.
fn running(leads: bool) -> RunControl {
    running_to(leads, None)
}

/// Returns the same, in a run of `end` events.
fn running_to(leads: bool, end: Option<u64>) -> RunControl {
    let mut control = configured(leads, end);
    control.advance_time(SECOND, &offered(0));
    if !leads {
        (0..3).for_each(|source| control.handle_relayed_run(source));
        control.advance_time(SECOND, &offered(0));
    }
    assert_eq!(control.run_opened(SECOND), []);
    assert_eq!(control.run_state(), State::Running);
    while control.next_order().is_some() {}
    control
}

/// Returns one of two builders of three sources, all of which are connected, before a run of `end` events.
fn configured(leads: bool, end: Option<u64>) -> RunControl {
    let mut control = unconnected(leads, end);
    (0..3).for_each(|source| control.source_connected(source, 100));
    control
}

/// Returns the same, with no source connected.
fn unconnected(leads: bool, end: Option<u64>) -> RunControl {
    let mut control = RunControl::new(Config {
        sources: 3,
        builders: 2,
        leads,
        starts_alone: true,
        first: EventId(0),
        end: end.map(EventId),
        duration: None,
        timeout: 10 * SECOND,
    });
    control.handle_configured();
    control
}

/// Returns the orders of the time from one second to another.
fn orders_between(control: &mut RunControl, seconds: std::ops::Range<u32>) -> Vec<Order> {
    (4 * seconds.start..4 * seconds.end).for_each(|quarter| control.advance_time(quarter * SECOND / 4, &offered(0)));
    orders(control)
}

#[test]
fn a_builder_that_does_not_lead_begins_after_the_one_that_does() {
    let mut control = configured(false, None);
    assert_eq!((orders_between(&mut control, 1..9), control.run_state()), (vec![], State::Armed));
    (0..2).for_each(|source| control.handle_relayed_run(source));
    // A source that is disconnected may come back: the run has begun.
    control.source_disconnected(2);
    assert_eq!(orders_between(&mut control, 9..10), [Order::Begin]);
    let mut leader = configured(true, None);
    assert_eq!(orders_between(&mut leader, 1..2), [Order::Begin]);
}

#[test]
fn a_run_that_the_leading_builder_did_not_begin_begins_nowhere() {
    let mut control = configured(false, None);
    orders_between(&mut control, 1..4);
    // Builder 0 has refused the sources.
    (0..3).for_each(|source| control.source_disconnected(source));
    let cause = Cause::Absent { missing: vec![], left: vec![0, 1, 2], timeout: 10 * SECOND };
    assert_eq!(orders_between(&mut control, 4..16), [Order::Leave(cause)]);
    // Sources that wait for builder 0 have a timeout of their own; one that has none does not hold this builder.
    let mut control = configured(false, None);
    assert_eq!(orders_between(&mut control, 1..60), [Order::Leave(Cause::NotLed(40 * SECOND))]);
}

#[test]
fn sources_that_hang_do_not_keep_a_builder_from_following() {
    let mut control = configured(false, None);
    orders_between(&mut control, 1..4);
    control.handle_relayed_run(1);
    assert_eq!(orders_between(&mut control, 4..5), [], "most sources may relay the same in a moment");
    assert_eq!(orders_between(&mut control, 5..8), [Order::Begin]);
}

#[test]
fn sources_that_came_and_left_are_told_from_those_that_never_came() {
    let mut control = unconnected(true, None);
    control.source_connected(1, 100);
    orders_between(&mut control, 1..3);
    control.source_disconnected(1);
    let cause = Cause::Absent { missing: vec![0, 2], left: vec![1], timeout: 10 * SECOND };
    assert_eq!(orders_between(&mut control, 3..16), [Order::Leave(cause)]);
}

fn told(control: &mut RunControl) -> Vec<(usize, SourceCommand)> {
    let orders = std::iter::from_fn(|| control.next_order());
    let told = orders
        .filter_map(|order| if let Order::SourceCommand(source, tell) = order { Some((source, tell)) } else { None });
    told.collect()
}

#[test]
fn an_answer_to_another_builder_is_none_to_the_one_that_leads() {
    let mut control = running(true);
    control.stop_run(Cause::Duration);
    assert_eq!(told(&mut control), [0, 1, 2].map(|source| (source, SourceCommand::Pause)));
    // The sources reported to builder 1, and went on before they received this builder's request.
    (0..3).for_each(|source| control.source_paused(source, EventId(5), 1));
    assert_eq!(control.awaited_sources().count(), 3);
    (0..3).for_each(|source| control.source_paused(source, EventId(7 + source as u64), 0));
    control.advance_time(SECOND, &offered(7));
    assert_eq!(control.known_end(), Some(EventId(9)));
}

#[test]
fn most_sources_that_were_told_to_end_by_another_builder_end_the_run() {
    let mut control = running(true);
    control.source_paused(0, EventId(5), 1);
    control.advance_time(SECOND, &offered(5));
    assert_eq!(control.run_state(), State::Running, "one source cannot end a run");
    control.source_paused(1, EventId(6), 1);
    control.advance_time(SECOND, &offered(5));
    assert_eq!((control.run_state(), control.end_cause()), (State::Stopping, Some(&Cause::OtherBuilder)));
}

#[test]
fn a_builder_that_has_to_end_a_paused_run_asks_the_sources_that_others_hear_it_from() {
    let mut control = running(false);
    (0..3).for_each(|source| control.source_paused(source, EventId(5), 0));
    control.advance_time(SECOND, &offered(5));
    assert_eq!(control.run_state(), State::Paused);
    control.stop_run(Cause::Failure("the disk is full".into()));
    assert_eq!(told(&mut control), [0, 1, 2].map(|source| (source, SourceCommand::Pause)));
}

#[test]
fn a_builder_whose_sources_go_on_up_to_the_end_does_not_hold_them_any_more() {
    let mut control = running(false);
    (1..3).for_each(|source| control.source_disconnected(source));
    control.source_paused(0, EventId(5), 0);
    control.advance_time(SECOND, &offered(5));
    assert!(control.holds_sources());
    control.handle_relayed_end(0, EventId(7));
    control.advance_time(SECOND, &offered(5));
    assert_eq!(control.known_end(), None, "one source does not decide");
    assert!(!control.holds_sources(), "time has to pass for those that are gone to be given up");
}

#[test]
fn a_run_that_is_paused_does_not_end_though_a_builder_has_all_its_events() {
    let (all, mut leader) = (Offered { until: 13, closed: 13 }, running_to(true, Some(13)));
    leader.execute_command(Command::Pause).unwrap();
    leader.advance_time(SECOND, &all);
    assert_eq!(leader.run_state(), State::Pausing, "sources have events of other builders to come");
    (0..3).for_each(|source| leader.source_paused(source, EventId(10), 0));
    leader.advance_time(2 * SECOND, &all);
    leader.advance_time(3 * SECOND, &all);
    assert_eq!(leader.run_state(), State::Paused);
    told(&mut leader);
    leader.execute_command(Command::Resume).unwrap();
    assert_eq!(told(&mut leader), [0, 1, 2].map(|source| (source, SourceCommand::Resume)));
    leader.advance_time(4 * SECOND, &all);
    assert_eq!(leader.run_state(), State::Stopping);

    let mut other = running_to(false, Some(13));
    other.advance_time(SECOND, &all);
    assert_eq!(other.run_state(), State::Stopping);
    let expelled_within = |other: &mut RunControl, from: u32, seconds: u32| {
        (4 * from..4 * (from + seconds)).any(|quarter| {
            other.advance_time(quarter * SECOND / 4, &all);
            orders(other).iter().any(|order| matches!(order, Order::Expel(..)))
        })
    };
    (0..3).for_each(|source| other.source_paused(source, EventId(10), 0));
    assert!(!expelled_within(&mut other, 1, 60), "the builder that leads has paused the run");
    // One of them hangs.
    (0..2).for_each(|source| other.handle_relayed_run(source));
    assert!(!expelled_within(&mut other, 61, 9));
    assert!(expelled_within(&mut other, 70, 3), "nothing comes, and nothing is paused");
}

/// Returns a single builder, in a run of one source that ends by itself: by its duration, or by its number of events.
fn alone(end: Option<u64>, duration: Option<Duration>) -> RunControl {
    let mut control = opening(end, duration);
    assert_eq!(control.run_opened(SECOND), []);
    control
}

/// Returns the same, while the run is being opened.
fn opening(end: Option<u64>, duration: Option<Duration>) -> RunControl {
    let mut control = RunControl::new(Config {
        sources: 1,
        builders: 1,
        leads: true,
        starts_alone: true,
        first: EventId(0),
        end: end.map(EventId),
        duration,
        timeout: 10 * SECOND,
    });
    control.handle_configured();
    control.source_connected(0, 100);
    control.advance_time(SECOND, &offered(0));
    control
}

fn orders(control: &mut RunControl) -> Vec<Order> {
    std::iter::from_fn(|| control.next_order()).collect()
}

/// Commands given while the run is being opened are carried out, or refused, when it is open.
#[test]
fn what_means_nothing_once_a_run_is_open_is_refused_then() {
    let mut control = opening(None, None);
    control.execute_command(Command::Resume).unwrap();
    control.execute_command(Command::Pause).unwrap();
    assert_eq!(control.run_opened(SECOND), [Refused { command: Command::Resume, state: State::Running }]);
    assert_eq!(control.run_state(), State::Pausing);
}

#[test]
fn who_asks_for_a_stop_while_a_run_ends_by_itself_has_asked_once() {
    let mut control = alone(None, Some(SECOND / 2));
    control.advance_time(SECOND + SECOND / 2, &offered(5));
    assert_eq!((control.run_state(), control.end_cause()), (State::Stopping, Some(&Cause::Duration)));
    control.execute_command(Command::Stop).unwrap();
    assert!(!control.is_aborted() && !orders(&mut control).contains(&Order::Abandon));
    control.execute_command(Command::Stop).unwrap();
    assert!(control.is_aborted() && orders(&mut control).contains(&Order::Abandon));
}

#[test]
fn a_run_of_a_number_of_events_waits_for_who_gets_on_and_for_nobody_else() {
    let mut control = alone(Some(100), None);
    let expelled = |control: &mut RunControl, from: u32, gets_on: bool| {
        let mut expelled = false;
        for step in 0..120u32 {
            let offered = if gets_on { from + step / 20 } else { from };
            control.advance_time(SECOND + (from + step) * SECOND / 4, &Offered { until: offered.into(), closed: 100 });
            expelled |= orders(control).iter().any(|order| matches!(order, Order::Expel(..)));
        }
        expelled
    };
    assert!(!expelled(&mut control, 0, true), "an event every five seconds");
    assert!(expelled(&mut control, 120, false), "nothing for thirty seconds");
}

/// All events are closed, and a source that has offered a fifth of them is waited for, until there is a reason to end.
#[test]
fn a_run_that_waits_for_a_slow_source_ends_soon_when_it_has_to() {
    let facts = Offered { until: 20, closed: 100 };
    for reason in ["failure", "command", "duration"] {
        let mut control = alone(Some(100), (reason == "duration").then_some(5 * SECOND));
        (4..23).for_each(|step| control.advance_time(step * SECOND / 4, &facts));
        orders(&mut control);
        assert_eq!(control.end_cause(), Some(&Cause::Events), "{reason}");
        match reason {
            "failure" => control.stop_run(Cause::Failure("the disk is full".into())),
            "command" => control.execute_command(Command::Stop).unwrap(),
            _ => {}
        }
        control.advance_time(6 * SECOND, &facts);
        assert!(orders(&mut control).contains(&Order::SourceCommand(0, SourceCommand::Pause)), "{reason}");
        control.source_paused(0, EventId(20), 0);
        (25..40).for_each(|step| control.advance_time(step * SECOND / 4, &facts));
        let told = orders(&mut control);
        let end_here = Order::SourceCommand(0, SourceCommand::StopAt { end: EventId(100), end_here: true });
        assert!(told.contains(&end_here) && control.end_cause() != Some(&Cause::Events), "{reason}: {told:?}");
    }
}

#[test]
fn a_source_that_was_told_to_end_sooner_than_is_known_here_has_not_missed_what_is_behind_that() {
    let mut control = running(false);
    assert!(!control.has_earlier_end(0));
    control.handle_relayed_end(0, EventId(50));
    assert!(control.has_earlier_end(0));
    // The others relay the same: now the end is known.
    control.handle_relayed_end(1, EventId(50));
    control.handle_relayed_end(2, EventId(50));
    control.advance_time(2 * SECOND, &offered(40));
    assert_eq!((control.known_end(), control.has_earlier_end(0)), (Some(EventId(50)), false));
    // An end before the first event is an order to end at once.
    let mut other = running(false);
    (0..3).for_each(|source| other.handle_relayed_end(source, EventId(0)));
    other.advance_time(2 * SECOND, &offered(40));
    assert_eq!(other.end_cause(), Some(&Cause::AbortElsewhere));
}

/// A camera missed the last triggers of a beam that is off: their events are closed without it, and it has none for
/// them.
#[test]
fn a_source_that_lacks_events_that_are_closed_already_ends_where_it_is() {
    let mut control = alone(None, None);
    orders(&mut control);
    control.execute_command(Command::Stop).unwrap();
    let facts = Offered { until: 40, closed: 100 };
    control.advance_time(SECOND, &facts);
    control.source_paused(0, EventId(40), 0);
    let mut all = Vec::new();
    for step in 4..12u32 {
        control.advance_time(step * SECOND / 4, &facts);
        all.extend(orders(&mut control));
    }
    let ends: Vec<_> = all
        .iter()
        .filter_map(|order| match order {
            Order::SourceCommand(0, SourceCommand::StopAt { end, end_here }) => Some((end.0, *end_here)),
            _ => None,
        })
        .collect();
    assert_eq!((ends, control.known_end()), (vec![(100, false), (100, true)], Some(EventId(100))), "{all:?}");
    assert!(
        control.messages_for(0).contains(&SourceCommand::StopAt { end: EventId(100), end_here: true }),
        "also when it comes back"
    );
}
