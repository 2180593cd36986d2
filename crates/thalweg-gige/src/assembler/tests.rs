//! Tests with packets in any order, lost, repeated, forged; cameras that go away and come back.

use super::*;
use crate::receiver::Intake;
use proptest::prelude::*;
use proptest::test_runner::TestCaseError;
use std::convert::Infallible;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use thalweg_arena::SlotPool;
use thalweg_wire::{GOLDEN_GAMMA, mix_bits};

const SIZE: usize = 1000;
const PIECE: usize = 100;
const CAMERA: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 0, 0, 5));

fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

/// A camera with images of 40 by 25 pixels, with block numbers of 16 or of 64 bits.
#[derive(Debug, Clone, Copy)]
struct Model {
    wide: bool,
    resends: bool,
}

impl Model {
    fn stream(self) -> Stream {
        Stream {
            packet: PIECE + gvsp::IP_UDP_HEADER_BYTES + Header::header_bytes(self.wide),
            frame: Some(SIZE),
            resends: self.resends,
            rate: None,
            payload: PayloadType::IMAGE_U8,
            clock: DeviceClock { hertz: 1_000_000_000, offset: Some(0) },
            status: Status::empty(),
        }
    }

    fn header(self, block: u64, kind: u8, packet: u32) -> Vec<u8> {
        if self.wide {
            let mut bytes = vec![0, 0, 0, 0, 0x80 | kind, 0, 0, 0];
            bytes.extend_from_slice(&block.to_be_bytes());
            bytes.extend_from_slice(&packet.to_be_bytes());
            return bytes;
        }
        let word = u32::from(kind) << 24 | packet;
        [&[0, 0][..], &(block as u16).to_be_bytes(), &word.to_be_bytes()].concat()
    }

    /// Returns the content of a frame, which begins with the number of its trigger.
    fn content(trigger: u64) -> Vec<u8> {
        let rest = (8..SIZE as u64).map(|at| (at * 7 + trigger * 13 + at / 256) as u8);
        trigger.to_le_bytes().into_iter().chain(rest).collect()
    }

    /// Returns all packets of a block: its leader, ten of payload, its trailer.
    fn block(self, block: u64) -> Vec<Vec<u8>> {
        self.block_of(block, block)
    }

    /// Returns all packets of a block whose number is not that of its trigger.
    fn block_of(self, block: u64, trigger: u64) -> Vec<Vec<u8>> {
        let mut leader = self.header(block, 1, 0);
        leader.extend_from_slice(&[0, 0, 0, 1]);
        leader.extend_from_slice(&(1000 + block).to_be_bytes());
        for long in [0x0108_0001u32, 40, 25, 0, 0, 0] {
            leader.extend_from_slice(&long.to_be_bytes());
        }
        let content = Self::content(trigger);
        let mut packets = vec![leader];
        for (part, packet) in content.chunks(PIECE).zip(1..) {
            packets.push([self.header(block, 3, packet), part.to_vec()].concat());
        }
        let last = packets.len() as u32;
        packets.push([self.header(block, 2, last), vec![0, 0, 0, 1, 0, 0, 0, 25]].concat());
        packets
    }
}

/// A frame: number, bytes, status; or a number of lost frames.
type Out = Result<(u64, Vec<u8>, Status), u64>;

/// An assembler with its input and its output.
struct Rig {
    assembler: Assembler,
    intake: Intake,
    _pool: SlotPool,
    out: Vec<Out>,
    asked: Vec<Request>,
}

impl Rig {
    fn new(model: Model, slots: u32) -> Self {
        let mut assembler = Assembler::new(SIZE, ms(200));
        let mut pool = SlotPool::new("slots", slots, 4096).unwrap();
        while let Some(slot) = pool.take_slot() {
            let mut buffer = Buffer::new(slot);
            buffer.payload_mut().fill(0xee);
            assembler.post_buffer(buffer);
        }
        assembler.begin_stream(model.stream());
        Self { assembler, intake: Intake::default(), _pool: pool, out: Vec::new(), asked: Vec::new() }
    }

