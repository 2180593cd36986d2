//! A report as a self-contained page: no server, no scripts, no fonts.

mod charts;
mod timeline;

use crate::report::{Bookkeeping, CalibratedLink, Completion, Port, Receiver, Report};
use crate::scenario::Network;
use crate::verdict::percent_text;
use std::fmt::Write;
use thalweg_text::html::{escape_html, list_html, paragraph_html, render_page, table_html};
use thalweg_text::plot::{Chart, DrawError, Provenance, draw_panels_svg, format_csv};
use thalweg_text::{
    NOTHING, format_bit_rate, format_count, format_number, format_quantity, format_seconds, format_volume,
};

/// Returns the whole report as HTML.
///
/// # Errors
/// Fails if a picture cannot be drawn.
pub fn report_page(report: &Report) -> Result<String, DrawError> {
    let title = format!("thalweg lab: {}", scenario_headline(report));
    let mut body = String::new();
    if let Some(verdict) = &report.verdict {
        body.push_str(&paragraph_html("finding", &verdict.sentence));
    }
    body.push_str(&list_html("warnings", report.warnings.iter().map(|warning| &warning.text)));
    body.push_str(&table_html::<&str>("", &[], summary_rows(report)));
    body.push_str(&paragraph_html("quiet", &report.provenance.sentences().join(" ")));
    // On the page the origin is given once.
    for chart in charts::report_charts(report, &Provenance::default()) {
        let _ = write!(body, "<h2>{}</h2>\n{}", escape_html(&chart.title), chart_without_title(chart)?);
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
            format_bit_rate(*goodput_bits_per_second),
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
        let names = ["port", "drops", "longest queue", "mean", "buffer"];
        let _ = write!(body, "<h2>Ports between switches</h2>\n{}", table_html("", &names, ports));
    }
    let senders = report.senders.iter().map(|sender| -> Vec<String> {
        let numbers =
            [sender.retransmissions, sender.timeouts, sender.tail_loss_probes, sender.whole_run_retransmissions];
        let rate = format_bit_rate(sender.rate_bits_per_second as f64);
        [sender.name.clone(), rate].into_iter().chain(numbers.map(|number| number.to_string())).collect()
    });
    let names = ["sender", "link", "retransmitted", "timeouts", "tail loss probes", "retransmitted, whole run"];
    let _ = write!(body, "<h2>Senders</h2>\n{}", table_html("", &names, senders));
    let _ = write!(body, "<h2>Notes</h2>\n{}", list_html("", &report.notes));
    if let Ok(scenario) = toml::to_string(&report.scenario) {
        let _ = write!(body, "<h2>Scenario</h2>\n<pre>{}</pre>\n", escape_html(&scenario));
    }
    Ok(render_page(&title, timeline::STYLE, &body))
}

fn chart_without_title(chart: Chart) -> Result<String, DrawError> {
    Chart { title: String::new(), ..chart }.figure_html()
}

/// Returns the charts of a report, with their origin, as one picture.
///
/// # Errors
/// Fails if a chart cannot be drawn.
pub fn report_svg(report: &Report) -> Result<String, DrawError> {
    let mut charts = charts::report_charts(report, &report.provenance);
    if let Some(last) = charts.last_mut() {
        last.notes.splice(..0, report.verdict.iter().map(|verdict| verdict.sentence.clone()));
        last.warnings = report.warnings.iter().map(|warning| warning.text.clone()).collect();
    }
    draw_panels_svg(&charts)
}

/// Returns the data of a report's charts as CSV.
pub fn report_csv(report: &Report) -> String {
    charts_csv(&charts::report_charts(report, &report.provenance), &report.provenance)
}

/// Returns the data of charts as CSV: a row for each point.
pub(crate) fn charts_csv(charts: &[Chart], provenance: &Provenance) -> String {
    let rows = charts.iter().flat_map(|chart| {
        chart.series.iter().flat_map(move |series| {
            series.points.iter().map(move |point| {
                let texts = [&chart.title, &series.name, &chart.horizontal.label].map(String::clone);
                let [x, y] = [point.x, point.y].map(|value| value.to_string());
                texts.into_iter().chain([x, chart.vertical.label.clone(), y]).collect()
            })
        })
    });
    let headings = ["chart", "series", "horizontal axis", "horizontal", "vertical axis", "vertical"];
    format_csv(provenance, &headings, rows)
}

/// Returns the main results in Markdown.
pub fn report_markdown(report: &Report) -> String {
    let mut out = format!("# {}\n\n", scenario_headline(report));
    let sentences = report.verdict.iter().map(|verdict| &verdict.sentence);
    for sentence in sentences.chain(report.warnings.iter().map(|warning| &warning.text)) {
        let _ = writeln!(out, "{sentence}\n");
    }
    out.push_str("| | |\n| --- | --- |\n");
    for row in summary_rows(report) {
        let _ = writeln!(out, "| {} |", row.join(" | "));
    }
    let _ = writeln!(out, "\n{}", report.provenance.sentences().join(" "));
    out
}

