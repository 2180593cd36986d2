//! Nodes whose peer is played by hand: it does what no honest node does, or does everything at once.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::fd::AsFd;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, TryRecvError, channel};
use std::thread;
use std::time::Duration;
use thalweg_arena::{Arena, Span};
use thalweg_core::control::Command;
use thalweg_link::{Address, Interest, LinkKind, Poller, SourceGreeting};
use thalweg_link_conformance::SourceEnd;
use thalweg_node::{
    BuilderNode, BuilderReport, Clock, Environment, Handle, Idle, Node, NodeCommand, NodeError, RunOrder, StepOrder,
    Topology,
};
use thalweg_store::{Run, verify_run};
use thalweg_wire::{
    Announcement, Assign, Capabilities, Contact, Disposition, EventId, FinalCounters, FragmentHeader, HEADER_LEN,
    Hello, Left, MESSAGE_LEN, Message, Refusal, Room, RoomReport, RunCounters, RunNumber, SourceId, Status, TaiNanos,
    crc32c,
};

/// Limit of waiting, for tests that would otherwise hang.
const LONG: Duration = Duration::from_secs(60);
const SOURCE: SourceId = SourceId::new(1, 0);
const TCP: &str = "tcp:127.0.0.1:0";
/// Bytes of a record: a header, and as many bytes of payload.
const RECORD: usize = 2 * HEADER_LEN;
const LEVELS: &str = "level2 = { sources = [\"s0\"], accept = 1.0 }\nfilter = { accept = 1.0 }";

#[test]
fn what_came_before_an_offence_is_recorded_and_the_run_ends() {
    let offence = Message::Offer(Announcement { ticket: 2, ..held(0) }).encode();
    let (zero, one) = (data(0, &record(SOURCE, 0, 0, 64)), data(1, &record(SOURCE, 1, 0, 64)));
    for levels in ["", LEVELS] {
        for (segment, recorded) in [
            ([&offence[..], &zero, &one].concat(), 0),
            ([&zero[..], &offence, &one].concat(), 1),
            ([&zero[..], &one, &offence].concat(), 2),
        ] {
            let folder = tempfile::tempdir().unwrap();
            let builder = Builder::start(folder.path(), "events = 100", TCP, levels);
            let mut source = builder.greeted();
            source.say(&[Message::Offer(held(0)), Message::Offer(held(1))]);
            source.until(|message| matches!(message, Message::Fetch { ticket: 1, .. }));
            source.0.write_all(&segment).unwrap();
            source.until(|message| matches!(message, Message::Refuse { .. }));
            let report = builder.report();
            assert!(report.reasons[0].contains("event 0"), "{:?}", report.reasons);
            check(&report, recorded);
        }
    }
}

#[test]
fn a_fragment_in_pieces_that_come_together_ends_its_source_and_not_the_builder() {
    for levels in ["", LEVELS] {
        let folder = tempfile::tempdir().unwrap();
        let builder = Builder::start(folder.path(), "events = 100", TCP, levels);
        let mut source = builder.greeted();
        source.say(&[Message::Offer(held(0)), Message::Offer(Announcement { ticket: 1, ..held(0) })]);
        source.until(|message| matches!(message, Message::Fetch { ticket: 1, .. }));
        source
            .0
            .write_all(&[data(0, &record(SOURCE, 0, 0, 128)), data(1, &record(SOURCE, 0, 64, 128))].concat())
            .unwrap();
        source.until(|message| matches!(message, Message::Refuse { .. }));
        let report = builder.report();
        assert!(report.reasons[0].contains("in pieces that cannot be recorded"), "{:?}", report.reasons);
        check(&report, 0);
    }
}

#[test]
fn in_shared_memory_too_an_offence_loses_no_place() {
    for levels in ["", LEVELS] {
        for offence_first in [true, false] {
            let folder = tempfile::tempdir().unwrap();
            let builder = Builder::start(folder.path(), "events = 100", &shm(folder.path()), levels);
            let mut arena = Arena::create("source", 1).unwrap();
            let mut link = in_shared_memory(&builder, &arena, true);
            until_told_where_to_end(&mut link);
            let mut heard = Vec::new();
            arena[..RECORD].copy_from_slice(&record(SOURCE, 0, 0, 64));
            link.announce_offer(&held(0));
            link.flush_messages().unwrap();
            if offence_first {
                // The fetch has arrived. It is granted when the link receives, and shown to the builder together with
                // earlier messages.
                wait(&mut link);
                link.announce_offer(&Announcement { count: 2, ..held(0) });
                let _ = link.receive_messages(&mut heard);
            } else {
                while link.withdraw_offer(0) {
                    wait(&mut link);
                    link.receive_messages(&mut heard).unwrap();
                }
                link.send_message(&Message::Pause);
                let _ = link.flush_messages();
            }
            let report = builder.report();
            check(&report, u64::from(!offence_first));
        }
    }
}

