//! Comparison of Thalweg with other programs, formatted for people.

use super::html::{host_table, warning_list};
use super::markdown;
use super::plot::PlotError;
use crate::peers::{Compared, Pairing, PeersReport};
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, VPos};
use std::borrow::Cow;
use std::fmt::Write;
use thalweg_text::html;
use thalweg_text::plot::{self, Area, COLOURS, INK, PAPER, Refused, text_style};
use thalweg_text::{break_into_lines, format_number, replace_controls, wrap_words};

/// Formats a pairing's rows for a terminal, with a heading above the first.
pub fn format_pairing(pairing: &Pairing, first: bool) -> String {
    let mut out = String::new();
    if first {
        let row = ["", "Thalweg", "peer", "", "ratio", "from to"];
        out.push_str(&format_line(row));
    }
    let peer = format!("{} {}", pairing.peer, pairing.version);
    out.push_str(&wrap_words("", &format!("{}: {} ({})", pairing.name, pairing.work, peer.trim())));
    for figure in &pairing.figures {
        let [name, ours, theirs, unit, ratio, range] = figure_cells(figure);
        out.push_str(&format_line([&name, &ours, &theirs, &unit, &ratio, &range]));
    }
    pairing.warnings.iter().for_each(|warning| out.push_str(&wrap_words("  warning: ", &warning.text)));
    if let Some(error) = &pairing.error {
        out.push_str(&wrap_words("  failed: ", error));
    }
    if !pairing.note.is_empty() {
        out.push_str(&wrap_words("  ", &pairing.note));
    }
    out
}

/// Formats the end of the terminal output: missing peers, and warnings.
pub fn format_peers_end(report: &PeersReport) -> String {
    let mut out = String::from("\n");
    out.push_str(&wrap_words("", &format!("measured over {}", report.network)));
    out.push_str(&wrap_words(
        "ratio: ",
        "Thalweg's figure by the peer's, the median over the turns; from, to: the range",
    ));
    for missing in &report.missing {
        out.push_str(&wrap_words(
            "not installed: ",
            &format!("{}: {}; {}", missing.peer, missing.why, missing.install),
        ));
    }
    report.warnings.iter().for_each(|warning| out.push_str(&wrap_words("warning: ", warning)));
    out
}

/// Formats the whole comparison in Markdown.
pub fn peers_markdown(report: &PeersReport) -> String {
    let mut out = format!("# {TITLE}\n\nBegun {}, over {}.\n\n", report.began, markdown::escape_text(&report.network));
    out.push_str(&markdown::warning_list(&report.warnings));
    out.push_str(&markdown::format_table(&table_headings(), "---", table_rows(report)));
    out.push_str(&markdown::format_list(&pairing_remarks(report)));
    out.push_str("## Commands\n\n");
    for pairing in &report.pairings {
        let _ = writeln!(out, "- {}: {}", markdown::escape_text(&pairing.name), markdown::format_code(&pairing.ours));
        for command in &pairing.commands {
            let _ = writeln!(out, "  - {}", markdown::format_code(command));
        }
    }
    out.push('\n');
    out + markdown::host_table("Host", &report.host).trim_end() + "\n"
}

/// Formats the whole comparison as a self-contained page.
///
/// # Errors
/// If the picture cannot be drawn.
pub fn peers_html(report: &PeersReport) -> Result<String, PlotError> {
    let mut body = html::paragraph_html("quiet", &format!("Begun {}, over {}.", report.began, report.network));
    body.push_str(&warning_list(&report.warnings));
    match draw_pairs(report, &[]) {
        Ok(picture) => {
            let (notes, origin) = ([PAIRS_NOTE.to_owned()], report.provenance().sentences());
            body.push_str(&html::figure_with_notes_html(&picture, &notes, &origin));
        }
        Err(PlotError::Empty) => {}
        Err(error) => return Err(error),
    }
    body.push_str(&html::table_html("words", &table_headings(), table_rows(report)));
    body.push_str(&html::list_html("", pairing_remarks(report)));
    body.push_str("<h2>Commands</h2>\n");
    for pairing in &report.pairings {
        let commands = [&pairing.ours].into_iter().chain(&pairing.commands).map(|command| html::escape_html(command));
        let _ = writeln!(
            body,
            "<h3>{}</h3>\n<pre>{}</pre>",
            html::escape_html(&pairing.name),
            commands.collect::<Vec<_>>().join("\n")
        );
    }
    body.push_str(&host_table("Host", &report.host));
    Ok(html::render_page(TITLE, "", &body))
}

