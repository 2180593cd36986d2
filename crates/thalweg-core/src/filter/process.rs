//! Start and end of the programs that decide.

use crate::filter::ProgramConfig;
use rustix::process::{Pid, Signal};
use rustix::thread::CpuSet;
use std::fmt::Debug;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, ExitStatus, Stdio};

/// Starts programs.
pub trait Programs: Debug + Send + Sync {
    /// Starts a program with `input` as its standard input.
    ///
    /// # Errors
    /// The reason why the program cannot be started.
    fn start_program(&self, config: &ProgramConfig, input: OwnedFd) -> Result<Box<dyn Process>, String>;
}

/// A program that was started. Dropping this does not end the program.
pub trait Process: Debug + Send {
    /// Returns the exit status; `None` if the process has not ended. Does not wait.
    ///
    /// # Errors
    /// The process does not exist.
    fn exit_status(&mut self) -> io::Result<Option<ExitStatus>>;

    /// Kills the process, and the processes it has started itself.
    fn kill_group(&mut self);

    /// Waits until the process has ended.
    fn wait_until_ended(&mut self);
}

/// Starts programs as processes of this host.
#[derive(Debug)]
pub struct SystemPrograms {
    /// Processors on which they may run: a later restart may be made by a thread that has a processor for itself.
    processors: Option<CpuSet>,
}

impl SystemPrograms {
    /// Returns a starter of programs that may run on the processors of the calling thread.
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
    fn start_program(&self, config: &ProgramConfig, input: OwnedFd) -> Result<Box<dyn Process>, String> {
        if !config.directory.is_dir() {
            return Err(format!("directory {} does not exist", config.directory.display()));
        }
        let Some((program, arguments)) = config.command.split_first() else {
            return Err("the name of the program is \
            missing"
                .into());
        };
        // The program's output goes to the node's log: the node's own output is its report.
        let output = io::stderr().as_fd().try_clone_to_owned();
        let child = output.and_then(|output| {
            Command::new(program)
                .args(arguments)
                .current_dir(&config.directory)
                // An interrupt from the terminal stops the builder, and the program ends when the builder does.
                .process_group(0)
                .stdin(Stdio::from(input))
                .stdout(Stdio::from(output))
                .spawn()
        });
        let child = child.map_err(|error| error.to_string())?;
        if let (Some(processors), Some(id)) = (&self.processors, process_id(&child)) {
            let _ = rustix::thread::sched_setaffinity(Some(id), processors);
        }
        Ok(Box::new(child))
    }
}

impl Process for Child {
    fn exit_status(&mut self) -> io::Result<Option<ExitStatus>> {
        self.try_wait()
    }

    fn kill_group(&mut self) {
        // The process and its children are a group.
        if let Some(group) = process_id(self) {
            let _ = rustix::process::kill_process_group(group, Signal::KILL);
        }
        let _ = Self::kill(self);
    }

    fn wait_until_ended(&mut self) {
        let _ = Self::wait(self);
    }
}

fn process_id(child: &Child) -> Option<Pid> {
    i32::try_from(child.id()).ok().and_then(Pid::from_raw)
}
