//! One run: starts QEMU, watches and ends it, and returns the command's output and exit code.

use crate::pc::machine::{MOST_NICS, MOST_NVMES, Machine};
use crate::pc::qemu::{self, Files, QEMU};
use crate::pc::setup::PACKAGES;
use crate::pc::shelf::{Prepared, cache_directory};
use std::env;
use std::ffi::{OsStr, OsString};
use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{self, Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};
use tempfile::TempDir;
use thiserror::Error;

/// Result of a command that was run in the machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Outcome {
    /// Exit code of the command, or 128 plus the number of the signal that ended it, or 127 if it was not found. 125
    /// if it was not started; the reason is then on standard error.
    pub code: u8,
    /// Duration of the whole run, the boot included.
    pub time: Duration,
}

/// Reason why a command has no outcome. `console` is the end of the kernel's log on the console.
#[derive(Debug, Error)]
pub enum RunError {
    /// The machine is not possible: too few processors, too little memory or too many devices.
    #[error("{0}")]
    Machine(String),
    /// The working directory does not exist in the machine.
    #[error("{}: the machine has its own /dev, /proc, /run and /sys: run this from another directory", .0.display())]
    Directory(PathBuf),
    /// A program of the host that the machine needs is missing.
    #[error("{0} not found: as root, `apt-get install {PACKAGES}`")]
    NoTool(&'static str),
    /// The run took longer than its limit.
    #[error("the machine did not end within {} and was killed\n{console}", humantime::format_duration(*limit))]
    Timeout {
        /// The machine's time limit.
        limit: Duration,
        /// The end of the console.
        console: String,
    },
    /// The run was stopped on request.
    #[error("stopped on request")]
    Stopped,
    /// QEMU did not start, or the machine ended before its command did.
    #[error("the machine ended before its command did ({status})\n{output}{console}")]
    Died {
        /// Exit status of QEMU's process.
        status: ExitStatus,
        /// The end of QEMU's own output.
        output: String,
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
    /// QEMU's process cannot be started or watched.
    #[error("running the machine: {0}")]
    Os(#[from] io::Error),
}

impl Machine {
    /// Boots the machine, runs a command as root with this process's working directory, `PATH` and `HOME`, and returns
    /// when it has ended. Its standard output and standard error are copied to this process's as they come; its
    /// standard input is empty. `/out` is the directory `out`, which is created if it does not exist; the kernel's log
    /// is left in it as `dmesg.txt`.
    ///
    /// No process and no other file remains after the return. If this process is killed, the machine is killed, too,
    /// and the next run removes its files.
    ///
    /// # Errors
    /// Fails if the machine is not possible, cannot be started, takes longer than its limit, or ends before its command
    /// does; with [`RunError::Stopped`] soon after `stop` has become true.
    pub fn run_command(
        &self,
        prepared: &Prepared,
        command: &[OsString],
        out: &Path,
        stop: &AtomicBool,
    ) -> Result<Outcome, RunError> {
        let began = Instant::now();
        self.check_limits()?;
        fs::create_dir_all(out).map_err(file_error(out))?;
        let out = out.canonicalize().map_err(file_error(out))?;
        let room = Room::create_room()?;
        room.write_job_files(command, self.huge_pages)?;
        let (output, output_writer) = io::pipe()?;
        let (errors, errors_writer) = io::pipe()?;
        let files = Files {
            kernel: prepared.vmlinux_path(),
            initramfs: prepared.initramfs_path(),
            packages: prepared.packages_path(),
            room: room.directory_path(),
            out: &out,
            streams: [descriptor_path(&output_writer), descriptor_path(&errors_writer)],
        };
        let log_path = room.directory_path().join("qemu");
        let log = File::create(&log_path).map_err(file_error(&log_path))?;

        // When the thread that started it ends, in whatever way, the kernel kills QEMU (PR_SET_PDEATHSIG, prctl(2)). In
        // a process group of its own it does not receive a terminal's interrupt: that is for this process.
        let mut qemu = Command::new("setpriv");
        qemu.args(["--pdeathsig", "KILL", "--", QEMU]).args(qemu::qemu_arguments(self, &files)?).process_group(0);
        qemu.stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log);
        let mut guest = Guest(qemu.spawn().map_err(|error| match error.kind() {
            io::ErrorKind::NotFound => RunError::NoTool("setpriv"),
            _ => RunError::Os(error),
        })?);

        let ended = thread::scope(|scope| {
            scope.spawn(|| copy_stream(output, io::stdout()));
            scope.spawn(|| copy_stream(errors, io::stderr()));
            let ended = guest.wait_until(began + self.timeout, stop);
            guest.kill_and_wait();
            // No writer of the pipes remains, so the threads that read them end.
            drop((output_writer, errors_writer));
            ended
        });
        match ended? {
            Ended::Late => Err(RunError::Timeout { limit: self.timeout, console: last_lines(&files.console_path()) }),
            Ended::Stopped => Err(RunError::Stopped),
            Ended::ByItself(status) => match room.exit_code() {
                Some(code) => Ok(Outcome { code, time: began.elapsed() }),
                // 127 is setpriv's exit code when it finds no QEMU, by the shell's convention.
                None if status.code() == Some(127) => Err(RunError::NoTool(QEMU)),
                None => Err(RunError::Died {
                    status,
                    output: last_lines(&log_path),
                    console: last_lines(&files.console_path()),
                }),
            },
        }
    }

    fn check_limits(&self) -> Result<(), RunError> {
        let devices = [(self.nics.len(), MOST_NICS, "NICs"), (self.nvmes.len(), MOST_NVMES, "NVMe disks")];
        let problem = if self.processors == 0 {
            "a machine needs at least one processor".to_owned()
        } else if self.memory.0 < MIN_MEMORY_BYTES {
            format!("{}: a machine needs at least {} MiB of memory", self.memory, MIN_MEMORY_BYTES >> 20)
        } else if let Some((count, most, what)) = devices.into_iter().find(|(count, most, _)| count > most) {
            format!("{count} {what}: a machine has room for {most}")
        } else {
            return Ok(());
        };
        Err(RunError::Machine(problem))
    }
}

/// Least memory of a machine, in bytes: the kernel does not boot with less, as it needs 90 MB to unpack itself and for
/// its own use.
const MIN_MEMORY_BYTES: u64 = 256 << 20;

/// Directory below the shelf that one run shares with its guest.
#[derive(Debug)]
struct Room {
    directory: TempDir,
    /// Lock on the directory, held as long as the directory is in use.
    _claim: File,
}

impl Room {
    const PREFIX: &'static str = "run-";

    /// Creates the directory. Removes also those of earlier runs that were killed.
    fn create_room() -> Result<Self, RunError> {
        let shelf = cache_directory();
        // The lock keeps other processes from removing a directory between its creation and its claim.
        let lock_path = shelf.join("runs.lock");
        let lock = File::create(&lock_path).map_err(file_error(&lock_path))?;
        lock.lock().map_err(file_error(&lock_path))?;
        for entry in fs::read_dir(&shelf).map_err(file_error(&shelf))?.flatten() {
            let left = entry.file_name().as_bytes().starts_with(Self::PREFIX.as_bytes())
                && File::open(entry.path()).is_ok_and(|directory| directory.try_lock().is_ok());
            if left {
                fs::remove_dir_all(entry.path()).map_err(file_error(&entry.path()))?;
            }
        }
        let directory = tempfile::Builder::new().prefix(Self::PREFIX).tempdir_in(&shelf).map_err(file_error(&shelf))?;
        let claim = File::open(directory.path()).map_err(file_error(directory.path()))?;
        claim.lock().map_err(file_error(directory.path()))?;
        Ok(Self { directory, _claim: claim })
    }

    fn directory_path(&self) -> &Path {
        self.directory.path()
    }

    /// Writes the command, its environment and the number of huge pages to the files that `guest/guest` reads.
    fn write_job_files(&self, command: &[OsString], huge_pages: u32) -> Result<(), RunError> {
        let directory = env::current_dir()?;
        if ["/dev", "/proc", "/run", "/sys"].iter().any(|own| directory.starts_with(own)) {
            return Err(RunError::Directory(directory));
        }
        let mut path = OsString::from("PATH=/usr/lib/thalweg-machine:");
        path.push(env::var_os("PATH").unwrap_or_default());
        // Debian's path of an ordinary user has no directories of root's; in the machine, the command is root.
        path.push(":/usr/local/sbin:/usr/sbin:/sbin");
        let mut home = OsString::from("HOME=");
        home.push(env::var_os("HOME").unwrap_or_else(|| "/root".into()));
        for (name, content) in [
            ("command", nul_terminated_words(command)),
            ("environment", nul_terminated_words(&[path, home, "TERM=dumb".into()])),
            ("directory", directory.as_os_str().as_bytes().to_vec()),
            ("huge", huge_pages.to_string().into_bytes()),
        ] {
            let path = self.directory_path().join(name);
            fs::write(&path, content).map_err(file_error(&path))?;
        }
        Ok(())
    }

    /// Returns the command's exit code, or `None` if it has not ended.
    fn exit_code(&self) -> Option<u8> {
        fs::read_to_string(self.directory_path().join("code")).ok()?.trim().parse().ok()
    }
}

/// Joins words, each followed by a NUL, which none of them contains.
fn nul_terminated_words(words: &[impl AsRef<OsStr>]) -> Vec<u8> {
    words.iter().flat_map(|word| [word.as_ref().as_bytes(), b"\0"].concat()).collect()
}

/// QEMU's process, which is killed when this is dropped.
struct Guest(Child);

enum Ended {
    ByItself(ExitStatus),
    Late,
    Stopped,
}

impl Guest {
    /// Waits until QEMU ends, the deadline has passed or `stop` is true.
    fn wait_until(&mut self, deadline: Instant, stop: &AtomicBool) -> io::Result<Ended> {
        loop {
            if let Some(status) = self.0.try_wait()? {
                return Ok(Ended::ByItself(status));
            }
            if stop.load(Ordering::Relaxed) {
                return Ok(Ended::Stopped);
            }
            if Instant::now() >= deadline {
                return Ok(Ended::Late);
            }
            thread::sleep(Duration::from_millis(20));
        }
    }

    /// Kills QEMU and waits for its end. Both calls fail only if it has ended before.
    fn kill_and_wait(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Drop for Guest {
    fn drop(&mut self) {
        self.kill_and_wait();
    }
}

/// Returns a path by which another process of this user can open a pipe's end, as long as this process has it open.
fn descriptor_path(end: &impl AsRawFd) -> PathBuf {
    format!("/proc/{}/fd/{}", process::id(), end.as_raw_fd()).into()
}

/// Copies until the writers of `from` have closed it. If `to` cannot be written any more, the rest is read and
/// discarded, so that the guest is not blocked.
fn copy_stream(mut from: io::PipeReader, mut to: impl Write) {
    let mut bytes = vec![0; 64 << 10];
    let mut is_read = true;
    loop {
        match from.read(&mut bytes) {
            Ok(0) => return,
            Ok(count) => is_read = is_read && to.write_all(&bytes[..count]).and_then(|()| to.flush()).is_ok(),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(_) => return,
        }
    }
}

/// Returns the last 15 lines of a file; bytes that are not UTF-8 are replaced.
fn last_lines(path: &Path) -> String {
    let bytes = fs::read(path).unwrap_or_default();
    let text = String::from_utf8_lossy(&bytes).replace('\r', "");
    let lines: Vec<&str> = text.lines().collect();
    lines[lines.len().saturating_sub(15)..].iter().map(|line| format!("{line}\n")).collect()
}

fn file_error(path: &Path) -> impl FnOnce(io::Error) -> RunError {
    let path = path.to_owned();
    |error| RunError::File { path, error }
}
