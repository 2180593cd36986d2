//! How the programs that decide are started and ended.

use crate::ProgramConfig;
use rustix::process::{Pid, Signal};
use rustix::thread::CpuSet;
use std::fmt::Debug;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, ExitStatus, Stdio};

/// How programs are started.
pub trait Programs: Debug + Send + Sync {
    /// Starts one, with `input` as its standard input.
    ///
    /// # Errors
    /// It cannot be started, and why.
    fn start(&self, config: &ProgramConfig, input: OwnedFd) -> Result<Box<dyn Process>, String>;
}

/// A program that was started. Dropping it leaves it alone.
pub trait Process: Debug + Send {
    /// Its status, where it has ended. Does not wait.
    ///
    /// # Errors
    /// There is no such process.
    fn status(&mut self) -> io::Result<Option<ExitStatus>>;

    /// Ends it, and what it has started itself.
    fn kill(&mut self);

    /// Waits until it has ended.
    fn wait(&mut self);
}

/// Processes of this host.
#[derive(Debug)]
pub struct SystemPrograms {
    /// Where they may run: who starts one again may be a thread that has a processor for itself.
    processors: Option<CpuSet>,
}

impl SystemPrograms {
    /// Programs that may run where the calling thread may.
    pub fn new() -> Self {
        Self { processors: rustix::thread::sched_getaffinity(None).ok() }
    }
}

impl Default for SystemPrograms {
    fn default() -> Self {
        Self::new()
    }
}

impl Programs for SystemPrograms {
    fn start(&self, config: &ProgramConfig, input: OwnedFd) -> Result<Box<dyn Process>, String> {
        if !config.directory.is_dir() {
            return Err(format!("directory {}: there is none", config.directory.display()));
        }
        let Some((program, arguments)) = config.command.split_first() else { return Err("no program is named".into()) };
        let start = || {
            // What it prints is for whoever reads the node's log: the node's output is its report.
            let output = io::stderr().as_fd().try_clone_to_owned()?;
            Command::new(program)
                .args(arguments)
                .current_dir(&config.directory)
                // Who interrupts the nodes of a terminal stops the builder, and the program ends when that does.
                .process_group(0)
                .stdin(Stdio::from(input))
                .stdout(Stdio::from(output))
                .spawn()
        };
        let child = start().map_err(|error: io::Error| error.to_string())?;
        if let (Some(processors), Some(id)) = (&self.processors, pid(&child)) {
            let _ = rustix::thread::sched_setaffinity(Some(id), processors);
        }
        Ok(Box::new(child))
    }
}

impl Process for Child {
    fn status(&mut self) -> io::Result<Option<ExitStatus>> {
        self.try_wait()
    }

    fn kill(&mut self) {
        // They are a group.
        if let Some(group) = pid(self) {
            let _ = rustix::process::kill_process_group(group, Signal::KILL);
        }
        let _ = Self::kill(self);
    }

    fn wait(&mut self) {
        let _ = Self::wait(self);
    }
}

fn pid(child: &Child) -> Option<Pid> {
    i32::try_from(child.id()).ok().and_then(Pid::from_raw)
}
