//! A decision made by a program of its own: in any language, at its own pace, and free to fail.
//!
//! The builder never waits for it. An event that it says nothing of by the deadline gets the answer that was chosen for
//! that case; so does every event while it is late, and one that it would not come to in time, as fast as it has been.
//! Where it ends it is started again.
//!
//! Its standard input is a stream socket (unix(7)). All numbers are little-endian:
//!
//! | who | sends | |
//! | --- | --- | --- |
//! | the program | 16 bytes: version (u64, 1), 3 (u32), 0 (u32) | it is ready |
//! | the builder | 24 bytes: 0, 0, length of the text (u64 each); with them two files (`SCM_RIGHTS`) | memory to map for reading, and a text: JSON, whose `sources[]` have `id`, `name` and `description` |
//! | the builder | 24 bytes: event, offset, bytes (u64 each) | a question: in the memory are the event's records, each a [fragment](thalweg_wire::FragmentHeader) that begins at a multiple of 64 bytes |
//! | the program | 16 bytes: event (u64), verdict (u32), 0 (u32) | its answer: 0 no, 1 yes, 2 it cannot say |
//!
//! Answers come in any order. The memory of a question is its event's until it is answered. The end of the stream is the
//! end of the run.

use crate::{Fragment, Process, Programs};
use rustix::event::epoll;
use rustix::fs::MemfdFlags;
use serde::{Deserialize, Serialize};
use std::collections::VecDeque;
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};
use thalweg_arena::{PlacePool, Span, send_fds};
use thalweg_wire::{EventId, HEADER_LEN, RECORD_ALIGN};

pub(crate) const VERSION: u64 = 1;
pub(crate) const QUESTION: usize = 24;
pub(crate) const ANSWER: usize = 16;
pub(crate) const NO: u32 = 0;
pub(crate) const YES: u32 = 1;
pub(crate) const UNSURE: u32 = 2;
pub(crate) const READY: u32 = 3;

/// How long it may take to say that it is ready: an interpreter has packages to load.
const START: Duration = Duration::from_secs(30);
/// From one start to the next.
const PAUSE: Duration = Duration::from_secs(1);
/// A program that owes an answer and has given none for so long beyond its deadline is ended.
const HUNG: Duration = Duration::from_secs(10);
/// How long it has to end by itself once the run is over.
const FAREWELL: Duration = Duration::from_millis(500);
/// Bytes that all questions may have together, and how many there are at most: half of what a socket takes, to which a
/// message of 24 bytes is one of 800.
const MEMORY: usize = 64 << 20;
const MOST: usize = 128;

/// How a program is started, and what its silence means.
#[derive(Debug, Clone)]
pub struct ProgramConfig {
    /// The program and its arguments.
    pub command: Vec<String>,
    /// Where it is started.
    pub directory: PathBuf,
    /// How long it has for an event, from the moment at which it is asked.
    pub deadline: Duration,
    /// Whether an event is accepted of which it says nothing, or says that it cannot say.
    pub otherwise: bool,
}

/// Events that could not be decided on, by the reason.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Undecided {
    /// A program said that it cannot say: its function failed. Or a condition was neither true nor false.
    pub unsure: u64,
    /// A program was too slow, or still busy with an event for which it had been too slow.
    pub late: u64,
    /// A program was not there.
    pub gone: u64,
    /// How often programs ended before the run did; they were started again.
    pub ends: u64,
}

impl Undecided {
    /// All of them.
    pub fn events(&self) -> u64 {
        self.unsure + self.late + self.gone
    }

    /// These and others.
    #[must_use]
    pub fn and(self, other: Self) -> Self {
        Self {
            unsure: self.unsure + other.unsure,
            late: self.late + other.late,
            gone: self.gone + other.gone,
            ends: self.ends + other.ends,
        }
    }
}

/// A program that decides.
#[derive(Debug)]
pub struct Program {
    config: ProgramConfig,
    /// Readable when there is something to [look](Self::look) at. Another socket is in it after each start.
    epoll: OwnedFd,
    programs: Arc<dyn Programs>,
    running: Option<Running>,
    started: Duration,
    /// Those that were, and are not gone yet.
    leaving: Vec<Box<dyn Process>>,
    run: Option<Run>,
    asked: VecDeque<Asked>,
    answers: VecDeque<(EventId, bool)>,
    heard: Duration,
    /// How long it has taken for an answer of late.
    pace: Duration,
    undecided: Undecided,
}

