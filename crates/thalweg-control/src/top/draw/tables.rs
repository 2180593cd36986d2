//! What is wrong, sources, builders, ledger, messages; processes.

use super::parts::{
    Column, Section, clock_time, fill_width, format_percent, format_span, head_of, join_cells, list_names, wrap_lines,
};
use super::{Look, Tone, WIDE_COLUMNS, severity_sign, severity_tone};
use crate::status::{BuilderView, IncompleteView, LedgerView, ProcessView, SourceView, Status};
use crate::top::screen::{Contact, Screen};
use crate::top::trouble::{Trouble, find_troubles};
use ratatui::style::{Modifier, Style};
use ratatui::text::{Line, Span};
use std::cmp::Reverse;
use thalweg_node::service::Severity;
use thalweg_text::{format_count, format_number, format_rate, format_seconds, format_size};

/// Longest name of a source that is shown whole.
const MAX_NAME_COLUMNS: usize = 24;
/// Rows of the sections that each gets before others get more.
const LEAST_TROUBLES: usize = 3;
const LEAST_SOURCES: usize = 4;
const LEAST_MESSAGES: usize = 2;
/// Lines that a trouble gets.
const TROUBLE_LINES: usize = 2;

pub(super) fn run_sections(screen: &Screen, status: &Status, look: Look, width: usize) -> Vec<Section> {
    vec![
        trouble_section(screen, status, look, width),
        source_section(status, screen.scroll, look, width),
        builder_section(status, look, width),
        ledger_section(status, look, width),
        message_section(status, look, width),
    ]
}

fn trouble_section(screen: &Screen, status: &Status, look: Look, width: usize) -> Section {
    let troubles = find_troubles(status);
    let mut rows: Vec<Line<'static>> =
        troubles.iter().flat_map(|trouble| trouble_lines(trouble, look, width)).collect();
    rows.extend(status.incomplete_events.first().map(|event| incomplete_line(event, look)));
    let silenced = troubles.iter().filter(|trouble| trouble.is_acknowledged()).count();
    let (remark, tone) = match (rows.len(), silenced) {
        (0, _) if screen.contact == Contact::Live => ("nothing".to_owned(), Tone::Good),
        (0, _) => ("not known without contact".to_owned(), Tone::Bad),
        (_, 0) => (String::new(), Tone::Plain),
        (_, silenced) => (format!("{silenced} acknowledged"), Tone::Plain),
    };
    Section {
        title: look.title_line(" What is wrong", &remark, tone, width),
        rows,
        scroll: 0,
        least_rows: LEAST_TROUBLES,
        tells_rest: true,
    }
}

fn trouble_lines(trouble: &Trouble, look: Look, width: usize) -> Vec<Line<'static>> {
    let place = if trouble.host.is_empty() { String::new() } else { format!(" on {}", trouble.host) };
    let mut text = format!("{}{place}: {}", trouble.subject, trouble.text);
    let mut sign = severity_sign(trouble.severity);
    let mut tone = severity_tone(trouble.severity);
    let since = trouble.first_alarm_time().map_or_else(String::new, clock_time);
    if let Some(alarm) = trouble.alarms.first().filter(|_| trouble.is_acknowledged()) {
        let by = alarm.acknowledged_by.as_deref().unwrap_or("a client");
        text += &format!(" (acknowledged by {by}: {})", alarm.why);
        (sign, tone) = ("-", Tone::Quiet);
    }
    let text = look.span(text, tone);
    let head = look.span(format!(" {sign} {since:<8} "), tone);
    let lines = wrap_lines(&text.content, width.saturating_sub(head.width()), TROUBLE_LINES, text.style);
    let lines = lines.into_iter().enumerate().map(|(index, line)| {
        let head = if index == 0 { head.clone() } else { look.span(" ".repeat(head.width()), tone) };
        Line::from_iter(std::iter::once(head).chain(line.spans)).style(text.style)
    });
    lines.collect()
}

fn incomplete_line(event: &IncompleteView, look: Look) -> Line<'static> {
    let missing = event.missing.iter().map(|missing| {
        let address = missing.address.as_ref().map(|address| format!(" ({address})")).unwrap_or_default();
        format!("{} on {}{address}", missing.source, missing.host)
    });
    let missing = list_names(&missing.collect::<Vec<_>>());
    let text = format!(" !          event {} is incomplete without {missing}", format_count(event.event));
    Line::from(look.span(text, Tone::Poor))
}

/// Returns the fragments of a source that were accepted and cannot be recorded any more.
fn lost_fragments(ledger: &LedgerView) -> u64 {
    let lost = [ledger.dropped, ledger.lost_in_device, ledger.late, ledger.corrupt, ledger.lost];
    lost.into_iter().fold(0, u64::saturating_add)
}

