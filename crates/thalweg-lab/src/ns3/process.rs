//! Runs a program to its end, or to its limit.

use crate::LabError;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use std::fs::File;
use std::io::{Read, Seek};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Time between two checks of `stop`.
const STOP_CHECK_INTERVAL: Duration = Duration::from_millis(100);

/// A program that has ended.
#[derive(Debug)]
pub(super) struct Ended {
    pub(super) status: ExitStatus,
    pub(super) out: String,
    pub(super) err: String,
}

impl Ended {
    /// Returns the first line of a failed program's error output (ns-3 continues with a page of help), and its status.
    pub(super) fn error_summary(&self) -> String {
        let first = self.err.lines().map(str::trim).find(|line| !line.is_empty());
        first.map_or_else(|| self.status.to_string(), |line| format!("{line} ({})", self.status))
    }
}

/// A process that is killed when this is dropped before its end.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Runs a program to its end, unless `stop` becomes true, which is noticed within a tenth of a second. Its output goes
/// to files: a pipe that is not read while waiting would fill.
pub(super) fn run_to_end(
    name: &str,
    command: &mut Command,
    limit: Duration,
    stop: &AtomicBool,
) -> Result<Ended, LabError> {
    let doing = format!("running {name}");
    let (mut out, mut err) = (temporary_file()?, temporary_file()?);
    command.stdin(Stdio::null());
    command.stdout(out.try_clone().map_err(LabError::system_error(&doing))?);
    command.stderr(err.try_clone().map_err(LabError::system_error(&doing))?);
    let begun = Instant::now();
    let mut child = Running(command.spawn().map_err(LabError::system_error(&doing))?);
    let handle = pidfd_open(Pid::from_child(&child.0), PidfdFlags::empty()).map_err(LabError::system_error(&doing))?;
    loop {
        if stop.load(Ordering::Relaxed) {
            return Err(LabError::Interrupted);
        }
        let left = limit.saturating_sub(begun.elapsed());
        if left.is_zero() {
            return Err(LabError::Limit { what: name.to_owned(), limit });
        }
        let timeout = Timespec { tv_sec: 0, tv_nsec: left.min(STOP_CHECK_INTERVAL).subsec_nanos().into() };
        match poll(&mut [PollFd::new(&handle, PollFlags::IN)], Some(&timeout)) {
            Ok(0) | Err(Errno::INTR) => {}
            Ok(_) => break,
            Err(error) => return Err(LabError::system_error(&doing)(error)),
        }
    }
    let status = child.0.wait().map_err(LabError::system_error(&doing))?;
    Ok(Ended { status, out: read_from_start(&mut out, &doing)?, err: read_from_start(&mut err, &doing)? })
}

fn temporary_file() -> Result<File, LabError> {
    tempfile::tempfile().map_err(LabError::system_error("making a temporary file"))
}

fn read_from_start(file: &mut File, doing: &str) -> Result<String, LabError> {
    let mut bytes = Vec::new();
    file.rewind().and_then(|()| file.read_to_end(&mut bytes)).map_err(LabError::system_error(doing))?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sh(script: &str, limit: Duration) -> Result<Ended, LabError> {
        run_to_end("a script", Command::new("sh").args(["-c", script]), limit, &AtomicBool::new(false))
    }

    #[test]
    fn more_than_a_pipe_holds_is_read_and_the_first_line_says_why() {
        let ended = sh("head -c 200000 /dev/zero | tr '\\0' x; echo why >&2; echo and more >&2; exit 3", Duration::MAX);
        let ended = ended.unwrap();
        assert_eq!(ended.out.len(), 200_000);
        assert_eq!(ended.error_summary(), "why (exit status: 3)");
    }

    #[test]
    fn what_does_not_end_is_killed() {
        let error = sh("exec cat /dev/zero >/dev/null", Duration::from_millis(1)).unwrap_err();
        assert_eq!(error.to_string(), "a script did not end within 1ms and was killed");
    }

    #[test]
    fn what_is_stopped_ends() {
        let stopped = run_to_end("a script", &mut Command::new("cat"), Duration::MAX, &AtomicBool::new(true));
        assert!(matches!(stopped, Err(LabError::Interrupted)));
    }
}
