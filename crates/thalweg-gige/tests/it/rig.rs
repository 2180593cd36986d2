//! The part of a source node that drives one camera.

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::os::fd::BorrowedFd;
use std::time::{Duration, Instant};
use thalweg_arena::SlotPool;
use thalweg_device::{Acquired, Acquisition, Buffer, Frame};
use thalweg_gige::{Camera, GigeConfig};

pub(crate) const TEST_TIMEOUT: Duration = Duration::from_secs(60);

pub(crate) fn config(text: &str) -> GigeConfig {
    toml::from_str(text).unwrap()
}

/// The part of a source node that drives one camera.
pub(crate) struct Rig {
    pub(crate) camera: Camera,
    _pool: SlotPool,
    begun: Instant,
}

impl Rig {
    pub(crate) fn start(config: &GigeConfig) -> Self {
        let begun = Instant::now();
        let mut camera = loop {
            match Camera::open(config) {
                Ok(camera) => break camera,
                // The camera may have been started only just before.
                Err(error) => assert!(begun.elapsed() < TEST_TIMEOUT, "{error}"),
            }
        };
        let mut pool = SlotPool::new("slots", 32, camera.max_payload_bytes() + 128).unwrap();
        while let Some(slot) = pool.take_slot() {
            camera.post_buffer(Buffer::new(slot));
        }
        camera.start_acquisition(thalweg_wire::TaiNanos(0)).unwrap();
        Self { camera, _pool: pool, begun }
    }

    /// Passes each frame to `each`, with the number of frames lost before it, until `each` returns true.
    pub(crate) fn take(&mut self, mut each: impl FnMut(&mut Frame, u64) -> bool) {
        let (begun, mut lost) = (Instant::now(), 0);
        loop {
            assert!(begun.elapsed() < TEST_TIMEOUT, "{:?}", self.camera.report_counters());
            match self.camera.poll_acquired(self.begun.elapsed()).unwrap() {
                Acquired::Frame(mut frame) => {
                    let enough = each(&mut frame, lost);
                    lost = 0;
                    self.camera.post_buffer(frame.buffer);
                    if enough {
                        return;
                    }
                }
                Acquired::Lost { count, .. } | Acquired::Missed { count, .. } => lost += count,
                Acquired::NotYet | Acquired::Over => self.wait(),
            }
        }
    }

    fn wait(&self) {
        let until = self.camera.next_poll_time().unwrap_or(Duration::MAX).saturating_sub(self.begun.elapsed());
        let time = Timespec::try_from(until.min(Duration::from_millis(500))).unwrap();
        let fd: BorrowedFd<'_> = self.camera.readiness_fd().unwrap();
        let mut fds = [PollFd::from_borrowed_fd(fd, PollFlags::IN)];
        let _ = poll(&mut fds, Some(&time));
    }

    pub(crate) fn count(&self, name: &str) -> u64 {
        self.camera.report_counters().into_iter().find(|(own, _)| *own == name).unwrap().1
    }

    /// Polls until `holds` returns true; no frame may come meanwhile.
    pub(crate) fn poll_until(&mut self, holds: impl Fn() -> bool) {
        let begun = Instant::now();
        while !holds() {
            self.poll_once(begun);
        }
    }

    /// Polls until a counter reaches `count`; no frame may come meanwhile.
    pub(crate) fn poll_until_count(&mut self, name: &str, count: u64) {
        let begun = Instant::now();
        while self.count(name) < count {
            self.poll_once(begun);
        }
    }

    fn poll_once(&mut self, begun: Instant) {
        assert!(begun.elapsed() < TEST_TIMEOUT, "{:?}", self.camera.report_counters());
        match self.camera.poll_acquired(self.begun.elapsed()).unwrap() {
            Acquired::Frame(frame) => panic!("frame {} came", frame.number),
            Acquired::Lost { .. } | Acquired::Missed { .. } => {}
            Acquired::NotYet | Acquired::Over => self.wait(),
        }
    }
}