    /// Fills places as a kernel does: each packet goes into the next place, `at_a_time` in one call.
    fn give(&mut self, packets: &[Vec<u8>], at_a_time: usize, now: Duration) {
        for burst in packets.chunks(at_a_time.max(1)) {
            let fill = |places: &mut [thalweg_frames::Place<'_>]| {
                for (place, packet) in places.iter_mut().zip(burst) {
                    let (mut from, parts) = (0, [&mut *place.front, &mut *place.rest, &mut *place.more]);
                    for part in parts {
                        let count = part.len().min(packet.len() - from);
                        part[..count].copy_from_slice(&packet[from..from + count]);
                        from += count;
                    }
                    (place.length, place.from) = (packet.len(), Some(SocketAddr::new(CAMERA, 5000)));
                }
                Ok::<_, Infallible>(burst.len().min(places.len()))
            };
            let _ = self.intake.receive_packets(&mut self.assembler, Some(CAMERA), (now, TaiNanos(5)), fill);
            self.look(now);
        }
    }

    fn look(&mut self, now: Duration) {
        self.assembler.request_missing_packets(now, now);
        self.asked.extend(std::iter::from_fn(|| self.assembler.next_request()));
        while let Some(acquired) = self.assembler.next_acquired() {
            match acquired {
                Acquired::Frame(mut frame) => {
                    let bytes = frame.buffer.payload_mut()[..frame.len].to_vec();
                    self.out.push(Ok((frame.number, bytes, frame.filled.status)));
                    frame.buffer.payload_mut().fill(0xee);
                    self.assembler.post_buffer(frame.buffer);
                }
                Acquired::Lost { count, .. } | Acquired::Missed { count, .. } => self.out.push(Err(count)),
                Acquired::NotYet | Acquired::Over => {}
            }
        }
    }

    /// Lets time go by until nothing is waited for.
    fn wait(&mut self, mut now: Duration) -> Duration {
        let end = now + Duration::from_secs(2);
        self.look(now);
        while let Some(next) = self.assembler.next_deadline(now) {
            assert!(next > now || next.is_zero(), "the next look is due at once: {next:?} {now:?}");
            now = next.max(now);
            assert!(now < end, "it waits for ever");
            self.look(now);
        }
        now
    }

    /// Returns true if a frame came out with all bytes of this block.
    fn whole(&self, number: u64, block: u64) -> bool {
        self.out.iter().any(|out| {
            matches!(out, Ok((n, bytes, status))
            if *n == number && *bytes == Model::content(block) && status.is_empty())
        })
    }
}

const NARROW: Model = Model { wide: false, resends: true };
const WIDE: Model = Model { wide: true, resends: true };

#[test]
fn packets_in_order_are_received_where_they_belong() {
    for (model, at_a_time) in [(NARROW, 64), (NARROW, 5), (NARROW, 1), (WIDE, 64), (WIDE, 7)] {
        let mut rig = Rig::new(model, 8);
        let packets: Vec<_> = (1..=20).flat_map(|block| model.block(block)).collect();
        // A wide stream is recognised by its first packet.
        let (first, others) = packets.split_at(1);
        rig.give(first, 1, ms(1));
        rig.give(others, at_a_time, ms(1));
        assert!((0..20).all(|number| rig.whole(number, number + 1)), "{model:?} {at_a_time}");
        let counts = rig.assembler.counts();
        assert_eq!((counts.frames, counts.copied, counts.packets), (20, 0, 240), "{model:?} {at_a_time} {counts:?}");
        assert!(rig.asked.is_empty() && counts.late + counts.duplicate + counts.malformed == 0, "{counts:?}");
    }
}

