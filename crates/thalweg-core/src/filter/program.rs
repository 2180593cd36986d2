//! A decision made by a program of its own: in any language, at its own pace, and free to fail.
//!
//! The builder never waits for the program. An event that has no answer by the deadline gets the answer that was
//! configured for that case; so does every event while the program is late, and every event that it would not reach in
//! time at its recent pace. A program that ends is started again.
//!
//! The program's standard input is a stream socket (unix(7)). All numbers are little-endian:
//!
//! | sender | message | meaning |
//! | --- | --- | --- |
//! | the program | 16 bytes: version (u64, 1), 3 (u32), 0 (u32) | ready |
//! | the builder | 24 bytes: 0, 0, length of the text (u64 each); with them two files (`SCM_RIGHTS`) | memory to map for reading, and a text: JSON, whose `sources[]` have `id`, `name` and `description` |
//! | the builder | 24 bytes: event, offset, bytes (u64 each) | a question: in the memory are the event's records, each a [fragment](thalweg_wire::FragmentHeader) that begins at a multiple of 64 bytes |
//! | the program | 16 bytes: event (u64), verdict (u32), 0 (u32) | an answer: 0 no, 1 yes, 2 undecided |
//!
//! Answers come in any order. The memory of a question is reserved until it is answered. The end of the stream is the
//! end of the run.

use crate::filter::{Fragment, Process, Programs};
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

pub(crate) const PROTOCOL_VERSION: u64 = 1;
pub(crate) const QUESTION_BYTES: usize = 24;
pub(crate) const ANSWER_BYTES: usize = 16;
pub(crate) const VERDICT_NO: u32 = 0;
pub(crate) const VERDICT_YES: u32 = 1;
pub(crate) const VERDICT_UNSURE: u32 = 2;
pub(crate) const ANSWER_READY: u32 = 3;

/// Time within which the program has to report that it is ready: an interpreter has packages to load.
const START_TIMEOUT: Duration = Duration::from_secs(30);
/// Shortest time from one start to the next.
const MIN_RESTART_INTERVAL: Duration = Duration::from_secs(1);
/// Time beyond the deadline after which a program that owes an answer, and has given none, is ended.
const HANG_TIMEOUT: Duration = Duration::from_secs(10);
/// Time within which the program may end by itself once the run is over.
const EXIT_TIMEOUT: Duration = Duration::from_millis(500);
/// Limits of the bytes of all open questions together, and of their number: half of what a socket takes, to which a
/// message of 24 bytes is one of 800.
const MAX_OPEN_BYTES: usize = 64 << 20;
const MAX_OPEN_QUESTIONS: usize = 128;

/// Configuration of a program: its start, and the effect of its silence.
#[derive(Debug, Clone)]
pub struct ProgramConfig {
    /// Program and its arguments.
    pub command: Vec<String>,
    /// Working directory of the program.
    pub directory: PathBuf,
    /// Time allowed for a decision, from the moment at which the question is sent.
    pub deadline: Duration,
    /// True if an event is accepted for which the program gives no answer, or answers that it cannot decide.
    pub otherwise: bool,
}

/// Number of events that could not be decided, by reason.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Undecided {
    /// Events for which a program answered that it cannot decide, since its function failed; or for which a condition
    /// was neither true nor false.
    pub unsure: u64,
    /// Events for which a program was too slow, or still busy with an event for which it had been too slow.
    pub late: u64,
    /// Events for which no program was available.
    pub gone: u64,
    /// Number of times that programs ended before the run did; they were started again.
    pub ends: u64,
}

impl Undecided {
    /// Returns the number of events, for all reasons together.
    pub fn event_count(&self) -> u64 {
        self.unsure + self.late + self.gone
    }

    /// Returns the sum of these counters and others.
    #[must_use]
    pub fn merged_with(self, other: Self) -> Self {
        Self {
            unsure: self.unsure + other.unsure,
            late: self.late + other.late,
            gone: self.gone + other.gone,
            ends: self.ends + other.ends,
        }
    }

    /// Returns these counters without earlier ones.
    #[must_use]
    pub fn without_earlier(self, earlier: Self) -> Self {
        Self {
            unsure: self.unsure - earlier.unsure,
            late: self.late - earlier.late,
            gone: self.gone - earlier.gone,
            ends: self.ends - earlier.ends,
        }
    }
}

