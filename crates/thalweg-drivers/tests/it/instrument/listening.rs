//! Instruments over real sockets: spead2's own programs, and frames written by the specification.

use std::net::UdpSocket;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::time::{Duration, Instant};
use thalweg_arena::SlotPool;
use thalweg_device::{Acquired, Acquisition, Buffer};
use thalweg_drivers::instrument::Listener;
use thalweg_drivers::instrument::UdpConfig;
use thalweg_testing::skip::skipped;

const SOON: Duration = Duration::from_secs(300);

/// Options for a sender or a receiver that may have no processor for a while: nothing is lost, neither within a heap
/// nor between heaps.
const BUSY: &str = "patience = \"60s\"\nbuffer = \"256MiB\"";

/// A device of a format, with a number of slots, after its start.
struct Run {
    device: Listener,
    pool: SlotPool,
    begun: Instant,
    /// Fragments by number, and numbers that were lost.
    came: Vec<(u64, Vec<u8>)>,
    lost: Vec<u64>,
}

impl Run {
    fn begin(options: &str, slots: u32) -> Self {
        let config: UdpConfig = toml::from_str(&format!("listen = \"udp:127.0.0.1:0\"\n{options}")).unwrap();
        let mut device = Listener::open(&config, None).unwrap();
        let mut pool = SlotPool::new("slots", slots, device.max_payload_bytes() + 64).unwrap();
        device.register_memory(pool.arena()).unwrap();
        while let Some(slot) = pool.take_slot() {
            device.post_buffer(Buffer::new(slot));
        }
        device.start_acquisition(thalweg_wire::TaiNanos(0)).unwrap();
        Self { device, pool, begun: Instant::now(), came: Vec::new(), lost: Vec::new() }
    }

    /// Receives until `fragments` fragments have arrived or were lost, and then what is there already.
    fn go(&mut self, fragments: usize) {
        while self.came.len() + self.lost.len() < fragments {
            assert!(self.begun.elapsed() < SOON, "{} came: {:?}", self.came.len(), self.device.report_counters());
            if self.take(self.begun.elapsed()) {
                return;
            }
            std::thread::sleep(Duration::from_micros(50));
        }
        while !self.take(self.begun.elapsed()) && self.device.next_poll_time() == Some(Duration::ZERO) {}
    }

    /// Receives all that is there, at this time. Returns true if the instrument has ended.
    fn take(&mut self, now: Duration) -> bool {
        loop {
            match self.device.poll_acquired(now).unwrap() {
                Acquired::Frame(mut frame) => {
                    self.came.push((frame.number, frame.buffer.payload_mut()[..frame.len].to_vec()));
                    self.pool.return_slot(frame.buffer.into_slot());
                    while let Some(slot) = self.pool.take_slot() {
                        self.device.post_buffer(Buffer::new(slot));
                    }
                }
                Acquired::Lost { first, count } | Acquired::Missed { first, count } => {
                    self.lost.extend(first..first + count)
                }
                Acquired::Over => return true,
                Acquired::NotYet => return false,
            }
        }
    }

    fn count(&self, name: &str) -> u64 {
        self.device.report_counters().into_iter().find(|(known, _)| *known == name).unwrap().1
    }
}

/// Returns the path of a program of spead2, in the environment of its own that `.ci/setup` makes.
fn spead2(program: &str) -> Option<PathBuf> {
    let cache = std::env::var_os("XDG_CACHE_HOME").map(PathBuf::from);
    let cache = cache.or_else(|| Some(PathBuf::from(std::env::var_os("HOME")?).join(".cache")));
    let found = cache.map(|cache| cache.join("thalweg/peers/venv/bin").join(program)).filter(|path| path.exists());
    if found.is_none() {
        skipped("spead2 is not installed (.ci/setup does that)");
    }
    found
}

/// Ends a sender that has sent all. At its end it may wait for itself for ever: spead2 4.5.1 does so now and then.
fn gone(sender: &mut Child) {
    let _ = sender.kill();
    sender.wait().unwrap();
}

fn content(number: u64, bytes: usize) -> Vec<u8> {
    (0..bytes as u64).map(|at| (at * 31 + number * 17) as u8).collect()
}

