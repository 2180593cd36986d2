//! A process under test: what it says, how it is told, and how it ends.

use super::TIMEOUT;
use rustix::process::{Pid, Signal};
use serde_json::Value;
use std::fmt;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::Mutex;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread;
use std::time::{Duration, Instant};

/// A process that runs. Killed if a test drops it.
pub(crate) struct Node {
    name: String,
    child: Child,
    lines: Mutex<Receiver<Line>>,
    stdout: String,
    stderr: String,
}

enum Line {
    Stdout(String),
    Stderr(String),
}

impl Node {
    pub(crate) fn start(name: &str, mut command: Command) -> Self {
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let (sender, lines) = channel();
        listen(child.stdout.take().unwrap(), sender.clone(), Line::Stdout);
        listen(child.stderr.take().unwrap(), sender, Line::Stderr);
        Self { name: name.to_owned(), child, lines: Mutex::new(lines), stdout: String::new(), stderr: String::new() }
    }

    /// The first line that contains `text`, among those said so far and those to come.
    pub(crate) fn wait_for(&mut self, text: &str) -> String {
        self.wait_until(text, |line| line.contains(text))
    }

    /// The first line that is what is waited for.
    pub(crate) fn wait_until(&mut self, what: &str, is_it: impl Fn(&str) -> bool) -> String {
        if let Some(line) = self.stdout.lines().chain(self.stderr.lines()).find(|line| is_it(line)) {
            return line.to_owned();
        }
        let deadline = Instant::now() + TIMEOUT;
        loop {
            match self.next(deadline) {
                Some(line) if is_it(&line) => return line,
                Some(_) => {}
                None => panic!("never said '{what}': {self:?}"),
            }
        }
    }

    /// The next line that is what is waited for, among those to come.
    pub(crate) fn wait_next<T>(&mut self, what: &str, mut look: impl FnMut(&str) -> Option<T>) -> T {
        let deadline = Instant::now() + TIMEOUT;
        loop {
            match self.next(deadline) {
                Some(line) => {
                    if let Some(found) = look(&line) {
                        return found;
                    }
                }
                None => panic!("never said '{what}': {self:?}"),
            }
        }
    }

    /// The next line; nothing when the process and all that it started are gone, or the deadline is over.
    fn next(&mut self, deadline: Instant) -> Option<String> {
        match self.lines.get_mut().unwrap().recv_timeout(deadline.saturating_duration_since(Instant::now())).ok()? {
            Line::Stdout(line) => {
                self.stdout.push_str(&line);
                self.stdout.push('\n');
                Some(line)
            }
            Line::Stderr(line) => {
                self.stderr.push_str(&line);
                self.stderr.push('\n');
                Some(line)
            }
        }
    }

    /// One line on its standard input.
    pub(crate) fn tell(&mut self, line: &str) {
        writeln!(self.child.stdin.as_mut().unwrap(), "{line}").unwrap();
    }

    pub(crate) fn signal(&self, signal: Signal) {
        rustix::process::kill_process(self.pid(), signal).unwrap();
    }

    /// What Ctrl-C does.
    pub(crate) fn interrupt(&self) {
        self.signal(Signal::INT);
    }

    /// What somebody does who has no patience: Ctrl-C, until it is gone.
    pub(crate) fn interrupt_until_gone(mut self) -> Ended {
        let deadline = Instant::now() + TIMEOUT;
        while !matches!(self.child.try_wait(), Ok(Some(_))) && Instant::now() < deadline {
            self.interrupt();
            let pause = Instant::now() + Duration::from_millis(100);
            while self.next(pause).is_some() {}
        }
        self.finish()
    }

    pub(crate) fn pid(&self) -> Pid {
        Pid::from_child(&self.child)
    }

    /// The processes that it started and that live.
    pub(crate) fn children(&self) -> Vec<Pid> {
        let pid = self.pid().as_raw_nonzero();
        let path = format!("/proc/{pid}/task/{pid}/children");
        let text = std::fs::read_to_string(path).unwrap();
        text.split_whitespace().filter_map(|pid| Pid::from_raw(pid.parse().unwrap())).collect()
    }

