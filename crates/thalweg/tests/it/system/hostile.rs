//! Peers that do not keep to the rules: each is told why it is turned away, and the others notice nothing.

use crate::common::hostile::{Impostor, SLOT, SLOTS, Stranger, hello, with_header};
use crate::common::*;
use rustix::process::Signal;
use serde_json::Value;
use thalweg_link::LinkError;
use thalweg_wire::{
    Announcement, Disposition, EventId, FinalCounters, FragmentHeader, HEADER_LEN, Hello, MESSAGE_LEN, Message,
    Refusal, RunNumber, SourceId,
};

const PACED: &str = "rate = 2000.0";

#[test]
fn strangers_are_turned_away_with_a_reason_and_change_nothing() {
    let system = System::new(&Plan { source: PACED, ..PLAN });
    let mut builder = system.builder();
    let sources = system.sources([0, 1, 2]);
    builder.wait_for("recording");
    let stranger = || Stranger::connect(system.tcp());

    let told = |(refusal, words): (Refusal, String), class: Refusal, part: &str| {
        assert_eq!(refusal, class, "{words}");
        assert!(words.contains(part), "expected '{part}': {words}");
    };
    let garbage: Vec<u8> = (0..9999u32).map(|i| ((i * 7919) >> 3) as u8).collect();
    told(stranger().send(&garbage).dismissed(), Refusal::Protocol, "does not speak the Thalweg protocol");
    told(
        stranger().send(b"GET / HTTP/1.1\r\nHost: lab\r\nUser-Agent: somebody else entirely\r\n\r\n").dismissed(),
        Refusal::Protocol,
        "does not speak the Thalweg protocol",
    );
    let mut newer = Message::Hello(hello("1.0")).encode();
    newer[4] = 9;
    told(stranger().send(&newer).dismissed(), Refusal::Protocol, "speaks protocol version 9");
    let mut damaged = Message::Hello(hello("1.0")).encode();
    damaged[20] ^= 1;
    told(stranger().send(&damaged).dismissed(), Refusal::Protocol, "CRC32C");
    told(stranger().say(&Message::Bye).dismissed(), Refusal::Protocol, "first message must be a hello");
    told(stranger().greet(hello("7.7")).dismissed(), Refusal::UnknownSource, "7.7 is not in this run's topology");
    let astray = Hello { builder: 3, builders: 4, ..hello("1.0") };
    told(stranger().greet(astray).dismissed(), Refusal::Mismatch, "compare the topology files");
    let enormous = Hello { slot_bytes: u32::MAX, ..hello("1.0") };
    told(stranger().greet(enormous).dismissed(), Refusal::Mismatch, "does not fit a block");
    told(stranger().greet(hello("1.1")).dismissed(), Refusal::AlreadyConnected, "1.1 is already connected, from");
    told(
        stranger()
            .say(&Message::Hello(Hello { source: "1.1".parse().unwrap(), ..hello("7.7") }))
            .send(b"{?")
            .dismissed(),
        Refusal::AlreadyConnected,
        "already connected",
    );

    builder.interrupt();
    let report = builder.finish().report(0);
    assert_eq!(report["state"], "COMPLETE", "{report:#}");
    assert_eq!(number(&report, "/ledger/unknown_sources"), 1);
    check_books(&report);
    for (source, id) in sources.into_iter().zip(["1.0", "1.1", "1.2"]) {
        source.finish().succeeded();
        check_recorded(&report, id);
    }
    check_intact(&system.run_directory());
    check_samples(&system.run_directory());
}

#[test]
fn a_source_that_is_started_twice_is_refused_the_second_time() {
    for link in LINKS {
        let system = System::new(&Plan { link, source: PACED, ..PLAN });
        let mut builder = system.builder();
        // Before the run has begun, and while it is under way.
        let first = system.node("source1");
        builder.wait_for("connected source=1.1");
        system.node("source1").finish().failed_saying("source 1.1 is already connected");
        let others = system.sources([0, 2]);
        builder.wait_for("recording");
        await_events(&system.run_directory(), 50);
        system.node("source1").finish().failed_saying("source 1.1 is already connected");

        builder.interrupt();
        let report = builder.finish().report(0);
        assert_eq!(report["state"], "COMPLETE", "{report:#}");
        check_books(&report);
        check_recorded(&report, "1.1");
        all_succeed(others.into_iter().chain([first]));
        check_samples(&system.run_directory());
    }
}

