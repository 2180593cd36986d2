//! A report as a self-contained page: no server, no scripts, no fonts.

mod timeline;

use crate::report::{Bookkeeping, CalibratedLink, Completion, Port, Receiver, Report};
use crate::scenario::Network;
use plotters::prelude::*;
use std::fmt::Write;
use std::time::Duration;
use thalweg_text::format_volume;
use thalweg_text::html::{escape_html, figure_html, list_html, render_page, table_html};
use thalweg_text::plot::{COLOURS, DrawError, GRID, INK, PICTURE_WIDTH, draw_svg};

/// Returns the whole report as HTML.
///
/// # Errors
/// Fails if a picture cannot be drawn.
pub fn report_page(report: &Report) -> Result<String, DrawError> {
    let title = format!("thalweg lab: {}", scenario_headline(report));
    let mut body = table_html::<&str>("", &[], summary_rows(report));
    let _ = write!(body, "<h2>The fullest queue</h2>\n{}", figure_html("", &draw_queue(report)?));
    if let Some(times) = &report.completion {
        let _ = write!(body, "<h2>Time to complete an event</h2>\n{}", figure_html("", &draw_completion(times)?));
    }
    if let Some(timeline) = &report.timeline {
        body.push_str(&timeline::timeline_section(timeline));
    }
    let receivers = report.receivers.iter().map(|receiver| {
        let times = receiver.completion.map_or_else(|| "–".to_owned(), |times| completion_text(&times));
        let Receiver { name, goodput_bits_per_second, events, drops, queue, .. } = receiver;
        let events = format!("{} + {} incomplete", events.complete, events.incomplete);
        [
            name.clone(),
            bit_rate_text(*goodput_bits_per_second),
            events,
            times,
            drops.to_string(),
            format_volume(queue.max_bytes),
        ]
    });
    let names = ["receiver", "goodput", "events", "p50, p99, max", "drops", "longest queue"];
    let _ = write!(body, "<h2>Receivers</h2>\n{}", table_html("", &names, receivers));
    if !report.ports.is_empty() {
        let ports = report.ports.iter().map(|port| {
            let Port { name, drops, queue } = port;
            [
                name.clone(),
                drops.to_string(),
                format_volume(queue.max_bytes),
                format_volume(queue.mean_bytes),
                format_volume(queue.limit_bytes),
            ]
        });
        let names = ["port", "drops", "longest queue", "mean", "room"];
        let _ = write!(body, "<h2>Ports between switches</h2>\n{}", table_html("", &names, ports));
    }
    let senders = report.senders.iter().map(|sender| -> Vec<String> {
        let numbers =
            [sender.retransmissions, sender.timeouts, sender.tail_loss_probes, sender.whole_run_retransmissions];
        let rate = bit_rate_text(sender.rate_bits_per_second as f64);
        [sender.name.clone(), rate].into_iter().chain(numbers.map(|number| number.to_string())).collect()
    });
    let names = ["sender", "link", "sent again", "timeouts", "tail loss probes", "sent again, start included"];
    let _ = write!(body, "<h2>Senders</h2>\n{}", table_html("", &names, senders));
    let _ = write!(body, "<h2>Notes</h2>\n{}", list_html("", &report.notes));
    if let Ok(scenario) = toml::to_string(&report.scenario) {
        let _ = write!(body, "<h2>Scenario</h2>\n<pre>{}</pre>\n", escape_html(&scenario));
    }
    Ok(render_page(&title, timeline::STYLE, &body))
}

/// Returns the scenario in one line.
pub fn scenario_headline(report: &Report) -> String {
    let network = &report.scenario.network;
    let delay = humantime::format_duration(network.delay);
    let (senders, receivers, control) = (network.senders, network.receivers, report.scenario.traffic.control);
    format!(
        "{senders} sender{}, {receivers} receiver{}, {}, delay {delay}, buffer {}, {control}",
        plural_suffix(senders),
        plural_suffix(receivers),
        network.rate,
        network.buffer
    )
}