#[test]
fn what_is_changed_in_shared_memory_after_it_was_checked_is_not_recorded() {
    let header = |status| {
        let header = FragmentHeader::decode(&record(SOURCE, 0, 0, 64)).unwrap();
        FragmentHeader { status, ..header }
    };
    change_after_the_check(|bytes| bytes[HEADER_LEN] ^= 1);
    // The header's checksum is right in both cases.
    change_after_the_check(|bytes| {
        let other_run = FragmentHeader { run: RunNumber(2), ..header(Status::empty()) };
        bytes[..HEADER_LEN].copy_from_slice(&other_run.encode());
    });
    change_after_the_check(|bytes| bytes[..HEADER_LEN].copy_from_slice(&header(Status::MISSING).encode()));
}

fn change_after_the_check(change: impl Fn(&mut [u8])) {
    let folder = tempfile::tempdir().unwrap();
    let listen = format!("{TCP}\", \"{}", shm(folder.path()));
    let levels = format!("{LEVELS}\ncheck = \"payload\"\ndeadline = \"60s\"");
    let builder = Builder::start(folder.path(), "events = 1", &listen, &levels);
    let mut arena = Arena::create("source", 1).unwrap();
    let other = SourceId::new(1, 1);
    let (mut link, mut peer) = (in_shared_memory(&builder, &arena, false), builder.connected(other));
    until_told_where_to_end(&mut link);
    arena[..RECORD].copy_from_slice(&record(SOURCE, 0, 0, 64));
    link.announce_offer(&held(0));
    let books = Message::End(FinalCounters { accepted: 1, tickets: 1, ..FinalCounters::default() });
    link.send_message(&books);
    link.flush_messages().unwrap();
    // The other source's slot is fetched after level 2 has seen this fragment, which is still intact.
    peer.until(|message| matches!(message, Message::Start { .. }));
    peer.say(&[Message::Offer(held(0)), books]);
    peer.until(|message| matches!(message, Message::Fetch { .. }));
    change(&mut arena[..RECORD]);
    peer.0.write_all(&data(0, &record(other, 0, 0, 64))).unwrap();
    let report = builder.report();
    assert_eq!((report.ledger.sources[0].lost, report.ledger.sources[1].recorded), (1, 1), "{:?}", report.ledger);
    check(&report, 0);
    let run = Run::open(report.directory.as_ref().unwrap()).unwrap();
    let event = run.events().next().unwrap().unwrap();
    let gap = event.fragments.iter().find(|fragment| fragment.header.source == SOURCE).unwrap();
    assert!(gap.header.status.contains(Status::MISSING | Status::CORRUPT), "{:?}", gap.header);
}

#[test]
fn a_run_that_cannot_be_opened_ends_with_the_reason_at_its_sources_too() {
    let folder = tempfile::tempdir().unwrap();
    let builder = Builder::start(folder.path(), "number = 7", TCP, LEVELS);
    // Another program creates a run of this number in the meantime.
    std::fs::create_dir(folder.path().join("run-000007")).unwrap();
    let mut source = builder.connected(SOURCE);
    let text = source.until(|message| matches!(message, Message::Refuse { reason: Refusal::Ended, .. }));
    assert!(text.contains("cannot open the run") && text.contains("run-000007"), "{text}");
    let error = builder.report.recv_timeout(LONG).unwrap().unwrap_err();
    assert!(error.to_string().contains("run-000007"), "{error}");
}

/// Clock whose time is set by the test.
#[derive(Debug, Default)]
struct MadeUpClock(AtomicU64);

impl Clock for MadeUpClock {
    fn now(&self) -> Duration {
        Duration::from_millis(self.0.load(Ordering::Relaxed))
    }

    fn date(&self) -> TaiNanos {
        TaiNanos(1_800_000_000_000_000_000 + self.0.load(Ordering::Relaxed) * 1_000_000)
    }

    fn tai_utc_offset(&self) -> i32 {
        37
    }

    fn processor_time(&self) -> Duration {
        Duration::ZERO
    }
}