#[test]
fn what_is_missing_is_asked_for_and_taken() {
    for model in [NARROW, WIDE] {
        for lost in [0, 1, 5, 10, 11] {
            let mut rig = Rig::new(model, 4);
            let mut packets: Vec<_> = (1..=3).flat_map(|block| model.block(block)).collect();
            let gone = packets.remove(12 + lost);
            rig.give(&packets, 64, ms(1));
            rig.look(ms(3));
            // No trailer is needed.
            let wanted =
                (lost < 11).then_some(Request { block: 2, wide: model.wide, first: lost as u32, last: lost as u32 });
            assert_eq!(rig.asked, Vec::from_iter(wanted), "{model:?} {lost}");
            if lost < 11 {
                assert_eq!(rig.out.len(), 1, "the third waits for the second");
                let mut again = gone;
                again[0] = 1;
                rig.give(&[again], 64, ms(4));
                assert_eq!(rig.assembler.counts().resent, 1);
            }
            assert!((0..3).all(|number| rig.whole(number, number + 1)), "{model:?} {lost}");
            assert_eq!(rig.assembler.next_deadline(ms(5)), None);
        }
    }
}

#[test]
fn what_does_not_come_is_asked_for_again_and_then_is_zeros() {
    let mut rig = Rig::new(NARROW, 4);
    let mut packets: Vec<_> = (1..=2).flat_map(|block| NARROW.block(block)).collect();
    packets.drain(3..5);
    rig.give(&packets, 64, ms(1));
    let end = rig.wait(ms(1));
    assert!((ms(50)..ms(260)).contains(&end), "{end:?}");
    assert!(
        rig.asked.len() >= 5 && rig.asked.iter().all(|asked| (asked.first, asked.last) == (3, 4)),
        "{:?}",
        rig.asked
    );
    let mut expected = Model::content(1);
    expected[200..400].fill(0);
    assert!(rig.out[0] == Ok((0, expected, Status::CORRUPT)) && rig.whole(1, 2), "{:?}", rig.assembler.counts());
    let counts = rig.assembler.counts();
    assert_eq!((counts.incomplete, counts.missing, counts.frames), (1, 2, 1));
}

#[test]
fn where_nothing_is_sent_again_nothing_is_asked_for() {
    let model = Model { resends: false, ..NARROW };
    let mut rig = Rig::new(model, 4);
    let mut packets: Vec<_> = (1..=3).flat_map(|block| model.block(block)).collect();
    packets.remove(24);
    packets.remove(5);
    rig.give(&packets, 64, ms(1));
    let end = rig.wait(ms(1));
    assert!(end < ms(60) && rig.asked.is_empty(), "{end:?} {:?}", rig.asked);
    let counts = rig.assembler.counts();
    // The third has no leader: only its time is missing.
    assert_eq!((counts.incomplete, counts.without_leader, counts.frames), (1, 1, 1), "{counts:?}");
    assert!(rig.whole(1, 2) && rig.whole(2, 3));
}

#[test]
fn a_camera_that_has_them_no_more_is_not_waited_for() {
    let mut rig = Rig::new(NARROW, 4);
    let mut packets = NARROW.block(1);
    packets.remove(4);
    rig.give(&packets, 64, ms(1));
    rig.look(ms(3));
    let mut gone = NARROW.header(1, 3, 4);
    gone[..2].copy_from_slice(&0x800cu16.to_be_bytes());
    rig.give(&[gone], 64, ms(4));
    let end = rig.wait(ms(4));
    assert!(end < ms(30), "{end:?}");
    assert_eq!((rig.assembler.counts().incomplete, rig.assembler.counts().unavailable), (1, 1));
}

#[test]
fn blocks_that_are_missing_altogether_are_asked_for_and_else_lost() {
    let mut rig = Rig::new(NARROW, 8);
    rig.give(&NARROW.block(1), 64, ms(1));
    rig.give(&NARROW.block(4), 64, ms(2));
    rig.look(ms(4));
    assert_eq!(rig.asked.iter().map(|asked| asked.block).collect::<Vec<_>>(), [2, 3]);
    rig.give(&NARROW.block(2), 64, ms(5));
    rig.wait(ms(5));
    assert!(rig.whole(0, 1) && rig.whole(1, 2) && rig.whole(3, 4));
    assert_eq!(rig.out[2], Err(1));
    // More gaps than can be requested.
    rig.give(&NARROW.block(40), 64, ms(900));
    assert_eq!(rig.out[4], Err(35));
    assert!(rig.whole(39, 40));
}

