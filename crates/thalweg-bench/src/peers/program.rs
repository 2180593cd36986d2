//! Other programs as child processes: started, waited for, their output read, and never left behind.

use crate::BenchError;
use crate::drive::{PROGRAM_TIMEOUT, Stop};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{MemfdFlags, memfd_create};
use rustix::process::{Pid, PidfdFlags, Signal, kill_process_group, pidfd_open};
use std::fs::{self, File};
use std::io::{self, Read, Seek, SeekFrom};
use std::os::fd::OwnedFd;
use std::os::unix::process::CommandExt;
use std::process::{Command, ExitStatus};
use std::time::{Duration, Instant};

/// Running program. Its output goes to memory, so that it never waits for a reader. Dropping this kills it.
#[derive(Debug)]
pub(crate) struct Program {
    name: String,
    pid: Pid,
    /// File descriptor of the process, readable when the program has ended.
    alive: OwnedFd,
    out: File,
    err: File,
    reaped: bool,
}

/// Program that has ended.
#[derive(Debug)]
pub(crate) struct Ended {
    /// Exit status.
    pub(crate) status: ExitStatus,
    /// Text on standard output.
    pub(crate) out: String,
    /// Text on standard error.
    pub(crate) err: String,
    /// User and system time of the program and of the children it waited for, in seconds.
    pub(crate) cpu: f64,
}

/// Longest time that a program may take to end after a request, before it is killed.
const GRACE_PERIOD: Duration = Duration::from_secs(5);
/// Interval at which the stop flag is checked.
const STOP_CHECK_INTERVAL: Duration = Duration::from_millis(50);
/// Interval at which is checked whether a server listens.
const LISTEN_CHECK_INTERVAL: Duration = Duration::from_millis(2);
/// Largest output that is kept of a program, in bytes.
const MAX_OUTPUT_BYTES: u64 = 16 << 20;

impl Program {
    /// Starts a program in a process group of its own: an interrupt from the terminal goes to this process only.
    pub(crate) fn start(name: &str, command: &mut Command) -> Result<Self, BenchError> {
        let (out, err) = (memory_file()?, memory_file()?);
        command.stdout(out.try_clone().map_err(BenchError::os_error("dup"))?);
        command.stderr(err.try_clone().map_err(BenchError::os_error("dup"))?).process_group(0);
        let child = command
            .spawn()
            .map_err(|error| BenchError::Program { program: name.to_owned(), why: error.to_string() })?;
        // The child stays a zombie until `reap`, so its id cannot be reused.
        let pid = Pid::from_child(&child);
        let alive = pidfd_open(pid, PidfdFlags::empty());
        match alive {
            Ok(alive) => Ok(Self { name: name.to_owned(), pid, alive, out, err, reaped: false }),
            Err(error) => {
                let _ = kill_process_group(pid, Signal::KILL);
                wait_for_child(pid);
                Err(BenchError::os_error("pidfd_open")(error))
            }
        }
    }

    /// Returns the id of the process.
    pub(crate) fn process_id(&self) -> Pid {
        self.pid
    }

    /// Waits for the program to end. It is ended early if `stop` is pressed, or if it takes longer than `timeout`.
    pub(crate) fn wait_for_end(&mut self, timeout: Duration, stop: &Stop) -> Result<Ended, BenchError> {
        let begun = Instant::now();
        while !self.ended_within(STOP_CHECK_INTERVAL)? {
            if stop.is_requested() {
                self.end_or_kill()?;
                return Err(BenchError::Stopped);
            }
            if begun.elapsed() > timeout {
                // Read before the interrupt, which a program may report as an error of its own.
                let (out, err) = (read_from_start(&mut self.out)?, read_from_start(&mut self.err)?);
                let output = Ended { out, err, ..self.end_or_kill()? }.last_output_lines();
                return Err(BenchError::Program {
                    program: self.name.clone(),
                    why: format!("still running after {:.0} s; its last output: {output}", timeout.as_secs_f64()),
                });
            }
        }
        self.collect_output()
    }

    /// Asks the program to end, and kills it if it does not.
    pub(crate) fn end_or_kill(&mut self) -> Result<Ended, BenchError> {
        for (signal, grace) in [(Signal::INT, GRACE_PERIOD), (Signal::KILL, PROGRAM_TIMEOUT)] {
            let _ = kill_process_group(self.pid, signal);
            if self.ended_within(grace)? {
                return self.collect_output();
            }
        }
        Err(BenchError::Silent { doing: format!("waiting for {} to die", self.name), timeout: PROGRAM_TIMEOUT })
    }