#[test]
fn a_source_that_sends_a_byte_now_and_then_is_turned_out_and_the_run_ends() {
    let folder = tempfile::tempdir().unwrap();
    let clock = Arc::new(MadeUpClock::default());
    let topology = Builder::topology(folder.path(), "timeout = \"2s\"", TCP, "deadline = \"1s\"");
    let environment = Environment { clock: Arc::clone(&clock) as Arc<dyn Clock>, ..Environment::system() };
    let mut node = BuilderNode::with_environment(&topology, "b", false, environment).unwrap();
    let (handle, address) = (Handle::new().unwrap(), node.listening_addresses()[0].host_port().unwrap().to_owned());
    node.begin(&handle).unwrap();
    let mut ended = None;
    let mut pass = |node: &mut BuilderNode, millis: u64| {
        clock.0.fetch_add(millis, Ordering::Relaxed);
        for _ in 0..20 {
            let mut woken = Vec::new();
            let _ = node.idle();
            Idle::Ask(Some(Duration::from_millis(1))).wait_for_work(node.poller(), &mut woken).unwrap();
            ended = ended.take().or(node.turn(&woken, &handle).unwrap());
            if ended.is_some() {
                return true;
            }
        }
        false
    };
    let mut over = false;
    for _ in 0..3 {
        let mut peer = Peer(TcpStream::connect(&address).unwrap());
        peer.say(&[Message::Hello(hello())]);
        peer.0.write_all(b"{}").unwrap();
        assert!(!pass(&mut node, 1));
        peer.say(&[Message::Offer(held(0))]);
        assert!(!pass(&mut node, 1));
        peer.0.write_all(&Message::Data { ticket: 0, offset: 0, length: RECORD as u32 }.encode()).unwrap();
        for _ in 0..12 {
            let _ = peer.0.write_all(&[0]);
            over = over || pass(&mut node, 100);
        }
    }
    handle.send_command(Command::Stop);
    for _ in 0..200 {
        over = over || pass(&mut node, 100);
    }
    assert!(over, "the run has ended");
    let report = ended.unwrap();
    assert!(report.reasons.iter().any(|reason| reason.contains("made no progress")), "{:?}", report.reasons);
}

#[test]
fn a_source_that_is_given_up_while_it_is_connected_leaves_nothing_open() {
    let folder = tempfile::tempdir().unwrap();
    let builder = Builder::start(folder.path(), "timeout = \"2s\"", TCP, "deadline = \"60s\"");
    let mut source = builder.greeted();
    source.say(&[Message::Offer(held(0))]);
    source.until(|message| matches!(message, Message::Fetch { .. }));
    builder.handle.request_end();
    source.until(|message| matches!(message, Message::Pause));
    source.say(&[Message::Paused { next: EventId(1), asked_by: 0 }]);
    // The source owes data and its final counters, and sends neither.
    let text = source.until(|message| matches!(message, Message::Refuse { .. }));
    assert!(
        text.starts_with("source 1.0 was abandoned: it did not end and send its final counters within 2s"),
        "{text}"
    );
    check(&builder.report(), 0);
}

#[test]
fn offers_keep_to_the_padding_of_records() {
    let folder = tempfile::tempdir().unwrap();
    let builder = Builder::start(folder.path(), "events = 100", TCP, "");
    let mut source = builder.greeted();
    source.say(&[Message::Offer(Announcement { bytes: 100, ..held(0) })]);
    let text = source.until(|message| matches!(message, Message::Refuse { .. }));
    assert!(text.contains("100 bytes, which is not a multiple of 64: count the padding after each record"), "{text}");
    check(&builder.report(), 0);
}

/// Deadlines pass again once no block is waited for, even if the source that was to be asked is gone.
#[test]
fn a_builder_that_was_short_of_blocks_gives_up_a_source_that_left_meanwhile() {
    let folder = tempfile::tempdir().unwrap();
    let short = "deadline = \"200ms\"\nblocks = 4\nblock = \"256KiB\"";
    let builder = Builder::start(folder.path(), "events = 100", TCP, short);
    let mut source = builder.connect(Hello { slot_bytes: 128 << 10, max_payload: 100 << 10, ..hello() });
    source.until(|message| matches!(message, Message::Start { .. }));
    // A block holds one of these, so there is none for the fifth.
    let offers: Vec<Message> =
        (0..5).map(|ticket| Message::Offer(Announcement { bytes: 128 << 10, ..held(ticket) })).collect();
    source.say(&offers);
    source.until(|message| matches!(message, Message::Fetch { ticket: 3, .. }));
    drop(source);
    check(&builder.report(), 0);
}

/// Returns the announced capabilities that the builder accepted.
fn welcomed(peer: &mut Peer) -> Capabilities {
    loop {
        if let (Message::Welcome(welcome), _) = peer.on_message() {
            return welcome.capabilities;
        }
    }
}