/// A program that decides on events.
#[derive(Debug)]
pub struct Program {
    config: ProgramConfig,
    /// Readable when a call of [look](Self::poll_answers) is needed. Contains another socket after each start.
    epoll: OwnedFd,
    programs: Arc<dyn Programs>,
    running: Option<Running>,
    started: Duration,
    /// Processes that were given up and have not ended yet.
    leaving: Vec<Box<dyn Process>>,
    run: Option<Run>,
    open_questions: VecDeque<OpenQuestion>,
    answers: VecDeque<(EventId, bool)>,
    /// Time of the program's last answer, or of the first question after a pause.
    last_answer: Duration,
    /// Average time of an answer lately.
    pace: Duration,
    undecided: Undecided,
}

/// Data that are known once the run has begun.
#[derive(Debug)]
struct Run {
    memory: PlacePool,
    /// Largest length of an event, in bytes.
    bytes: usize,
    introduction: Vec<u8>,
}

#[derive(Debug)]
struct Running {
    process: Box<dyn Process>,
    socket: UnixStream,
    ready: bool,
    /// Bytes of an incomplete answer.
    answer: Vec<u8>,
}

#[derive(Debug)]
struct OpenQuestion {
    event: EventId,
    /// Place of the event's records: the program may read it until it has answered.
    _place: Span,
    deadline: Duration,
    is_late: bool,
}

