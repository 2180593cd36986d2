//! Picture of the screen: a pure function of its state. Nothing is expressed by a color alone.

mod dialogs;
mod parts;
mod tables;

use crate::status::{Status, TroubleLevel};
use crate::top::screen::{COMMAND_KEYS, Contact, PROCESS_KEYS, Screen, Tab};
use parts::{Section, clock_time, format_stopwatch, list_names, shorten_text, span_text, width_of, wrap_lines};
use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::{Line, Span};
use thalweg_text::{format_count, format_per_second, format_rate, replace_controls};

/// Width in columns from which on tables have all their columns.
const WIDE_COLUMNS: usize = 170;
/// Height in rows from which on there are empty lines between the parts.
const TALL_ROWS: usize = 40;

/// Look of the screen.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Look {
    /// True if it may have colors.
    pub is_coloured: bool,
}

/// Meaning of a piece of text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Tone {
    Plain,
    /// Not possible now, or no news.
    Quiet,
    Strong,
    Title,
    Good,
    /// On the way from one state to another.
    Passing,
    Poor,
    Bad,
}

impl Look {
    fn tone_style(self, tone: Tone) -> Style {
        let (color, modifier) = match tone {
            Tone::Plain => (None, Modifier::empty()),
            Tone::Quiet => (None, Modifier::DIM),
            Tone::Strong => (None, Modifier::BOLD),
            Tone::Title => (None, Modifier::BOLD | Modifier::UNDERLINED),
            Tone::Good => (Some(Color::Green), Modifier::empty()),
            Tone::Passing => (Some(Color::Cyan), Modifier::empty()),
            Tone::Poor => (Some(Color::Yellow), Modifier::BOLD),
            Tone::Bad => (Some(Color::Red), Modifier::BOLD),
        };
        let style = Style::new().add_modifier(modifier);
        color.filter(|_| self.is_coloured).map_or(style, |color| style.fg(color))
    }

    /// Returns a piece of text. Control characters, which could move the cursor, are replaced.
    fn span(self, text: impl AsRef<str>, tone: Tone) -> Span<'static> {
        Span::styled(replace_controls(text.as_ref()).into_owned(), self.tone_style(tone))
    }

    /// Returns a title over the whole width, with a remark.
    fn title_line(self, title: &str, remark: &str, tone: Tone, width: usize) -> Line<'static> {
        let colon = if remark.is_empty() { "" } else { ": " };
        let title = self.span(format!("{title}{colon}"), Tone::Title);
        let remark = shorten_text(&replace_controls(remark), width.saturating_sub(title.width()));
        let rest = width.saturating_sub(title.width() + width_of(&remark));
        let underlined = self.tone_style(tone).add_modifier(Modifier::UNDERLINED);
        let remark = Span::styled(remark, underlined);
        Line::from(vec![title, remark, self.span(" ".repeat(rest), Tone::Title)])
    }
}

fn severity_tone(severity: TroubleLevel) -> Tone {
    match severity {
        TroubleLevel::Ok => Tone::Plain,
        TroubleLevel::Minor => Tone::Poor,
        TroubleLevel::Major => Tone::Bad,
    }
}

/// Returns the sign of a severity, which needs no color.
fn severity_sign(severity: TroubleLevel) -> &'static str {
    match severity {
        TroubleLevel::Ok => " ",
        TroubleLevel::Minor => "!",
        TroubleLevel::Major => "X",
    }
}

/// Draws the screen into a part of a buffer. `unix`: the present time in seconds.
pub fn draw_screen(screen: &Screen, look: Look, unix: f64, area: Rect, buffer: &mut Buffer) {
    let (width, height) = (usize::from(area.width), usize::from(area.height));
    let head = head_lines(screen, look, unix, width);
    let foot = foot_lines(screen, look, width);
    let rows = height.saturating_sub(head.len() + foot.len());
    let mut body = match (&screen.status, screen.tab) {
        (None, _) => Vec::new(),
        (Some(status), Tab::Run) => {
            let has_gaps = height >= TALL_ROWS;
            Section::stack_sections(tables::run_sections(screen, status, look, width), rows, has_gaps)
        }
        (Some(status), Tab::Processes) => tables::process_lines(screen, status, look, width, rows),
    };
    body.resize(rows, Line::default());
    let lines = head.into_iter().chain(body).chain(foot);
    for (row, line) in (area.y..area.bottom()).zip(lines) {
        buffer.set_line(area.x, row, &line, area.width);
    }
    dialogs::draw_dialog(screen, look, area, buffer);
}

/// Returns the lines that are always on top: experiment, state, run, totals.
fn head_lines(screen: &Screen, look: Look, unix: f64, width: usize) -> Vec<Line<'static>> {
    let clock = format!(" {} UTC", clock_time(unix));
    let Some(status) = &screen.status else {
        return vec![Line::from(look.span(format!(" waiting for the service at {}", screen.url), Tone::Passing))];
    };
    let (badge, tone, sentence) = match &screen.contact {
        Contact::Lost { since, .. } => {
            let seconds = (unix - since).max(0.0);
            (" no contact ".to_owned(), Tone::Bad, format!("for {seconds:.0} s: the values are old; connecting again"))
        }
        Contact::Connecting | Contact::Live => {
            (format!(" {} ", status.state), state_tone(status), state_sentence(status))
        }
    };
    let badge = Span::styled(badge, look.tone_style(tone).add_modifier(Modifier::REVERSED | Modifier::BOLD));
    let name = look.span(format!(" {} ", status.experiment), Tone::Strong);
    let room = width.saturating_sub(name.width() + badge.width() + width_of(&clock) + 1);
    let sentence = shorten_text(&replace_controls(&sentence), room);
    let gap = " ".repeat(room - width_of(&sentence));
    let first = vec![name, badge, look.span(format!(" {sentence}{gap}"), Tone::Plain), look.span(clock, Tone::Quiet)];
    let second = match &screen.contact {
        Contact::Lost { problem, .. } => look.span(format!(" {problem}"), Tone::Bad),
        Contact::Connecting | Contact::Live => look.span(format!(" {}", run_text(status)), Tone::Strong),
    };
    vec![Line::from(first), Line::from(second), totals_line(status, look)]
}