#[test]
fn where_events_are_assigned_a_source_must_know_of_it() {
    let folder = tempfile::tempdir().unwrap();
    let builder = Builder::start(folder.path(), "events = 1\nassignment = \"by-room\"", TCP, "");
    let text = builder.connected(SOURCE).until(|message| matches!(message, Message::Refuse { .. }));
    assert!(text.contains("assigns events to builders by room, which this source does not support"), "{text}");
    let mut source = builder.connect(Hello { capabilities: Capabilities::ASSIGNED, ..hello() });
    assert_eq!(welcomed(&mut source), Capabilities::ASSIGNED);
    // If events are not assigned, the capability has no effect, and no message may refer to it.
    let folder = tempfile::tempdir().unwrap();
    let builder = Builder::start(folder.path(), "events = 1", TCP, "");
    let mut source = builder.connect(Hello { capabilities: Capabilities::ASSIGNED, ..hello() });
    assert_eq!(welcomed(&mut source), Capabilities::empty());
    source.until(|message| matches!(message, Message::Start { .. }));
    source.say(&[Message::RoomReport(RoomReport::default())]);
    let text = source.until(|message| matches!(message, Message::Refuse { .. }));
    assert!(text.contains("unexpected: RoomReport"), "{text}");
    check(&builder.report(), 0);
}

#[test]
fn events_are_assigned_as_a_source_passes_on_what_a_builder_says() {
    let folder = tempfile::tempdir().unwrap();
    let builder = Builder::start(folder.path(), "events = 3\nassignment = \"by-room\"", TCP, "");
    let mut source = builder.connect(Hello { capabilities: Capabilities::ASSIGNED, ..hello() });
    let room = loop {
        if let (Message::Room(room), _) = source.on_message() {
            break room;
        }
    };
    assert_eq!((room.builder, room.closed_below, room.closed), (0, EventId(0), 0));
    assert!(room.room > 0);
    source.say(&[Message::RoomReport(RoomReport { room, contact: Contact::Connected, ..RoomReport::default() })]);
    source.until(|message| *message == Message::Assign(Assign { first: EventId(0), count: 3, builder: 0 }));
    source.say(&[Message::Offer(held(0))]);
    source.until(|message| matches!(message, Message::Fetch { ticket: 0, .. }));
    source.0.write_all(&data(0, &record(SOURCE, 0, 0, 64))).unwrap();
    // The source has nothing for the other events.
    let final_counters = FinalCounters { accepted: 1, tickets: 1, ..FinalCounters::default() };
    source.say(&[Message::Passed { below: EventId(3), tickets: 1 }, Message::End(final_counters)]);
    source.until(|message| matches!(message, Message::Bye));
    let report = builder.report();
    assert_eq!((report.state.as_str(), report.events, report.left_out.len()), ("COMPLETE", 1, 0), "{report:?}");
}

#[test]
fn nonsense_about_assignments_ends_a_source() {
    let room = Room { builder: 1, ..Room::default() };
    let left = Left { builder: 0, accepted: u64::MAX, ..Left::default() };
    for (nonsense, why) in [
        (
            Message::RoomReport(RoomReport { room, ..RoomReport::default() }),
            "the free room of builder 1, but there are only 1 \
            builders",
        ),
        (Message::Left(left), "builder 0 was not excluded"),
        (Message::Passed { below: EventId(u64::MAX), tickets: 0 }, "past event 18446744073709551615"),
        (Message::Room(room), "builder's message"),
    ] {
        let folder = tempfile::tempdir().unwrap();
        let builder = Builder::start(folder.path(), "events = 3\nassignment = \"by-room\"", TCP, "");
        let mut source = builder.connect(Hello { capabilities: Capabilities::ASSIGNED, ..hello() });
        source.until(|message| matches!(message, Message::Start { .. }));
        source.say(&[nonsense]);
        let text = source.until(|message| matches!(message, Message::Refuse { .. }));
        assert!(text.contains(why), "{text}");
        check(&builder.report(), 0);
    }
}