    /// Waits until the program listens on `port`, by the tables of its network: a connection would use up a server that
    /// serves once.
    pub(crate) fn wait_until_listening(
        &mut self,
        port: u16,
        transport: Transport,
        stop: &Stop,
    ) -> Result<(), BenchError> {
        let tables = transport.socket_tables().map(|table| format!("/proc/{}/net/{table}", self.pid.as_raw_nonzero()));
        self.wait_until(
            || {
                // A kernel without IPv6 has no table for it.
                let mut tables = tables.iter().filter_map(|table| fs::read_to_string(table).ok());
                tables.any(|table| has_listener(&table, port, transport))
            },
            &format!("listen on port {port}"),
            stop,
        )
    }

    /// Waits until `condition` holds; `to` names what the program is to do.
    pub(crate) fn wait_until(&mut self, condition: impl Fn() -> bool, to: &str, stop: &Stop) -> Result<(), BenchError> {
        let begun = Instant::now();
        while !condition() {
            if self.ended_within(LISTEN_CHECK_INTERVAL)? {
                return Err(self.collect_output()?.failure_error(&self.name));
            }
            if stop.is_requested() {
                return Err(BenchError::Stopped);
            }
            if begun.elapsed() > PROGRAM_TIMEOUT {
                let doing = format!("waiting for {} to {to}", self.name);
                return Err(BenchError::Silent { doing, timeout: PROGRAM_TIMEOUT });
            }
        }
        Ok(())
    }

    fn ended_within(&self, time: Duration) -> Result<bool, BenchError> {
        let timeout = Timespec { tv_sec: time.as_secs().cast_signed(), tv_nsec: time.subsec_nanos().into() };
        match poll(&mut [PollFd::new(&self.alive, PollFlags::IN)], Some(&timeout)) {
            Ok(ready) => Ok(ready > 0),
            Err(rustix::io::Errno::INTR) => Ok(false),
            Err(error) => Err(BenchError::os_error("poll")(error)),
        }
    }

    fn collect_output(&mut self) -> Result<Ended, BenchError> {
        // Processes that it started and left behind end with it, while the group's id cannot be reused.
        let _ = kill_process_group(self.pid, Signal::KILL);
        let (status, cpu) = wait_for_child(self.pid);
        self.reaped = true;
        Ok(Ended { status, out: read_from_start(&mut self.out)?, err: read_from_start(&mut self.err)?, cpu })
    }
}

fn read_from_start(file: &mut File) -> Result<String, BenchError> {
    let mut bytes = Vec::new();
    file.seek(SeekFrom::Start(0))
        .and_then(|_| file.take(MAX_OUTPUT_BYTES).read_to_end(&mut bytes))
        .map_err(BenchError::os_error("reading the output of a program"))?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

impl Drop for Program {
    fn drop(&mut self) {
        if !self.reaped {
            let _ = kill_process_group(self.pid, Signal::KILL);
            wait_for_child(self.pid);
        }
    }
}

impl Ended {
    /// Returns the end of the output, for people: of standard error, or else of standard output.
    pub(crate) fn last_output_lines(&self) -> String {
        let output = if self.err.trim().is_empty() { &self.out } else { &self.err };
        let lines = output.lines().map(str::trim).filter(|line| !line.is_empty());
        let mut lines: Vec<&str> = lines.rev().take(3).collect();
        lines.reverse();
        let plain: String = lines.join(" / ").chars().filter(|char| !char.is_control()).collect();
        let long = plain.chars().count().saturating_sub(300);
        match plain.chars().skip(long).collect::<String>() {
            silent if silent.is_empty() => format!("it printed nothing ({})", self.status),
            text => text,
        }
    }

    /// Makes the error for a program that failed.
    pub(crate) fn failure_error(&self, name: &str) -> BenchError {
        BenchError::Program { program: name.to_owned(), why: format!("{} ({})", self.last_output_lines(), self.status) }
    }
}

/// Transport on which a server listens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Transport {
    /// TCP connections.
    Tcp,
    /// UDP datagrams.
    Udp,
}

impl Transport {
    fn socket_tables(self) -> [&'static str; 2] {
        match self {
            Self::Tcp => ["tcp", "tcp6"],
            Self::Udp => ["udp", "udp6"],
        }
    }
}

/// Returns whether a table of sockets has one that listens on `port`. A line begins with `sl local_address rem_address
/// st` (proc_net_tcp in the kernel's documentation); state 0A is a listening socket, 07 an unconnected one.
fn has_listener(table: &str, port: u16, transport: Transport) -> bool {
    let waits = match transport {
        Transport::Tcp => "0A",
        Transport::Udp => "07",
    };
    table.lines().skip(1).any(|line| {
        let mut fields = line.split_whitespace().skip(1);
        let local =
            fields.next().and_then(|local| local.rsplit_once(':')).map(|(_, port)| u16::from_str_radix(port, 16));
        local == Some(Ok(port)) && fields.nth(1) == Some(waits)
    })
}