#[test]
fn a_thousand_heaps_of_spead2_arrive_byte_by_byte() {
    let Some(python) = spead2("python3") else { return };
    for flavour in [48, 40] {
        let mut run = Run::begin(&format!("format = \"spead\"\nsize = \"64KiB\"\nfirst = 1\n{BUSY}"), 64);
        let port = run.device.local_address().port().to_string();
        let mut sender = Command::new(&python)
            .arg(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/send_heaps.py"))
            .args([&port, &flavour.to_string(), "1000", "20001", "1472"])
            .spawn()
            .unwrap();
        run.go(1000);
        gone(&mut sender);
        assert_eq!((run.came.len(), &run.lost[..]), (1000, &[][..]), "{:?}", run.device.report_counters());
        for (at, (number, bytes)) in run.came.iter().enumerate() {
            assert_eq!(*number, at as u64);
            assert!(*bytes == content(*number, 20_001), "heap {number} of flavour 64-{flavour}");
        }
    }
}

#[test]
fn what_spead2_send_sends_arrives() {
    let Some(program) = spead2("spead2_send.py") else { return };
    let mut run = Run::begin(&format!("format = \"spead\"\nsize = \"256KiB\"\nfirst = 1\n{BUSY}"), 64);
    let to = format!("127.0.0.1:{}", run.device.local_address().port());
    let words = ["--heaps", "1000", "--heap-size", "100000", "--packet", "9000", "--rate", "1", &to];
    let mut sender = Command::new(program).args(words).spawn().unwrap();
    run.go(1000);
    gone(&mut sender);
    assert_eq!((run.came.len(), &run.lost[..]), (1000, &[][..]), "{:?}", run.device.report_counters());
    // The first heap also contains the item's description, at its beginning.
    assert!(run.came[0].1.len() > 100_000);
    assert!(run.came[1..].iter().all(|(_, bytes)| *bytes == [0; 100_000]));
}

/// Returns a VDIF frame by the specification (VDIF 1.1.1, section 5): 2-bit real samples of one channel, of station
/// `Ef`.
fn vdif(thread: u32, second: u32, number: u32, payload: &[u8]) -> Vec<u8> {
    let length = (32 + payload.len() as u32) / 8;
    let words = [second, 50 << 24 | number, 1 << 29 | length, 1 << 26 | thread << 16 | 0x4566];
    let header = words.into_iter().chain([0; 4]).flat_map(u32::to_le_bytes);
    header.chain(payload.iter().copied()).collect()
}

#[test]
fn vdif_frames_arrive_in_order_and_those_that_are_left_out_are_lost() {
    let mut run = Run::begin("format = \"vdif\"\nsize = 8032\nrate = 100\nthread = 3", 256);
    let to = run.device.local_address();
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    let frame = |at: u64| vdif(3, 1000 + (at / 100) as u32, (at % 100) as u32, &content(at, 8000));
    let mut order: Vec<u64> = (0..1000).filter(|at| at % 97 != 5).collect();
    order.chunks_exact_mut(4).skip(1).for_each(|four| four.reverse());
    for (at, number) in order.iter().enumerate() {
        let bytes = frame(*number);
        socket.send_to(&bytes, to).unwrap();
        match at % 100 {
            0 => assert!(socket.send_to(&bytes, to).is_ok()),
            1 => assert!(socket.send_to(&bytes[..500], to).is_ok()),
            2 => assert!(socket.send_to(&vdif(4, 1000, 0, &[0; 8000]), to).is_ok()),
            3 => assert!(socket.send_to(&vdif(3, 1000, 0, &[0; 9000]), to).is_ok()),
            4 => assert!(socket.send_to(b"no VDIF", to).is_ok()),
            _ => {}
        }
    }
    run.go(1000);
    let lost: Vec<u64> = (0..1000).filter(|at| at % 97 == 5).collect();
    assert_eq!(run.lost, lost, "{:?}", run.device.report_counters());
    assert_eq!(run.came.iter().map(|(number, _)| *number).collect::<Vec<_>>(), {
        order.sort_unstable();
        order
    });
    assert!(run.came.iter().all(|(number, bytes)| *bytes == frame(*number)));
    for (name, expected) in
        [("duplicate", 10), ("truncated", 10), ("other_stream", 10), ("oversize", 10), ("malformed", 10)]
    {
        assert_eq!(run.count(name), expected, "{name}: {:?}", run.device.report_counters());
    }
}

/// Returns the recording that comes with baseband, which its authors made with other instruments: eight threads of two
/// frames.
fn recording() -> Option<Vec<u8>> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../.venv/lib");
    let pythons = std::fs::read_dir(root).into_iter().flatten().flatten();
    let files = pythons.map(|python| python.path().join("site-packages/baseband/data/sample.vdif"));
    let found = files.filter_map(|file| std::fs::read(file).ok()).next();
    if found.is_none() {
        skipped("baseband is not installed in .venv (make venv-test does that)");
    }
    found
}