/// Every release wakes the source. A device that waits can wait for the next fetch; one that drops loses fragments
/// without a slot.
#[test]
fn a_source_whose_device_waits_hears_of_a_free_slot_together_with_the_next_fetch() {
    for (policy, waits) in [("block", true), ("drop-newest", false)] {
        let folder = tempfile::tempdir().unwrap();
        let listen = format!("{TCP}\", \"{}", shm(folder.path()));
        // The window is one record.
        let builder = Builder::start(folder.path(), "", &listen, &format!("window = {RECORD}\ndeadline = \"60s\""));
        let description = format!("{{\"policy\":\"{policy}\"}}");
        let introduced = |source| {
            let length = description.len() as u32;
            builder.introduced(Hello { source, description: length, ..hello() }, &description)
        };
        let other = SourceId::new(1, 1);
        let (mut peer, mut rival) = (introduced(SOURCE), introduced(other));
        peer.until(|message| matches!(message, Message::Start { .. }));
        rival.until(|message| matches!(message, Message::Start { .. }));
        rival.say(&[Message::Offer(held(0))]);
        rival.until(|message| matches!(message, Message::Fetch { ticket: 0, .. }));
        peer.say(&[Message::Offer(held(0)), Message::Offer(held(1))]);
        rival.0.write_all(&data(0, &record(other, 0, 0, 64))).unwrap();
        peer.until(|message| matches!(message, Message::Fetch { ticket: 0, .. }));
        // Event 1 is the rival's turn. Messages to it are sent after those to the other source.
        rival.say(&[Message::Offer(held(1))]);
        peer.0.write_all(&data(0, &record(SOURCE, 0, 0, 64))).unwrap();
        rival.until(|message| matches!(message, Message::Fetch { ticket: 1, .. }));
        peer.0.set_nonblocking(true).unwrap();
        let told = peer.0.peek(&mut [0]).is_ok();
        peer.0.set_nonblocking(false).unwrap();
        assert_eq!(told, !waits, "{policy}");
        rival.0.write_all(&data(1, &record(other, 1, 0, 64))).unwrap();
        assert!(matches!(peer.on_message().0, Message::Release { below: 1 }));
        assert!(matches!(peer.on_message().0, Message::Fetch { ticket: 1, .. }));
        builder.handle.request_end();
        builder.handle.request_end();
        check(&builder.report(), 1);
    }
}

/// A builder that is killed and started again meets sources of the run that it does not know.
#[test]
fn offers_of_an_earlier_run_are_refused_as_that_run_is_over() {
    let folder = tempfile::tempdir().unwrap();
    let builder = Builder::start(folder.path(), "events = 100", "tcp:127.0.0.1:0\", \"tcp:127.0.0.1:0", "");
    let mut source = builder.connected(SOURCE);
    source.say(&[Message::Offer(held(0))]);
    let ended = |message: &Message| matches!(message, Message::Refuse { reason: Refusal::Ended, .. });
    let text = source.until(ended);
    assert!(text.contains("your run is over") && text.contains("started anew"), "{text}");
    // One that announces that it returns does not even count as connected.
    let mut returns = builder.connect(Hello { capabilities: Capabilities::RETURNS, ..hello() });
    let text = returns.until(|message| {
        assert!(!matches!(message, Message::Welcome(_)));
        ended(message)
    });
    assert!(text.contains("started anew"), "{text}");
    // It takes part in the next one.
    let mut again = builder.connect(Hello { session: 8, ..hello() });
    again.until(|message| matches!(message, Message::Welcome(_)));
    builder.handle.request_end();
}

/// A source that loses the leading builder ends its part of the run, which is then no orderly end of the run.
#[test]
fn a_run_whose_sources_lost_another_builder_is_incomplete() {
    for (refusal, happened) in
        [(None, "died, hung or was disconnected"), (Some(Refusal::Ended), "left the run before its end")]
    {
        let folder = tempfile::tempdir().unwrap();
        let builder = Builder::start_second(folder.path());
        let mut source = builder.connect(Hello { builder: 1, builders: 2, ..hello() });
        source.say(&[Message::Running]);
        source.until(|message| matches!(message, Message::Start { .. }));
        source.say(&[Message::BuilderLost { builder: 0, refusal }, Message::End(FinalCounters::default())]);
        source.until(|message| matches!(message, Message::Bye));
        let report = builder.report();
        assert_eq!(report.state, "INCOMPLETE");
        let expected = format!("builder 0, which leads the run, {happened}");
        assert!(report.reasons[0].contains(&expected) && report.reasons.len() == 1, "{:?}", report.reasons);
        assert!(report.reasons[0].contains("1 of 1 sources lost it (s0)"), "{:?}", report.reasons);
    }
    // There is no such builder, or it is the one that receives the message.
    for lost in [1, 2] {
        let folder = tempfile::tempdir().unwrap();
        let builder = Builder::start_second(folder.path());
        let mut source = builder.connect(Hello { builder: 1, builders: 2, ..hello() });
        source.say(&[Message::BuilderLost { builder: lost, refusal: None }]);
        let text = source.until(|message| matches!(message, Message::Refuse { reason: Refusal::Protocol, .. }));
        assert!(text.contains("BuilderLost"), "{text}");
        builder.handle.request_end();
    }
}

