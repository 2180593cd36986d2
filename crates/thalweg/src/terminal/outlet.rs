//! Standard output and standard error of a node, each written by a thread of its own: a thread that writes never waits
//! for the reader, and a pipe that no one reads holds up neither a run nor its end.

use crate::terminal::{progress, start_thread};
use parking_lot::{Condvar, Mutex};
use serde_json::json;
use std::collections::hash_map::Entry;
use std::collections::{HashMap, VecDeque};
use std::io::{self, ErrorKind, Write};
use std::sync::{Arc, LazyLock};
use std::time::{Duration, Instant};
use tracing::callsite::Identifier;
use tracing::{Level, Metadata};
use tracing_subscriber::fmt::MakeWriter;

/// Time that the end of the program waits for a log of which nothing is read.
pub const LOG_TIME: Duration = Duration::from_secs(1);
/// Time that the end of the program waits for a result of which nothing is read.
pub const RESULT_TIME: Duration = Duration::from_secs(10);

/// Maximum number of waiting lines of the log. Further lines are left out, and counted.
const MOST_WAITING: usize = 1024;
/// Maximum length of a line of the log, in bytes: what a pipe takes as a whole (`PIPE_BUF`, pipe(7)), so that the lines
/// of nodes that share one are not mixed.
pub(super) const LONGEST_LINE: usize = 4096;
/// Room at the end of a line of JSON for the number of further warnings, in bytes.
pub(super) const REPEATED_BYTES: usize = 64;
/// Time for which warnings of one kind are counted after the first of them, to become one line.
const WINDOW: Duration = Duration::from_secs(5);
/// Maximum number of kinds of warnings at one place in the program; further ones are one kind.
const MAX_KINDS: usize = 64;

/// Returns the outlet of standard error, which the log also uses.
pub fn stderr() -> &'static Outlet {
    static STDERR: LazyLock<Arc<Outlet>> =
        LazyLock::new(|| Outlet::start_writer(io::stderr(), progress::clears_line(&io::stderr())));
    &STDERR
}

/// Returns the outlet of standard output.
pub fn stdout() -> &'static Outlet {
    static STDOUT: LazyLock<Arc<Outlet>> =
        LazyLock::new(|| Outlet::start_writer(io::stdout(), progress::clears_line(&io::stdout())));
    &STDOUT
}

/// A queue before a stream that may be slow.
#[derive(Debug, Default)]
pub struct Outlet {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    waiting: VecDeque<Vec<u8>>,
    /// True while one more text is being written.
    writing: bool,
    /// Number of texts that were written.
    written: u64,
    /// Error of the last write, if it failed.
    failed: Option<io::Error>,
    /// Lines of the log that were left out since the last one for which there was room.
    left_out: u64,
    /// True if lines of the log are JSON.
    is_json: bool,
    warnings: HashMap<WarningKind, Repeated>,
}

/// Kind of a warning: the place in the program that gives it, and its text without numbers.
type WarningKind = (Identifier, Vec<u8>);

/// Warnings of one kind after the first one.
#[derive(Debug)]
struct Repeated {
    since: Instant,
    /// Number of further warnings, and the last of them.
    more: u64,
    last: Vec<u8>,
}

/// Returns the text of a line of the log by which it is compared with others: without its time, and with its numbers
/// left out. Names and addresses that have digits stay: what they name differs.
fn comparable_text(line: &[u8]) -> Vec<u8> {
    let level = line.windows(4).position(|word| word == b"WARN" || word == b"RROR");
    let text = line.get(level.unwrap_or(0)..).unwrap_or(line);
    let mut comparable = Vec::with_capacity(text.len());
    for word in text.split(|byte| byte.is_ascii_whitespace()) {
        let bare = word.trim_ascii().iter().filter(|byte| !b",;:()".contains(byte));
        let is_number = !word.is_empty() && bare.clone().count() > 0 && bare.clone().all(u8::is_ascii_digit);
        // The port of a peer that connected is one that its system chose.
        let port = word.iter().rposition(|byte| *byte == b':').filter(|_| word.windows(4).any(|part| part == b"peer"));
        comparable.extend_from_slice(if is_number { b"0" } else { &word[..port.unwrap_or(word.len())] });
        comparable.push(b' ');
    }
    comparable
}

