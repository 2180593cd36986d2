//! Each link and each builder's credit over time, as pictures, and the two sentences that most readers look for: which
//! links were idle, and why.

use crate::report::{CreditOverTime, LinkKind, LinkOverTime, SentAgain, Timeline};
use std::fmt::Write;
use thalweg_text::format_volume;
use thalweg_text::html::{escape_html, figure_html, paragraph_html, table_html};

/// Style sheet of timelines, in addition to that of all pages.
pub(super) const STYLE: &str = include_str!("timeline.css");

/// Returns the section of a report's page.
pub(super) fn timeline_section(timeline: &Timeline) -> String {
    let mut out = String::from("<h2>Who waits for whom</h2>\n");
    for sentence in [idle_uplink_sentence(timeline), idle_downlink_sentence(timeline)].into_iter().flatten() {
        out.push_str(&paragraph_html("finding", &sentence));
    }
    if !timeline.links.is_empty() {
        out.push_str(&figure_html("", &draw_links(timeline)));
        out.push_str(&paragraph_html(
            "quiet",
            "Each row is a link; the bluer, the busier it was; where it is pale it was idle. The orange line beneath it is the queue before it, darkest at the longest queue of its kind. Look for pale stretches: an uplink that is pale while others are blue had nothing to send, or no request.",
        ));
    }
    if !timeline.credit.is_empty() {
        let builders: String = timeline.credit.iter().map(|credit| draw_builder_credit(timeline, credit)).collect();
        let _ = write!(out, "<h3>Where each builder’s credit was</h3>\n<div class=\"builders\">\n{builders}</div>\n");
    }
    let SentAgain { fast, tail_loss_probes, after_timeout, needless } = timeline.again;
    let rows = [
        ("acknowledgements showed a gap (fast retransmit)", fast),
        ("tail loss probes", tail_loss_probes),
        ("after a timeout", after_timeout),
        ("of all these, reported by receivers as already received (DSACK)", needless),
    ];
    let rows = rows.map(|(why, count)| [why.to_owned(), count.to_string()]);
    let _ = write!(
        out,
        "<h3>Retransmitted by TCP</h3>\n{}",
        table_html("beside again", &["why", "", "segments"][..], rows.map(|[why, count]| [why, String::new(), count]))
    );
    out
}

/// Widths in pixels: of a name, of the figure after a row, and of the whole.
const NAME_WIDTH: usize = 96;
const FIGURE_WIDTH: usize = 54;
const TIMELINE_WIDTH: usize = 920;
/// Width of a builder's picture: two are placed side by side.
const CREDIT_PICTURE_WIDTH: usize = 450;
/// Number of shades between nothing and all.
const SHADE_COUNT: usize = 12;
/// Largest number of rows; more senders than that share rows.
const MOST_ROWS: usize = 64;