#[test]
fn the_first_frames_of_a_stream_are_missed_and_one_that_begins_anywhere_is_doubted() {
    let mut rig = Rig::new(Model { resends: false, ..NARROW }, 4);
    rig.give(&NARROW.block(3), 64, ms(1));
    rig.wait(ms(1));
    assert!(rig.out[..2] == [Err(1), Err(1)] && rig.whole(2, 3));
    // In a second 39 can have been lost, but not 65,533.
    let mut rig = Rig::new(NARROW, 4);
    rig.look(ms(1));
    rig.give(&NARROW.block(40), 64, ms(1001));
    assert_eq!(rig.out[0], Ok((0, Model::content(40), Status::UNCERTAIN)));
    let mut rig = Rig::new(NARROW, 4);
    rig.look(ms(1));
    let blocks: Vec<_> = [65534, 65535, 0, 1].into_iter().flat_map(|block| NARROW.block(block)).collect();
    rig.give(&blocks, 64, ms(1001));
    assert!([65534, 65535, 0, 1].into_iter().zip(0..).all(|(block, number)| rig.whole(number, block)));
}

#[test]
fn a_camera_that_restarts_before_its_first_frame_comes_is_doubted() {
    let mut rig = Rig::new(NARROW, 4);
    rig.assembler.note_absence(ms(1));
    rig.assembler.begin_stream(NARROW.stream());
    rig.look(ms(2000));
    rig.give(&NARROW.block(1), 64, ms(2001));
    assert_eq!(rig.out, [Ok((0, Model::content(1), Status::UNCERTAIN))]);
}

#[test]
fn a_camera_that_restarts_goes_on_with_the_next_number_and_what_its_rate_says_is_lost() {
    let mut rig = Rig::new(NARROW, 4);
    rig.give(&NARROW.block(1), 64, ms(1000));
    let mut cut = NARROW.block(2);
    cut.truncate(6);
    rig.give(&cut, 64, ms(1100));
    rig.assembler.begin_stream(Stream { rate: Some(10.0), ..NARROW.stream() });
    rig.look(ms(1200));
    assert_eq!(rig.assembler.counts().incomplete, 1);
    rig.give(&NARROW.block(1), 64, ms(2100));
    assert_eq!(rig.out[2], Err(9), "ten tenths of a second");
    assert!(rig.whole(11, 1));
    assert_eq!(rig.assembler.counts().lost_while_away, 9);
}

#[test]
fn what_a_camera_does_not_send_while_it_is_away_is_lost_as_time_goes_by() {
    let mut rig = Rig::new(NARROW, 4);
    let stream = || Stream { rate: Some(10.0), ..NARROW.stream() };
    rig.assembler.begin_stream(stream());
    rig.give(&NARROW.block(1), 64, ms(1000));
    for now in [1500, 1800] {
        rig.assembler.note_absence(ms(now));
        rig.look(ms(now));
    }
    assert_eq!(rig.out[1..], [Err(4), Err(3)]);
    rig.assembler.begin_stream(stream());
    rig.give(&NARROW.block(1), 64, ms(2100));
    assert!(rig.out[3] == Err(3) && rig.whole(11, 1), "the rest is lost when it is back");
    assert_eq!(rig.assembler.counts().lost_while_away, 10);
}

#[test]
fn a_number_far_from_all_others_is_believed_when_others_follow() {
    let mut rig = Rig::new(NARROW, 4);
    rig.give(&NARROW.block(1), 64, ms(1));
    rig.give(&NARROW.block(500)[..1], 64, ms(2));
    rig.give(&NARROW.block(2), 64, ms(2));
    assert!(rig.whole(1, 2));
    let packets = NARROW.block(600);
    rig.give(&packets, 64, ms(3));
    rig.look(ms(5));
    rig.give(&packets[..2], 64, ms(6));
    assert!(rig.out[2] == Err(597) && rig.whole(599, 600), "{:?}", rig.asked);
    // Back to the beginning, without notice.
    rig.give(&NARROW.block(1), 64, ms(107));
    rig.look(ms(109));
    rig.give(&NARROW.block(1)[..2], 64, ms(110));
    assert_eq!(rig.out[4], Ok((600, Model::content(1), Status::UNCERTAIN)));
    assert_eq!(rig.assembler.counts().restarts, 1);
}