impl Program {
    /// Starts the program, and waits until it is ready.
    ///
    /// # Errors
    /// The program cannot be started, ends, or does not report that it is ready.
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
            open_questions: VecDeque::new(),
            answers: VecDeque::new(),
            last_answer: now,
            pace: Duration::ZERO,
            undecided: Undecided::default(),
        };
        program.spawn_process(now)?;
        let until = Instant::now() + START_TIMEOUT;
        while !program.is_ready() {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(format!("'{}' was not ready within {START_TIMEOUT:?}", program.program_name()));
            }
            program.wait_for_message(left);
            if let Err(reason) = program.read_messages(now) {
                return Err(program.end_process(&reason));
            }
        }
        Ok(program)
    }

    fn program_name(&self) -> &str {
        self.config.command.first().map_or("", String::as_str)
    }

    fn spawn_process(&mut self, now: Duration) -> Result<(), String> {
        self.started = now;
        let running = self.start_process().map_err(|error| format!("'{}': {error}", self.program_name()))?;
        self.running = Some(running);
        Ok(())
    }

    fn start_process(&self) -> Result<Running, Box<dyn std::error::Error>> {
        let (socket, input) = UnixStream::pair()?;
        socket.set_nonblocking(true)?;
        let process = self.programs.start_program(&self.config, input.into())?;
        epoll::add(&self.epoll, &socket, epoll::EventData::new_u64(0), epoll::EventFlags::IN)?;
        Ok(Running { process, socket, ready: false, answer: Vec::new() })
    }

    fn wait_for_message(&self, timeout: Duration) {
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

    /// Begins the run: `introduction` is the description of the run that the program gets, and an event has at most
    /// `bytes` bytes.
    ///
    /// # Errors
    /// No memory for questions is available.
    pub fn begin_run(&mut self, introduction: &serde_json::Value, bytes: usize) -> Result<(), String> {
        let bytes = bytes.max(1);
        let count = u32::try_from((MAX_OPEN_BYTES / bytes).clamp(2, MAX_OPEN_QUESTIONS)).unwrap_or(2);
        let memory = PlacePool::new_shareable("questions", count, bytes).map_err(|error| error.to_string())?;
        self.run = Some(Run { memory, bytes, introduction: introduction.to_string().into_bytes() });
        if let Err(error) = self.send_introduction() {
            self.give_up_program(&error.to_string());
        }
        Ok(())
    }

    /// Sends the introduction to the program, once the program is ready and a run has begun.
    fn send_introduction(&self) -> io::Result<()> {
        let (Some(run), Some(running)) = (&self.run, self.running.as_ref().filter(|it| it.ready)) else {
            return Ok(());
        };
        let mut file = File::from(rustix::fs::memfd_create("introduction", MemfdFlags::CLOEXEC)?);
        file.write_all(&run.introduction)?;
        let text = encode_question([0, 0, run.introduction.len() as u64]);
        let sent = send_fds(&running.socket, &text, &[run.memory.arena().fd(), file.as_fd()]);
        sent.map(|_| ()).map_err(io::Error::other)
    }

    /// Returns whether [`send_question`](Self::send_question) can be called: the open questions leave room for one
    /// more, or the question would not be sent at all.
    pub fn has_room(&self) -> bool {
        !self.is_listening() || self.run.as_ref().is_some_and(|run| run.memory.free_count() > 0)
    }

    /// Returns whether the program is ready, owes no late answer, and would answer another question in time at its
    /// recent pace.
    fn is_listening(&self) -> bool {
        let before = u32::try_from(self.open_questions.len()).unwrap_or(u32::MAX);
        let in_time = before == 0 || self.pace.saturating_mul(before.saturating_add(1)) <= self.config.deadline;
        self.is_ready() && in_time && !self.open_questions.front().is_some_and(|question| question.is_late)
    }

    /// Sends the program a question about an event. Its answer [comes](Self::next_answer) later. If the question cannot
    /// be sent, the returned value is the answer.
    pub fn send_question(
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
        match self.write_question(event, fragments) {
            Ok(place) => {
                // A program that owes no answer cannot be silent.
                if self.open_questions.is_empty() {
                    self.last_answer = now;
                }
                let deadline = now + self.config.deadline;
                self.open_questions.push_back(OpenQuestion { event, _place: place, deadline, is_late: false });
                None
            }
            Err(error) => {
                tracing::warn!(program = self.program_name(), event = event.0, "cannot send it an event: {error}");
                self.undecided.gone += 1;
                Some(self.config.otherwise)
            }
        }
    }

    fn write_question(
        &mut self,
        event: EventId,
        fragments: &mut dyn Iterator<Item = Fragment<'_>>,
    ) -> io::Result<Span> {
        let (Some(run), Some(running)) = (&mut self.run, &mut self.running) else { return Err(no_room_error()) };
        let mut place = run.memory.take_place(run.bytes).ok_or_else(no_room_error)?;
        let mut end = 0;
        for fragment in fragments {
            let begin = end + HEADER_LEN;
            end = begin + fragment.len();
            let record = place.get_mut(begin - HEADER_LEN..end).ok_or_else(no_room_error)?;
            record[..HEADER_LEN].copy_from_slice(&fragment.header.encode());
            fragment.copy_to(0, &mut record[HEADER_LEN..]);
            end = end.next_multiple_of(RECORD_ALIGN);
        }
        // A socket that takes anything takes all of so few bytes.
        let end = end.min(place.len());
        running.socket.write_all(&encode_question([event.0, place.arena_offset() as u64, end as u64]))?;
        Ok(place)
    }

    /// Reads the answers of the program, applies deadlines, and starts a program again that has ended.
    pub fn poll_answers(&mut self, now: Duration) {
        if let Err(reason) = self.read_messages(now) {
            self.give_up_program(&reason);
        }
        for question in &mut self.open_questions {
            if question.is_late || question.deadline > now {
                continue;
            }
            question.is_late = true;
            self.answers.push_back((question.event, self.config.otherwise));
            self.undecided.late += 1;
        }
        if self.give_up_time().is_some_and(|at| now >= at) {
            self.give_up_program("it hangs");
        }
        self.leaving.retain_mut(|process| matches!(process.exit_status(), Ok(None)));
        if self.running.is_none()
            && now >= self.started + MIN_RESTART_INTERVAL
            && let Err(error) = self.spawn_process(now)
        {
            tracing::warn!("cannot be started again: {error}");
        }
    }

    /// Returns the time at which the program is given up: it has answered nothing for too long, or is not ready yet.
    fn give_up_time(&self) -> Option<Duration> {
        let running = self.running.as_ref()?;
        if !running.ready {
            return Some(self.started + START_TIMEOUT);
        }
        (!self.open_questions.is_empty()).then_some(self.last_answer + self.config.deadline + HANG_TIMEOUT)
    }

    /// Reads the program's messages.
    fn read_messages(&mut self, now: Duration) -> Result<(), String> {
        loop {
            let Some(running) = &mut self.running else { return Ok(()) };
            let mut bytes = [0; ANSWER_BYTES * 64];
            let room = bytes.len() - running.answer.len();
            match running.socket.read(&mut bytes[..room]) {
                Ok(0) => return Err("it ended".into()),
                Ok(read) => running.answer.extend_from_slice(&bytes[..read]),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                // The program had not read all that it was sent.
                Err(error) if error.kind() == io::ErrorKind::ConnectionReset => return Err("it ended".into()),
                Err(error) => return Err(error.to_string()),
            }
            let whole = running.answer.len() / ANSWER_BYTES * ANSWER_BYTES;
            let answers: Vec<u8> = running.answer.drain(..whole).collect();
            let count = u32::try_from(answers.len() / ANSWER_BYTES).unwrap_or(1);
            if running.ready && count > 0 {
                // Answers that came together took this time together.
                let each = now.saturating_sub(self.last_answer) / count;
                self.pace = if self.pace.is_zero() { each } else { self.pace * 31 / 32 + each / 32 };
            }
            for answer in answers.chunks_exact(ANSWER_BYTES) {
                self.last_answer = now;
                self.handle_answer(answer)?;
            }
        }
    }

    fn handle_answer(&mut self, answer: &[u8]) -> Result<(), String> {
        let event = EventId(answer.first_chunk().copied().map(u64::from_le_bytes).unwrap_or_default());
        let verdict = answer[8..].first_chunk().copied().map(u32::from_le_bytes).unwrap_or_default();
        let Some(running) = &mut self.running else { return Ok(()) };
        if !running.ready {
            if (event.0, verdict) != (PROTOCOL_VERSION, ANSWER_READY) {
                return Err("it uses a different protocol, or a different version of it".into());
            }
            running.ready = true;
            return self.send_introduction().map_err(|error| error.to_string());
        }
        let Some(at) = self.open_questions.iter().position(|question| question.event == event) else {
            return Err(format!("it sent a decision on event {}, which it was not asked about", event.0));
        };
        if verdict > VERDICT_UNSURE {
            return Err(format!("its decision is {verdict}, not 0, 1 or 2"));
        }
        let is_late = self.open_questions.remove(at).is_some_and(|question| question.is_late);
        if !is_late {
            self.undecided.unsure += u64::from(verdict == VERDICT_UNSURE);
            let accept = if verdict == VERDICT_UNSURE { self.config.otherwise } else { verdict == VERDICT_YES };
            self.answers.push_back((event, accept));
        }
        Ok(())
    }

    /// Gives the program up, and answers its open questions in its place.
    fn give_up_program(&mut self, reason: &str) {
        // The program may have closed its end, and take a moment more to exit.
        let status = self.running.as_mut().and_then(|running| running.process.exit_status().ok().flatten());
        let status = status.map_or_else(String::new, |status| format!(" ({status})"));
        tracing::warn!("'{}': {reason}{status}; restarting it", self.program_name());
        self.undecided.ends += 1;
        if let Some(Running { mut process, .. }) = self.running.take() {
            // The exit is not waited for here.
            process.kill_group();
            self.leaving.push(process);
        }
        for question in self.open_questions.drain(..).filter(|question| !question.is_late) {
            self.answers.push_back((question.event, self.config.otherwise));
            self.undecided.gone += 1;
        }
    }

    /// Gives the program time to end by itself, which it does when the socket is closed; then kills it. Returns a
    /// description of its end.
    fn end_process(&mut self, reason: &str) -> String {
        let name = self.program_name().to_owned();
        let Some(Running { mut process, socket, .. }) = self.running.take() else {
            return format!("'{name}': {reason}");
        };
        drop(socket);
        let until = Instant::now() + EXIT_TIMEOUT;
        loop {
            let is_late = Instant::now() >= until;
            match process.exit_status() {
                Ok(Some(status)) => return format!("'{name}': {reason} ({status})"),
                Ok(None) if !is_late => std::thread::sleep(Duration::from_millis(2)),
                Ok(None) | Err(_) => break,
            }
        }
        process.kill_group();
        process.wait_until_ended();
        format!("'{name}': {reason}")
    }

    /// Returns the next answer: the program's, or one given in its place.
    pub fn next_answer(&mut self) -> Option<(EventId, bool)> {
        self.answers.pop_front()
    }

    /// Returns when to call [look](Self::poll_answers) even if the program sends nothing; `None` if never.
    pub fn next_poll_time(&self) -> Option<Duration> {
        let deadline = self.open_questions.iter().find(|question| !question.is_late).map(|question| question.deadline);
        let start = self.running.is_none().then_some(self.started + MIN_RESTART_INTERVAL);
        [deadline, self.give_up_time(), start].into_iter().flatten().min()
    }

    /// Returns the counters of events that the program did not decide on.
    pub fn undecided_counts(&self) -> Undecided {
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
        self.end_process("");
    }
}

fn no_room_error() -> io::Error {
    io::Error::other("it does not fit into the memory for events")
}

/// Encodes a message of the builder: three numbers.
fn encode_question(numbers: [u64; 3]) -> [u8; QUESTION_BYTES] {
    let mut bytes = [0; QUESTION_BYTES];
    bytes.chunks_exact_mut(8).zip(numbers).for_each(|(eight, number)| eight.copy_from_slice(&number.to_le_bytes()));
    bytes
}