/// Makes a file in memory, without a name.
fn memory_file() -> Result<File, BenchError> {
    memfd_create("output", MemfdFlags::CLOEXEC).map(File::from).map_err(BenchError::os_error("memfd_create"))
}

/// Waits for a child to end; returns its exit status and the processor seconds of it and its children.
fn wait_for_child(pid: Pid) -> (ExitStatus, f64) {
    use std::os::unix::process::ExitStatusExt;
    let mut status = 0;
    // SAFETY: `rusage` is a struct of integers, for which zeroes are a value.
    let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
    loop {
        // SAFETY: both pointers are to live values of the type that wait4(2) writes, and are not kept.
        let waited = unsafe { libc::wait4(pid.as_raw_nonzero().get(), &raw mut status, 0, &raw mut usage) };
        if waited >= 0 || io::Error::last_os_error().kind() != io::ErrorKind::Interrupted {
            break;
        }
    }
    let times = [usage.ru_utime, usage.ru_stime];
    let seconds = times.iter().map(|time| time.tv_sec as f64 + 1e-6 * time.tv_usec as f64).sum();
    (ExitStatus::from_raw(status), seconds)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn shell(script: &str) -> Program {
        Program::start("sh", Command::new("sh").args(["-c", script])).unwrap()
    }

    #[test]
    fn a_program_that_takes_too_long_is_quoted_as_before_its_interrupt() {
        let directory = tempfile::tempdir().unwrap();
        let ready = directory.path().join("ready");
        let script = "trap 'echo interrupted >&2; exit 1' INT; echo working >&2; : > \"$0\"; while :; do sleep 1; done";
        let mut command = Command::new("sh");
        command.args(["-c", script]).arg(&ready);
        let mut program = Program::start("a slow program", &mut command).unwrap();
        let stop = Stop::default();
        program.wait_until(|| ready.exists(), "begin", &stop).unwrap();
        let error = program.wait_for_end(Duration::ZERO, &stop).unwrap_err().to_string();
        assert!(error.contains("its last output: working") && !error.contains("interrupted"), "{error}");
    }

    #[test]
    fn output_exit_status_and_processor_time_are_known() {
        let ended = shell("echo one; echo two >&2; i=0; while [ $i -lt 20000 ]; do i=$((i+1)); done; exit 3")
            .wait_for_end(PROGRAM_TIMEOUT, &Stop::default())
            .unwrap();
        assert_eq!((ended.out.as_str(), ended.err.as_str(), ended.status.code()), ("one\n", "two\n", Some(3)));
        assert!(ended.cpu > 0.0);
        assert_eq!(ended.failure_error("sh").to_string(), "sh: two (exit status: 3)");
    }

    #[test]
    fn a_program_that_does_not_end_is_ended_with_its_children() {
        let stop = Stop::default();
        stop.request_stop();
        let mut program = shell("sleep 1000 & echo $!; wait");
        assert!(matches!(program.wait_for_end(PROGRAM_TIMEOUT, &stop), Err(BenchError::Stopped)));
        let mut program = shell("exec sleep 1000");
        let error = program.wait_for_end(Duration::ZERO, &Stop::default()).unwrap_err().to_string();
        assert!(error.starts_with("sh: still running after 0 s"), "{error}");
    }

    #[test]
    fn a_missing_program_is_an_error() {
        let error = Program::start("absent", &mut Command::new("/nowhere/absent")).unwrap_err();
        assert_eq!(error.to_string(), "absent: No such file or directory (os error 2)");
    }

    #[test]
    fn a_server_that_dies_instead_of_listening_is_not_waited_for() {
        let error = shell("echo no such port >&2; exit 1")
            .wait_until_listening(1, Transport::Tcp, &Stop::default())
            .unwrap_err();
        assert_eq!(error.to_string(), "sh: no such port (exit status: 1)");
    }

    #[test]
    fn listening_is_distinguished_from_being_connected() {
        let table = "  sl  local_address rem_address   st tx_queue rx_queue\n   \
                     0: 0100007F:1589 00000000:0000 0A 00000000:00000000\n   \
                     1: 0100007F:158A 0100007F:1589 01 00000000:00000000\n";
        assert!(has_listener(table, 0x1589, Transport::Tcp));
        assert!(!has_listener(table, 0x158a, Transport::Tcp));
        assert!(!has_listener(table, 0x1589, Transport::Udp));
    }

    proptest! {
        #[test]
        fn no_table_makes_the_parser_panic(table in ".{0,200}", port: u16) {
            has_listener(&table, port, Transport::Tcp);
        }
    }
}