#[test]
fn connections_that_say_nothing_keep_nobody_out() {
    for link in LINKS {
        let system = System::new(&Plan { link, run: "events = 100", ..PLAN });
        let builder = system.builder();
        let mut silent: Vec<std::os::fd::OwnedFd> = Vec::new();
        for _ in 0..150 {
            let (_, place) = system.addresses[0].split_once(':').unwrap();
            silent.push(match link {
                Link::Shm => std::os::unix::net::UnixStream::connect(place).unwrap().into(),
                Link::Tcp | Link::Rdma => std::net::TcpStream::connect(place).unwrap().into(),
                Link::Udp | Link::RdmaEfe | Link::RdmaDevice => {
                    let socket = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
                    socket.send_to(b"?", place).unwrap();
                    socket.into()
                }
            });
        }
        let sources = system.sources([0, 1, 2]);
        let report = builder.finish().report(0);
        assert_eq!(report["state"], "COMPLETE", "{report:#}");
        check_books(&report);
        all_succeed(sources);
        check_samples(&system.run_directory());
    }
}

/// Runs two good sources, and beside them a third that does `mischief`, which has the good ones, too. Whatever that is,
/// these lose nothing. Returns the report, and what the builder said. One that is merely gone is missed by a builder
/// that is quick.
fn beside(link: Link, builder: &str, mischief: impl FnOnce(Impostor, &[Node])) -> (Value, String) {
    let system = System::new(&Plan { link, source: PACED, run: "timeout = \"20s\"", builder, ..PLAN });
    let mut builder = system.builder();
    let sources = system.sources([0, 1]);
    let impostor = Impostor::join(&system.addresses[0], "1.2").start();
    builder.wait_for("recording");
    mischief(impostor, &sources);
    // Long after it, the others are still heard.
    let mut complete_without_it = 0;
    follow_until(&system.run_directory(), |_, event| {
        complete_without_it +=
            u64::from(event.fragment_of_source("1.2".parse().unwrap()).is_some_and(|f| f.payload().is_empty()));
        complete_without_it == 100
    });
    builder.interrupt();
    let ended = builder.finish();
    let report = ended.report(1);
    assert_eq!(report["state"], "INCOMPLETE");
    assert!(reasons(&report).contains("source 1.2 (source2)"), "{report:#}");
    for (source, id) in sources.into_iter().zip(["1.0", "1.1"]) {
        source.finish().succeeded();
        check_recorded(&report, id);
    }
    check_intact(&system.run_directory());
    (report, ended.stderr)
}

/// A source that does this is expelled, and told so in these words, which are the run's reason, too.
fn expelled(link: Link, mischief: impl FnOnce(&mut Impostor), words: &str) {
    let (report, log) = beside(link, PATIENT, |mut impostor, _| {
        let address = impostor.address.clone();
        mischief(&mut impostor);
        let told = impostor.expelled();
        assert!(told.contains(words), "expected '{words}': {told}");
        // And it may not come back.
        let told = Impostor::connect(&address, "1.2").expelled();
        assert!(told.contains("source 1.2 was disconnected, and can take part in the next run"), "{told}");
    });
    assert!(reasons(&report).contains(words), "expected '{words}': {report:#}");
    assert!(log.contains(words), "expected '{words}': {log}");
    check_books(&report);
}

#[test]
fn offers_that_cannot_be_end_the_conversation() {
    for link in LINKS {
        let offer = |change: fn(&mut Announcement)| {
            move |impostor: &mut Impostor| {
                let mut offer = impostor.announcement(0, 0, 128);
                change(&mut offer);
                impostor.say(&Message::Offer(offer));
            }
        };
        expelled(link, offer(|offer| offer.count = u32::MAX), "offered 4294967295 fragments in 128 bytes");
        expelled(link, offer(|offer| offer.bytes = 63), "not a multiple of 64");
        expelled(link, offer(|offer| offer.bytes = SLOT + 64), "offered 65600 bytes in one slot of 65536");
        expelled(link, offer(|offer| offer.bytes = u32::MAX - 63), "offered 4294967232 bytes in one slot");
        expelled(link, offer(|offer| offer.first = EventId(u64::MAX)), "the event numbers exceed 64 bits");
    }
}

