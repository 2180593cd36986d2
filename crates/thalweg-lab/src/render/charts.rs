//! The charts of a report: the fullest queue over time, and the distribution of the times to complete events.

use crate::report::{Completion, Events, Report};
use thalweg_text::format_volume;
use thalweg_text::plot::{Axis, Chart, DataPoint, Join, Limit, Provenance, Series};

/// Largest number of receivers with a curve each; more have one curve, that of the slowest at each fraction.
const MAX_RECEIVER_CURVES: usize = 6;

/// Returns the charts of a report; those without data are left out.
pub(crate) fn report_charts(report: &Report, provenance: &Provenance) -> Vec<Chart> {
    let queue = (!report.queue.over_time.is_empty()).then(|| queue_chart(report, provenance));
    queue.into_iter().chain(completion_chart(report, provenance)).collect()
}

/// Returns the length of the fullest queue over time, and the size of its buffer.
fn queue_chart(report: &Report, provenance: &Provenance) -> Chart {
    let queue = &report.queue;
    let length = queue.over_time.last().map_or(0.0, |(at, _)| at.abs());
    let (time, time_unit) = if length < 1.0 { (1e3, "ms") } else { (1.0, "s") };
    let most = queue.max_bytes.max(queue.limit_bytes);
    let (bytes, bytes_unit) = if most >= 1_000_000 { (1e-6, "MB") } else { (1e-3, "kB") };
    let points = queue.over_time.iter().map(|(at, length)| (at * time, *length as f64 * bytes)).collect();
    let horizontal = Axis::linear(format!("Time since the measurement began ({time_unit})"));
    let vertical = Axis::linear(format!("Waiting ({bytes_unit})"));
    let mut chart = Chart::new("The fullest queue", horizontal, vertical, provenance.clone());
    chart.series = vec![Series::line("", points, Join::Steps)];
    chart.limits = vec![Limit {
        name: format!("size of the buffer: {}", format_volume(queue.limit_bytes)),
        value: queue.limit_bytes as f64 * bytes,
    }];
    chart
}

/// Returns the fraction of events that took longer than a time; `None` if the report has no distribution.
fn completion_chart(report: &Report, provenance: &Provenance) -> Option<Chart> {
    let receivers = report.receivers.iter().filter_map(|one| Some((one.name.clone(), one.events, one.completion?)));
    let curves: Vec<(String, Events, Completion)> = match report.receivers.len() {
        2..=MAX_RECEIVER_CURVES => receivers.collect(),
        _ => report.completion.map(|times| (String::new(), report.events, times)).into_iter().collect(),
    };
    let longest = curves.iter().map(|(_, _, times)| times.max_us).fold(0.0, f64::max);
    let (unit, name) = match longest {
        long if long >= 1e6 => (1e-6, "s"),
        middle if middle >= 1e3 => (1e-3, "ms"),
        _ => (1.0, "µs"),
    };
    let series = curves.iter().filter_map(|(name, events, times)| completion_curve(name, *events, times, unit));
    let series: Vec<Series> = series.collect();
    let times = series.iter().flat_map(|series| &series.points).map(|point| point.x);
    let (least, most) = times.fold((f64::INFINITY, 0.0_f64), |(a, b), x| (a.min(x), b.max(x)));
    let label = format!("Time to complete an event ({name})");
    let horizontal = if most > 10.0 * least && least > 0.0 { Axis::logarithmic(label) } else { Axis::linear(label) };
    let vertical = Axis::logarithmic("Fraction of events that took longer");
    let mut chart = Chart::new("Time to complete an event", horizontal, vertical, provenance.clone());
    if report.receivers.len() > MAX_RECEIVER_CURVES {
        chart.notes.push("At each fraction the time of the slowest receiver.".into());
    }
    chart.series = series;
    (!chart.series.is_empty()).then_some(chart)
}

/// Returns the curve of a distribution, down to one event; `None` in reports of earlier versions, which have none.
fn completion_curve(name: &str, events: Events, times: &Completion, unit: f64) -> Option<Series> {
    let one_event = 1.0 / events.complete.max(1) as f64;
    let known = times.distribution.iter().filter(|(fraction, _)| *fraction > 0.0);
    let shown = known.filter(|(fraction, _)| 1.0 - fraction >= one_event);
    // On a logarithmic axis no fraction is 0: the longest time is at that of one event.
    let last = (times.distribution[0].0 > 0.0).then_some((1.0 - one_event, times.max_us));
    let points = shown.copied().chain(last).map(|(fraction, micros)| DataPoint {
        x: micros * unit,
        y: 1.0 - fraction,
        ..DataPoint::default()
    });
    let points: Vec<DataPoint> = points.filter(|point| point.y > 0.0).collect();
    (!points.is_empty()).then(|| Series { join: Join::Steps, ..Series::new(name, points) })
}