fn state_tone(status: &Status) -> Tone {
    use crate::state::ExperimentState as S;
    match status.state {
        S::Idle | S::Configured => Tone::Plain,
        S::Armed | S::Running => Tone::Good,
        S::Paused => Tone::Poor,
        S::Error => Tone::Bad,
        S::Configuring | S::Arming | S::Starting | S::Pausing | S::Switching | S::Stopping | S::Closing => {
            Tone::Passing
        }
    }
}

fn state_sentence(status: &Status) -> String {
    let mut sentence = status.sentence.clone();
    for (what, names) in [("waits for", &status.waits_for), ("left out:", &status.left_out)] {
        if !names.is_empty() {
            sentence += &format!("; {what} {}", list_names(names));
        }
    }
    sentence
}

fn run_text(status: &Status) -> String {
    if let Some(run) = &status.run {
        let note = if run.note.is_empty() { "without a note" } else { &run.note };
        return match run.began_at {
            Some(began) => {
                let (time, since) = (format_stopwatch(run.seconds), clock_time(began));
                format!("run {} ({}), {time} since {since}: {note}", run.number, run.kind)
            }
            None => format!("run {} ({}) has not begun: {note}", run.number, run.kind),
        };
    }
    let mut text = "no run".to_owned();
    if let Some(next) = status.next_number {
        let into = if status.directory.is_empty() { "is not recorded" } else { &status.directory };
        text += &format!("; the next one is run {next}, {into}");
    }
    if let Some(last) = &status.last_run {
        let state = serde_json::to_value(last.state).unwrap_or_default();
        let events = format_count(last.events);
        text += &format!("; run {} is {}: {events} events", last.number, state.as_str().unwrap_or_default());
    }
    text
}

fn totals_line(status: &Status, look: Look) -> Line<'static> {
    let totals = &status.totals;
    let mut spans = vec![look.span(
        format!(
            " {} events, {}, {}",
            format_count(totals.events),
            format_per_second(totals.events_per_second, "events"),
            format_rate(totals.bytes_per_second)
        ),
        Tone::Plain,
    )];
    if totals.incomplete > 0 {
        spans.push(look.span(format!(", ! {} incomplete", format_count(totals.incomplete)), Tone::Poor));
    } else {
        spans.push(look.span(", none incomplete", Tone::Plain));
    }
    if let Some(draining) = status.draining {
        let text = format!("; draining: {} of {} left", format_count(draining.left), format_count(draining.of));
        spans.push(look.span(text, Tone::Passing));
    }
    Line::from(spans)
}

/// Returns the lines that are always at the bottom: the answer to the last key, and the keys.
fn foot_lines(screen: &Screen, look: Look, width: usize) -> Vec<Line<'static>> {
    let notice = match (&screen.notice, screen.pending.as_slice()) {
        (Some(notice), _) if notice.is_refusal => look.span(format!(" ! {}", notice.text), Tone::Poor),
        (_, [_, ..]) => look.span(format!(" {} is under way", list_names(&screen.pending)), Tone::Passing),
        (Some(notice), _) => look.span(format!(" {}", notice.text), Tone::Good),
        (None, []) => look.span("", Tone::Plain),
    };
    let mut lines = wrap_lines(&span_text(&notice), width, 2, notice.style);
    lines.resize(lines.len().max(1), Line::default());
    let mut spans = vec![look.span(" ", Tone::Plain)];
    match screen.tab {
        Tab::Run => {
            for (command, key) in COMMAND_KEYS {
                spans.push(key_span(command.name(), key, screen.check_command(command).is_ok(), look));
            }
        }
        Tab::Processes => {
            for (action, key) in PROCESS_KEYS {
                spans.push(key_span(action.name(), key, screen.check_process_action(action).is_ok(), look));
            }
            spans.push(key_span("log", 'l', screen.status.is_some(), look));
        }
    }
    lines.push(Line::from(spans));
    let other = match screen.tab {
        Tab::Run => " Tab: processes  Up, Down: sources  k: acknowledge an alarm  ?: help  q: quit",
        Tab::Processes => " Tab: the run  Up, Down: select  k: acknowledge an alarm  ?: help  q: quit",
    };
    lines.push(Line::from(look.span(other, Tone::Quiet)));
    lines
}

/// Returns a command with its key: in brackets where it is legal, and otherwise grey and in parentheses.
fn key_span(name: &str, key: char, is_legal: bool, look: Look) -> Span<'static> {
    let (open, close, tone) = if is_legal { ('[', ']', Tone::Strong) } else { ('(', ')', Tone::Quiet) };
    let (before, after) = name.split_once(key).unwrap_or((name, ""));
    look.span(format!("{before}{open}{key}{close}{after} "), tone)
}

#[cfg(test)]
mod tests;
