//! Progress line of a run.

use crate::terminal::progress::may_draw;
use crate::terminal::{outlet, start_thread};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use rustix::fs::statvfs;
use std::io;
use std::path::PathBuf;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::{Duration, Instant};
use thalweg_node::{RunConfig, Snapshot, State};
use thalweg_text::{format_count, format_quantity, format_seconds, format_volume};

/// Goal of a run as far as its topology states it, for the remaining part of the run.
#[derive(Debug, Clone, Default)]
pub(crate) struct Goal {
    duration: Option<Duration>,
    events: Option<u64>,
    /// Directory of the run, if it is recorded.
    directory: Option<PathBuf>,
}

impl From<&RunConfig> for Goal {
    fn from(run: &RunConfig) -> Self {
        Self { duration: run.duration, events: run.events, directory: run.record.then(|| run.directory.clone()) }
    }
}

/// Progress line of a run. A thread of its own draws it: a terminal that was stopped (Ctrl-S) stops nothing else.
#[derive(Debug)]
pub(crate) struct Line {
    over: Sender<()>,
    cleared: Receiver<()>,
}

impl Line {
    /// Time from one drawing to the next.
    const EVERY: Duration = Duration::from_millis(200);

    /// Starts drawing the snapshots that `look` returns. `name` comes first in the line.
    pub(crate) fn new(name: &str, goal: Goal, look: impl Fn() -> Snapshot + Send + 'static) -> Self {
        let (over, is_over) = channel();
        let (clears, cleared) = channel();
        let name = name.to_owned();
        let drawing = start_thread(move || {
            let bar = ProgressBar::with_draw_target(None, ProgressDrawTarget::hidden());
            if let Ok(style) = ProgressStyle::with_template("{wide_msg}") {
                bar.set_style(style);
            }
            let mut seen = Seen { name, goal, began: None, last: None, rate: 0.0, full: None };
            while is_over.recv_timeout(Self::EVERY) == Err(RecvTimeoutError::Timeout) {
                let parts = seen.line_parts(&look());
                if may_draw() {
                    if bar.is_hidden() {
                        bar.set_draw_target(ProgressDrawTarget::stderr());
                    }
                    let columns = console_width();
                    bar.set_message(fit_to_columns(parts, columns));
                } else {
                    bar.set_draw_target(ProgressDrawTarget::hidden());
                }
            }
            bar.finish_and_clear();
            drop(clears);
        });
        if drawing.is_err() {
            tracing::warn!("cannot start a thread: progress is not shown");
        }
        Self { over, cleared }
    }

    /// Removes the line, to make place for the next output.
    pub(crate) fn clear_line(self) {
        drop(self.over);
        let _ = self.cleared.recv_timeout(outlet::LOG_TIME);
    }
}

fn console_width() -> usize {
    rustix::termios::tcgetwinsize(io::stderr()).map_or(0, |size| size.ws_col.into())
}

/// Observations of a run.
#[derive(Debug)]
struct Seen {
    name: String,
    goal: Goal,
    /// Time at which the run was first seen running, and number of events by then.
    began: Option<(Instant, u64)>,
    /// Time at which the rate was last taken, and number of bytes by then.
    last: Option<(Instant, u64)>,
    /// Rate in bytes per second.
    rate: f64,
    /// Used part of the disk, and free bytes on it.
    full: Option<(f64, f64)>,
}

/// Part of the line: its rank, and its text. The highest rank is dropped first if a line is too narrow; rank 0 never.
type Part = (u8, String);

impl Seen {
    /// Returns the parts of the line, in their order.
    fn line_parts(&mut self, now: &Snapshot) -> Vec<Part> {
        let state = match now.state {
            State::Idle | State::Configured => {
                format!("{}, {} here", now.state, format_quantity(now.connected, "source"))
            }
            state => state.to_string(),
        };
        let mut parts = vec![(0, format!("{}: {state}", self.name))];
        if !now.state.has_begun() {
            if !now.waits.is_empty() {
                parts.push((1, now.waits.clone()));
            }
            return parts;
        }
        let (began, before) = *self.began.get_or_insert((Instant::now(), now.events));
        let ran = began.elapsed();
        let (at, bytes) = *self.last.get_or_insert((Instant::now(), now.bytes));
        if at.elapsed() >= LEAST {
            #[expect(clippy::cast_precision_loss, reason = "a figure for people")]
            let rate = now.bytes.saturating_sub(bytes) as f64 / at.elapsed().as_secs_f64();
            self.rate = rate;
        }
        if at.elapsed() >= RATE_OVER {
            self.last = Some((Instant::now(), now.bytes));
        }
        let left = self.remaining_seconds(ran, now.events - before.min(now.events));
        parts.push((0, format_seconds(ran.as_secs_f64())));
        parts.extend(left.map(|left| (1, format!("{} left", format_seconds(left)))));
        parts.push((0, format!("{:.2} Gbit/s", self.rate * 8e-9)));
        parts.push((2, format_volume(now.bytes)));
        parts.extend(self.disk_text(left).map(|disk| (3, disk)));
        if now.incomplete > 0 {
            parts.push((2, format!("{} incomplete", format_count(now.incomplete))));
        }
        parts.push((5, format_quantity(now.events, "event")));
        if now.stalls > 0 {
            parts.push((
                4,
                format!("disk behind {}", format_seconds(Duration::from_nanos(now.stalled_nanos).as_secs_f64())),
            ));
        }
        parts
    }