/// Formats every turn of every figure as CSV, after the origin in lines that begin with `#`.
pub fn peers_csv(report: &PeersReport) -> String {
    let headings = ["pairing", "peer", "version", "figure", "unit", "turn", "thalweg", "peer_value"];
    let rows = report.pairings.iter().flat_map(|pairing| {
        pairing.figures.iter().flat_map(move |figure| {
            figure.ours.iter().zip(&figure.theirs).enumerate().map(move |(turn, (ours, theirs))| {
                let Pairing { name, peer, version, .. } = pairing;
                let names = [name, peer, version, &figure.name, &figure.unit].map(Clone::clone);
                let values = [(turn + 1).to_string(), ours.to_string(), theirs.to_string()];
                names.into_iter().chain(values).collect()
            })
        })
    });
    plot::format_csv(&report.provenance(), &headings, rows)
}

/// Draws the principal figure of each pairing as an SVG file: two bars, Thalweg's above the peer's, with whiskers from
/// the least to the greatest turn. Each pair has its own scale; the origin is below.
///
/// # Errors
/// [`PlotError::Empty`] if no figure was measured; others if the picture cannot be drawn.
pub fn peers_svg(report: &PeersReport) -> Result<String, PlotError> {
    let warnings = report.warnings.iter().map(|warning| format!("Warning: {warning}."));
    let notes: Vec<String> = std::iter::once(PAIRS_NOTE.to_owned()).chain(warnings).collect();
    draw_pairs(report, &plot::caption_lines(&notes, &report.provenance()))
}

const PAIRS_NOTE: &str = "Bars are medians over the turns; whiskers reach from the least to the greatest turn. Each pair has its own scale. A warning applies to hollow bars.";

fn draw_pairs(report: &PeersReport, lines: &[String]) -> Result<String, PlotError> {
    let pairs: Vec<(&Pairing, &Compared)> =
        report.pairings.iter().filter_map(|pairing| Some((pairing, pairing.figures.first()?))).collect();
    if pairs.is_empty() {
        return Err(PlotError::Empty);
    }
    let headings: Vec<Vec<String>> = pairs.iter().map(|(pairing, figure)| pair_heading(pairing, figure)).collect();
    let foot = headings.iter().map(|lines| pair_height(lines)).fold(HEAD_HEIGHT, i32::saturating_add);
    let foot_pixels = foot.unsigned_abs();
    let drawn = plot::draw_svg(foot_pixels + plot::caption_height(lines), |area| {
        area.draw(&Text::new(TITLE, (12, 10), text_style(24, HPos::Left, VPos::Top)))?;
        let mut top = HEAD_HEIGHT;
        for ((pairing, figure), heading) in pairs.iter().zip(&headings) {
            draw_pair(area, top, heading, pairing, figure)?;
            top += pair_height(heading);
        }
        plot::draw_caption(area, foot_pixels, lines)
    });
    Ok(drawn?)
}

const HEAD_HEIGHT: i32 = 48;
/// Height of the two bars of a pair with the space below, and of a line of its heading, in pixels.
const PAIR_BARS_HEIGHT: i32 = 46;
const PAIR_LINE_HEIGHT: i32 = 20;
/// Longest line of a pair's heading, in characters.
const PAIR_COLUMNS: usize = 78;
/// Horizontal positions at which bars begin, and at which the longest ends.
const BARS: (i32, i32) = (110, plot::PICTURE_WIDTH as i32 - 120);

/// Returns the lines above a pair of bars: the work, the figure, and whether more of it is better.
fn pair_heading(pairing: &Pairing, figure: &Compared) -> Vec<String> {
    let better = if figure.higher_is_better { "more is better" } else { "less is better" };
    let text = format!("{}: {}, {better}", pairing.work, figure.name);
    break_into_lines(&replace_controls(&text), PAIR_COLUMNS).into_iter().map(Cow::into_owned).collect()
}

fn pair_height(heading: &[String]) -> i32 {
    i32::try_from(heading.len()).map_or(i32::MAX, |lines| PAIR_BARS_HEIGHT.saturating_add(PAIR_LINE_HEIGHT * lines))
}