/// What is known once the run has begun.
#[derive(Debug)]
struct Run {
    memory: PlacePool,
    /// Bytes that an event has at most.
    bytes: usize,
    introduction: Vec<u8>,
}

#[derive(Debug)]
struct Running {
    process: Box<dyn Process>,
    socket: UnixStream,
    ready: bool,
    /// What has come of an answer.
    answer: Vec<u8>,
}

#[derive(Debug)]
struct Asked {
    event: EventId,
    /// Where it lies: the program may look at it for as long as it has not answered.
    _place: Span,
    by: Duration,
    late: bool,
}

impl Program {
    /// Starts it, and waits until it is ready.
    ///
    /// # Errors
    /// It cannot be started, ends, or does not say that it is ready.
    pub fn start(config: ProgramConfig, programs: Arc<dyn Programs>, now: Duration) -> Result<Self, String> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC).map_err(|error| error.to_string())?;
        let mut program = Self {
            config,
            epoll,
            programs,
            running: None,
            started: now,
            leaving: Vec::new(),
            run: None,
            asked: VecDeque::new(),
            answers: VecDeque::new(),
            heard: now,
            pace: Duration::ZERO,
            undecided: Undecided::default(),
        };
        program.spawn(now)?;
        let until = Instant::now() + START;
        while !program.is_ready() {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(format!("'{}' did not say within {START:?} that it is ready", program.name()));
            }
            program.wait(left);
            if let Err(why) = program.hear(now) {
                return Err(program.farewell(&why));
            }
        }
        Ok(program)
    }

    fn name(&self) -> &str {
        self.config.command.first().map_or("", String::as_str)
    }

    fn spawn(&mut self, now: Duration) -> Result<(), String> {
        self.started = now;
        let wrong = |error: &dyn std::fmt::Display| format!("'{}': {error}", self.name());
        let (ours, theirs) = UnixStream::pair().map_err(|error| wrong(&error))?;
        ours.set_nonblocking(true).map_err(|error| wrong(&error))?;
        let process = self.programs.start(&self.config, theirs.into()).map_err(|error| wrong(&error))?;
        epoll::add(&self.epoll, &ours, epoll::EventData::new_u64(0), epoll::EventFlags::IN)
            .map_err(|error| wrong(&error))?;
        self.running = Some(Running { process, socket: ours, ready: false, answer: Vec::new() });
        Ok(())
    }

    fn wait(&self, timeout: Duration) {
        let timeout = rustix::time::Timespec {
            tv_sec: i64::try_from(timeout.as_secs()).unwrap_or(i64::MAX),
            tv_nsec: timeout.subsec_nanos().into(),
        };
        let mut space = [std::mem::MaybeUninit::uninit(); 1];
        let _ = epoll::wait(&self.epoll, &mut space, Some(&timeout));
    }

    fn is_ready(&self) -> bool {
        self.running.as_ref().is_some_and(|running| running.ready)
    }

    /// The run begins: `introduction` is what the program is told of it, and an event has at most `bytes` bytes.
    ///
    /// # Errors
    /// There is no memory for questions.
    pub fn begin(&mut self, introduction: &serde_json::Value, bytes: usize) -> Result<(), String> {
        let bytes = bytes.max(1);
        let count = u32::try_from((MEMORY / bytes).clamp(2, MOST)).unwrap_or(2);
        let memory = PlacePool::to_share("questions", count, bytes).map_err(|error| error.to_string())?;
        self.run = Some(Run { memory, bytes, introduction: introduction.to_string().into_bytes() });
        if let Err(error) = self.introduce() {
            self.lose(&error.to_string());
        }
        Ok(())
    }

    /// Tells the program of the run, once it is ready and there is one.
    fn introduce(&self) -> io::Result<()> {
        let (Some(run), Some(running)) = (&self.run, self.running.as_ref().filter(|it| it.ready)) else {
            return Ok(());
        };
        let mut file = File::from(rustix::fs::memfd_create("introduction", MemfdFlags::CLOEXEC)?);
        file.write_all(&run.introduction)?;
        let text = message([0, 0, run.introduction.len() as u64]);
        let sent = send_fds(&running.socket, &text, &[run.memory.arena().fd(), file.as_fd()]);
        sent.map(|_| ()).map_err(io::Error::other)
    }

    /// Whether it can be asked: what it was asked before leaves room for one more, or it would not be asked at all.
    pub fn has_room(&self) -> bool {
        !self.is_listening() || self.run.as_ref().is_some_and(|run| run.memory.free() > 0)
    }

    /// It is there, owes no answer that is late, and would come to another question in time, as fast as it has been.
    fn is_listening(&self) -> bool {
        let before = u32::try_from(self.asked.len()).unwrap_or(u32::MAX);
        let in_time = before == 0 || self.pace.saturating_mul(before.saturating_add(1)) <= self.config.deadline;
        self.is_ready() && in_time && !self.asked.front().is_some_and(|asked| asked.late)
    }

    /// Asks it. Its answer [comes](Self::next_answer) later; where it is not asked, this is the answer.
    pub fn ask(
        &mut self,
        event: EventId,
        fragments: &mut dyn Iterator<Item = Fragment<'_>>,
        now: Duration,
    ) -> Option<bool> {
        if !self.is_listening() {
            let reason = if self.is_ready() { &mut self.undecided.late } else { &mut self.undecided.gone };
            *reason += 1;
            return Some(self.config.otherwise);
        }
        match self.put(event, fragments) {
            Ok(place) => {
                // Who owes nothing cannot be silent.
                if self.asked.is_empty() {
                    self.heard = now;
                }
                let by = now + self.config.deadline;
                self.asked.push_back(Asked { event, _place: place, by, late: false });
                None
            }
            Err(error) => {
                tracing::warn!(program = self.name(), event = event.0, "it cannot be asked: {error}");
                self.undecided.gone += 1;
                Some(self.config.otherwise)
            }
        }
    }

    fn put(&mut self, event: EventId, fragments: &mut dyn Iterator<Item = Fragment<'_>>) -> io::Result<Span> {
        let full = || io::Error::other("there is no room for it");
        let (Some(run), Some(running)) = (&mut self.run, &mut self.running) else { return Err(full()) };
        let mut place = run.memory.take(run.bytes).ok_or_else(full)?;
        let mut end = 0;
        for fragment in fragments {
            let begin = end + HEADER_LEN;
            end = begin + fragment.len();
            let record = place.get_mut(begin - HEADER_LEN..end).ok_or_else(full)?;
            record[..HEADER_LEN].copy_from_slice(&fragment.header.encode());
            fragment.copy_to(0, &mut record[HEADER_LEN..]);
            end = end.next_multiple_of(RECORD_ALIGN);
        }
        // A socket that takes anything takes all of so few bytes.
        let end = end.min(place.len());
        running.socket.write_all(&message([event.0, place.offset() as u64, end as u64]))?;
        Ok(place)
    }

    /// Hears what it says, and lets time pass.
    pub fn look(&mut self, now: Duration) {
        if let Err(why) = self.hear(now) {
            self.lose(&why);
        }
        for at in 0..self.asked.len() {
            let asked = &mut self.asked[at];
            if asked.late || asked.by > now {
                continue;
            }
            asked.late = true;
            self.answers.push_back((asked.event, self.config.otherwise));
            self.undecided.late += 1;
        }
        if self.gives_up().is_some_and(|at| now >= at) {
            self.lose("it hangs");
        }
        self.leaving.retain_mut(|process| matches!(process.status(), Ok(None)));
        if self.running.is_none()
            && now >= self.started + PAUSE
            && let Err(error) = self.spawn(now)
        {
            tracing::warn!("cannot be started again: {error}");
        }
    }

    /// When it is given up: it has answered nothing for too long, or is not ready yet.
    fn gives_up(&self) -> Option<Duration> {
        let running = self.running.as_ref()?;
        if !running.ready {
            return Some(self.started + START);
        }
        (!self.asked.is_empty()).then_some(self.heard + self.config.deadline + HUNG)
    }

    /// Takes what it has said.
    fn hear(&mut self, now: Duration) -> Result<(), String> {
        loop {
            let Some(running) = &mut self.running else { return Ok(()) };
            let mut bytes = [0; ANSWER * 64];
            let room = bytes.len() - running.answer.len();
            match running.socket.read(&mut bytes[..room]) {
                Ok(0) => return Err("it ended".into()),
                Ok(read) => running.answer.extend_from_slice(&bytes[..read]),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                // It had not read all that it was sent.
                Err(error) if error.kind() == io::ErrorKind::ConnectionReset => return Err("it ended".into()),
                Err(error) => return Err(error.to_string()),
            }
            let whole = running.answer.len() / ANSWER * ANSWER;
            let answers: Vec<u8> = running.answer.drain(..whole).collect();
            let count = u32::try_from(answers.len() / ANSWER).unwrap_or(1);
            if running.ready && count > 0 {
                // Several that came together took as long together.
                let each = now.saturating_sub(self.heard) / count;
                self.pace = if self.pace.is_zero() { each } else { self.pace * 31 / 32 + each / 32 };
            }
            for answer in answers.chunks_exact(ANSWER) {
                self.heard = now;
                self.take(answer)?;
            }
        }
    }

    fn take(&mut self, answer: &[u8]) -> Result<(), String> {
        let number = |at: usize| answer[at..].first_chunk().copied().map(u64::from_le_bytes).unwrap_or_default();
        let verdict = answer[8..].first_chunk().copied().map(u32::from_le_bytes).unwrap_or_default();
        let event = EventId(number(0));
        let Some(running) = &mut self.running else { return Ok(()) };
        if !running.ready {
            if (event.0, verdict) != (VERSION, READY) {
                return Err("it speaks another language, or another version of this one".into());
            }
            running.ready = true;
            return self.introduce().map_err(|error| error.to_string());
        }
        let Some(at) = self.asked.iter().position(|asked| asked.event == event) else {
            return Err(format!("it answers for event {}, of which it was not asked", event.0));
        };
        if verdict > UNSURE {
            return Err(format!("its answer is {verdict}, which is neither 0, 1 nor 2"));
        }
        let late = self.asked.remove(at).is_some_and(|asked| asked.late);
        if !late {
            self.undecided.unsure += u64::from(verdict == UNSURE);
            let accept = if verdict == UNSURE { self.config.otherwise } else { verdict == YES };
            self.answers.push_back((event, accept));
        }
        Ok(())
    }

    /// It is gone: what it was asked is answered for it.
    fn lose(&mut self, why: &str) {
        // It may have closed its end, and take a moment more to be gone.
        let status = self.running.as_mut().and_then(|running| running.process.status().ok().flatten());
        let status = status.map_or_else(String::new, |status| format!(" ({status})"));
        tracing::warn!("'{}': {why}{status}; it is started again", self.name());
        self.undecided.ends += 1;
        if let Some(Running { mut process, .. }) = self.running.take() {
            // Nobody waits here for it to be gone.
            process.kill();
            self.leaving.push(process);
        }
        for asked in self.asked.drain(..).filter(|asked| !asked.late) {
            self.answers.push_back((asked.event, self.config.otherwise));
            self.undecided.gone += 1;
        }
    }

    /// Gives it time to end by itself, which is what it does when nobody asks any more; then ends it. What there is to
    /// say of it.
    fn farewell(&mut self, why: &str) -> String {
        let name = self.name().to_owned();
        let Some(Running { mut process, socket, .. }) = self.running.take() else { return format!("'{name}': {why}") };
        drop(socket);
        let until = Instant::now() + FAREWELL;
        while Instant::now() < until {
            match process.status() {
                Ok(Some(status)) => return format!("'{name}': {why} ({status})"),
                Ok(None) => std::thread::sleep(Duration::from_millis(2)),
                Err(_) => break,
            }
        }
        process.kill();
        process.wait();
        format!("'{name}': {why}")
    }

    /// An answer that came, or that was given for it.
    pub fn next_answer(&mut self) -> Option<(EventId, bool)> {
        self.answers.pop_front()
    }

    /// When to [look](Self::look) at it, though it says nothing.
    pub fn next_look(&self) -> Option<Duration> {
        let by = self.asked.iter().find(|asked| !asked.late).map(|asked| asked.by);
        let start = self.running.is_none().then_some(self.started + PAUSE);
        [by, self.gives_up(), start].into_iter().flatten().min()
    }

    /// Events that it did not decide on.
    pub fn undecided(&self) -> Undecided {
        self.undecided
    }
}

impl AsFd for Program {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.epoll.as_fd()
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        self.farewell("");
    }
}

/// Three numbers, as the builder says them.
fn message(numbers: [u64; 3]) -> [u8; QUESTION] {
    let mut bytes = [0; QUESTION];
    bytes.chunks_exact_mut(8).zip(numbers).for_each(|(eight, number)| eight.copy_from_slice(&number.to_le_bytes()));
    bytes
}