/// Returns the subject of a report's figures: the scenario and the laboratory.
pub fn report_subject(report: &Report) -> String {
    format!("lab, {}, on {}", scenario_headline(report), crate::laboratory_title(&report.laboratory))
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
    let mut rows = match &report.found {
        Some(found) => calibration_rows(report, found),
        None => measurement_rows(report),
    };
    if let Some(Bookkeeping { messages_per_event, share_of_bytes, builder_bytes, source_bytes, card_bytes, .. }) =
        &report.bookkeeping
    {
        let text =
            format!("{}, {} of the payloads' bytes", format_number(*messages_per_event), percent_text(*share_of_bytes));
        rows.push(("messages for each event", text));
        rows.push(("largest reservation of a builder", format_volume(*builder_bytes)));
        rows.push(("largest amount held by a source", format_volume(*source_bytes)));
        rows.push(("longest queue before a sender's link", format_volume(*card_bytes)));
    }
    if let Some(cross) = &report.cross {
        let segments = format_quantity(cross.retransmissions, "segment");
        let rate = format_bit_rate(cross.goodput_bits_per_second);
        rows.push(("other flows", format!("{rate}, {segments} retransmitted")));
    }
    rows.push(("time", time_text(report)));
    if !report.phases.is_empty() {
        let phases = report.phases.iter().map(|phase| format!("{} {}", phase.name, format_seconds(phase.seconds)));
        rows.push(("parts of the run", phases.collect::<Vec<_>>().join(", ")));
    }
    rows.into_iter().map(|(name, value)| vec![name.to_owned(), value]).collect()
}

fn measurement_rows(report: &Report) -> Vec<(&'static str, String)> {
    let (whole, queue) = (&report.whole_run, &report.queue);
    let ceiling = report.scenario.link_ceiling_bits_per_second();
    let offered = report.scenario.offered_bits_per_second();
    let share = percent_text(report.goodput_bits_per_second / ceiling);
    let mut rows = vec![
        ("offered", offered.map_or_else(|| "always more".into(), format_bit_rate)),
        ("goodput", format_bit_rate(report.goodput_bits_per_second)),
        ("share of the ceiling", format!("{share} of {}, which the links allow", format_bit_rate(ceiling))),
        ("events", format!("{} complete, {} incomplete", report.events.complete, report.events.incomplete)),
        (
            "time to complete an event (p50, p99, max)",
            report.completion.map_or_else(|| NOTHING.into(), |times| completion_text(&times)),
        ),
    ];
    if report.laboratory != "model" {
        rows.push(("TCP segments retransmitted", with_whole_run(report.retransmissions, whole.retransmissions)));
        rows.push(("TCP retransmission timeouts", with_whole_run(report.timeouts, whole.timeouts)));
    }
    rows.push(("packets dropped by switches", with_whole_run(report.drops, whole.drops)));
    let [longest, size, mean] = [queue.max_bytes, queue.limit_bytes, queue.mean_bytes].map(format_volume);
    rows.push(("longest queue", format!("{longest} of {size}, mean {mean}")));
    rows
}

/// Returns what a builder found beside what the scenario sets.
fn calibration_rows(report: &Report, found: &CalibratedLink) -> Vec<(&'static str, String)> {
    let Network { rate, buffer, .. } = &report.scenario.network;
    let round_trips = [found.round_trip, report.scenario.round_trip_time()];
    let [round_trip, true_round_trip] = round_trips.map(|time| format_seconds(time.as_secs_f64()));
    let [found_rate, true_rate] = [found.rate, *rate].map(|rate| format_bit_rate(rate.0 as f64));
    let [found_buffer, true_buffer] = [found.buffer, *buffer].map(|buffer| format_volume(buffer.0));
    vec![
        ("rate found", format!("{found_rate}, set {true_rate}")),
        ("round trip found", format!("{round_trip}, set {true_round_trip}")),
        ("buffer found", format!("{found_buffer}, set {true_buffer}")),
    ]
}

fn time_text(report: &Report) -> String {
    let [measured, network, wall] =
        [report.measured_seconds, report.virtual_seconds, report.wall_seconds].map(format_seconds);
    let measured = if report.found.is_some() { String::new() } else { format!("{measured} measured, ") };
    let laboratory = crate::laboratory_title(&report.laboratory);
    format!("{measured}{network} in the network, {wall} of real time; laboratory: {laboratory}")
}

fn with_whole_run(measured: u64, whole: u64) -> String {
    format!("{} ({} in the whole run)", format_count(measured), format_count(whole))
}

fn completion_text(times: &Completion) -> String {
    let [p50, p99, max] = [times.p50_us, times.p99_us, times.max_us].map(|micros| format_seconds(micros * 1e-6));
    format!("{p50}, {p99}, {max}")
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
        let times = Completion { p50_us: 900.0, p99_us: 1_500.0, max_us: 2_000_000.0, ..Completion::default() };
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
            "930 Mbit/s",
            "98.9 % of 941 Mbit/s",
            "170 kB of 340 kB",
            "size of the buffer: 340 kB",
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