    /// Returns the remaining time of the run, in seconds.
    fn remaining_seconds(&self, ran: Duration, events: u64) -> Option<f64> {
        let by_time = self.goal.duration.map(|duration| duration.saturating_sub(ran).as_secs_f64());
        #[expect(clippy::cast_precision_loss, reason = "a figure for people")]
        let by_events = self
            .goal
            .events
            .filter(|_| events > 0)
            .map(|goal| goal.saturating_sub(events) as f64 * ran.as_secs_f64() / events as f64);
        by_time.into_iter().chain(by_events).min_by(f64::total_cmp)
    }

    /// Returns the fill of the disk, or the time until it is full if that comes before the end of the run, or soon.
    fn disk_text(&mut self, left: Option<f64>) -> Option<String> {
        let directory = self.goal.directory.as_ref()?;
        if let Ok(disk) = statvfs(directory) {
            #[expect(clippy::cast_precision_loss, reason = "figures for people")]
            let [used, free] = [disk.f_blocks.saturating_sub(disk.f_bfree), disk.f_bavail]
                .map(|blocks| blocks as f64 * disk.f_frsize as f64);
            // Computed as by df(1): space reserved for root is not available here.
            self.full = (used + free > 0.0).then_some((used / (used + free), free));
        }
        let (used, free) = self.full?;
        Some(match free / self.rate {
            soon if soon < left.unwrap_or(SOON.as_secs_f64()) => format!("disk full in {}", format_seconds(soon)),
            _ => format!("disk {:.0} % full", 100.0 * used),
        })
    }
}

/// For a run without an end: time within which a disk that becomes full is reported.
const SOON: Duration = Duration::from_secs(3600);
/// Minimum and maximum time over which a rate is averaged.
const LEAST: Duration = Duration::from_millis(150);
const RATE_OVER: Duration = Duration::from_secs(1);

/// Returns as many of the parts as fit; the least important are dropped first.
fn fit_to_columns(mut parts: Vec<Part>, columns: usize) -> String {
    while join_parts(&parts).chars().count() > columns {
        let least = parts.iter().enumerate().max_by_key(|(_, (importance, _))| *importance);
        match least {
            Some((at, (1.., _))) => parts.remove(at),
            _ => break,
        };
    }
    join_parts(&parts)
}

fn join_parts(parts: &[Part]) -> String {
    parts.iter().map(|(_, text)| &text[..]).collect::<Vec<_>>().join("  ")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seen(goal: Goal) -> Seen {
        let began = Instant::now().checked_sub(Duration::from_secs(3_723));
        Seen { name: "builder".into(), goal, began: began.map(|began| (began, 0)), last: None, rate: 0.0, full: None }
    }

    #[test]
    fn a_line_has_what_fits_and_keeps_what_matters() {
        let goal = Goal { duration: Some(Duration::from_secs(7_500)), ..Goal::default() };
        let now = Snapshot {
            state: State::Running,
            bytes: 31_234_567_890_123,
            events: 123_456_789,
            incomplete: 12,
            stalls: 3,
            stalled_nanos: 2_000_000_000,
            ..Snapshot::default()
        };
        let mut parts = seen(goal).line_parts(&now);
        // The text depends on the time between two looks.
        parts[3].1 = "20.00 Gbit/s".into();
        parts.insert(5, (3, "disk 43 % full".into()));
        let wide = fit_to_columns(parts.clone(), 200);
        assert_eq!(
            wide,
            "builder: running  1h 2m 3s  1h 2m 57s left  20.00 Gbit/s  31.2 TB  disk 43 % full  12 incomplete  \
             123,456,789 events  disk behind 2.00 s"
        );
        assert_eq!(
            fit_to_columns(parts.clone(), 80),
            "builder: running  1h 2m 3s  1h 2m 57s left  20.00 Gbit/s  31.2 TB  12 incomplete"
        );
        assert_eq!(fit_to_columns(parts, 20), "builder: running  1h 2m 3s  20.00 Gbit/s");
    }

    #[test]
    fn the_rest_is_what_ends_first() {
        let goal = Goal { duration: Some(Duration::from_secs(4_000)), events: Some(2_000), directory: None };
        let left = |events| seen(goal.clone()).remaining_seconds(Duration::from_secs(1_000), events);
        assert_eq!(left(1_000), Some(1_000.0));
        assert_eq!(left(10), Some(3_000.0));
        assert_eq!(seen(Goal::default()).remaining_seconds(Duration::ZERO, 5), None);
    }

    #[test]
    fn before_a_run_begins_it_says_what_it_waits_for() {
        let now =
            Snapshot { state: State::Configured, connected: 1, waits: "waits for adc-1".into(), ..Snapshot::default() };
        let parts = seen(Goal::default()).line_parts(&now);
        assert_eq!(fit_to_columns(parts, 80), "builder: configured, 1 source here  waits for adc-1");
    }
}
