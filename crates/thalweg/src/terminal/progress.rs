//! Progress on a terminal: one line on standard error, drawn again and again. Several processes may share a terminal; only
//! one at a time draws, and only while it is in the foreground.

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use rustix::fs::{FlockOperation, flock};
use rustix::process::getpgrp;
use rustix::termios::{isatty, tcgetpgrp, ttyname};
use std::ffi::OsStr;
use std::fs::{File, OpenOptions};
use std::io::{self, IsTerminal};
use std::os::unix::ffi::OsStrExt;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use thalweg_text::{replace_controls_in_lines, tone, wrap_words};

static QUIET: AtomicBool = AtomicBool::new(false);

/// Applies `--color` and `--quiet`.
pub fn set_up(color: colorchoice_clap::Color, quiet: bool) {
    color.write_global();
    tone::enable_colours(is_coloured(&io::stdout()));
    QUIET.store(quiet, Ordering::Relaxed);
}

/// Returns true if no progress is to be shown.
pub fn is_quiet() -> bool {
    QUIET.load(Ordering::Relaxed)
}

/// Returns true if text on standard output may be coloured.
pub fn stdout_is_coloured() -> bool {
    is_coloured(&io::stdout())
}

/// Returns true if text on standard error may be coloured.
pub fn stderr_is_coloured() -> bool {
    is_coloured(&io::stderr())
}

/// Returns true for colours by `--color`, else by `NO_COLOR` and similar variables, else if the stream is a terminal.
fn is_coloured(stream: &impl anstream::stream::RawStream) -> bool {
    anstream::AutoStream::choice(stream) != anstream::ColorChoice::Never
}

/// Returns an error in the form for standard error: on a terminal in lines that fit, elsewhere in one, for `grep`. Text
/// that the error quotes cannot move the cursor, and several lines stay several: they show a place in a file.
pub fn error_text(error: &str) -> String {
    let text = replace_controls_in_lines(error);
    match text.contains('\n') || !io::stderr().is_terminal() {
        true => format!("thalweg: {}\n", text.trim_end()),
        false => wrap_words("thalweg: ", &text),
    }
}

/// Returns true if this process may draw on the terminal that is standard error: without `--quiet`, in the foreground,
/// and while no other process of Thalweg draws there.
pub(crate) fn may_draw() -> bool {
    static TERMINAL: OnceLock<Option<File>> = OnceLock::new();
    let stderr = io::stderr();
    if is_quiet() || !isatty(&stderr) {
        return false;
    }
    let terminal = TERMINAL.get_or_init(|| {
        let name = ttyname(&stderr, Vec::new()).ok()?;
        OpenOptions::new().read(true).open(OsStr::from_bytes(name.as_bytes())).ok()
    });
    // A terminal of another session has no foreground process group.
    let in_front = tcgetpgrp(&stderr).map_or(true, |group| group == getpgrp());
    let Some(terminal) = terminal else { return in_front };
    if !in_front {
        let _ = flock(terminal, FlockOperation::Unlock);
        return false;
    }
    // The lock belongs to the process until it ends: asking again costs nothing.
    flock(terminal, FlockOperation::NonBlockingLockExclusive).is_ok()
}

/// Returns a bar or a line that follows indicatif's template. It is hidden while this process may not draw.
pub fn bar(template: &str) -> ProgressBar {
    let bar = ProgressBar::with_draw_target(Some(0), target());
    if let Ok(style) = ProgressStyle::with_template(template) {
        bar.set_style(style);
    }
    bar
}

fn target() -> ProgressDrawTarget {
    if may_draw() { ProgressDrawTarget::stderr() } else { ProgressDrawTarget::hidden() }
}

/// Template for work on bytes: their number, their rate, and the remaining time.
pub const BYTES: &str =
    "{msg} {decimal_bytes} of {decimal_total_bytes}, {decimal_bytes_per_sec}, {eta} left {wide_bar}";

/// Display of work that takes long, and whose duration is not known.
#[derive(Debug)]
pub struct Busy(ProgressBar);

impl Busy {
    /// Starts the display with the present work.
    pub fn new(doing: String) -> Self {
        let bar = bar("{spinner} {wide_msg} {elapsed}");
        bar.set_message(doing);
        bar.enable_steady_tick(Duration::from_millis(100));
        Self(bar)
    }

    /// Sets the present work.
    pub fn now(&self, doing: String) {
        self.0.set_message(doing);
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        self.0.finish_and_clear();
    }
}

/// Returns the text that clears a progress line before other text on a terminal; the process that drew the line draws
/// it again below.
pub fn clears_line(stream: &impl IsTerminal) -> &'static str {
    if stream.is_terminal() { "\r\u{1b}[K" } else { "" }
}
