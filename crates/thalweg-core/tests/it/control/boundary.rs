//! Boundaries between two events: steps, and runs that follow one another.

use std::time::Duration;
use thalweg_core::control::{
    Boundary, BoundaryRefused, Command, Config, Facts, Order, RunControl, SourceCommand, State,
};
use thalweg_wire::EventId;

const SECOND: Duration = Duration::from_secs(1);

/// Sources that have offered events up to these, and whether all of the run under way is built.
struct Positions {
    offered: [u64; 2],
    is_finished: bool,
}

impl Facts for Positions {
    fn offered_until(&self, source: usize) -> EventId {
        EventId(self.offered[source])
    }

    fn closed_until(&self) -> EventId {
        EventId(self.offered[0].min(self.offered[1]))
    }

    fn is_settled(&self, _source: usize) -> bool {
        false
    }

    fn owes_bytes(&self, _source: usize) -> bool {
        false
    }

    fn is_finished(&self) -> bool {
        self.is_finished
    }
}

fn at(offered: [u64; 2]) -> Positions {
    Positions { offered, is_finished: false }
}

/// Returns a builder of two sources, in a run of this number of events that is under way.
fn running(events: Option<u64>) -> RunControl {
    let mut control = RunControl::new(Config {
        sources: 2,
        builders: 1,
        leads: true,
        starts_alone: true,
        first: EventId(0),
        end: events.map(EventId),
        duration: None,
        timeout: 10 * SECOND,
    });
    control.handle_configured();
    (0..2).for_each(|source| control.source_connected(source, 100));
    control.advance_time(SECOND, &at([0, 0]));
    control.run_opened(SECOND);
    orders(&mut control);
    control
}

fn orders(control: &mut RunControl) -> Vec<Order> {
    std::iter::from_fn(|| control.next_order()).collect()
}

/// Asks for a boundary, to which the sources answer with their positions.
fn agree(control: &mut RunControl, boundary: Boundary, positions: [u64; 2]) -> Vec<Order> {
    control.request_boundary(boundary, &at(positions)).unwrap();
    let asked = [0, 1].map(|source| Order::SourceCommand(source, SourceCommand::Pause));
    assert_eq!(orders(control), asked);
    control.advance_time(SECOND, &at(positions));
    assert!(control.holds_sources() && orders(control).is_empty(), "both have to answer");
    (0..2).for_each(|source| control.source_paused(source, EventId(positions[source]), 0));
    control.advance_time(SECOND, &at(positions));
    orders(control)
}

fn to_both(command: SourceCommand) -> [Order; 2] {
    [0, 1].map(|source| Order::SourceCommand(source, command))
}

#[test]
fn a_step_begins_behind_all_that_was_accepted_and_the_run_goes_on() {
    let mut control = running(None);
    let ordered = agree(&mut control, Boundary::Step, [40, 43]);
    assert_eq!(ordered, [&[Order::MarkStep(EventId(43))][..], &to_both(SourceCommand::Resume)].concat());
    assert_eq!((control.run_state(), control.holds_sources()), (State::Running, false));
    // In a pause the positions are known.
    control.execute_command(Command::Pause).unwrap();
    orders(&mut control);
    (0..2).for_each(|source| control.source_paused(source, EventId(50), 0));
    control.advance_time(SECOND, &at([50, 50]));
    control.request_boundary(Boundary::Step, &at([50, 50])).unwrap();
    assert_eq!(orders(&mut control), [Order::MarkStep(EventId(50))]);
    assert_eq!(control.run_state(), State::Paused);
}

#[test]
fn the_next_run_begins_once_all_before_it_is_built_and_sources_do_not_wait_for_that() {
    let mut control = running(Some(100));
    let ordered = agree(&mut control, Boundary::NextRun, [40, 43]);
    let first = EventId(43);
    let end = EventId(143);
    let of_source = |source| {
        let next = SourceCommand::NextRun { first, here: false };
        [next, SourceCommand::StopAt { end, end_here: false }].map(|command| Order::SourceCommand(source, command))
    };
    assert_eq!(ordered, [&[Order::SwitchAt(first)][..], &of_source(0), &of_source(1)].concat());
    assert_eq!((control.run_state(), control.holds_sources()), (State::Switching, false));
    // A source that was away is told as it comes back.
    let told = control.messages_for(1);
    assert_eq!(told[1], SourceCommand::NextRun { first, here: false });
    assert_eq!(
        control.request_boundary(Boundary::NextRun, &at([43, 43])),
        Err(BoundaryRefused::NextRun(State::Switching))
    );
    (0..2).for_each(|source| control.source_crossed(source));
    control.advance_time(SECOND, &at([43, 43]));
    assert_eq!(orders(&mut control), [], "not all is built");
    control.advance_time(SECOND, &Positions { offered: [43, 43], is_finished: true });
    assert_eq!(orders(&mut control), [Order::BeginNext]);
    assert_eq!(control.next_run_opened(), []);
    assert_eq!(orders(&mut control), [Order::EndAt(end)], "each run has as many events");
    assert_eq!((control.run_state(), control.end_cause()), (State::Running, None));
}

#[test]
fn a_run_that_has_all_its_events_ends_and_none_follows() {
    let mut control = running(Some(100));
    let ordered = agree(&mut control, Boundary::NextRun, [100, 100]);
    assert_eq!(ordered, to_both(SourceCommand::Resume));
    assert!(!control.is_next_run_due());
}

#[test]
fn a_source_that_stands_still_goes_over_where_it_is_and_is_given_up_if_it_does_not() {
    let mut control = running(None);
    agree(&mut control, Boundary::NextRun, [40, 43]);
    control.source_crossed(1);
    let mut ordered = Vec::new();
    for quarter in 4..60 {
        control.advance_time(quarter * SECOND / 4, &at([41, 43]));
        ordered.extend(orders(&mut control));
    }
    let here = SourceCommand::NextRun { first: EventId(43), here: true };
    assert_eq!(ordered[0], Order::SourceCommand(0, here));
    assert!(matches!(&ordered[1..], [Order::Expel(0, why)] if why.contains("did not go on to it")), "{ordered:?}");
}

#[test]
fn a_stop_on_the_way_ends_the_next_run_and_a_second_one_ends_both_at_once() {
    let mut control = running(None);
    agree(&mut control, Boundary::NextRun, [43, 43]);
    control.execute_command(Command::Stop).unwrap();
    (0..2).for_each(|source| control.source_crossed(source));
    control.advance_time(SECOND, &Positions { offered: [43, 43], is_finished: true });
    assert_eq!(orders(&mut control), [Order::BeginNext]);
    control.next_run_opened();
    assert_eq!(control.run_state(), State::Stopping);

    let mut control = running(None);
    agree(&mut control, Boundary::NextRun, [43, 43]);
    control.execute_command(Command::Stop).unwrap();
    control.execute_command(Command::Stop).unwrap();
    assert_eq!(orders(&mut control), [Order::Abandon], "the run under way");
    control.advance_time(SECOND, &Positions { offered: [43, 43], is_finished: true });
    assert_eq!(orders(&mut control), [Order::BeginNext]);
    control.next_run_opened();
    assert!(orders(&mut control).ends_with(&[Order::Abandon, Order::Close]) && control.is_aborted());
}

#[test]
fn a_stop_before_the_boundary_is_agreed_on_ends_the_run_under_way() {
    let mut control = running(None);
    control.request_boundary(Boundary::NextRun, &at([43, 43])).unwrap();
    control.execute_command(Command::Stop).unwrap();
    assert!(!control.is_next_run_due());
    assert_eq!(control.run_state(), State::Stopping);
}
