//! A program that decides: its questions, the effect of its silence, and the handling of one that fails. The program is
//! this test binary, started again.

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use serde_json::json;
use std::env;
use std::io::{self, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::process::{Command, Stdio, exit};
use std::sync::Arc;
use std::time::Duration;
use thalweg_core::filter::{Fragment, Program, ProgramConfig, Programs, Questions, SystemPrograms, Undecided};
use thalweg_wire::{EventId, FragmentHeader, RecordBytes, SourceId};

const MODE: &str = "THALWEG_DECIDES";
const DEADLINE: Duration = Duration::from_millis(100);
/// Longer than any successful operation takes.
const PATIENCE: Timespec = Timespec { tv_sec: 60, tv_nsec: 0 };

/// The started program. It exits before the test result is printed: it is not a test.
#[test]
fn the_program() {
    let Ok(mode) = env::var(MODE) else { return };
    let ended = decide(&mode);
    ended.as_ref().inspect_err(|error| eprintln!("{error}")).ok();
    exit(i32::from(ended.is_err()));
}

fn programs() -> Arc<dyn Programs> {
    Arc::new(SystemPrograms::new())
}

fn decide(mode: &str) -> io::Result<()> {
    if mode == "stranger" {
        return UnixStream::from(stdin()).write_all(b"GET / HTTP/1.1\r\n\r\n");
    }
    let Some(mut questions) = Questions::from_stdin()? else { return Ok(()) };
    assert_eq!(questions.introduction()["sources"][0]["name"], "camera");
    while let Some(question) = questions.next_question()? {
        assert!(question.fragments().all(|(header, _)| header.event == question.event));
        let light = question.fragments().flat_map(|(_, payload)| payload).map(|byte| u32::from(*byte)).sum::<u32>();
        let accept = match (mode, question.event.0) {
            ("ends at 2", 2) => exit(3),
            ("says nothing of 1", 1) => continue,
            ("speaks of others", _) => {
                questions.answer(EventId(100), Some(true))?;
                continue;
            }
            ("cannot say", _) => None,
            _ => Some(light > 100),
        };
        questions.answer(question.event, accept)?;
    }
    Ok(())
}

fn stdin() -> OwnedFd {
    io::stdin().as_fd().try_clone_to_owned().unwrap()
}

fn config(mode: &str) -> ProgramConfig {
    let this = env::current_exe().unwrap().display().to_string();
    let mode = format!("{MODE}={mode}");
    let command =
        ["env", &mode, &this, "--exact", "filter::program::the_program", "--nocapture"].map(ToOwned::to_owned);
    ProgramConfig { command: command.into(), directory: ".".into(), deadline: DEADLINE, otherwise: true }
}

/// Returns a program for which a run has begun, of events of at most 1 KiB.
fn begun(mode: &str) -> Program {
    let mut program = Program::start(config(mode), programs(), Duration::ZERO).unwrap();
    program.begin_run(&json!({ "sources": [{ "name": "camera" }] }), 1024).unwrap();
    program
}

struct Payload(Vec<u8>);

impl RecordBytes for Payload {
    fn byte_count(&self) -> usize {
        self.0.len()
    }

    fn copy_bytes_to(&self, at: usize, out: &mut [u8]) {
        self.0[..].copy_bytes_to(at, out);
    }
}

/// Asks about an event with two fragments: one of these bytes, and an empty one.
fn ask(program: &mut Program, event: u64, payload: &[u8], now: Duration) -> Option<bool> {
    let payloads = [Payload(payload.to_vec()), Payload(Vec::new())];
    let mut fragments = payloads.iter().zip(0..).map(|(payload, source)| {
        let length = u32::try_from(payload.0.len()).unwrap();
        let (event, source) = (EventId(event), SourceId(source));
        let header = FragmentHeader { event, source, piece_length: length, total_length: length, ..Default::default() };
        Fragment::new(header, payload, 0)
    });
    program.send_question(EventId(event), &mut fragments, now)
}

/// Waits until the program needs attention.
fn wait(program: &Program) {
    let ready = poll(&mut [PollFd::new(program, PollFlags::IN)], Some(&PATIENCE)).unwrap();
    assert_eq!(ready, 1, "the program is silent");
}

/// Returns the next answer.
fn answer(program: &mut Program, now: Duration) -> (u64, bool) {
    loop {
        if let Some((event, accept)) = program.next_answer() {
            return (event.0, accept);
        }
        wait(program);
        program.poll_answers(now);
    }
}

/// Asks, again and again, until the program is back.
fn ask_until_it_is_back(program: &mut Program, event: u64, now: Duration) {
    while ask(program, event, &[7], now).is_some() {
        wait(program);
        program.poll_answers(now);
    }
}

#[test]
fn it_sees_the_fragments_and_its_answer_is_the_decision() {
    let mut program = begun("adds");
    for event in 0..300 {
        let bright = event % 3 == 0;
        let payload = if bright { [1; 101].to_vec() } else { [1; 99].to_vec() };
        assert_eq!(ask(&mut program, event, &payload, Duration::ZERO), None);
        assert_eq!(answer(&mut program, Duration::ZERO), (event, bright));
    }
    assert_eq!((program.next_poll_time(), program.undecided_counts()), (None, Undecided::default()));
}

#[test]
fn there_is_room_for_many_questions_and_each_is_answered() {
    let mut program = begun("adds");
    for event in 0..128 {
        assert!(program.has_room());
        assert_eq!(ask(&mut program, event, &[101], Duration::ZERO), None);
    }
    assert!(!program.has_room());
    (0..128).for_each(|event| assert_eq!(answer(&mut program, Duration::ZERO), (event, true)));
    assert!(program.has_room());
}

#[test]
fn what_it_is_silent_of_is_answered_for_it_and_so_is_all_until_it_speaks() {
    let mut program = begun("says nothing of 1");
    assert_eq!(ask(&mut program, 0, &[7], Duration::ZERO), None);
    assert_eq!(answer(&mut program, Duration::ZERO), (0, false));
    assert_eq!(ask(&mut program, 1, &[7], Duration::ZERO), None);
    assert_eq!(program.next_poll_time(), Some(DEADLINE));
    program.poll_answers(DEADLINE - Duration::from_nanos(1));
    assert_eq!(program.next_answer(), None);
    program.poll_answers(DEADLINE);
    assert_eq!(program.next_answer(), Some((EventId(1), true)));
    // The program is not asked while it is late: that answer would be late, too.
    assert_eq!(ask(&mut program, 2, &[7], DEADLINE), Some(true));
    assert!(program.has_room());
    assert_eq!(program.undecided_counts(), Undecided { late: 2, ..Undecided::default() });

    // A program that hangs is started again.
    let later = program.next_poll_time().unwrap();
    program.poll_answers(later);
    assert_eq!(program.undecided_counts().ends, 1);
    ask_until_it_is_back(&mut program, 4, later);
    assert_eq!(answer(&mut program, later), (4, false));
}

#[test]
fn what_it_would_not_come_to_in_time_it_is_not_asked() {
    let mut program = begun("adds");
    let mut now = Duration::ZERO;
    // The program takes 30 ms for each of these: it can do only three in 100.
    for event in 0..10 {
        assert_eq!(ask(&mut program, event, &[101], now), None);
        now += Duration::from_millis(30);
        assert_eq!(answer(&mut program, now), (event, true));
    }
    let asked = [10, 11, 12, 13].map(|event| ask(&mut program, event, &[7], now));
    assert_eq!(asked, [None, None, None, Some(true)]);
    assert_eq!(program.undecided_counts(), Undecided { late: 1, ..Undecided::default() });
    assert_eq!([(); 3].map(|()| answer(&mut program, now)), [(10, false), (11, false), (12, false)]);
}

#[test]
fn one_that_ends_leaves_no_event_without_an_answer_and_is_started_again() {
    let mut program = begun("ends at 2");
    let now = Duration::ZERO;
    // The program may have ended before it is asked about the last one.
    let at_once = [0, 1, 2, 3].map(|event| ask(&mut program, event, &[7], now));
    let answers = [0, 1, 2, 3].map(|event| match at_once[event] {
        Some(accept) => (event as u64, accept),
        None => answer(&mut program, now),
    });
    assert_eq!(answers, [(0, false), (1, false), (2, true), (3, true)]);
    assert_eq!(program.undecided_counts(), Undecided { gone: 2, ends: 1, ..Undecided::default() });
    assert_eq!(ask(&mut program, 4, &[7], now), Some(true), "it is not back yet");

    let now = program.next_poll_time().unwrap();
    program.poll_answers(now);
    ask_until_it_is_back(&mut program, 5, now);
    assert_eq!(answer(&mut program, now), (5, false));
    assert_eq!(program.undecided_counts().ends, 1);
}

#[test]
fn it_may_say_that_it_cannot_say() {
    let mut program = begun("cannot say");
    assert_eq!(ask(&mut program, 0, &[7], Duration::ZERO), None);
    assert_eq!(answer(&mut program, Duration::ZERO), (0, true));
    assert_eq!(program.undecided_counts(), Undecided { unsure: 1, ..Undecided::default() });
}

#[test]
fn one_that_answers_what_it_was_not_asked_is_ended() {
    let mut program = begun("speaks of others");
    assert_eq!(ask(&mut program, 0, &[7], Duration::ZERO), None);
    assert_eq!(answer(&mut program, Duration::ZERO), (0, true));
    assert_eq!(program.undecided_counts(), Undecided { gone: 1, ends: 1, ..Undecided::default() });
}

#[test]
fn what_is_no_such_program_is_said_before_the_run() {
    let refused = |command: &[&str]| {
        let command = command.iter().map(ToString::to_string).collect();
        Program::start(ProgramConfig { command, ..config("") }, programs(), Duration::ZERO).unwrap_err()
    };
    assert_eq!(refused(&["/nowhere"]), "'/nowhere': No such file or directory (os error 2)");
    assert_eq!(refused(&["false"]), "'false': it ended (exit status: 1)");
    let stranger = Program::start(config("stranger"), programs(), Duration::ZERO).unwrap_err();
    assert!(stranger.contains("it uses a different protocol"), "{stranger}");
}

#[test]
fn a_program_that_no_node_started_says_so() {
    let mut command = Command::new(env::current_exe().unwrap());
    command.args(["--exact", "filter::program::the_program", "--nocapture"]).env(MODE, "adds").stdin(Stdio::null());
    let ended = command.output().unwrap();
    let said = String::from_utf8_lossy(&ended.stderr);
    assert!(said.contains("standard input is not connected to a builder: name this program"), "{said}");
}