    /// Memory of its own that is in use, in KiB. Arenas are not in it: their size is that of the configuration, and a
    /// page of them counts once it was touched.
    pub(crate) fn memory(&self) -> u64 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.child.id())).unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:")).expect("a process has an RssAnon");
        line.trim().trim_end_matches(" kB").parse().unwrap()
    }

    /// SIGKILL: no last words.
    pub(crate) fn kill(mut self) -> Ended {
        self.child.kill().unwrap();
        self.finish()
    }

    /// Its end. Waits for it and for everything that it started: these share its standard error.
    pub(crate) fn finish(mut self) -> Ended {
        let deadline = Instant::now() + TIMEOUT;
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            match self.lines.get_mut().unwrap().recv_timeout(left) {
                Ok(Line::Stdout(line)) => self.stdout.extend([line.as_str(), "\n"]),
                Ok(Line::Stderr(line)) => self.stderr.extend([line.as_str(), "\n"]),
                Err(RecvTimeoutError::Disconnected) => break,
                Err(RecvTimeoutError::Timeout) => panic!("does not end: {self:?}"),
            }
        }
        let status = self.child.wait().unwrap();
        let (stdout, stderr) = (std::mem::take(&mut self.stdout), std::mem::take(&mut self.stderr));
        Ended { name: self.name.clone(), status, stdout, stderr }
    }
}

fn listen(from: impl Read + Send + 'static, to: Sender<Line>, line: fn(String) -> Line) {
    thread::spawn(move || {
        for text in BufReader::new(from).lines().map_while(Result::ok) {
            if to.send(line(text)).is_err() {
                return;
            }
        }
    });
}

impl Drop for Node {
    fn drop(&mut self) {
        // A process that was stopped dies of SIGKILL all the same; one that writes to a disk that stands still does
        // not, and the test that made it stand still has to go on.
        let _ = self.child.kill();
        let deadline = Instant::now() + Duration::from_secs(5);
        while self.next(deadline).is_some() {}
        let _ = self.child.try_wait();
    }
}

impl fmt::Debug for Node {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}\n--- stdout\n{}--- stderr\n{}", self.name, self.stdout, self.stderr)
    }
}

/// Waits for the end of each node, which has to end well.
#[track_caller]
pub(crate) fn all_succeed(nodes: impl IntoIterator<Item = Node>) {
    for node in nodes {
        node.finish().succeeded();
    }
}

/// What a process left behind.
pub(crate) struct Ended {
    pub(crate) name: String,
    pub(crate) status: ExitStatus,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

impl Ended {
    /// Exit code; nothing for one that a signal ended.
    pub(crate) fn code(&self) -> Option<i32> {
        self.status.code()
    }

    /// The JSON object that is the last line of standard output, of a process that ended with this exit code.
    #[track_caller]
    pub(crate) fn report(&self, code: i32) -> Value {
        assert_eq!(self.code(), Some(code), "{self:?}");
        let last = self.stdout.lines().last().unwrap_or_default();
        serde_json::from_str(last).unwrap_or_else(|error| panic!("the last line is no JSON ({error}): {self:?}"))
    }

    /// It ended well.
    #[track_caller]
    pub(crate) fn succeeded(&self) -> &Self {
        assert!(self.status.success(), "{self:?}");
        self
    }

    /// It ended with exit code 1, and said so.
    #[track_caller]
    pub(crate) fn failed_saying(&self, text: &str) {
        assert_eq!(self.code(), Some(1), "{self:?}");
        assert!(self.stderr.contains(text), "expected '{text}': {self:?}");
    }
}

impl fmt::Debug for Ended {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { name, status, stdout, stderr } = self;
        write!(f, "{name}: {status}, signal {:?}\n--- stdout\n{stdout}--- stderr\n{stderr}", status.signal())
    }
}

/// Output of a command, and its exit code.
#[derive(Debug)]
pub(crate) struct Printed {
    pub(crate) code: i32,
    pub(crate) out: String,
    pub(crate) err: String,
}

impl Printed {
    /// Runs a command to its end.
    pub(crate) fn by(command: &mut Command) -> Self {
        let output = command.output().unwrap();
        Self {
            code: output.status.code().unwrap(),
            out: String::from_utf8_lossy(&output.stdout).into(),
            err: String::from_utf8_lossy(&output.stderr).into(),
        }
    }

    /// Returns the last line of standard output.
    #[track_caller]
    pub(crate) fn json(&self) -> Value {
        serde_json::from_str(self.out.lines().last().unwrap_or_default())
            .unwrap_or_else(|error| panic!("{error}: {self:?}"))
    }

    /// Asserts that it was refused as a wrong use, and returns why.
    pub(crate) fn refused(&self) -> &str {
        assert_eq!((self.code, &self.out[..]), (2, ""), "{self:?}");
        &self.err
    }
}