/// Draws all links.
fn draw_links(timeline: &Timeline) -> String {
    let most = timeline.links.len();
    let (row, lane) = if most > 40 { (11, 6) } else { (17, 10) };
    let strip = Strip { left: NAME_WIDTH, width: TIMELINE_WIDTH - NAME_WIDTH - FIGURE_WIDTH };
    let mut body = String::new();
    let mut y = 0;
    for kind in [LinkKind::Up, LinkKind::Shared, LinkKind::Trunk, LinkKind::Down] {
        let of_kind: Vec<_> = timeline.links.iter().filter(|link| link.kind == kind).collect();
        if of_kind.is_empty() {
            continue;
        }
        y += 24;
        let title = match kind {
            LinkKind::Up => "from senders",
            LinkKind::Shared => "shared uplinks",
            LinkKind::Trunk => "trunks",
            LinkKind::Down => "to receivers",
        };
        let _ = writeln!(body, "<text class=\"head\" x=\"0\" y=\"{}\">{title}</text>", y - 7);
        let longest = of_kind.iter().flat_map(|link| &link.waiting).max().copied().unwrap_or(0).max(1);
        for link in of_kind {
            let name = escape_html(&link.name);
            let mean = percent_text(mean_value(&link.busy));
            let text = y + lane - 1;
            let _ = writeln!(body, "<text x=\"{}\" y=\"{text}\" text-anchor=\"end\">{name}</text>", NAME_WIDTH - 8);
            let busy = link.busy.iter().map(|busy| f64::from(*busy));
            body.push_str(&strip.draw_row("b", y, lane, busy));
            let waiting = link.waiting.iter().map(|bytes| *bytes as f64 / longest as f64);
            body.push_str(&strip.draw_row("w", y + lane + 1, 3, waiting));
            let _ = writeln!(
                body,
                "<text x=\"{}\" y=\"{text}\" text-anchor=\"end\" class=\"quiet\">{mean}</text>",
                TIMELINE_WIDTH - 2
            );
            y += row;
        }
    }
    body.push_str(&strip.draw_time_axis(timeline, y));
    y += 30;
    for (at, colour, less, more) in [(0, "b", "idle", "busy"), (1, "w", "no queue before it", "the longest queue")] {
        let x = NAME_WIDTH + at * 330;
        let _ = write!(body, "<text class=\"quiet\" x=\"{x}\" y=\"{}\">{less}</text>", y + 9);
        let scale = Strip { left: x + 8 * less.len() - less.len() * 7 / 4, width: 78 };
        body.push_str(&scale.draw_row(colour, y, 10, (0..=SHADE_COUNT).map(|shade| shade as f64 / SHADE_COUNT as f64)));
        let _ = writeln!(body, "<text class=\"quiet\" x=\"{}\" y=\"{}\">{more}</text>", scale.left + 86, y + 9);
    }
    let height = y + 16;
    let what = "how busy each link was over time";
    format!(
        "<svg class=\"timeline\" role=\"img\" aria-label=\"{what}\" viewBox=\"0 0 {TIMELINE_WIDTH} {height}\" width=\"{TIMELINE_WIDTH}\" height=\"{height}\">\n{body}</svg>\n"
    )
}

/// Draws a builder's credit, and explains it in a sentence.
fn draw_builder_credit(timeline: &Timeline, credit: &CreditOverTime) -> String {
    // One scale for all builders, so that they can be compared.
    let most = timeline.credit.iter().flat_map(|credit| credit.at.iter().flatten()).max().copied().unwrap_or(0).max(1);
    let together = credit.at.len().div_ceil(MOST_ROWS).max(1);
    let rows = credit.at.len().div_ceil(together);
    let lane = (176 / rows.max(1)).clamp(3, 11);
    let strip = Strip { left: 62, width: CREDIT_PICTURE_WIDTH - 62 - 8 };
    let mut body = String::new();
    let _ = writeln!(body, "<text class=\"head\" x=\"0\" y=\"13\">{}</text>", escape_html(&credit.receiver));
    let mut y = 20;
    for (number, some) in credit.at.chunks(together).enumerate() {
        // A name is shown if there is room for it.
        if lane >= 9 || number % 10usize.div_ceil(lane) == 0 {
            let name = format!("sender-{}", number * together);
            let _ = writeln!(
                body,
                "<text class=\"small\" x=\"56\" y=\"{}\" text-anchor=\"end\">{name}</text>",
                y + lane.max(8) - 1
            );
        }
        let steps = some.first().map_or(0, Vec::len);
        let shares = (0..steps).map(|step| {
            let largest = some.iter().filter_map(|at| at.get(step)).max().copied().unwrap_or(0);
            largest as f64 / most as f64
        });
        body.push_str(&strip.draw_row("c", y, lane, shares));
        y += lane + 1;
    }
    body.push_str(&strip.draw_time_axis(timeline, y));
    let height = y + 20;
    let svg = format!(
        "<svg class=\"timeline\" role=\"img\" aria-label=\"where the credit of {} was\" viewBox=\"0 0 {CREDIT_PICTURE_WIDTH} {height}\" width=\"{CREDIT_PICTURE_WIDTH}\" height=\"{height}\">\n{body}</svg>",
        escape_html(&credit.receiver)
    );
    format!("<div>{svg}{}</div>\n", paragraph_html("quiet", &credit_sentence(credit, most)))
}

