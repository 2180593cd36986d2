//! Measures the points of an instrument, one after the other, and reports what makes their figures less certain.

use crate::cpu::Throttled;
use crate::options::Timing;
use crate::point::{Figures, Key, Point, Report};
use crate::{BenchError, Host, Plan};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, SystemTime};

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
        let mut taken: Vec<(Vec<Figures>, Option<BenchError>)> = group.iter().map(|_| (Vec::new(), None)).collect();
        'turns: for repeat in 0..timing.repeat {
            for (at, (key, (repeats, error))) in group.iter().zip(&mut taken).enumerate() {
                if stop.is_requested() {
                    break 'turns;
                }
                if error.is_some() {
                    continue;
                }
                observer.on_progress(points.len() + at, keys.len(), key, repeat);
                match instrument.measure_point(key, &timing, stop) {
                    // A repeat that was stopped in the middle is shorter than requested.
                    Ok(_) if stop.is_requested() => break 'turns,
                    Ok(figures) => repeats.push(figures),
                    Err(BenchError::Stopped) => break 'turns,
                    Err(failed) if failed.is_usage_error() => return Err(failed),
                    Err(failed) => *error = Some(failed),
                }
            }
        }
        for (key, (repeats, error)) in group.iter().zip(taken) {
            if repeats.is_empty() && error.is_none() {
                break;
            }
            let error = error.map(|error| error.to_string());
            let point = Point::new(key.clone(), repeats, instrument.point_notes(key), error);
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

/// Steal above which a warning is given, in percent of one processor.
const MAX_STEAL_PERCENT: f64 = 1.0;
/// Spread above which a warning is given, in percent.
const MAX_SPREAD_PERCENT: f64 = 10.0;

fn report_warnings(points: &[Point], repeat: u32) -> Vec<String> {
    let mut warnings = Vec::new();
    let steal = points.iter().map(|point| point.figures.steal_percent).fold(0.0, f64::max);
    if steal > MAX_STEAL_PERCENT {
        warnings.push(format!("the hypervisor took up to {steal:.1} % of a processor away (steal)"));
    }
    let wide: Vec<&Point> = points.iter().filter(|point| point.spread_percent > MAX_SPREAD_PERCENT).collect();
    if let Some(widest) = wide.iter().max_by(|a, b| a.spread_percent.total_cmp(&b.spread_percent)) {
        warnings.push(format!(
            "{} of {} points spread by more than {MAX_SPREAD_PERCENT:.0} % over their repeats, the widest by {:.0} % ({} {} {})",
            wide.len(),
            points.len(),
            widest.spread_percent,
            widest.key.link,
            widest.key.method,
            widest.key.size
        ));
    }
    if repeat == 1 {
        warnings.push("each point was taken once: its spread is not known".to_owned());
    }
    let failed = points.iter().filter(|point| point.error.is_some()).count();
    if failed > 0 {
        warnings.push(format!("{failed} of {} points failed", points.len()));
    }
    warnings
}

/// Longest silence of the other end, or of a program, beyond the time it was asked to measure for.
pub(crate) const PROGRAM_TIMEOUT: Duration = Duration::from_secs(10);
