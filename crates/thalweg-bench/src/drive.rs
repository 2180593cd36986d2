//! Measures the points of an instrument, one after the other, and reports what makes their figures less certain.

use crate::cpu::Throttled;
use crate::doubt::{Conditions, Watch, worst_warnings};
use crate::options::Timing;
use crate::point::{Figures, Key, Point, Report};
use crate::{BenchError, Host, Plan};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, SystemTime};
use thalweg_text::format_size;

/// Measuring instrument: its list of points, and how one repeat of a point is taken.
pub(crate) trait Instrument {
    /// Returns the points, in order.
    fn point_keys(&self) -> Vec<Key>;

    /// Measures one point once. An error affects only this point; the others are still measured.
    fn measure_point(&mut self, key: &Key, timing: &Timing, stop: &Stop) -> Result<Figures, BenchError>;

    /// Returns whether neighbouring points take turns, one repeat of each and then the next: drift on a shared machine
    /// then affects all of them alike.
    fn takes_turns_with(&self, _one: &Key, _next: &Key) -> bool {
        false
    }

    /// Returns the remarks on a point after it was measured.
    fn point_notes(&self, _key: &Key) -> Vec<String> {
        Vec::new()
    }

    /// Returns processes of this host that belong to the measurement although this one did not start them.
    fn outside_processes(&self) -> Vec<u32> {
        Vec::new()
    }

    /// Returns the host of the other end, if it is another one.
    fn peer_host(&self) -> Option<Host> {
        None
    }
}

/// Receiver of the progress of a measurement.
pub trait Observer {
    /// Reports that `done` of `of` points are complete, and `repeat` repeats of the point `now`.
    fn on_progress(&mut self, done: usize, of: usize, now: &Key, repeat: u32);

    /// Reports a completed point.
    fn on_point_completed(&mut self, point: &Point);
}

/// Ends a measurement early, from another thread or a signal handler.
#[derive(Debug, Clone, Default)]
pub struct Stop(Arc<AtomicBool>);

impl Stop {
    /// Stops the measurement; completed points are kept.
    pub fn request_stop(&self) {
        self.0.store(true, Ordering::Relaxed);
    }

    /// Returns whether the measurement is to stop.
    pub fn is_requested(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }

    /// Returns the flag itself, for APIs that take a plain flag.
    pub fn shared_flag(&self) -> Arc<AtomicBool> {
        Arc::clone(&self.0)
    }
}

/// Measures everything that `plan` asks for. A point that fails keeps its error and the others are measured. A report
/// of a [stopped](Stop) measurement holds the points that were completed.
///
/// # Errors
/// If nothing can be measured at all: the plan makes no sense, or this host lacks something that all its points need.
pub fn measure_plan(
    plan: &Plan,
    command_line: Vec<String>,
    observer: &mut dyn Observer,
    stop: &Stop,
) -> Result<Report, BenchError> {
    let mut instrument = plan.create_instrument()?;
    let timing = plan.timing();
    let began = humantime::format_rfc3339_seconds(SystemTime::now()).to_string();
    let keys = instrument.point_keys();
    let throttled = Throttled::read_counters();
    let mut points = Vec::with_capacity(keys.len());
    let groups: Vec<&[Key]> = keys.chunk_by(|one, next| instrument.takes_turns_with(one, next)).collect();
    for group in groups {
        let mut taken: Vec<Taken> = group.iter().map(|_| Taken::default()).collect();
        'turns: for repeat in 0..timing.repeat {
            for (at, (key, point)) in group.iter().zip(&mut taken).enumerate() {
                if stop.is_requested() {
                    break 'turns;
                }
                if point.error.is_some() {
                    continue;
                }
                observer.on_progress(points.len() + at, keys.len(), key, repeat);
                let watch = Watch::begin();
                match instrument.measure_point(key, &timing, stop) {
                    // A repeat that was stopped in the middle is shorter than requested.
                    Ok(_) | Err(BenchError::Stopped) if stop.is_requested() => break 'turns,
                    Ok(figures) => point.add_repeat(figures, watch.end(&instrument.outside_processes())),
                    Err(BenchError::Stopped) => point.error = Some(BenchError::NothingMeasured(timing.min_time)),
                    Err(failed) if failed.is_usage_error() => return Err(failed),
                    Err(failed) => point.error = Some(failed),
                }
            }
        }
        for (key, Taken { repeats, conditions, error }) in group.iter().zip(taken) {
            if repeats.is_empty() && error.is_none() {
                break;
            }
            let error = error.map(|error| error.to_string());
            let point = Point::new(plan.instrument_name(), key.clone(), repeats, instrument.point_notes(key), error);
            let point = point.with_conditions(&conditions);
            observer.on_point_completed(&point);
            points.push(point);
        }
    }
    let mut warnings = report_warnings(&points, timing.repeat);
    warnings.extend(throttled.warnings_since());
    if stop.is_requested() {
        warnings.insert(0, format!("stopped after {} of {} points", points.len(), keys.len()));
    }
    Ok(Report {
        format: Report::FORMAT.to_owned(),
        instrument: plan.instrument_name().to_owned(),
        command_line,
        began,
        host: Host::probe_this_machine(plan.peer_host()),
        peer: instrument.peer_host(),
        points,
        warnings,
    })
}

/// What was measured of a point.
#[derive(Default)]
struct Taken {
    repeats: Vec<Figures>,
    conditions: Vec<Conditions>,
    error: Option<BenchError>,
}

impl Taken {
    fn add_repeat(&mut self, figures: Figures, conditions: Conditions) {
        let other_processes_percent = Some(conditions.others_percent());
        self.repeats.push(Figures { other_processes_percent, ..figures });
        self.conditions.push(conditions);
    }
}

fn report_warnings(points: &[Point], repeat: u32) -> Vec<String> {
    let all = points.iter().flat_map(|point| &point.warnings);
    let mut warnings: Vec<String> = worst_warnings(all.cloned())
        .into_iter()
        .map(|worst| {
            let kinds = points.iter().map(|point| point.warnings.iter().any(|one| one.kind == worst.kind));
            let count = kinds.filter(|has| *has).count();
            let at = points.iter().find(|point| point.warnings.contains(&worst));
            let name = at.map(|point| {
                let Key { link, method, size, .. } = &point.key;
                format!("{link} {method} {}", format_size(*size))
            });
            match points.len() {
                1 => worst.text,
                all => format!("{} ({}; {count} of {all} points)", worst.text, name.unwrap_or_default()),
            }
        })
        .collect();
    if repeat == 1 {
        warnings.push("each point was measured once: its spread is not known".to_owned());
    }
    let failed = points.iter().filter(|point| point.error.is_some()).count();
    if failed > 0 {
        warnings.push(format!("{failed} of {} points failed", points.len()));
    }
    warnings
}

/// Longest silence of the other end, or of a program, beyond the time it was asked to measure for.
pub(crate) const PROGRAM_TIMEOUT: Duration = Duration::from_secs(10);
