//! Time of the builder's thread, by what it did or waited for: the material of the verdict on a run.

use std::time::Duration;
use thalweg_core::build::TimeUse;

/// Stage that a builder waits for between two turns.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) enum Awaited {
    /// The disk has the blocks that are needed.
    Disk,
    /// The event filter has no room.
    Filter,
    /// Data were requested.
    Data,
    /// No data were requested: the sources have offered nothing, or what they may offer is limited.
    #[default]
    Offers,
}

/// Clock that adds up the time of a thread while a run goes on.
#[derive(Debug, Default)]
pub(super) struct TimeMeter {
    /// End of the last turn, and the stage waited for since; `None` while there is no run.
    waiting: Option<(Duration, Awaited)>,
    /// Beginning of the turn under way.
    turn_began: Option<Duration>,
    working: Duration,
    disk: Duration,
    filter: Duration,
    data: Duration,
    offers: Duration,
    /// All of these until the end of the last turn in which something arrived.
    active: Duration,
}

impl TimeMeter {
    /// Begins a turn: the time since the last one was a wait.
    pub(super) fn begin_turn(&mut self, now: Duration) {
        if let Some((since, awaited)) = self.waiting.take() {
            self.count_wait(awaited, now.saturating_sub(since));
        }
        self.turn_began = Some(now);
    }

    /// Ends a turn, after which the thread waits for `awaited`. `has_worked`: something arrived in the turn. A thread
    /// that polls waits in the turns in which nothing does.
    pub(super) fn end_turn(&mut self, now: Duration, has_worked: bool, awaited: Awaited, is_running: bool) {
        let Some(began) = self.turn_began.take().filter(|_| is_running) else { return };
        let length = now.saturating_sub(began);
        match has_worked {
            true => {
                self.working += length;
                self.active = self.working + self.disk + self.filter + self.data + self.offers;
            }
            false => self.count_wait(awaited, length),
        }
        self.waiting = Some((now, awaited));
    }

    fn count_wait(&mut self, awaited: Awaited, length: Duration) {
        *match awaited {
            Awaited::Disk => &mut self.disk,
            Awaited::Filter => &mut self.filter,
            Awaited::Data => &mut self.data,
            Awaited::Offers => &mut self.offers,
        } += length;
    }

    /// Returns the times so far, without names.
    pub(super) fn time_use(&self) -> TimeUse {
        TimeUse {
            working: self.working.as_secs_f64(),
            disk: self.disk.as_secs_f64(),
            filter: self.filter.as_secs_f64(),
            data: self.data.as_secs_f64(),
            offers: self.offers.as_secs_f64(),
            active: self.active.as_secs_f64(),
            ..TimeUse::default()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_moment_of_a_run_is_work_or_a_wait_for_one_stage() {
        let at = Duration::from_millis;
        let mut meter = TimeMeter::default();
        // Before the run nothing counts.
        meter.begin_turn(at(0));
        meter.end_turn(at(100), true, Awaited::Offers, false);
        meter.begin_turn(at(1000));
        meter.end_turn(at(1200), true, Awaited::Data, true);
        meter.begin_turn(at(1500));
        // A turn of a thread that polls, in which nothing arrived.
        meter.end_turn(at(1600), false, Awaited::Data, true);
        meter.begin_turn(at(1600));
        meter.end_turn(at(1700), true, Awaited::Disk, true);
        meter.begin_turn(at(2700));
        meter.end_turn(at(2700), true, Awaited::Offers, false);
        meter.begin_turn(at(9000));
        meter.end_turn(at(9500), false, Awaited::Offers, true);
        let TimeUse { working, disk, filter, data, offers, active, .. } = meter.time_use();
        let millis = [working, disk, filter, data, offers].map(|seconds| (seconds * 1e3).round() as u32);
        assert_eq!(millis, [300, 1000, 0, 400, 500]);
        // The wait at the end is not counted: nothing arrived any more.
        assert_eq!((active * 1e3).round() as u32, 700);
    }
}
