//! A device that works by itself, whose frames are numbered by their time stamps.

use crate::{
    Acquired, Acquisition, Beat, Beats, Buffer, Description, DeviceError, Frame, FrameOrder, Numbered, OrderedFrame,
};
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::Duration;
use thalweg_arena::Arena;
use thalweg_wire::{Status, TaiNanos};

/// Numbers the frames of a device by [`Beats`].
#[derive(Debug)]
pub struct OnTime {
    device: Box<dyn Acquisition>,
    beat: Beat,
    /// Frames in the order of the device's own counter.
    order: FrameOrder,
    beats: Beats<Frame>,
    /// Time since which a frame is held.
    held: Option<Duration>,
    over: bool,
    /// True once a frame had a time stamp.
    is_dated: bool,
    /// Number of frames without a time stamp before that.
    undated: u32,
}

/// Maximum number of frames without a time stamp, before any with one: after these the device is taken to have no
/// clock.
const MAX_UNDATED_FRAMES: u32 = 16;

impl OnTime {
    /// Creates the device, at its beginning.
    pub fn new(device: Box<dyn Acquisition>, beat: Beat) -> Self {
        let order = FrameOrder::new(device.reorder_depth());
        Self {
            device,
            beat,
            order,
            beats: Beats::new(beat, None),
            held: None,
            over: false,
            is_dated: false,
            undated: 0,
        }
    }

    /// Assigns events to the frames that are in order by the device's counter.
    fn number_frames(&mut self, now: Duration) -> Result<(), DeviceError> {
        while let Some(next) = self.order.next_in_turn(self.over) {
            // A gap in the counter shows in the next frame's number.
            let OrderedFrame::Frame(frame) = next else { continue };
            self.is_dated |= frame.filled.timestamp.is_some();
            self.undated += u32::from(!self.is_dated);
            self.beats.add_frame(frame.number, frame.filled.timestamp, now, frame);
        }
        if !self.is_dated && (self.undated >= MAX_UNDATED_FRAMES || self.over && self.undated > 0) {
            let problem = "its frames have no timestamps, which `beat` needs to number them".to_owned();
            return Err(DeviceError::Hardware { device: self.description().kind.clone(), problem });
        }
        Ok(())
    }

    /// Returns the time for which a held frame waits for the next one.
    fn max_hold_time(&self) -> Duration {
        self.beat.period * 2
    }
}

impl Acquisition for OnTime {
    fn description(&self) -> &Description {
        self.device.description()
    }

    fn max_payload_bytes(&self) -> usize {
        self.device.max_payload_bytes()
    }

    fn max_posted_buffers(&self) -> u32 {
        self.device.max_posted_buffers()
    }

    fn takes_dma_bufs(&self) -> bool {
        self.device.takes_dma_bufs()
    }

    fn register_memory(&mut self, arena: &Arc<Arena>) -> Result<(), DeviceError> {
        self.device.register_memory(arena)
    }

    fn post_buffer(&mut self, buffer: Buffer) {
        self.device.post_buffer(buffer);
    }

    fn start_acquisition(&mut self, at: TaiNanos) -> Result<(), DeviceError> {
        self.beats = Beats::new(self.beat, self.beat.origin_after(at));
        self.device.start_acquisition(at)
    }

    fn event_period(&self) -> Option<Duration> {
        self.beat.phase.is_none().then_some(self.beat.period)
    }

    fn first_frame_time(&self) -> Option<TaiNanos> {
        self.beats.first_frame_time()
    }

    fn begin_events(&mut self, origin: TaiNanos) {
        self.beats.begin_events(origin);
    }

    fn poll_acquired(&mut self, now: Duration) -> Result<Acquired, DeviceError> {
        loop {
            match self.beats.next_numbered() {
                Some(Numbered::Frame { event, mut frame, is_certain }) => {
                    // The time stamp determines the event, whatever the counter is.
                    frame.filled.status.set(Status::UNCERTAIN, !is_certain);
                    return Ok(Acquired::Frame(Frame { number: event, ..frame }));
                }
                Some(Numbered::Lost { event, count }) => return Ok(Acquired::Lost { first: event, count }),
                Some(Numbered::Missed { event, count }) => return Ok(Acquired::Missed { first: event, count }),
                Some(Numbered::Before(frame) | Numbered::Stray(frame)) => {
                    self.device.post_buffer(frame.buffer);
                    continue;
                }
                None if self.over => return Ok(Acquired::Over),
                None => {}
            }
            match self.device.poll_acquired(now)? {
                Acquired::Frame(frame) => {
                    if let Some(Frame { buffer, .. }) = self.order.insert_frame(frame) {
                        self.device.post_buffer(buffer);
                    }
                }
                Acquired::Lost { first, count } | Acquired::Missed { first, count } => {
                    self.order.record_lost(first, count)
                }
                Acquired::NotYet => {
                    self.held = if self.beats.is_frame_waiting() { self.held.or(Some(now)) } else { None };
                    if self.held.is_none_or(|since| now < since + self.max_hold_time()) {
                        return Ok(Acquired::NotYet);
                    }
                    self.beats.settle_waiting();
                    continue;
                }
                Acquired::Over => self.over = true,
            }
            self.number_frames(now)?;
            if self.over {
                self.beats.finish_numbering();
            }
        }
    }

    fn poll_idle(&mut self, now: Duration) -> Result<Option<Duration>, DeviceError> {
        self.device.poll_idle(now)
    }