#[test]
fn offers_that_contradict_earlier_ones_end_the_conversation() {
    for link in LINKS {
        let again = |impostor: &mut Impostor| {
            let record = impostor.record(5, b"five");
            assert!(impostor.offer(5, &record));
            impostor.say(&Message::Offer(impostor.announcement(3, 0, 128)));
        };
        expelled(link, again, "offered event 3 after later ones");
        let ahead = |impostor: &mut Impostor| {
            impostor.say(&Message::Offer(Announcement { ticket: 1, ..impostor.announcement(0, 0, 128) }));
        };
        expelled(link, ahead, "offered ticket 1 instead of ticket 0");
        let cooked = |impostor: &mut Impostor| {
            let record = impostor.record(0, b"zero");
            assert!(impostor.offer(0, &record));
            impostor.say(&Message::End(FinalCounters::default()));
        };
        expelled(link, cooked, "its final counters count 0 tickets, but it offered 1");
        // Each would have to be compared with all before it.
        let overlapping = |impostor: &mut Impostor| {
            for ticket in 0..2 * u64::from(SLOTS) {
                let offer = Announcement { ticket, count: 2, ..impostor.announcement(ticket, 0, 128) };
                impostor.say(&Message::Offer(offer));
            }
        };
        expelled(link, overlapping, "together with fragments of other events");
    }
    // What was offered and never comes stays open.
    let endless = |impostor: &mut Impostor| {
        for event in 0..100 {
            impostor.say(&Message::Offer(Announcement { ticket: event, ..impostor.announcement(event, 0, 128) }));
        }
    };
    expelled(Link::Tcp, endless, &format!("more than {} offers are open", 2 * SLOTS + 2));
}

#[test]
fn bytes_that_nobody_asked_for_end_the_conversation() {
    let data =
        |ticket, offset, length| move |impostor: &mut Impostor| impostor.say(&Message::Data { ticket, offset, length });
    expelled(Link::Tcp, data(0, 0, 128), "ticket 0 that were not requested");
    expelled(Link::Tcp, data(u64::MAX, u32::MAX - 1, 1), "that were not requested");
    let eager = |bytes, then: Option<Message>| {
        move |impostor: &mut Impostor| {
            let offer = Announcement { disposition: Disposition::Eager, ..impostor.announcement(0, 0, bytes) };
            impostor.say(&Message::Offer(offer));
            if let Some(message) = then {
                impostor.say(&message);
            }
        }
    };
    expelled(Link::Tcp, eager(32 << 10, None), "32768 bytes sent without a request");
    expelled(
        Link::Tcp,
        eager(128, Some(Message::Paused { next: EventId(0), asked_by: 0 })),
        "must follow its eager offer",
    );
    expelled(
        Link::Tcp,
        eager(128, Some(Message::Data { ticket: 0, offset: 64, length: 128 })),
        "received bytes 64+128 of ticket 0 after the eager offer of ticket 0, 128 bytes",
    );
    expelled(Link::Shm, data(0, 0, 128), "ticket 0 was granted without a request");
}

#[test]
fn memory_that_is_not_in_the_arena_is_not_read() {
    let outside = |arena_offset| {
        move |impostor: &mut Impostor| impostor.say(&Message::Offer(impostor.announcement(0, arena_offset, 128)))
    };
    expelled(Link::Shm, outside(1 << 40), "offered bytes 1099511627776+128 of an arena of");
    expelled(Link::Shm, outside(u64::MAX - 64), "of an arena of");
}

#[test]
fn a_builders_words_from_a_source_end_the_conversation() {
    for link in LINKS {
        for message in [
            Message::StopAt { end: EventId(0), end_here: true },
            Message::Bye,
            Message::Release { below: u64::MAX },
            Message::Start { run: RunNumber(1), first: EventId(0), at: thalweg_wire::TaiNanos(0) },
        ] {
            expelled(link, |impostor| impostor.say(&message), "protocol error: ");
        }
    }
}

#[test]
fn garbage_in_the_middle_of_a_conversation_ends_it() {
    let system = System::new(&Plan { source: PACED, run: "timeout = \"20s\"", ..PLAN });
    let mut builder = system.builder();
    let sources = system.sources([0, 1]);
    let stranger = Stranger::connect(system.tcp()).greet(hello("1.2"));
    builder.wait_for("recording");
    let (refusal, words) = stranger.send(&[0xa5; 7 * MESSAGE_LEN]).dismissed();
    assert_eq!(refusal, Refusal::Protocol);
    assert!(words.contains("does not speak the Thalweg protocol"), "{words}");
    await_events(&system.run_directory(), 100);
    builder.interrupt();
    let report = builder.finish().report(1);
    assert!(reasons(&report).contains("source 1.2 (source2): protocol error"), "{report:#}");
    for (source, id) in sources.into_iter().zip(["1.0", "1.1"]) {
        source.finish().succeeded();
        check_recorded(&report, id);
    }
    check_intact(&system.run_directory());
}