fn able() -> Hello {
    Hello { capabilities: Capabilities::NEXT_RUN, ..hello() }
}

fn refusal(builder: &Builder, command: NodeCommand) -> String {
    builder.handle.request(command).recv_timeout(LONG).unwrap().unwrap_err().to_string()
}

/// Returns a record as [`record`] does, in the second run.
fn record_of_next_run(event: u64) -> Vec<u8> {
    let mut record = record(SOURCE, event, 0, 64);
    let header = FragmentHeader { run: RunNumber(2), ..FragmentHeader::decode(&record).unwrap() };
    record[..HEADER_LEN].copy_from_slice(&header.encode());
    record
}

#[test]
fn a_step_is_answered_when_its_event_is_agreed_on() {
    let folder = tempfile::tempdir().unwrap();
    let builder = Builder::start(folder.path(), "events = 100", TCP, "");
    let mut source = builder.connect(able());
    source.until(|message| matches!(message, Message::Start { .. }));
    let step = || NodeCommand::Step(StepOrder { label: "x = 1".into(), ..StepOrder::default() });
    let reply = builder.handle.request(step());
    source.until(|message| matches!(message, Message::Pause));
    assert!(refusal(&builder, step()).contains("cannot mark a step: the run is pausing"));
    assert_eq!(reply.try_recv(), Err(TryRecvError::Empty));
    source.say(&[Message::Paused { next: EventId(0), asked_by: 0 }]);
    assert_eq!(reply.recv_timeout(LONG).unwrap(), Ok(()));
    // The next one is not: the run ends before.
    let reply = builder.handle.request(step());
    source.until(|message| matches!(message, Message::Pause));
    builder.handle.send_command(Command::Abort);
    let refused = reply.recv_timeout(LONG).unwrap().unwrap_err();
    assert_eq!(refused.to_string(), "step 'x = 1' is not marked: the run ends");
    builder.report();
}

/// The source sends its counters of the run that ends, and its connection breaks before they arrive: it sends them again
/// among its offers.
#[test]
fn a_source_goes_over_to_the_next_run_whenever_its_connection_breaks() {
    let folder = tempfile::tempdir().unwrap();
    let builder = Builder::start(folder.path(), "", TCP, "");
    let mut source = builder.connect(able());
    source.until(|message| matches!(message, Message::Start { .. }));
    source.say(&[Message::Offer(held(0))]);
    source.until(|message| matches!(message, Message::Fetch { ticket: 0, .. }));
    source.0.write_all(&data(0, &record(SOURCE, 0, 0, 64))).unwrap();
    let next = || NodeCommand::Next(RunOrder { comment: Some("second".into()), ..RunOrder::default() });
    assert_eq!(builder.handle.request(next()).recv_timeout(LONG).unwrap(), Ok(()));
    source.until(|message| matches!(message, Message::Pause));
    assert!(refusal(&builder, next()).contains("cannot begin the next run: the run is switching"));
    source.say(&[Message::Paused { next: EventId(1), asked_by: 0 }]);
    let next_run = Message::NextRun { first: EventId(1), run: RunNumber(2), here: false };
    source.until(|message| *message == next_run);
    drop(source);

    let mut source = builder.connect(Hello { capabilities: Capabilities::NEXT_RUN | Capabilities::RETURNS, ..hello() });
    source.until(|message| *message == next_run);
    let counters = RunCounters { run: RunNumber(1), accepted: 1, tickets: 1, ..RunCounters::default() };
    source.say(&[Message::RunEnded(counters), Message::Offer(held(1))]);
    source.until(|message| matches!(message, Message::Fetch { ticket: 1, .. }));
    source.0.write_all(&data(1, &record_of_next_run(1))).unwrap();
    // It may be repeated after another reconnection, and means nothing then.
    source.say(&[Message::RunEnded(counters)]);
    let books = Message::End(FinalCounters { accepted: 1, tickets: 2, ..FinalCounters::default() });
    source.say(&[books]);
    source.until(|message| matches!(message, Message::Bye));
    let second = builder.report();
    let [first] = &builder.handle.take_reports()[..] else { panic!("one run was followed by another") };
    for (report, run) in [(first, 1), (&second, 2)] {
        assert_eq!((report.run, report.state.as_str()), (run, "COMPLETE"), "{:?}", report.reasons);
        let entry = &report.ledger.sources[0];
        assert_eq!((entry.accepted, entry.recorded, entry.unaccounted), (1, 1, 0), "{entry:?}");
        let stored = Run::open(report.directory.as_ref().unwrap()).unwrap();
        assert!(
            verify_run(&stored).consistent && stored.event_ids().map(|(id, _)| id).eq([EventId(u64::from(run) - 1)])
        );
        assert_eq!(stored.run_info().comment, if run == 2 { "second" } else { "" });
    }
}

