//! Latest lines of the log, for a service that shows them.

use parking_lot::Mutex;
use std::collections::VecDeque;
use std::fmt::{self, Write as _};
use std::time::{SystemTime, UNIX_EPOCH};
use thalweg_node::service::{LogLine, Severity, cut_text};
use tracing::field::{Field, Visit};
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::layer::{Context, Layer};

/// Number of lines that are kept until they are taken; older ones are left out.
const MAX_LINES: usize = 200;
/// Longest text of a line, in bytes.
const MAX_TEXT_BYTES: usize = 2000;

static LINES: Mutex<Option<VecDeque<LogLine>>> = Mutex::new(None);

/// Keeps lines from now on.
pub fn keep_lines() {
    LINES.lock().get_or_insert_default();
}

/// Removes and returns the lines since the last call.
pub fn take_lines() -> Vec<LogLine> {
    LINES.lock().as_mut().map(|lines| lines.drain(..).collect()).unwrap_or_default()
}

/// Layer of the log that keeps its latest lines, if that was asked for.
#[derive(Debug)]
pub(super) struct RecentLog;

impl<S: Subscriber> Layer<S> for RecentLog {
    fn on_event(&self, event: &Event<'_>, _: Context<'_, S>) {
        if LINES.lock().is_none() {
            return;
        }
        // Without the lock: a value that is shown may log something itself.
        let mut text = Text(String::new());
        event.record(&mut text);
        cut_text(&mut text.0, MAX_TEXT_BYTES);
        let severity = match *event.metadata().level() {
            Level::ERROR => Severity::Error,
            Level::WARN => Severity::Warning,
            _ => Severity::Info,
        };
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let unix_nanos = u64::try_from(now.as_nanos()).unwrap_or(u64::MAX);
        let mut kept = LINES.lock();
        let Some(lines) = &mut *kept else { return };
        if lines.len() == MAX_LINES {
            lines.pop_front();
        }
        lines.push_back(LogLine { unix_nanos, severity, text: text.0 });
    }
}

/// Message of an event, followed by its fields.
struct Text(String);

impl Visit for Text {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        if self.0.len() > MAX_TEXT_BYTES {
            return;
        }
        let _ = match field.name() {
            "message" => write!(self.0, "{value:?}"),
            name => write!(self.0, " {name}={value:?}"),
        };
    }
}
