//! The program's side of a [decision made by a program](crate::filter::Program).

use crate::filter::program::{
    ANSWER_BYTES, ANSWER_READY, PROTOCOL_VERSION, QUESTION_BYTES, VERDICT_NO, VERDICT_UNSURE, VERDICT_YES,
};
use std::fs::File;
use std::io::{self, Read, Seek, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use thalweg_arena::{Arena, View, recv_fds};
use thalweg_wire::{EventId, FragmentHeader, HEADER_LEN, RecordBytes, Records};

/// Longest introduction that is read, in bytes.
const MAX_INTRODUCTION_BYTES: u64 = 64 << 20;

/// The questions of a builder, event by event; each is to be [answered](Self::answer).
///
/// ```no_run
/// let Some(mut questions) = thalweg_core::filter::Questions::from_stdin()? else { return Ok(()) };
/// while let Some(question) = questions.next_question()? {
///     let brightest = |(_, payload): (_, &[u8])| payload.iter().copied().max();
///     let accept = question.fragments().filter_map(brightest).max() > Some(40);
///     questions.answer(question.event, Some(accept))?;
/// }
/// # std::io::Result::Ok(())
/// ```
#[derive(Debug)]
pub struct Questions {
    socket: UnixStream,
    memory: Arc<Arena>,
    introduction: serde_json::Value,
}

/// An event to decide on: a copy of the fragments that have arrived.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Question {
    /// Number of the event.
    pub event: EventId,
    /// Header of each fragment, followed by its payload.
    pub records: Vec<Vec<u8>>,
}

impl Questions {
    /// Reports to the builder at standard input that this program is ready, and waits until a run begins. Returns
    /// `None` if the builder ended before that.
    ///
    /// # Errors
    /// Standard input is not connected to a builder.
    pub fn from_stdin() -> io::Result<Option<Self>> {
        let builder = UnixStream::from(io::stdin().as_fd().try_clone_to_owned()?);
        let questions = Self::new(builder)?;
        // Processes that this program starts get a standard input of their own: they read no questions, and keep no run
        // from ending.
        rustix::stdio::dup2_stdin(File::open("/dev/null")?)?;
        Ok(questions)
    }

    fn new(mut socket: UnixStream) -> io::Result<Option<Self>> {
        socket.write_all(&encode_answer(PROTOCOL_VERSION, ANSWER_READY)).map_err(|error| {
            invalid_data(format!(
                "standard input is not connected to a builder: name this program in a topology, and the node starts \
                 it ({error})"
            ))
        })?;
        let mut text = [0; QUESTION_BYTES];
        let (read, files) = recv_fds(&socket, &mut text, 2).map_err(io::Error::other)?;
        if read == 0 {
            return Ok(None);
        }
        socket.read_exact(&mut text[read..])?;
        let Ok([memory, introduction]) = <[OwnedFd; 2]>::try_from(files) else {
            return Err(invalid_data("the builder did not send its memory"));
        };
        let memory = Arena::import(memory).map_err(io::Error::other)?;
        let (mut file, mut text) = (File::from(introduction), Vec::new());
        file.rewind()?;
        file.take(MAX_INTRODUCTION_BYTES).read_to_end(&mut text)?;
        let introduction = serde_json::from_slice(&text)?;
        Ok(Some(Self { socket, memory, introduction }))
    }

    /// Returns the builder's description of its run: `sources[]` have `id`, `name` and `description`.
    pub fn introduction(&self) -> &serde_json::Value {
        &self.introduction
    }

    /// Waits for the next event. Returns `None` if the run is over.
    ///
    /// # Errors
    /// The builder sent an invalid message.
    pub fn next_question(&mut self) -> io::Result<Option<Question>> {
        let mut question = [0; QUESTION_BYTES];
        let read = loop {
            match self.socket.read(&mut question) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if is_run_over(&error) => return Ok(None),
                read => break read?,
            }
        };
        if read == 0 {
            return Ok(None);
        }
        self.socket.read_exact(&mut question[read..])?;
        let [event, offset, bytes] =
            [0, 8, 16].map(|at| question[at..].first_chunk().copied().map(u64::from_le_bytes).unwrap_or_default());
        let view = usize::try_from(bytes).ok().and_then(|bytes| self.memory.view_range(offset, bytes));
        let view = QuestionBytes(view.ok_or_else(|| invalid_data("an event lies outside of the builder's memory"))?);
        let mut records = Vec::new();
        for record in Records::new(&view) {
            let (at, _, payload) = record.map_err(|error| invalid_data(error.to_string()))?;
            let mut record = vec![0; payload.end - at];
            view.copy_bytes_to(at, &mut record);
            records.push(record);
        }
        Ok(Some(Question { event: EventId(event), records }))
    }

    /// Sends the decision on an event: accepted or not, or `None` if that cannot be decided. If the run has ended
    /// meanwhile, the answer is discarded.
    ///
    /// # Errors
    /// The write to the socket fails.
    pub fn answer(&mut self, event: EventId, accept: Option<bool>) -> io::Result<()> {
        let verdict = accept.map_or(VERDICT_UNSURE, |accept| if accept { VERDICT_YES } else { VERDICT_NO });
        match self.socket.write_all(&encode_answer(event.0, verdict)) {
            Err(error) if is_run_over(&error) => Ok(()),
            written => written,
        }
    }
}

fn invalid_data(problem: impl Into<String>) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, problem.into())
}

/// Returns whether the builder has closed its end, with or without answers left unread.
fn is_run_over(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::ConnectionReset | io::ErrorKind::BrokenPipe)
}

impl Question {
    /// Returns headers and payloads, in no particular order.
    pub fn fragments(&self) -> impl Iterator<Item = (FragmentHeader, &[u8])> {
        self.records.iter().filter_map(|record| {
            let header = FragmentHeader::decode(record).ok()?;
            Some((header, &record[HEADER_LEN..]))
        })
    }
}

/// Place of a question in the builder's memory.
struct QuestionBytes(View);

impl RecordBytes for QuestionBytes {
    fn byte_count(&self) -> usize {
        self.0.len()
    }

    fn copy_bytes_to(&self, at: usize, out: &mut [u8]) {
        self.0.copy_bytes_to(at, out);
    }
}

fn encode_answer(number: u64, verdict: u32) -> [u8; ANSWER_BYTES] {
    let mut bytes = [0; ANSWER_BYTES];
    bytes[..8].copy_from_slice(&number.to_le_bytes());
    bytes[8..12].copy_from_slice(&verdict.to_le_bytes());
    bytes
}
