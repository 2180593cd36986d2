//! Assignment of events to builders that are quick, slow, stalled, dead or send nonsense, over sources of which one may
//! lie: each event goes to one builder, in order, and no builder harms another.

use proptest::prelude::*;
use std::collections::VecDeque;
use std::time::Duration;
use thalweg_core::control::{AssignConfig, Assigner, HEARTBEAT_INTERVAL, Share};
use thalweg_wire::{Assign, Contact, EventId, Heard, Room};

const STEP: Duration = Duration::from_millis(20);
/// Time after which a builder that is connected and silent is left out.
const SILENCE: Duration = Duration::from_secs(2);
const STEPS: usize = 400;
/// Number of steps after which a builder that has died gets nothing more.
const GONE_AFTER: usize = (2 * HEARTBEAT_INTERVAL.as_millis() / STEP.as_millis()) as usize + 6;
const SILENT_AFTER: usize = (SILENCE.as_millis() / STEP.as_millis()) as usize + 6;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Nature {
    /// Closes this number of events in a step.
    Works(u64),
    /// Stands still from one step to another.
    Stalls(usize, usize),
    /// Is disconnected from this step on.
    Dies(usize),
    /// Sends nothing more from this step on, and stays connected.
    Hangs(usize),
    /// Claims to have this much room, and to have closed events below this one.
    Claims(u64, u64),
}

#[derive(Debug, Clone)]
struct Plan {
    /// The builders other than builder 0, which works.
    others: Vec<Nature>,
    rooms: Vec<u64>,
    sources: usize,
    slots: u32,
    records: u32,
    /// False report by the last source on every builder, if it is outvoted.
    lie: Option<u64>,
    /// Step at which all sources jump ahead, and by how many events.
    jump: Option<(usize, u64)>,
    end: Option<u64>,
}

fn plan() -> impl Strategy<Value = Plan> {
    let strange = prop_oneof![Just(0), Just(1u64 << 40), Just(u64::MAX)];
    let nature = prop_oneof![
        4 => (1u64..50).prop_map(Nature::Works),
        2 => (0..200usize, 1..40usize).prop_map(|(from, steps)| Nature::Stalls(from, from + steps)),
        1 => (0..STEPS).prop_map(Nature::Dies),
        1 => (0..STEPS).prop_map(Nature::Hangs),
        2 => (strange.clone(), strange.clone()).prop_map(|(room, closed)| Nature::Claims(room, closed)),
    ];
    let others = proptest::collection::vec((nature, 1u64..300), 0..4);
    let lie = proptest::option::of(strange);
    let jump = proptest::option::of((0..STEPS, 1u64..1 << 50));
    let end = proptest::option::of(0u64..20_000);
    (others, 1usize..5, 1u32..40, 1u32..100, lie, jump, end).prop_map(
        |(others, sources, slots, records, lie, jump, end)| {
            let (others, mut rooms): (Vec<_>, Vec<_>) = others.into_iter().unzip();
            rooms.insert(0, 100);
            Plan { others, rooms, sources, slots, records, lie: lie.filter(|_| sources > 2), jump, end }
        },
    )
}

/// Actual state of a builder.
#[derive(Debug, Clone)]
struct Builder {
    nature: Nature,
    open: VecDeque<Assign>,
    closed_below: u64,
    closed: u64,
    said: Option<(Room, usize)>,
    /// Step at which it was last assigned events.
    fed_at: usize,
}

struct World {
    assigner: Assigner,
    builders: Vec<Builder>,
    /// Event up to which each source knows the assignments.
    assigned: Vec<u64>,
    /// All assignments, as the first source knows them.
    all: Vec<Assign>,
    next: u64,
    left: Vec<u32>,
}

impl World {
    fn new(plan: &Plan) -> Self {
        let natures = std::iter::once(Nature::Works(20)).chain(plan.others.iter().copied());
        let builder =
            |nature| Builder { nature, open: VecDeque::new(), closed_below: 0, closed: 0, said: None, fed_at: 0 };
        let builders: Vec<Builder> = natures.map(builder).collect();
        let mut assigner = Assigner::new(&AssignConfig {
            sources: plan.sources,
            builders: builders.len() as u32,
            first: EventId(0),
            end: plan.end.map(EventId),
            silence: SILENCE,
        });
        (0..plan.sources).for_each(|source| assigner.source_connected(source, plan.slots, plan.records, true));
        Self { assigner, builders, assigned: vec![0; plan.sources], all: Vec::new(), next: 0, left: Vec::new() }
    }