#[test]
fn counters_of_a_run_that_nothing_follows_break_the_rules() {
    let folder = tempfile::tempdir().unwrap();
    let builder = Builder::start(folder.path(), "events = 100", TCP, "");
    let mut source = builder.connect(able());
    source.until(|message| matches!(message, Message::Start { .. }));
    source.say(&[Message::RunEnded(RunCounters { run: RunNumber(1), ..RunCounters::default() })]);
    let text = source.until(|message| matches!(message, Message::Refuse { reason: Refusal::Protocol, .. }));
    assert!(text.contains("unexpected counters of run 1"), "{text}");
    check(&builder.report(), 0);
}

#[test]
fn no_run_follows_without_a_gap_where_a_source_is_of_an_older_version() {
    let folder = tempfile::tempdir().unwrap();
    let builder = Builder::start(folder.path(), "", TCP, "");
    let mut source = builder.greeted();
    let text = refusal(&builder, NodeCommand::Next(RunOrder::default()));
    assert!(text.contains("1.0 (s0)") && text.contains("older version"), "{text}");
    let label = "x".repeat(257);
    let text = refusal(&builder, NodeCommand::Step(StepOrder { label, ..StepOrder::default() }));
    assert!(text.contains("the step's label has 257 bytes, more than the limit of 256"), "{text}");
    assert!(!folder.path().join("run-000002").exists(), "nothing has changed");
    source.say(&[Message::End(FinalCounters::default())]);
    source.until(|message| matches!(message, Message::Bye));
    assert_eq!(builder.report().state, "COMPLETE");
}

/// Running builder, with one source for each address it listens at.
struct Builder {
    addresses: Vec<Address>,
    handle: Handle,
    report: Receiver<Result<BuilderReport, NodeError>>,
}

impl Builder {
    /// Creates a topology; `run` and `builder` are further lines of these two tables. Where `run` has no `timeout`, it is
    /// one that a test does not come to, however busy the machine is.
    fn topology(folder: &Path, run: &str, listen: &str, builder: &str) -> Topology {
        let file = folder.join("topology.toml");
        let sources = if listen.contains("\", \"") { 2 } else { 1 };
        let sources: String = (0..sources).map(|n| format!("[[source]]\nname = \"s{n}\"\nid = \"1.{n}\"\n")).collect();
        let timeout = if run.contains("timeout") { "" } else { "timeout = \"60s\"" };
        let text = format!(
            "[run]\n{run}\ndirectory = \"{}\"\n{timeout}\n\
             [[builder]]\nname = \"b\"\nlisten = [\"{listen}\"]\n{builder}\n{sources}",
            folder.display()
        );
        std::fs::write(&file, text).unwrap();
        Topology::load(&file, None).unwrap()
    }

    fn start(folder: &Path, run: &str, listen: &str, builder: &str) -> Self {
        Self::run(BuilderNode::new(&Self::topology(folder, run, listen, builder), "b").unwrap())
    }

    /// Starts the second of two builders, which does not lead.
    fn start_second(folder: &Path) -> Self {
        let second = format!("[[builder]]\nname = \"second\"\nlisten = [\"{TCP}\"]");
        Self::run(BuilderNode::new(&Self::topology(folder, "number = 1", TCP, &second), "second").unwrap())
    }

    fn run(node: BuilderNode) -> Self {
        let addresses = node.listening_addresses();
        let handle = Handle::new().unwrap();
        let (sender, report) = channel();
        thread::spawn({
            let handle = handle.clone();
            move || {
                // If the test has failed, the report is not waited for.
                let _ = sender.send(node.run(&handle));
            }
        });
        Self { addresses, handle, report }
    }

    /// Connects a source, and waits until it is told that the run has begun.
    fn greeted(&self) -> Peer {
        let mut peer = self.connected(SOURCE);
        peer.until(|message| matches!(message, Message::Start { .. }));
        peer
    }

    fn connected(&self, source: SourceId) -> Peer {
        self.connect(Hello { source, ..hello() })
    }

    fn connect(&self, hello: Hello) -> Peer {
        self.introduced(hello, "{}")
    }

