//! One machine: a kernel booted as a process, one program run in it, and its result.

use super::Kernel;
use super::build::kernel_directory;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{Access, StatVfsMountFlags, access, statvfs};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, Signal, WaitId, WaitIdOptions, kill_process_group, pidfd_open, waitid};
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use std::collections::VecDeque;
use std::env;
use std::ffi::{OsStr, OsString};
use std::fs::{self, File};
use std::io::{self, PipeReader, Read};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use tempfile::TempDir;
use thalweg_text::ByteSize;
use thiserror::Error;

/// A machine to boot.
#[derive(Debug, Clone, Copy)]
pub struct Machine<'a> {
    /// Kernel to boot.
    pub kernel: &'a Kernel,
    /// Size of the memory. The host provides the part that is used, from a file in memory: see [`BootError::Memory`].
    pub memory: ByteSize,
    /// Program to run, as the machine's root, with `/dev/null` as its input and the console as its output.
    pub program: &'a Path,
    /// Arguments of the program.
    pub args: &'a [OsString],
    /// Working directory of the program. Output that does not fit on a console is written to it.
    pub directory: &'a Path,
    /// Longest time of the whole run, by the clock of the host.
    pub wall_limit: Duration,
    /// Flag that ends the machine when it becomes true, within a tenth of a second.
    pub stop: &'a AtomicBool,
}

/// Result of a program that was run in the machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Outcome {
    /// Exit code of the program, or 128 plus the number of the signal that ended it, or 127 if it was not found.
    pub code: i32,
    /// Output of kernel and program, the last megabyte of it.
    pub console: String,
    /// Time that passed by the machine's clock, in steps of 10 ms.
    pub virtual_time: Duration,
    /// Time that passed by the host's clock.
    pub wall_time: Duration,
}