/// Returns the explanation of a builder's picture.
fn credit_sentence(credit: &CreditOverTime, most: u64) -> String {
    let sums: Vec<u64> = credit.at.iter().map(|at| at.iter().sum()).collect();
    let all: u64 = sums.iter().sum();
    if all == 0 {
        return "It had no open requests at any sample.".into();
    }
    let largest = sums.iter().enumerate().max_by_key(|(_, sum)| **sum);
    let (at, sum) = largest.map_or((0, 0), |(at, sum)| (at, *sum));
    let held = match credit.window.iter().sum::<u64>() {
        0 => format!(
            "Without credits the builder requests everything at once: {} on average",
            format_volume(all / (credit.window.len() as u64).max(1))
        ),
        window => format!("{} of its credit was in use", percent_text(all as f64 / window as f64)),
    };
    format!(
        "{held}, {} of this from sender-{at} (an even share is {}). Darkest: {} requested from one sender and not received; a dark row is a sender that delays this builder.",
        percent_text(sum as f64 / all as f64),
        percent_text(1.0 / sums.len() as f64),
        format_volume(most)
    )
}

/// Returns a sentence on the uplink that was idle most, and why.
fn idle_uplink_sentence(timeline: &Timeline) -> Option<String> {
    let link = most_idle_link(timeline, LinkKind::Up)?;
    let busy =
        format!("The most idle uplink, {}, was busy {} of the time", link.name, percent_text(mean_value(&link.busy)));
    let number: usize = link.name.strip_prefix("sender-")?.parse().ok()?;
    if timeline.credit.is_empty() || mean_value(&link.busy) > SATURATED_FRACTION {
        return Some(format!("{busy}."));
    }
    let [mut unasked, mut full, mut other] = [0.0; 3];
    for (step, busy) in link.busy.iter().enumerate() {
        let idle = 1.0 - f64::from(*busy);
        let mut asking =
            timeline.credit.iter().filter(|credit| credit_at_step(&credit.at, number, step) > 0).peekable();
        let time = if asking.peek().is_none() {
            &mut unasked
        } else if asking.all(|credit| has_queue(timeline, credit, step)) {
            &mut full
        } else {
            &mut other
        };
        *time += idle;
    }
    let all = unasked + full + other;
    let why = if unasked > 0.995 * all {
        "No builder had requested anything from it.".to_owned()
    } else {
        format!(
            "For {} of its idle time no builder had requested data from it; for {} all data that it had sent waited at its receivers' ports; in the rest of the time requests or data were on their way.",
            percent_text(unasked / all),
            percent_text(full / all)
        )
    };
    Some(format!("{busy}. {why}"))
}

/// Returns a sentence on the downlink that was idle most, and where its credit was.
fn idle_downlink_sentence(timeline: &Timeline) -> Option<String> {
    let link = most_idle_link(timeline, LinkKind::Down)?;
    let busy =
        format!("The most idle downlink, {}, was busy {} of the time", link.name, percent_text(mean_value(&link.busy)));
    let credit = timeline.credit.iter().find(|credit| credit.receiver == link.name);
    let Some(credit) = credit.filter(|_| mean_value(&link.busy) <= SATURATED_FRACTION) else {
        return Some(format!("{busy}."));
    };
    let mut at = vec![0.0; credit.at.len()];
    let (mut with_busy, mut unasked, mut all_idle) = (0.0, 0.0, 0.0);
    for (step, busy) in link.busy.iter().enumerate() {
        let idle = 1.0 - f64::from(*busy);
        let asked: u64 = (0..at.len()).map(|sender| credit_at_step(&credit.at, sender, step)).sum();
        all_idle += idle;
        if asked == 0 {
            unasked += idle;
            continue;
        }
        for (sender, sum) in at.iter_mut().enumerate() {
            let part = idle * credit_at_step(&credit.at, sender, step) as f64 / asked as f64;
            *sum += part;
            let name = format!("sender-{sender}");
            let uplink = timeline.links.iter().find(|link| link.kind == LinkKind::Up && link.name == name);
            if uplink.and_then(|link| link.busy.get(step)).is_some_and(|busy| f64::from(*busy) >= BUSY_FRACTION) {
                with_busy += part;
            }
        }
    }
    if unasked > 0.5 * all_idle {
        return Some(format!(
            "{busy}. For {} of its idle time its builder had no open requests.",
            percent_text(unasked / all_idle)
        ));
    }
    let asked = (all_idle - unasked).max(1e-12);
    let mut order: Vec<usize> = (0..at.len()).collect();
    order.sort_by(|a, b| at[*b].total_cmp(&at[*a]));
    let most = order.iter().take(3).filter(|sender| at[**sender] > 0.005 * asked);
    let most: Vec<String> =
        most.map(|sender| format!("sender-{sender} ({})", percent_text(at[*sender] / asked))).collect();
    Some(format!(
        "{busy}. While it was idle, {} of its credit was at senders that were busy sending (to other builders, or data of earlier requests); most of it at {}.",
        percent_text(with_busy / asked),
        most.join(", ")
    ))
}