fn plural_suffix(number: u32) -> &'static str {
    if number == 1 { "" } else { "s" }
}

/// Returns the most important results, as rows of names and values.
pub fn summary_rows(report: &Report) -> Vec<Vec<String>> {
    let whole = &report.whole_run;
    let share =
        format!("{:.1} %, of {}", report.share_of_ceiling * 100.0, bit_rate_text(report.ceiling_bits_per_second));
    let queue = &report.queue;
    let mut rows = vec![
        ("goodput", bit_rate_text(report.goodput_bits_per_second)),
        ("share of the ceiling", share),
        ("events", format!("{}, and {} incomplete", report.events.complete, report.events.incomplete)),
        (
            "event complete after (median, 99 of 100, all)",
            report.completion.map_or_else(|| "–".into(), |times| completion_text(&times)),
        ),
        ("sent again by TCP", with_whole_run(report.retransmissions, whole.retransmissions)),
        ("timeouts", with_whole_run(report.timeouts, whole.timeouts)),
        ("dropped by the switch", with_whole_run(report.drops, whole.drops)),
        (
            "longest queue",
            format!(
                "{} of {}, mean {}",
                format_volume(queue.max_bytes),
                format_volume(queue.limit_bytes),
                format_volume(queue.mean_bytes)
            ),
        ),
    ];
    if let Some(CalibratedLink { rate, round_trip, buffer }) = &report.found {
        let Network { rate: true_rate, buffer: true_buffer, .. } = &report.scenario.network;
        let (round_trip, true_round_trip) =
            (microseconds(*round_trip), microseconds(report.scenario.round_trip_time()));
        rows.push(("rate found", format!("{rate}, of {true_rate}")));
        rows.push(("round trip found", format!("{round_trip:.0} µs, of {true_round_trip:.0} µs")));
        rows.push(("buffer found", format!("{buffer}, of {true_buffer}")));
    }
    if let Some(Bookkeeping { messages_per_event, share_of_bytes, builder_bytes, source_bytes, card_bytes, .. }) =
        &report.bookkeeping
    {
        let share = 100.0 * share_of_bytes;
        rows.push(("messages for each event", format!("{messages_per_event:.0}, {share:.2} % of the payloads' bytes")));
        rows.push(("largest reservation of a builder", format_volume(*builder_bytes)));
        rows.push(("largest amount held by a source", format_volume(*source_bytes)));
        rows.push(("longest queue before a sender's link", format_volume(*card_bytes)));
    }
    if let Some(cross) = &report.cross {
        let text =
            format!("{}, {} segments sent again", bit_rate_text(cross.goodput_bits_per_second), cross.retransmissions);
        rows.push(("other flows", text));
    }
    let (measured, network, wall) = (report.measured_seconds, report.virtual_seconds, report.wall_seconds);
    rows.push((
        "time",
        format!(
            "{measured:.3} s measured, {network:.3} s in the network, {wall:.1} s on the wall ({})",
            report.laboratory
        ),
    ));
    rows.into_iter().map(|(name, value)| vec![name.to_owned(), value]).collect()
}

fn with_whole_run(measured: u64, whole: u64) -> String {
    format!("{measured} ({whole} with beginning and end)")
}

fn microseconds(time: Duration) -> f64 {
    time.as_secs_f64() * 1e6
}

fn completion_text(times: &Completion) -> String {
    let [p50, p99, max] = [times.p50_us, times.p99_us, times.max_us].map(time_text);
    format!("{p50}, {p99}, {max}")
}

fn time_text(micros: f64) -> String {
    match micros {
        short if short < 1e3 => format!("{short:.0} µs"),
        long if long < 1e6 => format!("{:.2} ms", long / 1e3),
        longer => format!("{:.2} s", longer / 1e6),
    }
}

fn bit_rate_text(per_second: f64) -> String {
    match per_second {
        large if large >= 1e10 => format!("{:.3} Gbit/s", large / 1e9),
        any => format!("{:.1} Mbit/s", any / 1e6),
    }
}