/// Reason why a machine has no outcome. `console` is the end of its output.
#[derive(Debug, Error)]
pub enum BootError {
    /// The file is not a User-Mode Linux kernel.
    #[error("{} is not a User-Mode Linux kernel: `thalweg lab build` makes one", .0.display())]
    NotAKernel(PathBuf),
    /// No directory can hold the machine's memory: it must have as much space, and allow programs to run (`exec`).
    #[error("no directory can hold the {memory} of the machine's memory: {}; set TMPDIR to another", places.join(", "))]
    Memory {
        /// Size of the memory.
        memory: ByteSize,
        /// The directories that were tried, each with its problem.
        places: Vec<String>,
    },
    /// A program of the host that the machine needs is missing.
    #[error("{0} not found: as root, `apt-get install iproute2 mount coreutils`")]
    NoTool(&'static str),
    /// The run took longer than its limit.
    #[error("the machine did not end within {} and was killed (a program that never waits stops its clock)\n{console}", humantime::format_duration(*limit))]
    WallLimit {
        /// The machine's time limit.
        limit: Duration,
        /// The end of the console.
        console: String,
    },
    /// The run was stopped on request.
    #[error("stopped on request")]
    Stopped,
    /// The kernel did not boot, or ended before its program did.
    #[error("the machine ended before its program did ({status})\n{console}")]
    Died {
        /// Exit status of the kernel's process.
        status: ExitStatus,
        /// The end of the console.
        console: String,
    },
    /// A file or directory cannot be used.
    #[error("{}: {error}", path.display())]
    File {
        /// The file or directory.
        path: PathBuf,
        /// The system's error.
        #[source]
        error: io::Error,
    },
    /// The kernel's process cannot be started or watched.
    #[error("running the machine: {0}")]
    Os(#[from] io::Error),
}

/// Boots a machine under time travel, and returns when its program has ended.
///
/// No process remains after the return, and no file except those that the program wrote.
///
/// # Errors
/// Fails if the machine cannot be started, takes longer than its limit, or ends before its program does; with
/// [`BootError::Stopped`] if it was stopped.
pub fn boot_machine(machine: &Machine) -> Result<Outcome, BootError> {
    let began = Instant::now();
    let files = BootFiles::new(machine.program, machine.args, machine.directory, "</dev/null")?;
    let mut command = boot_command(machine.kernel, machine.memory, &files, machine.directory)?;
    let (console, output) = io::pipe()?;
    command.arg("time-travel=inf-cpu").stdin(Stdio::null()).stdout(output.try_clone()?).stderr(output);
    // In a process group of its own, so that all of it can be killed at once.
    let child = command.process_group(0).spawn()?;
    // The command holds the pipe's write ends for as long as it exists: the console would never end.
    drop(command);
    let mut guest = Guest::new(child, console)?;
    let _cpu = pin_to_free_cpu(guest.pid);

    let ended = guest.watch_until_end(began + machine.wall_limit, machine.stop);
    let status = guest.kill_and_reap()?;
    match ended? {
        Ended::ByItself => {
            let result = files.read_result();
            let (code, virtual_time) =
                result.ok_or_else(|| BootError::Died { status, console: guest.console.error_excerpt() })?;
            Ok(Outcome { code, console: guest.console.last_text(usize::MAX), virtual_time, wall_time: began.elapsed() })
        }
        Ended::Late => Err(BootError::WallLimit { limit: machine.wall_limit, console: guest.console.error_excerpt() }),
        Ended::Stopped => Err(BootError::Stopped),
    }
}

/// Runs a shell in a machine, on this terminal, until it exits. In real time: under time travel, hours would pass while
/// a person thinks. Rates of 1 Gbit/s are then limited by the host's speed.
///
/// # Errors
/// Fails if the machine cannot be started, or ends before the shell does.
pub fn run_shell(kernel: &Kernel, memory: ByteSize, directory: &Path) -> Result<(), BootError> {
    let shell = env::var_os("SHELL").unwrap_or_else(|| "/bin/sh".into());
    // `setsid --ctty` makes the console the terminal of the shell's session, so that keys that interrupt work.
    let args = ["--ctty".into(), "--wait".into(), shell, "-i".into()];
    let files = BootFiles::new(Path::new("setsid"), &args, directory, "</dev/tty0 >/dev/tty0 2>&1")?;
    let mut command = boot_command(kernel, memory, &files, directory)?;
    let before = run_stty(&["-g"]);
    let status = command.status()?;
    // The kernel leaves the terminal in raw mode.
    if let Some(settings) = before {
        run_stty(&[&settings]);
    }
    match files.read_result() {
        Some(_) => Ok(()),
        None => Err(BootError::Died { status, console: String::new() }),
    }
}

fn run_stty(args: &[&str]) -> Option<String> {
    let output = Command::new("stty").args(args).stdin(Stdio::inherit()).output().ok()?;
    output.status.success().then(|| String::from_utf8_lossy(&output.stdout).trim().to_owned())
}

/// Directory with the machine's first program, and the file in which it leaves its result.
struct BootFiles {
    directory: TempDir,
}

impl BootFiles {
    fn new(program: &Path, args: &[OsString], directory: &Path, streams: &str) -> Result<Self, BootError> {
        for tool in ["mount", "ip", "sync"] {
            // An ordinary user's search path lacks the directories of `ip`; the script's has them.
            let in_sbin = ["/usr/sbin", "/sbin"].map(|path| Path::new(path).join(tool));
            if thalweg_bench::find_program(tool).is_none() && !in_sbin.iter().any(|path| path.is_file()) {
                return Err(BootError::NoTool(tool));
            }
        }
        let directory = directory.canonicalize().map_err(file_error(directory))?;
        let files = tempfile::Builder::new().prefix("thalweg-lab-").tempdir()?;
        let init = files.path().join("init");
        let script = init_script(program, args, &directory, &files.path().join("result"), streams);
        fs::write(&init, script).map_err(file_error(&init))?;
        fs::set_permissions(&init, fs::Permissions::from_mode(0o700)).map_err(file_error(&init))?;
        Ok(Self { directory: files })
    }

    /// Returns exit code and virtual time, or `None` if the program has not ended.
    fn read_result(&self) -> Option<(i32, Duration)> {
        parse_result(&fs::read_to_string(self.directory.path().join("result")).ok()?)
    }
}

/// Parses `CODE SECONDS`, as the script writes it.
pub(super) fn parse_result(text: &str) -> Option<(i32, Duration)> {
    let (code, seconds) = text.trim().split_once(' ')?;
    Some((code.parse().ok()?, Duration::try_from_secs_f64(seconds.parse().ok()?).ok()?))
}

/// Returns the machine's first program, which makes the directories that a Linux program expects, runs the program,
/// notes its exit code, and switches the machine off.
pub(super) fn init_script(
    program: &Path,
    args: &[OsString],
    directory: &Path,
    result: &Path,
    streams: &str,
) -> Vec<u8> {
    let words = [program.as_os_str()].into_iter().chain(args.iter().map(OsString::as_os_str));
    let program = words.map(quote_for_shell).collect::<Vec<_>>().join(&b' ');
    let (directory, result) = (quote_for_shell(directory.as_os_str()), quote_for_shell(result.as_os_str()));
    let parts: [&[u8]; 11] = [
        b"#!/bin/sh
export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin HOME=/root TERM=linux
directory=",
        &directory,
        b"
# Both are reached through what is open now: a mount below may hide them.
cd \"$directory\" || exit 1
exec 3>",
        &result,
        b" || exit 1
mount -t proc proc /proc
mount -t sysfs sysfs /sys
mount -t devtmpfs dev /dev
mkdir -p /dev/pts /dev/shm
mount -t devpts devpts /dev/pts
# The host's run-time files and shared memory are not the machine's.
mount -t tmpfs shm /dev/shm
mount -t tmpfs run /run
# Under -c, `.` is the directory that is open, not the one that has its name by now.
case \"$directory\" in
/run/* | /dev/shm/*) mkdir -p \"$directory\" && mount -c --bind . \"$directory\" && cd \"$directory\" ;;
esac
ip link set lo up
",
        &program,
        b" ",
        streams.as_bytes(),
        b" 3>&-
code=$?
read -r seconds rest </proc/uptime
echo \"$code $seconds\" >&3
",
        // Written data is still on its way to the host's files until then.
        b"sync
echo o >/proc/sysrq-trigger
",
        // The first program must not end.
        b"exec sleep 3600\n",
    ];
    parts.concat()
}

/// Quotes a word for the shell.
fn quote_for_shell(word: &OsStr) -> Vec<u8> {
    let quoted = word.as_bytes().split(|&byte| byte == b'\'').collect::<Vec<_>>().join(&b"'\\''"[..]);
    [b"'", quoted.as_slice(), b"'"].concat()
}

/// Returns the command that boots the kernel, without its console and its clock.
fn boot_command(kernel: &Kernel, memory: ByteSize, files: &BootFiles, directory: &Path) -> Result<Command, BootError> {
    let path = kernel.path();
    let mut magic = [0; 4];
    let read = File::open(path).and_then(|mut kernel| kernel.read_exact(&mut magic));
    match read {
        Err(error) if error.kind() != io::ErrorKind::UnexpectedEof => return Err(file_error(path)(error)),
        _ if magic != *b"\x7fELF" => return Err(BootError::NotAKernel(path.to_owned())),
        _ => {}
    }
    let mut command = Command::new(path.canonicalize().map_err(file_error(path))?);
    let mut init = OsString::from("init=\"");
    init.push(files.directory.path().join("init"));
    init.push("\"");
    command.arg(format!("mem={}M", memory.0.div_ceil(1 << 20)));
    command.args(["root=/dev/root", "rootfstype=hostfs", "rootflags=/", "rw", "con=null", "con0=fd:0,fd:1", "quiet"]);
    // The kernel keeps its own files in ~/.uml, and its memory in a file of TMPDIR. Its first program does not get
    // these variables.
    command.arg(init).env_clear().env("HOME", files.directory.path());
    command.env("TMPDIR", memory_directory(memory, directory)?);
    Ok(command)
}

/// Returns the directory for the machine's memory: the first that has room for it.
fn memory_directory(memory: ByteSize, directory: &Path) -> Result<PathBuf, BootError> {
    let own = env::var_os("TMPDIR").map(PathBuf::from);
    let rest = ["/dev/shm", "/tmp"].map(PathBuf::from).into_iter().chain([directory.to_owned()]);
    let mut places = Vec::new();
    for place in own.into_iter().chain(rest) {
        match unsuitable_reason(&place, memory) {
            None => return Ok(place),
            Some(why) => places.push(format!("{}: {why}", place.display())),
        }
    }
    Err(BootError::Memory { memory, places })
}

fn unsuitable_reason(place: &Path, memory: ByteSize) -> Option<String> {
    if let Err(error) = access(place, Access::WRITE_OK | Access::EXEC_OK) {
        return Some(io::Error::from(error).to_string());
    }
    match statvfs(place) {
        Err(error) => Some(io::Error::from(error).to_string()),
        Ok(fs) if fs.f_flag.contains(StatVfsMountFlags::NOEXEC) => Some("is mounted noexec".into()),
        Ok(fs) if fs.f_bavail.saturating_mul(fs.f_frsize) < memory.0 => {
            Some(format!("has {} MiB", (fs.f_bavail * fs.f_frsize) >> 20))
        }
        Ok(_) => None,
    }
}

/// Keeps the kernel and its programs on one processor: they take turns, never run side by side, and a turn costs half
/// when the other processor need not be woken for it (measured: 23 s of CPU without, 11 s with). Machines booted at the
/// same time get different processors, as long as there are any: the file returned is the claim.
fn pin_to_free_cpu(pid: Pid) -> Option<File> {
    let allowed = sched_getaffinity(None).ok()?;
    let cpus: Vec<usize> = (0..CpuSet::MAX_CPU).rev().filter(|&cpu| allowed.is_set(cpu)).collect();
    // If the cache cannot be written, the kernel was not built there, and the system chooses.
    let shelf = kernel_directory();
    fs::create_dir_all(&shelf).ok()?;
    let (cpu, claim) = cpus.into_iter().find_map(|cpu| {
        let claim = File::create(shelf.join(format!("cpu-{cpu}"))).ok()?;
        claim.try_lock().ok().map(|()| (cpu, claim))
    })?;
    let mut one = CpuSet::new();
    one.set(cpu);
    sched_setaffinity(Some(pid), &one).ok()?;
    Some(claim)
}

/// The kernel's process, its process group, and its output.
struct Guest {
    child: Child,
    pid: Pid,
    pipe: PipeReader,
    console: Console,
}

enum Ended {
    ByItself,
    Late,
    Stopped,
}

impl Guest {
    fn new(child: Child, pipe: PipeReader) -> io::Result<Self> {
        Ok(Self { pid: Pid::from_child(&child), child, pipe, console: Console::default() })
    }

    /// Reads the console until the kernel's process ends, the deadline has passed or `stop` is true.
    fn watch_until_end(&mut self, deadline: Instant, stop: &AtomicBool) -> io::Result<Ended> {
        let process = pidfd_open(self.pid, PidfdFlags::empty())?;
        let mut is_open = true;
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            if stop.load(Ordering::Relaxed) {
                return Ok(Ended::Stopped);
            }
            if left.is_zero() {
                return Ok(Ended::Late);
            }
            let mut waits = [PollFd::new(&process, PollFlags::IN), PollFd::new(&self.pipe, PollFlags::IN)];
            let timeout = left.min(Duration::from_millis(100));
            let timeout = Timespec { tv_sec: 0, tv_nsec: timeout.subsec_nanos().into() };
            match poll(&mut waits[..1 + usize::from(is_open)], Some(&timeout)) {
                Ok(_) | Err(Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
            if !waits[0].revents().is_empty() {
                return Ok(Ended::ByItself);
            }
            if !waits[1].revents().is_empty() {
                is_open = self.console.read_pipe(&mut self.pipe)? > 0;
            }
        }
    }

    /// Kills the rest of the process group, reads the rest of the console, and returns the kernel's exit status.
    fn kill_and_reap(&mut self) -> io::Result<ExitStatus> {
        // All at once: a program inside that outlived its kernel would make its system calls to the host. Until it is
        // waited for, the kernel's process keeps the group's number from being reused.
        match kill_process_group(self.pid, Signal::KILL) {
            Ok(()) | Err(Errno::SRCH) => {}
            Err(error) => return Err(error.into()),
        }
        // The loop ends when the last process of the group has ended.
        while self.console.read_pipe(&mut self.pipe)? > 0 {}
        waitid(WaitId::Pid(self.pid), WaitIdOptions::EXITED | WaitIdOptions::NOWAIT)?;
        self.child.wait()
    }
}

/// The last megabyte of output.
#[derive(Default)]
struct Console(VecDeque<u8>);

impl Console {
    const MAX_KEPT_BYTES: usize = 1 << 20;
    /// Length of the part that errors show.
    const TAIL_BYTES: usize = 4096;

    /// Reads from the pipe and returns the number of bytes; 0 at the end.
    fn read_pipe(&mut self, pipe: &mut PipeReader) -> io::Result<usize> {
        let mut bytes = [0; 16 << 10];
        let count = loop {
            match pipe.read(&mut bytes) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                read => break read?,
            }
        };
        self.0.extend(&bytes[..count]);
        self.0.drain(..self.0.len().saturating_sub(Self::MAX_KEPT_BYTES));
        Ok(count)
    }

    fn error_excerpt(&self) -> String {
        self.last_text(Self::TAIL_BYTES)
    }

    /// Returns the last `last` bytes as text, with ordinary line ends.
    fn last_text(&self, last: usize) -> String {
        let bytes: Vec<u8> = self.0.iter().skip(self.0.len().saturating_sub(last)).copied().collect();
        String::from_utf8_lossy(&bytes).replace('\r', "")
    }
}

fn file_error(path: &Path) -> impl FnOnce(io::Error) -> BootError {
    let path = path.to_owned();
    |error| BootError::File { path, error }
}
