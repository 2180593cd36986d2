//! Latest lines of the log, for a service that shows them.

use parking_lot::Mutex;
use std::collections::VecDeque;
use std::fmt::{self, Write as _};
use std::time::{SystemTime, UNIX_EPOCH};
use thalweg_node::service::{LogLine, Severity, cut_text};
use tracing::field::{Field, Visit};
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::layer::{Context, Layer};

/// Number of lines that are kept; older ones are left out.
const MAX_LINES: usize = 200;
/// Longest text of a line, in bytes.
const MAX_TEXT_BYTES: usize = 2000;

static LINES: Mutex<Option<Lines>> = Mutex::new(None);

#[derive(Debug, Default)]
struct Lines {
    kept: VecDeque<LogLine>,
    /// Number of lines that there were before those that are kept.
    forgotten: u64,
}

/// Keeps lines from now on.
pub fn keep_lines() {
    LINES.lock().get_or_insert_default();
}

/// Returns the lines after the first `seen`, as far as they are kept, and sets `seen` to the number of all.
pub fn new_lines(seen: &mut u64) -> Vec<LogLine> {
    let lines = LINES.lock();
    let Some(Lines { kept, forgotten }) = &*lines else { return Vec::new() };
    let skipped = usize::try_from(seen.saturating_sub(*forgotten)).unwrap_or(usize::MAX);
    *seen = forgotten + kept.len() as u64;
    kept.iter().skip(skipped).cloned().collect()
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
        let mut lines = LINES.lock();
        let Some(Lines { kept, forgotten }) = &mut *lines else { return };
        if kept.len() == MAX_LINES {
            kept.pop_front();
            *forgotten += 1;
        }
        kept.push_back(LogLine { unix_nanos, severity, text: text.0 });
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