/// Fraction of time from which on a link counts as always busy, and needs no explanation.
const SATURATED_FRACTION: f64 = 0.985;
/// Fraction of a step from which on a sender counts as busy in it.
const BUSY_FRACTION: f64 = 0.9;

fn most_idle_link(timeline: &Timeline, kind: LinkKind) -> Option<&LinkOverTime> {
    let of_kind = timeline.links.iter().filter(|link| link.kind == kind && !link.busy.is_empty());
    of_kind.min_by(|a, b| mean_value(&a.busy).total_cmp(&mean_value(&b.busy)))
}

/// Returns the port that a builder's credit is for.
fn downlink_of_builder<'a>(timeline: &'a Timeline, credit: &CreditOverTime) -> Option<&'a LinkOverTime> {
    timeline.links.iter().find(|link| link.kind == LinkKind::Down && link.name == credit.receiver)
}

/// True if data waited before a builder's port in this step.
fn has_queue(timeline: &Timeline, credit: &CreditOverTime, step: usize) -> bool {
    downlink_of_builder(timeline, credit).and_then(|port| port.waiting.get(step)) > Some(&0)
}

fn credit_at_step(at: &[Vec<u64>], sender: usize, step: usize) -> u64 {
    at.get(sender).and_then(|at| at.get(step)).copied().unwrap_or(0)
}

fn mean_value(values: &[f32]) -> f64 {
    values.iter().map(|value| f64::from(*value)).sum::<f64>() / values.len().max(1) as f64
}

fn percent_text(share: f64) -> String {
    format!("{:.0} %", if share.is_finite() { share * 100.0 } else { 0.0 })
}

fn shade_of_share(share: f64) -> usize {
    ((share.clamp(0.0, 1.0) * SHADE_COUNT as f64).round() as usize).min(SHADE_COUNT)
}

/// Horizontal extent of the time axis, in pixels.
#[derive(Debug, Clone, Copy)]
struct Strip {
    left: usize,
    width: usize,
}

impl Strip {
    /// Draws a row of shares from 0 to 1, in shades of a colour: one path for each shade.
    fn draw_row(self, colour: &str, y: usize, height: usize, shares: impl Iterator<Item = f64>) -> String {
        let shades: Vec<usize> = shares.map(shade_of_share).collect();
        let mut paths = vec![String::new(); SHADE_COUNT];
        let wide = self.width as f64 / shades.len().max(1) as f64;
        let mut from = 0;
        while from < shades.len() {
            let shade = shades[from];
            let to = from + shades[from..].iter().take_while(|other| **other == shade).count();
            // Shade 0 is the background.
            if let Some(path) = shade.checked_sub(1).and_then(|shade| paths.get_mut(shade)) {
                let (x, length) = (self.left as f64 + from as f64 * wide, (to - from) as f64 * wide);
                let _ = write!(path, "M{x:.1} {y}h{length:.2}v{height}h-{length:.2}z");
            }
            from = to;
        }
        let Self { left, width } = self;
        let mut out = format!("<path class=\"{colour}0\" d=\"M{left} {y}h{width}v{height}h-{width}z\"/>");
        for (number, path) in (1..).zip(paths).filter(|(_, path)| !path.is_empty()) {
            let _ = write!(out, "<path class=\"{colour}{number}\" d=\"{path}\"/>");
        }
        out.push('\n');
        out
    }

