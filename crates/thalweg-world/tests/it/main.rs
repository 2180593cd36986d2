//! Simulated worlds: those that failed once, and as many new ones as there is time for.

mod fuzz;

use std::path::Path;
use std::time::{Duration, Instant, SystemTime};
use thalweg_link::memory::Impairments;
use thalweg_node::Policy;
use thalweg_world::{
    DatagramKind, Fault, Medium, Plan, SourcePlan, World, judge_course, try_instrument, try_plan, try_twice,
};

/// Directory of the runs, in memory.
fn directory() -> &'static Path {
    Path::new("/dev/shm")
}

/// One line for each: the seed, the faults to leave out, and the failure.
const SEEDS: &str = include_str!("../seeds.txt");

#[test]
fn what_went_wrong_once_goes_right() {
    let mut wrong = Vec::new();
    for line in SEEDS.lines().filter(|line| !line.starts_with('#')) {
        let mut words = line.split_whitespace();
        let seed: u64 = words.next().and_then(|seed| seed.parse().ok()).expect("a seed");
        let left_out = words.next().filter(|left_out| *left_out != "-");
        let left_out: Vec<usize> =
            left_out.map(|list| list.split(',').map(|at| at.parse().expect("a number")).collect()).unwrap_or_default();
        let verdict = try_plan(&Plan::from_seed(seed).without_faults(&left_out), directory());
        wrong.extend(verdict.wrong.into_iter().map(|what| format!("{line}: {what}")));
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

/// Runs new seeds for `THALWEG_WORLD_SECONDS` seconds.
#[test]
fn fresh_seeds_go_right() {
    let seconds = std::env::var("THALWEG_WORLD_SECONDS").map_or(5, |time| time.parse().expect("a number of seconds"));
    let begun = Instant::now();
    let first = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap().as_secs() << 25;
    let mut seeds = first..;
    while begun.elapsed() < Duration::from_secs(seconds) {
        let seed = seeds.next().expect("there are more");
        let verdict = try_plan(&Plan::from_seed(seed), directory());
        assert!(verdict.wrong.is_empty(), "see it again: make world ARGS=\"--seed {seed}\": {:#?}", verdict.wrong);
    }
    println!("{} seeds", seeds.start - first);
}

#[test]
fn equal_seeds_take_equal_courses() {
    for seed in 0..6 {
        let verdict = try_twice(&Plan::from_seed(seed), directory());
        assert!(verdict.wrong.is_empty(), "seed {seed}: {:?}", verdict.wrong);
    }
}

/// Lets `THALWEG_NEXT_RUNS` runs follow one another while two sources go on.
#[test]
fn every_event_is_in_one_of_many_runs_that_follow_one_another_without_a_gap() {
    let runs = std::env::var("THALWEG_NEXT_RUNS").map_or(100, |count| count.parse().expect("a number of runs"));
    let mut plan = Plan::from_seed(0);
    let source = SourcePlan {
        rate: Some(500.0),
        events: u64::MAX,
        slots: (8, 4096),
        longest: 300,
        policy: Policy::Block,
        acquires: false,
        instrument: None,
    };
    plan.sources = vec![source.clone(), SourcePlan { rate: Some(499.9), ..source }];
    (plan.builders, plan.medium, plan.by_room, plan.record) = (1, Medium::Frames, false, true);
    (plan.events, plan.duration, plan.levels, plan.hostile, plan.period) = (None, None, [None; 2], None, None);
    plan.network = Impairments { delay: Duration::from_micros(200), ..Impairments::PERFECT };
    plan.step = Duration::from_micros(500);
    let begin = Duration::from_secs(2);
    let apart = Duration::from_millis(60);
    plan.faults = (0..runs).map(|run| (begin + run * apart, Fault::NextRun(0))).collect();
    plan.last_word = begin + runs * apart;
    let directory = tempfile::tempdir_in(directory()).unwrap();
    let course = World::new(&plan, directory.path()).run_to_end();
    let verdict = judge_course(&plan, &course);
    assert!(verdict.wrong.is_empty(), "{:#?}", verdict.wrong);
    let [followed] = &course.earlier[..] else { panic!("one builder") };
    // One that is asked for before the one before is on disk is refused.
    assert!(10 * followed.len() >= 9 * runs as usize, "{} of {runs} began", followed.len());
    let empty = followed.iter().filter(|report| report.events == 0).count();
    assert!(empty == 0 && followed.iter().all(|report| report.state == "COMPLETE"), "{empty} without an event");
}

/// Runs `THALWEG_TRIALS` new trials of each kind.
#[test]
fn no_fragment_whose_status_is_good_is_another_triggers_of_any_kind_of_instrument() {
    let (trials, first) = match std::env::var("THALWEG_TRIALS") {
        Ok(count) => {
            let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap().as_secs();
            (count.parse().expect("a number"), now << 16)
        }
        Err(_) => (20, 0),
    };
    for kind in DatagramKind::ALL {
        let (mut wrong, mut fragments, mut uncertain) = (Vec::new(), 0, 0);
        for seed in first..first + trials {
            let trial = try_instrument(kind, seed, Duration::from_secs(20), false);
            wrong.extend(trial.wrong.into_iter().take(1));
            fragments += trial.fragments;
            uncertain += trial.uncertain;
        }
        println!("{kind:?}: {trials} trials, {fragments} fragments, of which {uncertain} are uncertain");
        assert!(wrong.is_empty(), "{wrong:#?}");
        assert!(fragments > uncertain);
    }
}

#[test]
fn no_number_is_uncertain_where_nothing_goes_wrong() {
    for kind in DatagramKind::ALL {
        for seed in 0..5 {
            let trial = try_instrument(kind, seed, Duration::from_secs(20), true);
            assert!(
                trial.wrong.is_empty() && trial.uncertain == 0 && trial.fragments > 0,
                "{kind:?}, {seed}: {trial:?}"
            );
        }
    }
}
