//! Notices to systemd, where it has started this program as a unit with `Type=notify`: readiness, a line about the state,
//! keep-alives (sd_notify(3)). Elsewhere they do nothing.

use parking_lot::Mutex;
use sd_notify::NotifyState;
use std::time::{Duration, Instant};

/// Longest line about the state, in characters; the remainder is cut off.
const MAX_STATUS_CHARS: usize = 512;

/// Returns whether a service manager takes notices of this program.
pub fn is_present() -> bool {
    std::env::var_os("NOTIFY_SOCKET").is_some()
}

/// Reports that the program is ready: what waits for the start of the unit goes on.
pub fn report_ready() {
    send_notice(NotifyState::Ready);
}

/// Reports the state of the program, which `systemctl status` shows, if it is another one than the last.
pub fn report_status(status: &str) {
    static LAST: Mutex<String> = Mutex::new(String::new());
    if !is_present() {
        return;
    }
    let status: String = thalweg_text::replace_controls(status).chars().take(MAX_STATUS_CHARS).collect();
    let mut last = LAST.lock();
    if *last != status {
        send_notice(NotifyState::Status(&status));
        *last = status;
    }
}

fn send_notice(notice: NotifyState<'_>) {
    if let Err(error) = sd_notify::notify(&[notice]) {
        tracing::warn!("the service manager takes no notice ($NOTIFY_SOCKET): {error}");
    }
}

/// Sender of keep-alives. The service manager ends a program that sends none for `WatchdogSec` (systemd.service(5)).
#[derive(Debug)]
pub struct KeepAlive {
    /// Time from one keep-alive to the next.
    interval: Duration,
    last: Option<Instant>,
}

impl KeepAlive {
    /// Creates the sender; `None` if the unit has no watchdog.
    pub fn new() -> Option<Self> {
        // Half of the time is what sd_watchdog_enabled(3) recommends; a busy machine may be late.
        let interval = sd_notify::watchdog_enabled()? / 4;
        is_present().then_some(Self { interval, last: None })
    }

    /// Returns the time from one keep-alive to the next.
    pub fn interval(&self) -> Duration {
        self.interval
    }

    /// Sends a keep-alive, if one is due. Only to be called by a program that has made progress since the last call.
    pub fn send_if_due(&mut self) {
        if self.last.is_none_or(|last| last.elapsed() >= self.interval) {
            self.last = Some(Instant::now());
            send_notice(NotifyState::Watchdog);
        }
    }
}