    fn introduced(&self, hello: Hello, description: &str) -> Peer {
        let tcp = self.addresses.iter().find_map(Address::host_port);
        let mut peer = Peer(TcpStream::connect(tcp.unwrap()).unwrap());
        peer.0.set_read_timeout(Some(LONG)).unwrap();
        peer.say(&[Message::Hello(hello)]);
        peer.0.write_all(description.as_bytes()).unwrap();
        peer
    }

    fn report(&self) -> BuilderReport {
        self.report.recv_timeout(LONG).expect("the run ends by itself").unwrap()
    }
}

/// Connection to a node.
struct Peer(TcpStream);

impl Peer {
    fn say(&mut self, messages: &[Message]) {
        self.0.write_all(&messages.iter().flat_map(Message::encode).collect::<Vec<u8>>()).unwrap();
    }

    /// Reads the next message and its body.
    fn on_message(&mut self) -> (Message, String) {
        let mut cell = [0; MESSAGE_LEN];
        self.0.read_exact(&mut cell).unwrap();
        let message = Message::decode(&cell).unwrap();
        let mut body = vec![0; message.body_bytes()];
        self.0.read_exact(&mut body).unwrap();
        (message, String::from_utf8_lossy(&body).into_owned())
    }

    /// Reads messages up to the expected one, and returns its body.
    fn until(&mut self, expected: impl Fn(&Message) -> bool) -> String {
        loop {
            let (message, text) = self.on_message();
            if expected(&message) {
                return text;
            }
        }
    }
}

fn hello() -> Hello {
    Hello {
        session: 7,
        source: SOURCE,
        builder: 0,
        builders: 1,
        slots: 8,
        slot_bytes: 4096,
        max_payload: 64,
        capabilities: Capabilities::empty(),
        description: 2,
    }
}

/// Returns an offer of one record.
fn held(ticket: u64) -> Announcement {
    Announcement {
        ticket,
        first: EventId(ticket),
        arena_offset: 0,
        count: 1,
        bytes: RECORD as u32,
        disposition: Disposition::Held,
    }
}

/// Returns a record with 64 bytes of a fragment that has `total_length`.
fn record(source: SourceId, event: u64, offset: u32, total_length: u32) -> Vec<u8> {
    let payload = [event as u8; 64];
    let header = FragmentHeader {
        run: RunNumber(1),
        event: EventId(event),
        source,
        total_length,
        offset,
        piece_length: 64,
        payload_crc: crc32c(&payload),
        ..FragmentHeader::default()
    };
    [&header.encode()[..], &payload].concat()
}

fn data(ticket: u64, bytes: &[u8]) -> Vec<u8> {
    [&Message::Data { ticket, offset: 0, length: bytes.len() as u32 }.encode()[..], bytes].concat()
}

fn shm(folder: &Path) -> String {
    format!("shm:{}", folder.join("socket").display())
}

/// Connects a source whose arena the builder maps.
fn in_shared_memory(builder: &Builder, arena: &Span, withdraws: bool) -> SourceEnd {
    let address = builder.addresses.iter().find(|address| address.link_kind() == LinkKind::SHM);
    let (hello, arena) = (Hello { capabilities: withdrawing(withdraws), ..hello() }, Arc::clone(arena.arena()));
    SourceEnd::connect_to_builder(address.unwrap(), &SourceGreeting { hello, description: "{}".into(), arena }).unwrap()
}

fn until_told_where_to_end(link: &mut SourceEnd) {
    let mut heard = Vec::new();
    while !heard.iter().any(|message| matches!(message, Message::StopAt { .. })) {
        wait(link);
        link.receive_messages(&mut heard).unwrap();
    }
}

fn wait(link: &mut SourceEnd) {
    if !link.prepare_wait() {
        return;
    }
    let poller = Poller::new().unwrap();
    poller.add_descriptor(link.poller().as_fd(), 0, Interest::READ).unwrap();
    let mut woken = false;
    poller.wait_for_events(Some(LONG), |_| woken = true).unwrap();
    assert!(woken, "nothing came");
}

/// Checks that the run is incomplete, and holds `recorded` fragments of the first source.
fn check(report: &BuilderReport, recorded: u64) {
    assert_eq!(report.state, "INCOMPLETE");
    assert_eq!(report.ledger.sources[0].recorded, recorded, "{:?}", report.ledger);
    assert_eq!(report.ledger.unaccounted, 0);
    let run = Run::open(report.directory.as_ref().unwrap()).unwrap();
    let verified = verify_run(&run);
    assert!(verified.consistent, "{:#?}", verified.problems);
}

fn withdrawing(withdraws: bool) -> Capabilities {
    if withdraws { Capabilities::WITHDRAWS } else { Capabilities::empty() }
}