    fn readiness_fd(&self) -> Option<BorrowedFd<'_>> {
        self.device.readiness_fd()
    }

    fn has_room(&self) -> bool {
        self.device.has_room()
    }

    fn is_away(&self) -> bool {
        self.device.is_away()
    }

    fn next_poll_time(&self) -> Option<Duration> {
        let settle = self.held.map(|since| since + self.max_hold_time());
        self.device.next_poll_time().into_iter().chain(settle).min()
    }

    fn stray_frame_count(&self) -> u64 {
        self.device.stray_frame_count() + self.beats.beat_counts().stray
    }

    fn report_counters(&self) -> Vec<(&'static str, u64)> {
        let counts = self.beats.beat_counts();
        let beats = [
            ("missed_triggers", counts.missed),
            ("stamped_late", counts.stamped_late),
            ("off_beat", counts.off_beat),
            ("of_no_event", counts.stray),
            ("counter_restarts", counts.restarts),
            ("clock_steps", counts.clock_steps),
            ("undated", counts.undated),
        ];
        let drift = self.beats.drift_ppb().map(|drift| ("drift_ppb", drift.abs().round() as u64));
        self.device.report_counters().into_iter().chain(beats).chain(drift).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::HeaderValues;
    use std::collections::VecDeque;
    use thalweg_arena::SlotPool;
    use thalweg_wire::PayloadType;

    /// A camera with these frames: counter, and time stamp if the frame has one.
    #[derive(Debug)]
    struct Camera {
        description: Description,
        frames: VecDeque<(u64, Option<u64>)>,
        posted: Vec<Buffer>,
        ends: bool,
    }

    impl Acquisition for Camera {
        fn description(&self) -> &Description {
            &self.description
        }

        fn max_payload_bytes(&self) -> usize {
            64
        }

        fn max_posted_buffers(&self) -> u32 {
            4
        }

        fn post_buffer(&mut self, buffer: Buffer) {
            self.posted.push(buffer);
        }

        fn poll_acquired(&mut self, _now: Duration) -> Result<Acquired, DeviceError> {
            let Some((number, time)) = self.frames.pop_front() else {
                return Ok(if self.ends { Acquired::Over } else { Acquired::NotYet });
            };
            let timestamp = time.map(TaiNanos);
            let filled = HeaderValues { payload_type: PayloadType::RAW, status: Status::empty(), window: 0, timestamp };
            let buffer = self.posted.pop().unwrap();
            Ok(Acquired::Frame(Frame { buffer, number, len: 8, filled, crc: None, copied: 0 }))
        }
    }

    const MS: u64 = 1_000_000;

    fn on_time(frames: &[(u64, Option<u64>)], ends: bool) -> (OnTime, SlotPool) {
        let mut pool = SlotPool::new("slots", 4, 128).unwrap();
        let (frames, description) = (frames.iter().copied().collect(), Description::default());
        let ms = Duration::from_millis;
        let beat = Beat { period: ms(10), phase: Some(ms(1)), tolerance: ms(2) };
        let camera = Camera { description, frames, posted: Vec::new(), ends };
        let mut device = OnTime::new(Box::new(camera), beat);
        while let Some(slot) = pool.take_slot() {
            device.post_buffer(Buffer::new(slot));
        }
        device.start_acquisition(TaiNanos(1000 * MS)).unwrap();
        (device, pool)
    }

    fn at(event: u64) -> Option<u64> {
        Some((1001 + 10 * event) * MS)
    }

    /// Returns all results up to that time as text, and posts the buffers that came with them again.
    fn reports(device: &mut OnTime, now: u64) -> Vec<String> {
        let mut reports = Vec::new();
        loop {
            match device.poll_acquired(Duration::from_millis(now)).unwrap() {
                Acquired::Frame(frame) => {
                    reports.push(format!("frame {}", frame.number));
                    device.post_buffer(frame.buffer);
                }
                Acquired::Lost { first, count } => reports.push(format!("lost {first} {count}")),
                Acquired::Missed { first, count } => reports.push(format!("missed {first} {count}")),
                Acquired::NotYet => return reports,
                Acquired::Over => {
                    reports.push("over".into());
                    return reports;
                }
            }
        }
    }

    #[test]
    fn a_frame_ahead_of_its_counter_waits_for_the_next_but_not_for_ever() {
        let (mut device, _pool) = on_time(&[(5, at(0)), (7, at(2)), (8, at(4))], false);
        assert_eq!(reports(&mut device, 100), ["frame 0", "lost 1 1", "frame 2"]);
        assert_eq!(device.next_poll_time(), Some(Duration::from_millis(120)), "two periods");
        assert!(reports(&mut device, 119).is_empty());
        assert_eq!(reports(&mut device, 120), ["missed 3 1", "frame 4"]);
        assert_eq!(device.next_poll_time(), None);
        assert!(device.report_counters().contains(&("missed_triggers", 1)));
    }

    #[test]
    fn a_frame_of_no_event_gives_its_buffer_back_and_the_last_one_is_not_held_at_the_end() {
        let stray = Some(1005 * MS);
        let (mut device, _pool) =
            on_time(&[(0, stray), (1, stray), (2, stray), (3, stray), (4, at(1)), (5, at(3))], true);
        assert_eq!(reports(&mut device, 0), ["missed 0 1", "frame 1", "missed 2 1", "frame 3", "over"]);
        assert!(device.report_counters().contains(&("of_no_event", 4)));
    }

    #[test]
    fn a_device_without_time_stamps_is_named() {
        let (mut device, _pool) = on_time(&[(0, None)], true);
        let error = device.poll_acquired(Duration::ZERO).unwrap_err().to_string();
        assert!(error.contains("no timestamps"), "{error}");
    }
}