#[test]
fn blocks_of_16_bits_that_come_round_in_a_silence_go_by_the_camera_s_rate() {
    // 70,000 frames later, of which the counter shows 4465.
    let mut rig = Rig::new(NARROW, 4);
    rig.assembler.begin_stream(Stream { rate: Some(50.0), ..NARROW.stream() });
    rig.give(&NARROW.block(1), 64, ms(1000));
    let packets = NARROW.block(4466);
    rig.give(&packets, 64, ms(1_401_000));
    rig.look(ms(1_401_002));
    rig.give(&packets[..2], 64, ms(1_401_003));
    assert_eq!(rig.out[1..], [Err(69_999), Ok((70_000, Model::content(4466), Status::empty()))]);
    // The observed rate leads to the same number, but as a guess.
    let mut rig = Rig::new(NARROW, 4);
    (0..100).for_each(|n| rig.give(&NARROW.block(1 + n), 64, ms(1000 + 20 * n)));
    let (after, packets) = (1000 + 20 * 99 + 1_400_000, NARROW.block(100 + 4465));
    rig.give(&packets, 64, ms(after));
    rig.look(ms(after + 2));
    rig.give(&packets[..2], 64, ms(after + 3));
    assert_eq!(rig.out[101], Ok((99 + 70_000, Model::content(100 + 4465), Status::UNCERTAIN)));
}

#[test]
fn strangers_and_nonsense_are_counted() {
    let mut rig = Rig::new(NARROW, 4);
    let block = NARROW.block(1);
    rig.give(&block[..6], 64, ms(1));
    let long = [NARROW.header(1, 3, 7), vec![1; 101]].concat();
    let longer = [NARROW.header(1, 3, 7), vec![1; 5000]].concat();
    let beyond = [NARROW.header(1, 3, 11), vec![1; 100]].concat();
    let short = [NARROW.header(1, 3, 7), vec![1; 3]].concat();
    rig.give(&[long, longer, beyond, short, vec![], vec![0; 7], block[3].clone(), block[0].clone()], 64, ms(1));
    let stranger = |places: &mut [thalweg_frames::Place<'_>]| {
        places[0].front.copy_from_slice(&block[6][..8]);
        (places[0].length, places[0].from) = (108, Some(SocketAddr::from((Ipv4Addr::new(10, 0, 0, 6), 5000))));
        Ok::<_, Infallible>(1)
    };
    rig.intake.receive_packets(&mut rig.assembler, Some(CAMERA), (ms(1), TaiNanos(0)), stranger).unwrap();
    rig.give(&block[6..], 64, ms(1));
    assert!(rig.whole(0, 1));
    let counts = rig.assembler.counts();
    assert_eq!((counts.malformed, counts.duplicate, counts.stranger), (6, 2, 1), "{counts:?}");
}

#[test]
fn frames_that_are_too_long_or_of_another_kind_are_refused() {
    let mut rig = Rig::new(NARROW, 4);
    let mut packets = NARROW.block(1);
    packets[0][8 + 20..8 + 24].copy_from_slice(&26u32.to_be_bytes());
    rig.give(&packets, 64, ms(1));
    let mut packets = NARROW.block(2);
    packets[0][8 + 2..8 + 4].copy_from_slice(&6u16.to_be_bytes());
    rig.give(&packets, 64, ms(2));
    rig.wait(ms(2));
    assert_eq!(rig.out, [Err(1), Err(1)]);
    assert_eq!((rig.assembler.counts().oversize, rig.assembler.counts().unknown), (1, 1));
    rig.give(&NARROW.block(3), 64, ms(3));
    assert!(rig.whole(2, 3), "the buffers came back");
}