fn source_section(status: &Status, scroll: usize, look: Look, width: usize) -> Section {
    let is_wide = width >= WIDE_COLUMNS;
    let name_columns = if is_wide { MAX_NAME_COLUMNS } else { 12 };
    let mut columns = vec![
        Column::text_column("Source", name_columns),
        Column::number_column("Rate", 10),
        Column::number_column("Events/s", 8),
        Column::number_column("Backlog", 7),
        Column::number_column("Dead", 5),
        Column::number_column("Lost", 7),
        Column::text_column("Silent since", 12),
    ];
    if is_wide {
        columns.extend([
            Column::number_column("Credit", 10),
            Column::number_column("Owes for", 9),
            Column::number_column("Sent again", 10),
            Column::number_column("Absent", 8),
            Column::text_column("Link", 8),
            Column::text_column("Address", 22),
        ]);
    }
    columns.push(Column::text_column("Host", 0));
    fill_width(&mut columns, width);
    // Those in trouble first, otherwise as in the topology.
    let mut sources: Vec<&SourceView> = status.sources.iter().collect();
    sources.sort_by_key(|source| Reverse(source.severity));
    let rows = sources.into_iter().map(|source| source_row(source, &columns, is_wide, look));
    let rows = rows.collect();
    Section { title: head_of(&columns, look, width), rows, scroll, least_rows: LEAST_SOURCES, tells_rest: true }
}

fn source_row(source: &SourceView, columns: &[Column], is_wide: bool, look: Look) -> Line<'static> {
    let mut cells = vec![
        source.name.clone(),
        format_rate(source.bytes_per_second),
        format_number(source.events_per_second),
        format_count(source.backlog),
        source.dead_percent.map_or_else(|| "-".into(), format_percent),
        format_count(lost_fragments(&source.ledger)),
        source.silent_since_at.map_or_else(|| "-".into(), clock_time),
    ];
    if is_wide {
        cells.extend([
            format_size(source.credit_bytes),
            format_seconds(source.owes_seconds),
            format_size(source.sent_again_bytes),
            format_count(source.absent_events),
            source.link.clone(),
            source.address.clone().unwrap_or_default(),
        ]);
    }
    cells.push(source.host.clone());
    let text = join_cells(columns, cells.iter().map(String::as_str));
    let sign = severity_sign(source.severity);
    Line::from(look.span(format!("{sign}{text}"), severity_tone(source.severity)))
}

fn builder_section(status: &Status, look: Look, width: usize) -> Section {
    let name_columns = if width >= WIDE_COLUMNS { MAX_NAME_COLUMNS } else { 12 };
    let mut columns = [
        Column::text_column("Builder", name_columns),
        Column::number_column("Rate", 10),
        Column::number_column("Events", 11),
        Column::number_column("Incomplete", 10),
        Column::number_column("Back-pressure", 13),
        Column::number_column("Disk lasts", 10),
        Column::text_column("Host", 0),
    ];
    fill_width(&mut columns, width);
    let rows: Vec<_> = status.builders.iter().map(|builder| builder_row(builder, &columns, look)).collect();
    Section { title: head_of(&columns, look, width), least_rows: rows.len().min(2), rows, scroll: 0, tells_rest: true }
}

fn builder_row(builder: &BuilderView, columns: &[Column], look: Look) -> Line<'static> {
    let disk = match (builder.disk.seconds_left, builder.disk.free_bytes) {
        (Some(seconds), _) => format_span(seconds),
        (None, Some(free)) => format_size(free),
        (None, None) => "-".into(),
    };
    let cells = [
        builder.name.clone(),
        format_rate(builder.bytes_per_second),
        format_count(builder.events),
        format_count(builder.incomplete),
        format_percent(builder.stalled_percent),
        disk,
        builder.host.clone(),
    ];
    let text = join_cells(columns, cells.iter().map(String::as_str));
    let (sign, tone) = match () {
        () if !builder.is_node_connected => ("X", Tone::Bad),
        () if builder.incomplete > 0 => ("!", Tone::Poor),
        () => (" ", Tone::Plain),
    };
    Line::from(look.span(format!("{sign}{text}"), tone))
}

