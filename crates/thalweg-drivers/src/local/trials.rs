//! Devices that lose, restart and stand still as a seed determines: the common part of the tests that try many of them.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::time::{Duration, SystemTime};
use thalweg_wire::{GOLDEN_GAMMA, mix_bits};

/// Returns the seeds of a test's trials: as many as `THALWEG_TRIALS` states, new ones or those from `THALWEG_SEED` on;
/// without `THALWEG_TRIALS` the usual number of seeds, the same each time.
fn trial_seeds(usual: u64) -> Range<u64> {
    match std::env::var("THALWEG_TRIALS") {
        Ok(count) => {
            let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap().as_secs();
            let first = std::env::var("THALWEG_SEED").map_or(now << 16, |seed| seed.parse().expect("a number"));
            first..first + count.parse::<u64>().expect("a number")
        }
        Err(_) => 0..usual,
    }
}

/// Generator of random numbers: the same ones from equal seeds.
#[derive(Debug)]
pub(crate) struct Draw(u64);

impl Draw {
    pub(crate) fn new(seed: u64) -> Self {
        Self(mix_bits(seed))
    }

    /// Returns a number in the range.
    pub(crate) fn number_in(&mut self, range: Range<u64>) -> u64 {
        self.0 = self.0.wrapping_add(GOLDEN_GAMMA);
        range.start + mix_bits(self.0) % (range.end - range.start)
    }

    /// Returns true with a probability of one in `times`.
    pub(crate) fn once_in(&mut self, times: u64) -> bool {
        self.number_in(0..times) == 0
    }

    /// Returns a time within the range, in microseconds.
    pub(crate) fn micros_in(&mut self, range: Range<u64>) -> Duration {
        Duration::from_micros(self.number_in(range))
    }
}

/// Fragments and losses of one trial, and the errors found in them.
#[derive(Debug, Default)]
pub(crate) struct Book {
    /// Number of later fragments that may come before an earlier one.
    reorders: usize,
    came: BTreeSet<u64>,
    /// Lost ranges: one past the last number, by the first.
    lost: BTreeMap<u64, u64>,
    pub(crate) wrong: Vec<String>,
    pub(crate) uncertain: u64,
}

impl Book {
    pub(crate) fn new(reorders: u32) -> Self {
        Self { reorders: reorders as usize, ..Self::default() }
    }

    pub(crate) fn fragment_count(&self) -> u64 {
        self.came.len() as u64
    }

    /// Records a fragment with this number, of this trigger.
    pub(crate) fn record_fragment(&mut self, number: u64, trigger: u64, is_certain: bool) {
        if self.lost.range(..=number).next_back().is_some_and(|(_, end)| number < *end) {
            self.wrong.push(format!("{number}, of trigger {trigger}, was lost before it came"));
        }
        if !self.came.insert(number) {
            self.wrong.push(format!("{number} came twice, then of trigger {trigger}"));
        }
        if self.came.range(number + 1..).nth(self.reorders).is_some() {
            self.wrong
                .push(format!("{number}, of trigger {trigger}, came after more than {} later ones", self.reorders));
        }
        self.uncertain += u64::from(!is_certain);
        if is_certain && number != trigger {
            self.wrong.push(format!("{number} is trigger {trigger}'s, and not uncertain"));
        }
    }

    /// Records the loss of `count` fragments, from this number on.
    pub(crate) fn record_lost(&mut self, first: u64, count: u64) {
        let end = first + count;
        let before = self.lost.range(..end).next_back().is_some_and(|(_, end)| first < *end);
        if before || self.came.range(first..end).next().is_some() {
            self.wrong.push(format!("{first} to {} are lost, of which some came or were lost before", end - 1));
        }
        self.lost.insert(first, end);
    }
}

/// Plays trials without faults, and fails if a number is uncertain, or if there is no fragment.
pub(crate) fn play_calm_trials(name: &str, usual: u64, trial: impl Fn(u64) -> Book) {
    let (fragments, _) = play_trials(&format!("{name}, calm"), usual, |seed| {
        let mut book = trial(seed);
        if book.uncertain > 0 {
            book.wrong.push(format!("{} of {} fragments are uncertain", book.uncertain, book.fragment_count()));
        }
        book
    });
    assert!(fragments > 0);
}

/// Plays trials, as many as usual or as `THALWEG_TRIALS` says, and fails if one is wrong. Returns the number of
/// fragments, and the number of those that are uncertain.
pub(crate) fn play_trials(name: &str, usual: u64, trial: impl Fn(u64) -> Book) -> (u64, u64) {
    let seeds = trial_seeds(usual);
    let (trials, mut wrong, mut failed, mut fragments, mut uncertain) = (seeds.end - seeds.start, Vec::new(), 0, 0, 0);
    for seed in seeds {
        let book = trial(seed);
        (fragments, uncertain) = (fragments + book.fragment_count(), uncertain + book.uncertain);
        failed += u64::from(!book.wrong.is_empty());
        wrong.extend(book.wrong.into_iter().take(1).map(|wrong| format!("seed {seed}: {wrong}")));
    }
    println!("{name}: {trials} trials, {fragments} fragments, of which {uncertain} are uncertain");
    wrong.truncate(10);
    assert!(wrong.is_empty(), "{name}: {failed} of {trials} trials: {wrong:#?}");
    (fragments, uncertain)
}