/// Draws the length of the fullest queue over time, and its limit.
fn draw_queue(report: &Report) -> Result<String, DrawError> {
    let points: Vec<(f64, f64)> = report.queue.over_time.iter().map(|&(at, bytes)| (at, bytes as f64 / 1e3)).collect();
    let from = points.first().map_or(0.0, |point| point.0);
    let to = points.last().map_or(1.0, |point| point.0).max(from + 1e-6);
    let room = report.queue.limit_bytes as f64 / 1e3;
    draw_svg(320, |area| {
        let mut chart = ChartBuilder::on(area)
            .margin(12)
            .x_label_area_size(44)
            .y_label_area_size(64)
            .build_cartesian_2d(from..to, 0.0..room * 1.08)?;
        chart
            .configure_mesh()
            .light_line_style(TRANSPARENT)
            .bold_line_style(GRID)
            .axis_style(INK)
            .label_style(("sans-serif", 15, &INK))
            .x_desc("seconds; what is measured begins at 0")
            .y_desc("kB waiting")
            .draw()?;
        chart.draw_series(LineSeries::new(points, COLOURS[0].stroke_width(1)))?;
        chart.draw_series(LineSeries::new([(from, room), (to, room)], INK.stroke_width(1)))?;
        Ok(())
    })
}

/// Draws three bars: half of the events, 99 of 100, all.
fn draw_completion(times: &Completion) -> Result<String, DrawError> {
    let most = times.max_us.max(1e-3);
    draw_svg(118, |area| {
        let bars = [("half of them", times.p50_us), ("99 of 100", times.p99_us), ("all", times.max_us)];
        for (top, (name, micros)) in (8..).step_by(36).zip(bars) {
            let label = format!("{name}: {:.3} ms", micros / 1e3);
            area.draw(&Text::new(label, (12, top), ("sans-serif", 15).into_font().color(&INK)))?;
            let length = (f64::from(PICTURE_WIDTH - 24) * micros / most) as i32;
            area.draw(&Rectangle::new([(12, top + 18), (12 + length.max(1), top + 28)], COLOURS[0].filled()))?;
        }
        Ok(())
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::{Events, Queue};
    use crate::scenario::Scenario;

    #[test]
    fn a_page_has_the_figures_and_no_scripts() {
        let scenario = Scenario::parse("[network]\nsenders = 3\n").unwrap();
        let queue = Queue {
            max_bytes: 170_000,
            mean_bytes: 1,
            limit_bytes: 340_000,
            sample_seconds: 1e-5,
            over_time: vec![(-0.1, 5), (0.0, 170_000), (1.0, 4)],
        };
        let times = Completion { p50_us: 900.0, p99_us: 1_500.0, max_us: 2_000_000.0 };
        let receiver = Receiver {
            name: "receiver-<0>".into(),
            completion: Some(times),
            queue: queue.clone(),
            ..Receiver::default()
        };
        let report = Report {
            laboratory: "virtual".into(),
            goodput_bits_per_second: 930e6,
            ceiling_bits_per_second: scenario.ceiling_bits_per_second(),
            share_of_ceiling: 930e6 / scenario.ceiling_bits_per_second(),
            events: Events { complete: 1000, incomplete: 0 },
            completion: Some(times),
            queue,
            receivers: vec![receiver],
            scenario,
            ..Report::default()
        };
        let page = report_page(&report).unwrap();
        for text in [
            "930.0 Mbit/s",
            "98.9 %, of 940.6 Mbit/s",
            "170 kB of 340 kB",
            "receiver-&lt;0&gt;",
            "900 µs, 1.50 ms, 2.00 s",
            "senders = 3",
        ] {
            assert!(page.contains(text), "{text}");
        }
        assert!(!page.contains("<script"));
        // An empty report is a page, too.
        assert!(report_page(&Report::default()).is_ok());
    }
}