    /// Draws the time axis below the last row.
    fn draw_time_axis(self, timeline: &Timeline, y: usize) -> String {
        let steps = timeline.links.first().map_or(0, |link| link.busy.len());
        let steps = timeline.credit.first().map_or(steps, |credit| credit.window.len());
        let all = (steps as f64 * timeline.step_seconds * 1e3).max(1e-9);
        let (scale, unit) = if all > 5000.0 { (1e-3, "s") } else { (1.0, "ms") };
        let marks = (self.width / 90).max(1) as f64;
        // The distance of marks is 1, 2 or 5 times a power of ten.
        let rough = all / marks;
        let power = 10f64.powf(rough.log10().floor());
        let apart = [1.0, 2.0, 5.0, 10.0].into_iter().map(|times| times * power).find(|apart| *apart >= rough);
        let apart = apart.unwrap_or(rough);
        let from = timeline.from_seconds * 1e3;
        let first = (from / apart).ceil() * apart;
        let mut out = String::new();
        for mark in (0..).map(|number| first + f64::from(number) * apart).take_while(|at| *at <= from + all * 1.0001) {
            let x = self.left as f64 + (mark - from) / all * self.width as f64;
            let _ = write!(out, "<path class=\"tick\" d=\"M{x:.1} {y}v5\"/>");
            let text = format!("{} {unit}", ((mark * scale) * 1e3).round() / 1e3);
            let anchor = if x > (self.left + self.width) as f64 - 16.0 { "end" } else { "middle" };
            let _ = writeln!(
                out,
                "<text class=\"small quiet\" x=\"{x:.1}\" y=\"{}\" text-anchor=\"{anchor}\">{text}</text>",
                y + 16
            );
        }
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn link(name: &str, kind: LinkKind, busy: &[f32], waiting: &[u64]) -> LinkOverTime {
        let (busy, waiting) = (busy.to_vec(), waiting.to_vec());
        LinkOverTime { name: name.into(), kind, rate_bits_per_second: 1_000_000_000, busy, waiting }
    }

    /// Both builders ask sender-0; sender-1 is asked only in the last step, when all it sent waits at receiver-0.
    fn lopsided() -> Timeline {
        let credit = |name: &str, at: [[u64; 4]; 2]| CreditOverTime {
            receiver: name.into(),
            window: vec![200; 4],
            at: at.map(|at| at.to_vec()).to_vec(),
        };
        Timeline {
            from_seconds: 0.0,
            step_seconds: 0.001,
            links: vec![
                link("sender-0", LinkKind::Up, &[1.0; 4], &[0; 4]),
                link("sender-1", LinkKind::Up, &[0.0; 4], &[0; 4]),
                link("receiver-0", LinkKind::Down, &[0.75; 4], &[0, 0, 0, 9]),
                link("receiver-1", LinkKind::Down, &[0.25; 4], &[0; 4]),
            ],
            credit: vec![credit("receiver-0", [[50; 4], [0, 0, 0, 50]]), credit("receiver-1", [[100; 4], [0; 4]])],
            again: SentAgain { fast: 7, tail_loss_probes: 1, after_timeout: 0, needless: 3 },
        }
    }

    #[test]
    fn a_sentence_says_which_link_was_idle_and_why() {
        let timeline = lopsided();
        assert_eq!(
            idle_uplink_sentence(&timeline).unwrap(),
            "The most idle uplink, sender-1, was busy 0 % of the time. For 75 % of its idle time no builder had requested data from it; for 25 % all data that it had sent waited at its receivers' ports; in the rest of the time requests or data were on their way."
        );
        assert_eq!(
            idle_downlink_sentence(&timeline).unwrap(),
            "The most idle downlink, receiver-1, was busy 25 % of the time. While it was idle, 100 % of its credit was at senders that were busy sending (to other builders, or data of earlier requests); most of it at sender-0 (100 %)."
        );
        assert!(
            credit_sentence(&timeline.credit[0], 100)
                .starts_with("31 % of its credit was in use, 80 % of this from sender-0")
        );
    }

    #[test]
    fn a_laboratory_that_sees_no_credit_still_shows_links() {
        let timeline = Timeline { credit: Vec::new(), ..lopsided() };
        let section = timeline_section(&timeline);
        assert!(section.contains("receiver-1, was busy 25 % of the time.</p>"), "{section}");
        assert!(!section.contains("credit was"));
        // An empty timeline is a section, too.
        assert!(super::timeline_section(&Timeline::default()).contains("Retransmitted"));
    }

    #[test]
    fn a_row_has_a_path_for_each_shade_and_none_for_nothing() {
        let row = Strip { left: 0, width: 100 }.draw_row("b", 5, 10, [0.0, 1.0, 1.0, 0.5].into_iter());
        let paths: Vec<&str> = row.trim().split_inclusive("/>").collect();
        assert_eq!(
            paths,
            [
                "<path class=\"b0\" d=\"M0 5h100v10h-100z\"/>",
                "<path class=\"b6\" d=\"M75.0 5h25.00v10h-25.00z\"/>",
                "<path class=\"b12\" d=\"M25.0 5h50.00v10h-50.00z\"/>",
            ]
        );
    }
}