/// Returns the buckets of the ledger. The last ones are losses.
fn buckets(ledger: &LedgerView) -> [(&'static str, u64, bool); 9] {
    [
        ("built", ledger.built, false),
        ("on the way", ledger.on_the_way, false),
        ("rejected", ledger.rejected, false),
        ("beyond the end", ledger.beyond_end, false),
        ("dropped", ledger.dropped, true),
        ("lost in device", ledger.lost_in_device, true),
        ("late", ledger.late, true),
        ("corrupt", ledger.corrupt, true),
        ("lost", ledger.lost, true),
    ]
}

fn ledger_section(status: &Status, look: Look, width: usize) -> Section {
    let ledger = &status.ledger;
    let sum = buckets(ledger).iter().fold(0_u64, |sum, (_, count, _)| sum.saturating_add(*count));
    let accepted = format!("{} fragments accepted", format_count(ledger.accepted));
    let (remark, tone) = match ledger.accepted.abs_diff(sum) {
        0 => (format!("{accepted}, each in one of these buckets"), Tone::Good),
        difference => (format!("X {accepted}, {} not accounted for", format_count(difference)), Tone::Bad),
    };
    let mut rows: Vec<Vec<Span<'static>>> = vec![Vec::new()];
    let mut used = 0;
    for (name, count, is_loss) in buckets(ledger) {
        let is_bad = is_loss && count > 0;
        let sign = if is_bad { "! " } else { "" };
        let span =
            look.span(format!("  {sign}{name} {}", format_count(count)), if is_bad { Tone::Poor } else { Tone::Plain });
        if used > 0 && used + span.width() > width {
            rows.push(Vec::new());
            used = 0;
        }
        used += span.width();
        rows.last_mut().into_iter().for_each(|row| row.push(span.clone()));
    }
    let rows: Vec<Line<'static>> = rows.into_iter().map(Line::from).collect();
    Section {
        title: look.title_line(" Ledger", &remark, tone, width),
        least_rows: rows.len(),
        rows,
        scroll: 0,
        tells_rest: true,
    }
}

fn message_section(status: &Status, look: Look, width: usize) -> Section {
    let rows = status.messages.iter().rev().map(|message| {
        let (sign, tone) = match message.severity {
            Severity::Info => (" ", Tone::Plain),
            Severity::Warning => ("!", Tone::Poor),
            Severity::Error => ("X", Tone::Bad),
        };
        let node = message.node.as_ref().map(|node| format!("{node}: ")).unwrap_or_default();
        let text = look.span(format!(" {sign} {node}{}", message.text), tone);
        Line::from(vec![look.span(format!(" {}", clock_time(message.at)), Tone::Quiet), text])
    });
    let rows = rows.collect();
    let title = look.title_line(" Messages", "the newest first", Tone::Plain, width);
    Section { title, rows, scroll: 0, least_rows: LEAST_MESSAGES, tells_rest: false }
}

/// Returns the table of processes, with the last line of the one that is selected.
pub(super) fn process_lines(
    screen: &Screen,
    status: &Status,
    look: Look,
    width: usize,
    height: usize,
) -> Vec<Line<'static>> {
    let name_columns = if width >= WIDE_COLUMNS { MAX_NAME_COLUMNS } else { 14 };
    let mut columns = [
        Column::text_column("Node", name_columns),
        Column::text_column("Kind", 7),
        Column::text_column("State", 8),
        Column::text_column("Since", 8),
        Column::number_column("Process", 8),
        Column::text_column("Started as", 10),
        Column::text_column("Host", 0),
    ];
    fill_width(&mut columns, width);
    let selected = status.processes.get(screen.selected);
    let last_line = selected.map(|process| format!(" Last line of {}: {}", process.node, process.last_line));
    let detail = look.span(last_line.unwrap_or_default(), Tone::Plain);
    let detail = wrap_lines(&detail.content, width, 3, detail.style);
    let rows = height.saturating_sub(detail.len() + 2);
    // The selected one is in sight.
    let first = (screen.selected + 1).saturating_sub(rows);
    let mut lines = vec![head_of(&columns, look, width)];
    for (index, process) in status.processes.iter().enumerate().skip(first).take(rows) {
        lines.push(process_row(process, &columns, index == screen.selected, look));
    }
    lines.push(Line::default());
    lines.extend(detail);
    lines.truncate(height);
    lines
}

fn process_row(process: &ProcessView, columns: &[Column], is_selected: bool, look: Look) -> Line<'static> {
    let pid = process.pid.map_or_else(|| "-".into(), |pid| pid.to_string());
    let since = clock_time(process.since_at);
    let cells: [&str; 7] =
        [&process.node, &process.kind, &process.state, &since, &pid, &process.manager, &process.host];
    let (sign, tone) = match process.state.as_str() {
        "failed" => ("X", Tone::Bad),
        "down" => ("-", Tone::Quiet),
        "starting" => (" ", Tone::Passing),
        _ => (" ", Tone::Plain),
    };
    let sign = if is_selected { ">" } else { sign };
    let span = look.span(format!("{sign}{}", join_cells(columns, cells)), tone);
    let style = if is_selected { Style::new().add_modifier(Modifier::REVERSED) } else { Style::new() };
    Line::from(span.patch_style(style))
}