#[test]
fn packets_may_be_shorter_than_was_asked_for() {
    let mut rig = Rig::new(NARROW, 4);
    rig.assembler.begin_stream(Stream { packet: 160, ..NARROW.stream() });
    let packets: Vec<_> = (1..=3).flat_map(|block| NARROW.block(block)).collect();
    rig.give(&packets, 64, ms(1));
    assert!((0..3).all(|number| rig.whole(number, number + 1)), "{:?}", rig.assembler.counts());
}

#[test]
fn without_a_buffer_frames_are_lost_and_later_ones_are_not() {
    let mut rig = Rig::new(NARROW, 1);
    let held = rig.assembler.free.pop().unwrap();
    assert!(!rig.assembler.has_room());
    rig.give(&NARROW.block(1), 64, ms(1));
    rig.wait(ms(1));
    assert_eq!(rig.out, [Err(1)]);
    assert!(rig.assembler.counts().unbuffered > 0);
    rig.assembler.post_buffer(held);
    rig.give(&NARROW.block(2), 64, ms(300));
    assert!(rig.whole(1, 2));
}

proptest! {
    /// With any loss, repetition, reordering and resending: each number comes out once, in order; frames reported as
    /// whole are whole; if all requested packets come, all frames are whole.
    #[test]
    fn every_number_comes_out_once(
        wide: bool,
        answers: bool,
        at_a_time in 1usize..70,
        chances in proptest::collection::vec((0u8..100, 0usize..12), 10 * 12),
    ) {
        let model = Model { wide, resends: true };
        let mut rig = Rig::new(model, 16);
        let all: Vec<_> = (1..=10).flat_map(|block| model.block(block)).collect();
        let mut sent: Vec<(usize, Vec<u8>)> = Vec::new();
        for (at, (packet, (chance, way))) in all.iter().zip(&chances).enumerate() {
            match chance {
                0..20 => {}
                20..30 => sent.extend([(at, packet.clone()), (at + way, packet.clone())]),
                30..40 => sent.push((at + way, packet.clone())),
                _ => sent.push((at, packet.clone())),
            }
        }
        sent.sort_by_key(|(at, _)| *at);
        let packets: Vec<_> = sent.into_iter().map(|(_, packet)| packet).collect();
        rig.give(&packets, at_a_time, ms(1));
        // The next block marks the end of the last one.
        rig.give(&model.block(11), at_a_time, ms(1));
        let (mut now, mut answered) = (ms(1), 0);
        while let Some(next) = rig.assembler.next_deadline(now) {
            now = next.max(now);
            prop_assert!(now < Duration::from_secs(3));
            rig.look(now);
            let asked: Vec<_> = rig.asked[answered..].to_vec();
            answered = rig.asked.len();
            for request in asked.iter().filter(|_| answers) {
                let block = model.block(request.block);
                let last = (request.last as usize).min(block.len() - 1);
                rig.give(&block[request.first as usize..=last], at_a_time, now);
            }
        }
        let mut expected = 0;
        for out in &rig.out {
            match out {
                Ok((number, bytes, status)) => {
                    prop_assert_eq!(*number, expected);
                    let content = Model::content(number + 1);
                    prop_assert!(*bytes == content || status.contains(Status::CORRUPT));
                    prop_assert!(bytes.iter().zip(&content).all(|(own, right)| own == right || *own == 0));
                    expected += 1;
                }
                Err(lost) => expected += lost,
            }
        }
        prop_assert_eq!(expected, 11);
        if answers {
            prop_assert!((0..11).all(|number| rig.whole(number, number + 1)), "{:?}", rig.assembler.counts());
        }
    }

    /// With any bytes from the camera's address: nothing panics, numbers go up, and buffers come back.
    #[test]
    fn any_packets_end_in_frames_or_losses(packets in proptest::collection::vec(
        (any::<bool>(), 0u64..70_000, 0u8..6, 0u32..20, proptest::collection::vec(any::<u8>(), 0..150)), 0..80)) {
        let mut rig = Rig::new(NARROW, 3);
        let mut now = ms(1);
        for (wide, block, kind, packet, body) in packets {
            let model = Model { wide, resends: true };
            rig.give(&[[model.header(block, kind, packet), body].concat()], 1, now);
            now += ms(1);
        }
        rig.wait(now + ms(500));
        let mut next = 0;
        for out in &rig.out {
            if let Ok((number, ..)) = out {
                prop_assert_eq!(*number, next);
            }
            next += out.as_ref().map_or_else(|lost| *lost, |_| 1);
        }
        prop_assert_eq!(rig.assembler.free.len(), 3);
    }
}