#[test]
fn records_that_are_not_what_was_offered_are_counted_corrupt() {
    at_once(LINKS, |link| {
        let mut offered = 0;
        let (report, _) = beside(link, QUICK, |mut impostor, _| {
            let run = impostor.run;
            let header = |event| FragmentHeader {
                run,
                event: EventId(event),
                source: SourceId::new(1, 2),
                total_length: 4,
                piece_length: 4,
                payload_crc: thalweg_wire::crc32c(b"four"),
                ..FragmentHeader::default()
            };
            let bad = [
                vec![0xa5; 128],
                with_header(&FragmentHeader { run: RunNumber(run.0 + 1), ..header(1) }, b"four"),
                with_header(&FragmentHeader { source: SourceId::new(1, 0), ..header(2) }, b"four"),
                with_header(&FragmentHeader { event: EventId(77), ..header(3) }, b"four"),
                with_header(&FragmentHeader { payload_crc: 0, ..header(4) }, b"four"),
                with_header(&FragmentHeader { total_length: u32::MAX, piece_length: u32::MAX, ..header(5) }, b"four"),
            ];
            for (event, record) in (0..).zip(&bad) {
                assert!(impostor.offer(event, record));
            }
            offered = bad.len() as u64;
            let good = impostor.record(offered, b"this one is good");
            assert!(impostor.offer(offered, &good));
        });
        check_books(&report);
        let entry = entry(&report, "1.2");
        assert_eq!(entry["corrupt"].as_u64().unwrap(), offered, "{entry:#}");
        assert_eq!(entry["recorded"], 1, "{entry:#}");
    });
}

/// Over shared memory a source can change what it has offered. What is recorded is what was checked.
#[test]
fn a_header_that_changes_while_its_event_is_decided_on_is_not_recorded() {
    const FIRST: u64 = 3000;
    let builder = format!("{PATIENT}\nfilter = {{ accept = 1.0, seed = 6 }}");
    let (report, _) = beside(Link::Shm, &builder, |mut impostor, others| {
        // They do not come to these events before the headers have changed, however long that takes.
        others.iter().for_each(|other| other.signal(Signal::STOP));
        for event in FIRST..FIRST + u64::from(SLOTS) {
            let record = impostor.record(event, b"as it was checked");
            assert!(impostor.post(event, &record));
        }
        let other = impostor.run.0 + 1;
        impostor.rewrite(|bytes| {
            let header = FragmentHeader::decode(bytes).unwrap();
            bytes[..HEADER_LEN].copy_from_slice(&FragmentHeader { run: RunNumber(other), ..header }.encode());
        });
        others.iter().for_each(|other| other.signal(Signal::CONT));
        assert!(impostor.settle());
        let (accepted, tickets) = (SLOTS.into(), SLOTS.into());
        impostor.say(&Message::End(FinalCounters { accepted, tickets, ..FinalCounters::default() }));
        impostor.listen(|message| matches!(message, Message::Bye)).unwrap();
    });
    check_books(&report);
    let entry = entry(&report, "1.2");
    assert_eq!((&entry["recorded"], &entry["corrupt"]), (&0.into(), &SLOTS.into()), "{entry:#}");
}

#[test]
fn fragments_in_pieces_cannot_be_recorded() {
    for link in LINKS {
        let piece = |impostor: &mut Impostor| {
            let whole = impostor.record(0, b"this one is whole");
            assert!(impostor.offer(0, &whole));
            // Of a fragment of 4 GiB.
            let piece = impostor.piece(1, u32::MAX, 0, &[5; 64]);
            assert!(!impostor.offer(1, &piece));
        };
        expelled(link, piece, "sent a fragment in pieces that cannot be recorded");
    }
}