    fn step(&mut self, plan: &Plan, at: usize) {
        if let Some((when, far)) = plan.jump
            && when == at
        {
            self.next += far;
        }
        for (number, builder) in self.builders.iter_mut().enumerate() {
            let stands = match builder.nature {
                Nature::Stalls(from, to) => (from..to).contains(&at),
                Nature::Dies(from) | Nature::Hangs(from) => at >= from,
                Nature::Works(_) | Nature::Claims(..) => false,
            };
            if !stands {
                builder.work(self.next);
            }
            let mut room = Room {
                builder: number as u32,
                closed_below: EventId(builder.closed_below),
                room: plan.rooms[number],
                closed: builder.closed,
            };
            if let Nature::Claims(claimed, closed) = builder.nature {
                (room.room, room.closed_below) = (claimed, EventId(closed));
            }
            // A process that stands still sends nothing; sources report which builders are gone.
            let said = match builder.said {
                Some((said, _)) if stands => said,
                _ => room,
            };
            let late =
                builder.said.is_none_or(|(said, when)| said != room || (at - when) as u32 * STEP >= HEARTBEAT_INTERVAL);
            let speaks = !stands && late;
            if speaks {
                builder.said = Some((room, at));
            }
            let is_gone = matches!(builder.nature, Nature::Dies(from) if at >= from);
            for source in 0..plan.sources {
                if !(speaks || is_gone && at.is_multiple_of(10)) {
                    continue;
                }
                let mut room = said;
                if let Some(lie) = plan.lie.filter(|_| source + 1 == plan.sources) {
                    (room.room, room.closed_below) = (lie, EventId(lie));
                }
                let contact = if is_gone { Contact::Away } else { Contact::Connected };
                let (next, assigned) = (EventId(self.next), EventId(self.assigned[source]));
                self.assigner.handle_report(source, &Heard { room, contact, next, assigned }).unwrap();
            }
        }
        self.assigner.advance_time(at as u32 * STEP);
        for source in 0..plan.sources {
            while let Some(share) = self.assigner.next_share(source) {
                self.told(plan, source, share, at);
            }
        }
        self.next = self.next.max(self.assigned[0]);
    }

    fn told(&mut self, plan: &Plan, source: usize, share: Share, at: usize) {
        let range = match share {
            Share::Assign(range) => range,
            Share::LeaveOut(builder) if source == 0 => return self.left.push(builder),
            Share::LeaveOut(_) => return,
        };
        assert_eq!(range.first.0, self.assigned[source], "in order, each once");
        assert!(range.count > 0);
        self.assigned[source] = range.end_event().0;
        assert!(plan.end.is_none_or(|end| range.end_event().0 <= end));
        if source > 0 {
            assert!(self.all.contains(&range), "all sources are told the same");
            return;
        }
        self.all.push(range);
        let builder = &mut self.builders[range.builder as usize];
        builder.fed_at = at;
        if range.first.0 < self.next {
            // No source has a fragment of these.
            return;
        }
        assert!(!self.left.contains(&range.builder), "who is left out gets nothing");
        match builder.nature {
            Nature::Dies(from) => assert!(at <= from + GONE_AFTER, "it is dead"),
            Nature::Hangs(from) => assert!(at <= from + GONE_AFTER, "it is silent"),
            _ => {}
        }
        builder.open.push_back(range);
        let outstanding: u64 = builder.open.iter().map(|range| range.count).sum();
        if let (Some((said, _)), false) = (builder.said, matches!(builder.nature, Nature::Claims(..))) {
            assert!(outstanding <= said.room, "{outstanding} of {}", said.room);
        }
        // Whatever the builder reports of itself, it has its share of the slots, and no more.
        if !matches!(builder.nature, Nature::Claims(_, 0..=20_000)) || plan.lie.is_none() {
            let slots = u64::from(plan.slots / self.builders.len() as u32).max(1);
            assert!(outstanding <= slots * u64::from(plan.records));
        }
    }
}