#[test]
fn a_thread_of_a_recording_arrives_and_the_others_are_left() {
    let Some(recording) = recording() else { return };
    let frames: Vec<&[u8]> = recording.chunks_exact(5032).collect();
    assert_eq!(frames.len(), 16);
    // The headers state the number of frames in a second (EDV 3).
    let mut run = Run::begin("format = \"vdif\"\nsize = 5032\nthread = 1", 32);
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    for frame in &frames {
        socket.send_to(frame, run.device.local_address()).unwrap();
    }
    run.go(2);
    let expected: Vec<_> = frames.into_iter().filter(|frame| frame[14] == 1 && frame[15] & 3 == 0).collect();
    assert_eq!(run.came.iter().map(|(_, bytes)| &bytes[..]).collect::<Vec<_>>(), expected);
    assert_eq!((run.came.len(), run.count("other_stream"), run.lost.len()), (2, 14, 0));
}

#[test]
fn the_sequence_numbers_of_vtp_count_where_no_rate_is_known() {
    let mut run = Run::begin("format = \"vdif\"\nsize = 1032\nsequence = true", 64);
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    let frame = |at: u64| vdif(0, 7, 0, &content(at, 1000));
    for at in (0..50u64).filter(|at| *at != 20) {
        socket.send_to(&[&(at + 77).to_le_bytes()[..], &frame(at)].concat(), run.device.local_address()).unwrap();
    }
    run.go(50);
    assert_eq!((run.came.len(), &run.lost[..]), (49, &[20][..]), "{:?}", run.device.report_counters());
    assert!(run.came.iter().all(|(number, bytes)| *bytes == frame(*number)));
}

#[test]
fn who_is_not_listened_to_is_not_heard() {
    let [ours, other] = [(); 2].map(|()| UdpSocket::bind("127.0.0.1:0").unwrap());
    let from = ours.local_addr().unwrap();
    let options =
        format!("format = \"fixed\"\nsize = 100\nheader = 4\ncounter = {{ at = 0, bytes = 4 }}\nfrom = \"{from}\"");
    let mut run = Run::begin(&options, 64);
    for number in 0..20u32 {
        for socket in [&other, &ours] {
            socket.send_to(&[&number.to_be_bytes()[..], b"abc"].concat(), run.device.local_address()).unwrap();
        }
    }
    run.go(20);
    assert_eq!((run.came.len(), run.count("stranger"), run.count("duplicate")), (20, 20, 0));
}

#[test]
fn what_the_kernel_had_no_room_for_is_lost_and_counted() {
    let options = "format = \"fixed\"\nsize = 1000\nheader = 4\ncounter = { at = 0, bytes = 4 }\nbuffer = 4096";
    let mut run = Run::begin(options, 16);
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    for number in 0..200u32 {
        socket.send_to(&[&number.to_be_bytes()[..], &[1; 1000]].concat(), run.device.local_address()).unwrap();
    }
    // The kernel reports the loss with the next datagram.
    run.take(Duration::from_secs(1));
    socket.send_to(&[&200u32.to_be_bytes()[..], &[1; 1000]].concat(), run.device.local_address()).unwrap();
    run.go(201);
    assert_eq!(run.came.len() + run.lost.len(), 201);
    assert_eq!(run.count("dropped_by_kernel"), run.lost.len() as u64);
    assert!(!run.lost.is_empty());
}