impl Outlet {
    /// Starts an outlet that writes to `to`, with `before` before each text.
    fn start_writer(mut to: impl Write + Send + 'static, before: &'static str) -> Arc<Self> {
        let outlet = Arc::new(Self::default());
        let writer = Arc::clone(&outlet);
        let started = start_thread(move || {
            loop {
                let text = writer.next_text();
                let before = if before.is_empty() { Ok(()) } else { to.write_all(before.as_bytes()) };
                let result = before.and_then(|()| to.write_all(&text)).and_then(|()| to.flush());
                writer.state.lock().failed = result.err();
            }
        });
        if let Err(failure) = started {
            // Without a thread the outlet cannot report anything: the process cannot go on.
            let _ = writeln!(io::stderr(), "error: {failure}");
            std::process::exit(i32::from(failure.code()));
        }
        outlet
    }

    /// Makes its own lines of the log JSON.
    pub(super) fn set_json(&self) {
        self.state.lock().is_json = true;
    }

    /// Queues a text that is never left out: such texts are few.
    pub fn put_text(&self, text: impl Into<Vec<u8>>) {
        self.state.lock().waiting.push_back(text.into());
        self.changed.notify_all();
    }

    /// Queues a text that is soon out of date, unless another one waits.
    pub fn put_if_idle(&self, text: impl Into<Vec<u8>>) {
        let mut state = self.state.lock();
        if !state.is_busy() {
            state.waiting.push_back(text.into());
            self.changed.notify_all();
        }
    }

    /// Waits until everything is written, or nothing has been for `limit`. Fails with the error of the last write, or
    /// [`ErrorKind::TimedOut`].
    ///
    /// # Errors
    /// The stream cannot be written to, or the time is over.
    pub fn flush(&self, limit: Duration) -> io::Result<()> {
        let mut state = self.state.lock();
        state.summarise_repeated_warnings(None);
        state.report_left_out_lines();
        self.changed.notify_all();
        let (mut written, mut since) = (state.written, Instant::now());
        while state.is_busy() {
            if state.written != written {
                (written, since) = (state.written, Instant::now());
            }
            let Some(left) = limit.checked_sub(since.elapsed()) else {
                return Err(io::Error::new(ErrorKind::TimedOut, "no program reads it"));
            };
            self.changed.wait_for(&mut state, left);
        }
        state.failed.take().map_or(Ok(()), Err)
    }

    /// Queues a line of the log. For a warning, `warning` is the place in the program that gives it.
    fn log_line(&self, warning: Option<Identifier>, line: &[u8]) {
        let mut state = self.state.lock();
        let now = Instant::now();
        state.summarise_repeated_warnings(Some(now));
        match warning.and_then(|place| state.repeated_warning(place, line, now)) {
            Some(repeated) => {
                repeated.more += 1;
                repeated.last = line.to_vec();
            }
            None => state.add_log_line(line.to_vec()),
        }
        self.changed.notify_all();
    }

    /// Waits for a text to write.
    fn next_text(&self) -> Vec<u8> {
        let mut state = self.state.lock();
        state.written += u64::from(std::mem::take(&mut state.writing));
        loop {
            let now = Instant::now();
            let due = state.summarise_repeated_warnings(Some(now));
            if let Some(mut text) = state.waiting.pop_front() {
                // A remote file takes its time for each write.
                while state.waiting.front().is_some_and(|more| text.len() + more.len() <= LONGEST_LINE) {
                    text.extend(state.waiting.pop_front().unwrap_or_default());
                }
                state.writing = true;
                state.report_left_out_lines();
                return text;
            }
            self.changed.notify_all();
            match due {
                Some(due) => _ = self.changed.wait_until(&mut state, due),
                None => self.changed.wait(&mut state),
            }
        }
    }
}

impl State {
    fn is_busy(&self) -> bool {
        self.writing || !self.waiting.is_empty()
    }

    /// Returns the earlier warnings of the kind of this one; `None` if it is the first.
    fn repeated_warning(&mut self, place: Identifier, line: &[u8], now: Instant) -> Option<&mut Repeated> {
        let mut kind = (place, comparable_text(line));
        if self.warnings.keys().filter(|(place, _)| *place == kind.0).count() >= MAX_KINDS
            && !self.warnings.contains_key(&kind)
        {
            kind.1.clear();
        }
        match self.warnings.entry(kind) {
            Entry::Occupied(known) => Some(known.into_mut()),
            Entry::Vacant(new) => {
                new.insert(Repeated { since: now, more: 0, last: Vec::new() });
                None
            }
        }
    }