/// Draws two bars below the work they did.
fn draw_pair(
    area: &Area<'_>,
    top: i32,
    heading: &[String],
    pairing: &Pairing,
    figure: &Compared,
) -> Result<(), Refused> {
    let Compared { unit, ours, theirs, ours_median, theirs_median, .. } = figure;
    for (line, text) in (0..).zip(heading) {
        let place = (16, top + PAIR_LINE_HEIGHT * line);
        area.draw(&Text::new(text.clone(), place, text_style(18, HPos::Left, VPos::Top)))?;
    }
    let top = top + pair_height(heading) - PAIR_BARS_HEIGHT;
    let most = ours.iter().chain(theirs).fold(f64::MIN_POSITIVE, |most, value| most.max(*value));
    let rows = [("Thalweg", ours_median, ours, COLOURS[0]), (&pairing.peer, theirs_median, theirs, COLOURS[6])];
    for (row, (side, median, turns, colour)) in (0..).zip(rows) {
        let y = top + 20 * row;
        area.draw(&Text::new(side, (BARS.0 - 8, y + 7), text_style(18, HPos::Right, VPos::Center)))?;
        let ends = turns.iter().fold((*median, *median), |(least, most), turn| (least.min(*turn), most.max(*turn)));
        let [least, middle, greatest] = [ends.0, *median, ends.1].map(|value| bar_end_x(value, most));
        let fill = if pairing.warnings.is_empty() { colour } else { PAPER };
        area.draw(&Rectangle::new([(BARS.0, y), (middle, y + 14)], fill.filled()))?;
        area.draw(&Rectangle::new([(BARS.0, y), (middle, y + 14)], colour.stroke_width(2)))?;
        for path in [
            [(least, y + 7), (greatest, y + 7)],
            [(least, y + 3), (least, y + 11)],
            [(greatest, y + 3), (greatest, y + 11)],
        ] {
            area.draw(&PathElement::new(path, INK))?;
        }
        let value = format!("{} {unit}", format_number(*median));
        area.draw(&Text::new(value, (greatest.max(middle) + 8, y + 7), text_style(18, HPos::Left, VPos::Center)))?;
    }
    Ok(())
}

/// Returns the horizontal position at which the bar of a value ends, if the bar of `most` is the longest.
#[expect(clippy::cast_possible_truncation, reason = "pixels")]
fn bar_end_x(value: f64, most: f64) -> i32 {
    BARS.0 + (f64::from(BARS.1 - BARS.0) * value / most) as i32
}

const TITLE: &str = "Thalweg beside other programs";

fn format_line(row: [&str; 6]) -> String {
    let [name, ours, theirs, unit, ratio, range] = row;
    let mut out = format!("  {name:<26}  {ours:>8}  {theirs:>8} {unit:<6}  {ratio:>6}  {range:>12}");
    out.truncate(out.trim_end().len());
    out.push('\n');
    out
}

fn figure_cells(figure: &Compared) -> [String; 6] {
    let Compared { name, unit, ours_median, theirs_median, ratio, .. } = figure;
    let range = format!("{} {}", format_number(ratio.least), format_number(ratio.greatest));
    [
        name.clone(),
        format_number(*ours_median),
        format_number(*theirs_median),
        unit.clone(),
        format_number(ratio.median),
        range,
    ]
}

fn table_headings() -> Vec<String> {
    ["work", "peer", "figure", "Thalweg", "peer", "unit", "ratio", "from to"].map(str::to_owned).to_vec()
}

fn table_rows(report: &PeersReport) -> impl Iterator<Item = Vec<String>> {
    report.pairings.iter().flat_map(|pairing| {
        let mark = if pairing.warnings.is_empty() { "" } else { " !" };
        let first =
            [format!("{}{mark}", pairing.work), format!("{} {}", pairing.peer, pairing.version).trim().to_owned()];
        pairing.figures.iter().map(move |figure| first.iter().cloned().chain(figure_cells(figure)).collect())
    })
}

fn pairing_remarks(report: &PeersReport) -> Vec<String> {
    let doubts = report
        .pairings
        .iter()
        .flat_map(|one| one.warnings.iter().map(move |warning| format!("! {}: {}", one.name, warning.text)));
    let notes = report.pairings.iter().filter(|one| !one.note.is_empty());
    let notes = notes.map(|one| format!("{}: {}", one.name, one.note));
    let failed = report.pairings.iter().filter_map(|one| Some(format!("{} failed: {}", one.name, one.error.as_ref()?)));
    let missing =
        report.missing.iter().map(|one| format!("{} is not installed ({}): {}", one.peer, one.why, one.install));
    failed.chain(doubts).chain(notes).chain(missing).collect()
}