/// Runs a camera that loses frames, is silent for a while, and is switched off and on again; at a rate that is known,
/// or not. Returns the number of frames that came out whole, and how many of those are uncertain.
fn trial(seed: u64) -> Result<(u64, u64), TestCaseError> {
    let mut drawn = seed;
    let mut of = |range: Range<u64>| {
        drawn = drawn.wrapping_add(GOLDEN_GAMMA);
        range.start + mix_bits(drawn) % (range.end - range.start)
    };
    let model = Model { wide: of(0..2) == 0, resends: false };
    let rate = of(10..100) as f64;
    let stream = || Stream { rate: Some(rate).filter(|_| seed.is_multiple_of(2)), ..model.stream() };
    let mut rig = Rig::new(model, 16);
    rig.assembler.begin_stream(stream());
    rig.look(Duration::from_secs(1));
    // `before`: triggers that the stream has not counted; `silent_until`, `off_until`: end of the silence of the
    // network, and of the camera itself.
    let (mut before, mut silent_until, mut off_until) = (0, of(0..8), 0);
    for trigger in 0..400 {
        let now =
            Duration::from_secs_f64(1.0 + trigger as f64 / rate * (1.0 + 5e-5)) + Duration::from_micros(of(0..500));
        match of(0..200) {
            0 => silent_until = trigger + of(1..60),
            1 if trigger > 2 * rate as u64 && off_until <= trigger => off_until = trigger + of(2..100),
            2..6 => silent_until = silent_until.max(trigger + 1),
            _ => {}
        }
        if trigger < off_until {
            rig.assembler.note_absence(now);
            if trigger + 1 == off_until {
                rig.assembler.begin_stream(stream());
                rig.look(now);
                (before, silent_until) = (off_until, off_until + of(0..8));
            }
        } else if trigger >= silent_until {
            let id = trigger - before + 1;
            rig.give(&model.block_of(if model.wide { id } else { (id - 1) % 0xffff + 1 }, trigger), 64, now);
        }
        rig.look(now);
    }
    let (mut whole, mut uncertain) = (0, 0);
    for (number, bytes, status) in rig.out.iter().flatten().filter(|(.., status)| !status.contains(Status::CORRUPT)) {
        let trigger = bytes.first_chunk().map(|bytes| u64::from_le_bytes(*bytes));
        whole += 1;
        uncertain += u64::from(status.contains(Status::UNCERTAIN));
        prop_assert!(
            trigger == Some(*number) || status.contains(Status::UNCERTAIN),
            "{trigger:?} is {number}, seed {seed}"
        );
    }
    Ok((whole, uncertain))
}

/// With `THALWEG_TRIALS` set, runs that many new trials.
#[test]
fn no_frame_whose_status_is_good_is_another_triggers() {
    let (trials, first) = match std::env::var("THALWEG_TRIALS") {
        Ok(count) => {
            let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_secs();
            (count.parse().expect("a number"), now << 16)
        }
        Err(_) => (60, 0),
    };
    let (mut whole, mut uncertain) = (0, 0);
    for seed in first..first + trials {
        let (came, of_those) = trial(seed).unwrap();
        (whole, uncertain) = (whole + came, uncertain + of_those);
    }
    println!("{trials} trials, {whole} frames, of which {uncertain} are uncertain");
    assert!(uncertain > 0 && whole > 2 * uncertain);
}