const COUNTED: &str =
    "format = \"fixed\"\nsize = 100\nheader = 4\ncounter = { at = 0, bytes = 4 }\npatience = \"10ms\"";

#[test]
fn what_waits_at_the_port_is_not_given_up_while_nobody_looks_there() {
    // Options for reception in place, and for reception with a copy.
    for options in [COUNTED.to_owned(), COUNTED.replace("header = 4", "header = 4\npackets = 2")] {
        let mut run = Run::begin(&options, 16);
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        let packets = 1 + u32::from(options.contains("packets"));
        let to = run.device.local_address();
        let send = |fragment: u32| {
            for number in fragment * packets..(fragment + 1) * packets {
                let bytes = [&number.to_be_bytes()[..], &vec![1; 100 / packets as usize]].concat();
                socket.send_to(&bytes, to).unwrap();
            }
        };
        send(0);
        send(2);
        run.take(Duration::from_secs(1));
        assert_eq!(run.came.len(), 1);
        send(1);
        // The process was busy with other things for long.
        run.take(Duration::from_secs(60));
        assert_eq!((run.came.len(), &run.lost[..]), (3, &[][..]), "{:?}", run.device.report_counters());
    }
}

/// A node looks only when it is woken, or at the time that it was given: that time does not come here.
#[test]
fn one_that_is_lost_holds_nobody_up_where_later_ones_take_all_buffers() {
    // Options for reception in place, and for reception with a copy.
    for options in [COUNTED.to_owned(), COUNTED.replace("header = 4", "header = 4\npackets = 2")] {
        let mut run = Run::begin(&format!("{options}\nreorders = 1000"), 4);
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        let packets = 1 + u32::from(options.contains("packets"));
        let now = Duration::from_secs(1);
        let poller = thalweg_link::Poller::new().unwrap();
        poller.add_descriptor(run.device.readiness_fd().unwrap(), 0, thalweg_link::Interest::READ).unwrap();
        for fragment in (0..40).filter(|fragment| *fragment != 7) {
            for number in fragment * packets..(fragment + 1) * packets {
                let bytes = [&number.to_be_bytes()[..], &vec![1; 100 / packets as usize]].concat();
                socket.send_to(&bytes, run.device.local_address()).unwrap();
            }
            loop {
                let mut wakes = false;
                poller.wait_for_events(Some(Duration::ZERO), |_| wakes = true).unwrap();
                let is_due = run.device.next_poll_time().is_some_and(|at| at <= now);
                if !(run.device.has_room() && wakes || is_due) {
                    break;
                }
                run.take(now);
            }
        }
        assert_eq!(run.came.len(), 39, "{:?}", run.device.report_counters());
        assert_eq!(run.lost, [7]);
    }
}

#[test]
fn a_flood_of_nothing_does_not_hold_anybody_up() {
    let mut run = Run::begin(COUNTED, 16);
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    for _ in 0..3000 {
        socket.send_to(b"no", run.device.local_address()).unwrap();
    }
    // The device takes a part of the flood, and then others have their turn; but soon it asks again.
    run.take(Duration::from_secs(1));
    let first = run.count("truncated");
    assert!((1..3000).contains(&first), "{first}");
    assert_eq!(run.device.next_poll_time(), Some(Duration::ZERO));
    while run.device.next_poll_time() == Some(Duration::ZERO) {
        run.take(Duration::from_secs(1));
    }
    assert_eq!(run.count("truncated"), 3000);
}

#[test]
fn without_a_buffer_nobody_waits_for_the_port() {
    let mut run = Run::begin(COUNTED, 2);
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    for number in 0..3u32 {
        socket.send_to(&number.to_be_bytes(), run.device.local_address()).unwrap();
    }
    let now = Duration::from_secs(1);
    assert!(run.device.has_room());
    let mut frame = || match run.device.poll_acquired(now).unwrap() {
        Acquired::Frame(frame) => Some(frame),
        _ => None,
    };
    let came = [frame(), frame(), frame()];
    assert_eq!(came.iter().flatten().count(), 2);
    assert!(!run.device.has_room() && run.device.next_poll_time().is_none());
    run.device.post_buffer(came.into_iter().flatten().next().unwrap().buffer);
    assert!(run.device.has_room());
}