impl Builder {
    /// Closes events that sources have reached.
    fn work(&mut self, next: u64) {
        if let Nature::Claims(..) = self.nature {
            return;
        }
        let mut left = if let Nature::Works(rate) = self.nature { rate } else { 10 };
        while let Some(range) = self.open.front_mut() {
            let count = left.min(range.count).min(next.saturating_sub(range.first.0));
            range.first.0 += count;
            range.count -= count;
            self.closed += count;
            left -= count;
            self.closed_below = range.first.0;
            if range.count > 0 {
                break;
            }
            self.open.pop_front();
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 3000, max_shrink_iters: 2000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn every_event_goes_to_one_builder_and_nobody_harms_another(plan in plan()) {
        let mut world = World::new(&plan);
        for at in 0..STEPS {
            world.step(&plan, at);
            let over = plan.end.is_some_and(|end| world.assigned[0] >= end);
            for (number, builder) in world.builders.iter().enumerate() {
                let works = matches!(builder.nature, Nature::Works(_));
                if works && !over {
                    // The slowest closes what it has open, at most 300 events, one in a step.
                    prop_assert!(at - builder.fed_at <= 320, "builder {} starves at step {}", number, at);
                    prop_assert!(!world.left.contains(&(number as u32)));
                }
                let due = match builder.nature {
                    Nature::Dies(from) => from + GONE_AFTER,
                    Nature::Hangs(from) => from + SILENT_AFTER,
                    _ => usize::MAX,
                };
                let began = builder.said.is_some();
                if began && at > due {
                    prop_assert!(world.left.contains(&(number as u32)), "builder {} is still in at step {}", number, at);
                }
            }
        }
        if let Some(end) = plan.end {
            let works = world.builders.iter().any(|builder| builder.nature == Nature::Works(20));
            prop_assert!(world.assigned[0] <= end);
            // A builder that can hold one event gets one in a step.
            let held = u64::from((plan.slots / world.builders.len() as u32).max(1)) * u64::from(plan.records);
            let reach = (held * (STEPS as u64 - 10)).min(2000);
            prop_assert!(!works || end > reach || world.assigned[0] == end, "{} of {}", world.assigned[0], end);
        }
        for left in world.assigner.left_out_builders() {
            let open: u64 = left.open.iter().map(|range| range.count).sum();
            prop_assert!(open <= left.assigned);
            prop_assert!(left.open.iter().all(|range| range.builder == left.builder && range.end_event() <= left.at));
        }
    }
}

/// Returns an assigner with one source, and `builders` builders with room for all that they are assigned.
fn simple(builders: u32) -> Assigner {
    let config = AssignConfig { sources: 1, builders, first: EventId(0), end: None, silence: SILENCE };
    let mut assigner = Assigner::new(&config);
    assigner.source_connected(0, 16, 8, true);
    (0..builders).for_each(|builder| hear(&mut assigner, builder, 0));
    assigner.advance_time(Duration::ZERO);
    assigner
}

fn hear(assigner: &mut Assigner, builder: u32, closed_below: u64) {
    let room = Room { builder, closed_below: EventId(closed_below), room: 1 << 16, closed: closed_below };
    assigner.handle_report(0, &Heard { room, contact: Contact::Connected, ..Heard::default() }).unwrap();
}

fn shares(assigner: &mut Assigner) -> Vec<Share> {
    std::iter::from_fn(|| assigner.next_share(0)).collect()
}

#[test]
fn a_source_that_comes_back_is_told_what_it_does_not_know() {
    let mut assigner = simple(2);
    let told = shares(&mut assigner);
    // 16 slots of 8 records, half of them for each builder, in four parts.
    assert_eq!(told.len(), 8);
    assert_eq!(told[1], Share::Assign(Assign { first: EventId(16), count: 16, builder: 1 }));
    assigner.source_disconnected(0);
    assigner.source_connected(0, 16, 8, false);
    assert_eq!(shares(&mut assigner), []);
    let assigned = EventId(32);
    assigner.handle_report(0, &Heard { assigned, contact: Contact::Connected, ..Heard::default() }).unwrap();
    assert_eq!(shares(&mut assigner), told[2..]);
}

#[test]
fn a_builder_that_is_slow_gets_fewer_and_the_others_go_on() {
    let mut assigner = simple(3);
    let mut counts = [0; 3];
    let mut at = 0;
    for _ in 0..100 {
        for share in shares(&mut assigner) {
            let Share::Assign(range) = share else { panic!("{share:?}") };
            counts[range.builder as usize] += range.count;
            at = range.end_event().0;
        }
        hear(&mut assigner, 0, at);
        hear(&mut assigner, 1, at);
        hear(&mut assigner, 2, 0);
        assigner.advance_time(Duration::ZERO);
    }
    assert_eq!(counts[2], 5 * 8, "five of 16 slots");
    assert!(counts[0] > 2000 && counts[0].abs_diff(counts[1]) <= 80, "{counts:?}");
}

#[test]
fn a_builder_that_there_is_not_is_a_breach() {
    let mut assigner = simple(2);
    let room = Room { builder: 2, ..Room::default() };
    let error = assigner.handle_report(0, &Heard { room, ..Heard::default() }).unwrap_err();
    assert_eq!(error.to_string(), "it reported the free room of builder 2, but there are only 2 builders");
}
