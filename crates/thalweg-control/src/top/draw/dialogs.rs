//! Dialogs, over the middle of the screen.

use super::parts::{end_of_text, shorten_text, width_of, wrap_lines};
use super::{Look, Tone};
use crate::top::screen::{Dialog, Purpose, Screen};
use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::style::Modifier;
use ratatui::text::{Line, Span};
use ratatui::widgets::{Block, Clear, Paragraph, Widget};
use thalweg_text::replace_controls;

/// Width of a dialog, in columns; that of a log is that of the screen.
const DIALOG_COLUMNS: u16 = 64;

const HELP: [&str; 14] = [
    "[s]tart is legal now; the key of (s)tart says why it is not.",
    "",
    "c  configure   read the topology, start nodes that are missing",
    "a  arm         examine each host, wait for all sources",
    "s  start       begin a run; asks for its note",
    "p  pause       r  resume",
    "n  next        begin another run without a gap",
    "e  step        mark a step of a scan between two events",
    "o  stop        end the run; asks before it does",
    "b  abort       end it now: events that are not closed are lost",
    "k  acknowledge the first alarm that is not acknowledged",
    "Tab            processes: s start, o stop, r restart, l log",
    "Up, Down       sources that have no room; the process selected",
    "q  quit        the run goes on",
];

pub(super) fn draw_dialog(screen: &Screen, look: Look, area: Rect, buffer: &mut Buffer) {
    let Some(dialog) = &screen.dialog else { return };
    let is_log = matches!(dialog, Dialog::Log { .. });
    let width = if is_log { area.width } else { area.width.min(DIALOG_COLUMNS + 4) };
    let inner = usize::from(width.saturating_sub(4));
    let room = usize::from(area.height.saturating_sub(2));
    let (title, mut lines, keys) = match dialog {
        Dialog::Help => (" Keys ".to_owned(), HELP.map(Line::from).to_vec(), "any key: back"),
        Dialog::Confirm { question, .. } => (
            " Sure? ".to_owned(),
            wrap_lines(&replace_controls(question), inner, 3, look.tone_style(Tone::Strong)),
            "y: yes  n: no",
        ),
        Dialog::Text { purpose, text } => text_lines(purpose, text, look, inner),
        Dialog::Log { node, lines } => {
            let waits = ["…".to_owned()];
            let lines = lines.as_deref().unwrap_or(&waits);
            let skipped = lines.len().saturating_sub(room.saturating_sub(2));
            let shown = lines.iter().skip(skipped).map(|line| Line::from(shorten_text(&replace_controls(line), inner)));
            (format!(" Log of {} ", replace_controls(node)), shown.collect(), "any key: back")
        }
    };
    lines.push(Line::default());
    lines.push(Line::from(look.span(keys, Tone::Quiet)));
    let height = u16::try_from(lines.len().min(room) + 2).unwrap_or(area.height).min(area.height);
    let place = Rect { x: area.x + (area.width - width) / 2, y: area.y + (area.height - height) / 2, width, height };
    Clear.render(place, buffer);
    let block = Block::bordered().title(title).padding(ratatui::widgets::Padding::horizontal(1));
    Paragraph::new(lines).block(block).render(place, buffer);
}

fn text_lines(purpose: &Purpose, text: &str, look: Look, width: usize) -> (String, Vec<Line<'static>>, &'static str) {
    let (title, mut lines, keys) = match purpose {
        Purpose::Run(command, kind) => (
            format!(" {command}: kind and note of the run "),
            vec![Line::from(vec![look.span("kind: ", Tone::Plain), look.span(kind.name(), Tone::Strong)])],
            "Tab: other kind  Enter: begin  Esc: leave it",
        ),
        Purpose::Step => (" step: its label ".to_owned(), Vec::new(), "Enter: mark the step  Esc: leave it"),
        Purpose::Acknowledge { alarm, .. } => {
            let lines = wrap_lines(&replace_controls(alarm), width, 3, look.tone_style(Tone::Strong));
            (" Acknowledge an alarm: why? ".to_owned(), lines, "Enter: acknowledge  Esc: leave it")
        }
    };
    let label = match purpose {
        Purpose::Run(..) => "note: ",
        Purpose::Step => "label: ",
        Purpose::Acknowledge { .. } => "why: ",
    };
    // Of a long text, the end is shown: that is where one types.
    let room = width.saturating_sub(width_of(label) + 1);
    let shown = end_of_text(text, room);
    let cursor = Span::styled(" ", look.tone_style(Tone::Plain).add_modifier(Modifier::REVERSED));
    lines.push(Line::from(vec![look.span(label, Tone::Plain), look.span(shown, Tone::Strong), cursor]));
    (title, lines, keys)
}