#[test]
fn pieces_that_overlap_or_never_end_are_counted_and_survived() {
    at_once(LINKS, |link| {
        // Slowly: their slots are held as long as their events wait for the third.
        let source = "rate = 200.0";
        let run = "record = false\ntimeout = \"20s\"";
        let system = System::new(&Plan { link, source, run, builder: QUICK, ..PLAN });
        let builder = system.builder();
        let sources = system.sources([0, 1]);
        let mut impostor = Impostor::join(&system.addresses[0], "1.2").start();
        // Event 0: two pieces that lie on one another, and then the rest.
        for (offset, bytes) in [(0, &[1; 100][..]), (50, &[2; 100]), (100, &[3; 100])] {
            let piece = impostor.piece(0, 200, offset, bytes);
            assert!(impostor.post(0, &piece));
        }
        // Event 1: a piece that says that the fragment has another length.
        for (total, offset) in [(200, 0), (999, 100)] {
            let piece = impostor.piece(1, total, offset, &[4; 100]);
            assert!(impostor.post(1, &piece));
        }
        // Event 2: a fragment of 4 GiB, in pieces that go on as long as anybody listens.
        for offset in (0..1000).map(|piece| piece * 64) {
            let piece = impostor.piece(2, u32::MAX, offset, &[5; 64]);
            assert!(impostor.post(2, &piece));
        }
        assert!(impostor.settle());
        builder.interrupt();
        drop(impostor);
        let report = builder.finish().report(1);
        check_books(&report);
        let evil = entry(&report, "1.2");
        assert_eq!(evil["discarded"], 1, "event 0 became whole: {evil:#}");
        assert_eq!(evil["duplicates"], 1, "{evil:#}");
        assert_eq!(evil["accepted"], 3, "{evil:#}");
        assert!(evil["corrupt"].as_u64().unwrap() >= 1, "{evil:#}");
        for (source, id) in sources.into_iter().zip(["1.0", "1.1"]) {
            source.finish().succeeded();
            let entry = entry(&report, id);
            let count = |bucket: &str| entry[bucket].as_u64().unwrap();
            assert_eq!(count("accepted"), count("discarded") + count("beyond_end"), "{entry:#}");
        }
    });
}

#[test]
fn a_source_that_owes_bytes_and_never_sends_them_is_given_up() {
    let (report, log) = beside(Link::Tcp, QUICK, |mut impostor, _| {
        // Offered, but never to be found when it is asked for.
        impostor.say(&Message::Offer(impostor.announcement(0, 0, 128)));
        let ended = impostor.listen(|_| false);
        assert!(matches!(ended, Err(LinkError::Closed)), "{ended:?}");
    });
    check_books(&report);
    assert_eq!(entry(&report, "1.2")["lost"], 1);
    assert!(log.contains("the source owes data and makes no progress"), "{log}");
}

#[test]
fn books_that_do_not_add_up_make_the_run_incomplete_and_say_so() {
    for link in LINKS {
        let (report, _) = beside(link, PATIENT, |mut impostor, _| {
            let record = impostor.record(0, b"the only one");
            assert!(impostor.offer(0, &record));
            impostor.say(&Message::End(FinalCounters { accepted: 12, tickets: 1, ..FinalCounters::default() }));
            impostor.listen(|message| matches!(message, Message::Bye)).unwrap();
        });
        assert_eq!(number(&report, "/ledger/unaccounted"), 11);
        assert!(reasons(&report).contains("source 1.2 (source2): 11 fragments UNACCOUNTED for"), "{report:#}");
        assert_eq!(report["state"], "INCOMPLETE");
    }
}

#[test]
fn a_hello_over_shared_memory_without_shared_memory_is_refused() {
    use std::io::{Read, Write};
    let system = System::new(&Plan { link: Link::Shm, run: "events = 100", ..PLAN });
    let mut builder = system.builder();
    let path = system.addresses[0].strip_prefix("shm:").unwrap();
    let mut refused = |bytes: &[u8], words: &str| {
        let mut socket = std::os::unix::net::UnixStream::connect(path).unwrap();
        socket.write_all(bytes).unwrap();
        let mut answer = Vec::new();
        let _ = socket.read_to_end(&mut answer);
        builder.wait_for(words);
    };
    let mut greeting = Message::Hello(hello("1.0")).encode().to_vec();
    greeting.extend(b"{}");
    refused(&greeting, "received 0 descriptors instead of 3");
    refused(&[0x5a; 200], "does not speak the Thalweg protocol");
    refused(&Message::Pause.encode(), "the first message must be a hello");
    assert_eq!(HEADER_LEN, MESSAGE_LEN);
    let sources = system.sources([0, 1, 2]);
    assert_eq!(builder.finish().report(0)["state"], "COMPLETE");
    all_succeed(sources);
}