    /// Adds a line of the log if there is room for it.
    fn add_log_line(&mut self, mut line: Vec<u8>) {
        if self.waiting.len() >= MOST_WAITING {
            self.left_out += 1;
            return;
        }
        if line.len() > LONGEST_LINE {
            line.truncate(LONGEST_LINE - 4);
            line.extend_from_slice(b"...\n");
        }
        self.waiting.push_back(line);
    }

    /// Reports the number of lines that were left out, once there is room again.
    fn report_left_out_lines(&mut self) {
        if self.left_out > 0 && self.waiting.len() < MOST_WAITING {
            let left_out = std::mem::take(&mut self.left_out);
            let text = format!("{left_out} lines of the log are left out here: no program read them");
            let is_json = self.is_json;
            let line = if is_json { json!({ "level": "WARN", "message": text }).to_string() } else { text };
            self.waiting.push_back((line + "\n").into());
        }
    }

    /// Reports the number of further warnings, for places whose time is over or for all. Returns the time of the next
    /// look.
    fn summarise_repeated_warnings(&mut self, now: Option<Instant>) -> Option<Instant> {
        let mut sums = Vec::new();
        self.warnings.retain(|_, Repeated { since, more, last, .. }| {
            let over = now.is_none_or(|now| now >= *since + WINDOW);
            if over && *more > 0 {
                let is_json = last.starts_with(b"{");
                let seconds = since.elapsed().as_secs().max(1);
                let sum = match *more - 1 {
                    0 => "\n".to_owned(),
                    // The object gets another field.
                    others if is_json => {
                        last.truncate(last.trim_ascii_end().len() - 1);
                        format!(",\"more\":{others},\"more_seconds\":{seconds}}}\n")
                    }
                    others => {
                        format!(" (and {others} more like this in the last {seconds} s)\n")
                    }
                };
                last.truncate(last.trim_ascii_end().len().min(LONGEST_LINE - sum.len()));
                last.extend_from_slice(sum.as_bytes());
                sums.push(std::mem::take(last));
            }
            !over
        });
        sums.into_iter().for_each(|sum| self.add_log_line(sum));
        self.warnings.values().filter(|repeated| repeated.more > 0).map(|repeated| repeated.since + WINDOW).min()
    }
}

/// Writer of the log, to [`stderr`].
#[derive(Debug)]
pub struct Log;

impl<'a> MakeWriter<'a> for Log {
    type Writer = Line;

    fn make_writer(&'a self) -> Line {
        Line { warning: None }
    }

    fn make_writer_for(&'a self, place: &Metadata<'_>) -> Line {
        // Lines requested with `-v` are written as often as they occur.
        Line { warning: (*place.level() <= Level::WARN).then(|| place.callsite()) }
    }
}

/// One line of the log, which is written as a whole.
#[derive(Debug)]
pub struct Line {
    warning: Option<Identifier>,
}

impl Write for Line {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        stderr().log_line(self.warning.clone(), line);
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc::{Receiver, Sender, channel};

    /// A stream that accepts only a limited number of writes.
    struct Pipe {
        allowed: Receiver<()>,
        written: Sender<String>,
    }

    impl Write for Pipe {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.allowed.recv().map_err(|_| io::Error::from(ErrorKind::BrokenPipe))?;
            self.written.send(String::from_utf8(bytes.to_vec()).unwrap()).unwrap();
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    fn pipe() -> (Arc<Outlet>, Sender<()>, Receiver<String>) {
        let (allow, allowed) = channel();
        let (written, read) = channel();
        (Outlet::start_writer(Pipe { allowed, written }, ""), allow, read)
    }

    fn here() -> Option<Identifier> {
        struct Place;
        impl tracing::callsite::Callsite for Place {
            fn set_interest(&self, _: tracing::subscriber::Interest) {}
            fn metadata(&self) -> &Metadata<'_> {
                unreachable!("no caller needs it")
            }
        }
        static HERE: Place = Place;
        Some(tracing::callsite::Identifier(&HERE))
    }

    #[test]
    fn no_thread_waits_for_a_pipe_that_is_not_read_and_what_is_left_out_is_counted() {
        let (outlet, allow, read) = pipe();
        let lines = 3 * MOST_WAITING as u64;
        for line in 0..lines {
            outlet.log_line(None, format!("{line}\n").as_bytes());
        }
        assert_eq!(outlet.flush(Duration::ZERO).unwrap_err().kind(), ErrorKind::TimedOut);
        for _ in 0..=lines {
            allow.send(()).unwrap();
        }
        outlet.flush(Duration::from_secs(60)).unwrap();
        let text: String = read.try_iter().collect();
        let read: Vec<&str> = text.split_inclusive('\n').collect();
        let (reports, lines_read): (Vec<&str>, Vec<&str>) = read.iter().partition(|line| line.contains("left out"));
        let left_out = |line: &&str| line.split_once(' ').unwrap().0.parse::<u64>().unwrap();
        assert_eq!(lines_read.len() as u64 + reports.iter().map(left_out).sum::<u64>(), lines);
        assert_eq!(read[0], "0\n");
    }

    /// Returns the lines that an outlet writes for these warnings of one place.
    fn written_warnings(lines: impl Iterator<Item = String>) -> Vec<String> {
        let (outlet, allow, read) = pipe();
        for _ in 0..1000 {
            allow.send(()).unwrap();
        }
        for line in lines {
            outlet.log_line(here(), format!("2026-11-29T03:04:05.{}Z  WARN {line}\n", line.len()).as_bytes());
            // A line that is no warning is not counted with it.
            outlet.log_line(None, b"connected\n");
        }
        outlet.flush(Duration::from_secs(60)).unwrap();
        let text: String = read.try_iter().collect();
        let warnings = text.lines().filter_map(|line| line.split_once("WARN "));
        warnings.map(|(_, warning)| warning.to_owned()).collect()
    }

    #[test]
    fn a_warning_that_is_repeated_becomes_one_line() {
        let written = written_warnings((0..733).map(|at| format!("turned away: {at} so far")));
        assert_eq!(written.len(), 2, "{written:?}");
        assert_eq!(written[0], "turned away: 0 so far");
        assert!(written[1].starts_with("turned away: 732 so far (and 731 more like this in the last "), "{written:?}");
    }

    #[test]
    fn a_warning_in_json_that_is_repeated_becomes_one_object() {
        let (outlet, allow, read) = pipe();
        (0..4).for_each(|_| allow.send(()).unwrap());
        outlet.set_json();
        for at in 0..733 {
            let time = format!("2026-11-29T03:04:05.{at}Z");
            let line = json!({ "message": format!("turned away: {at} so far") }).to_string();
            let head = format!("{{\"time\":\"{time}\",\"level\":\"WARN\",");
            outlet.log_line(here(), format!("{head}{}\n", line.trim_start_matches('{')).as_bytes());
        }
        outlet.flush(Duration::from_secs(60)).unwrap();
        let text: String = read.try_iter().collect();
        let lines: Vec<serde_json::Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        assert_eq!(lines.len(), 2, "{text}");
        assert_eq!((&lines[1]["message"], &lines[1]["more"]), (&json!("turned away: 732 so far"), &json!(731)));
    }

    #[test]
    fn the_port_of_a_peer_makes_no_other_kind() {
        let written = written_warnings((0..50).map(|at| format!("cut off: no message peer=10.0.0.7:{}", 40_000 + at)));
        assert_eq!(written.len(), 2, "{written:?}");
        let hosts = written_warnings((0..5).map(|at| format!("cut off: no message peer=10.0.0.{at}:40000")));
        assert_eq!(hosts.len(), 5, "{hosts:?}");
    }

    #[test]
    fn warnings_that_differ_are_all_written() {
        let sources = || (0..20).map(|at| format!("source 1.{at} (adc-{at}) is gone, 127.0.0.1:{at}"));
        let written = written_warnings(sources());
        assert_eq!(written, sources().collect::<Vec<_>>());
        // Beyond any person's patience they are counted.
        let many = written_warnings((0..500).map(|at| format!("source adc-{at} is gone")));
        assert_eq!(many.len(), MAX_KINDS + 2, "{many:?}");
        assert!(many.last().unwrap().contains("more like this"), "{many:?}");
    }

    #[test]
    fn no_line_is_longer_than_a_pipe_takes_as_a_whole() {
        let (outlet, allow, read) = pipe();
        allow.send(()).unwrap();
        outlet.log_line(None, &[b'x'; 3 * LONGEST_LINE]);
        outlet.flush(Duration::from_secs(60)).unwrap();
        let line = read.recv().unwrap();
        assert!(line.len() == LONGEST_LINE && line.ends_with("x...\n"));
    }

    #[test]
    fn that_it_cannot_be_written_is_reported_at_the_end() {
        let (outlet, allow, _read) = pipe();
        drop(allow);
        outlet.put_text("the result\n");
        assert_eq!(outlet.flush(Duration::from_secs(60)).unwrap_err().kind(), ErrorKind::BrokenPipe);
    }
}
