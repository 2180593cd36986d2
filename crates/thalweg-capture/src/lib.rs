//! Packets of an interface into a pcapng file, as fast as the disk takes them.
//!
//! [`capture`] copies packets out of the kernel's ring ([`PacketRing`]), or of a port past the kernel, into buffers, in the
//! form that the file has, and has full buffers written past the page cache while it goes on. While all buffers are under
//! way it waits, and the ring fills; what finds no room there is counted. The file says so, and is whole however it ends.
//!
//! # Files, in the order of the data's way
//!
//! | file | what is in it |
//! | --- | --- |
//! | `packets` | Where packets come from |
//! | `pcapng` | Blocks of the format |
//! | `writer` | A file that is written in large pieces, several at a time |
#![forbid(unsafe_code)]

mod packets;
mod pcapng;
mod writer;

pub use packets::{Packets, Taken};
pub use writer::WriteError;

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant, SystemTime};
use thalweg_frames::FramesError;
use thiserror::Error;
use writer::Writer;

/// How long to wait for packets before looking whether it is time to end.
const GLANCE: Duration = Duration::from_millis(50);
/// How long what waits in a port is taken after the end: it may go on to come.
const LAST: Duration = Duration::from_millis(100);

/// What to capture, and how much of it.
#[derive(Debug, Clone)]
pub struct Options {
    /// What the interface is called in the file.
    pub interface: String,
    /// The file, which must not be there yet.
    pub file: PathBuf,
    /// Most bytes kept of a packet.
    pub snap: u32,
    /// Ends after so many packets.
    pub count: Option<u64>,
    /// Ends after so long.
    pub lasting: Option<Duration>,
}

/// What was captured.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Captured {
    /// Packets in the file.
    pub packets: u64,
    /// Bytes that they had on the wire.
    pub bytes: u64,
    /// Packets that there was no room for, where that is known.
    pub dropped: Option<u64>,
    /// Bytes in the file.
    pub file_bytes: u64,
    /// How long it took.
    pub seconds: f64,
}

/// Why there is no capture, or it ended early.
#[derive(Debug, Error)]
pub enum CaptureError {
    /// The interface went while it was looked at. The file is whole.
    #[error("{error}; {} has the {} packets before that", file.display(), captured.packets)]
    Gone {
        /// The file.
        file: PathBuf,
        /// What is in it.
        captured: Captured,
        /// What went wrong.
        error: FramesError,
    },
    /// The file. What is in it up to there is whole.
    #[error("{error}; {} has the {} packets before that, and can be read", file.display(), captured.packets)]
    Write {
        /// The file.
        file: PathBuf,
        /// What is in it.
        captured: Captured,
        /// What went wrong.
        error: WriteError,
    },
    /// The file cannot be made.
    #[error("making {}: {error}", file.display())]
    Create {
        /// The file.
        file: PathBuf,
        /// The system's answer.
        error: std::io::Error,
    },
}

/// Captures until it is told to stop, or has what was asked for. `begun` is called when packets are seen from then on.
///
/// # Errors
/// The interface went, or the file cannot be written. What was written is readable.
pub fn capture(
    from: &mut dyn Packets,
    options: &Options,
    stop: &AtomicBool,
    begun: impl FnOnce(),
) -> Result<Captured, CaptureError> {
    let Options { interface, file, snap, .. } = options;
    let create = |error| CaptureError::Create { file: file.clone(), error };
    let mut writer = Writer::create(file).map_err(create)?;
    let mut captured = Captured::default();
    let (clock, began) = (Instant::now(), now());
    let deadline = options.lasting.map(|lasting| clock + lasting);
    begun();
    let mut result = writer.put(0, |out| {
        pcapng::section(out, concat!("thalweg ", env!("CARGO_PKG_VERSION")));
        pcapng::interface(out, interface, *snap);
    });
    // When it was time to end, and what was dropped until then: what came before is still taken.
    let mut end: Option<(u64, Option<u64>)> = None;
    let mut enough = false;
    let mut gone = None;
    while result.is_ok() && !enough {
        let received = from.receive(&mut |packet| {
            enough |= options.count.is_some_and(|count| captured.packets >= count);
            enough |= end.is_some_and(|(end, _)| packet.nanos > end);
            if enough {
                return false;
            }
            result = writer.put(1, |out| pcapng::packet(out, &packet, *snap));
            if result.is_ok() {
                captured.packets += 1;
                captured.bytes += packet.length as u64;
            }
            result.is_ok()
        });
        let more = received.unwrap_or_else(|error| {
            (gone, enough) = (gone.take().or(Some(error)), true);
            false
        });
        enough |= options.count.is_some_and(|count| captured.packets >= count) || end.is_some() && !more;
        let over = stop.load(Ordering::Relaxed) || deadline.is_some_and(|deadline| Instant::now() >= deadline);
        if over && end.is_none() {
            end = Some(last(from));
        } else if !more && !enough && result.is_ok() {
            let left = deadline.map_or(GLANCE, |deadline| deadline.saturating_duration_since(Instant::now()));
            if let Err(error) = from.wait(GLANCE.min(left.max(Duration::from_millis(1)))) {
                (gone, end) = (Some(error), end.or_else(|| Some(last(from))));
            }
        }
    }
    captured.dropped = end.map_or_else(|| from.dropped(), |(_, dropped)| dropped);
    captured.seconds = clock.elapsed().as_secs_f64();
    if result.is_ok() {
        result = writer.put(0, |out| pcapng::statistics(out, began, now(), captured.packets, captured.dropped));
    }
    let captured = finish(file, writer, captured, result)?;
    gone.map_or(Ok(captured), |error| Err(CaptureError::Gone { file: file.clone(), captured, error }))
}

/// It is time to end. How late the last packet may be, and how many were dropped so far. Returns when packets that came
/// before have got here.
fn last(from: &mut dyn Packets) -> (u64, Option<u64>) {
    let (dropped, lag) = (from.dropped(), from.lag());
    // Where packets have the time at which they were looked at, those that wait are in time.
    let grace = if lag.is_zero() { LAST } else { Duration::ZERO };
    let end = now() + grace.as_nanos() as u64;
    std::thread::sleep(lag);
    (end, dropped)
}

fn finish(
    file: &Path,
    writer: Writer,
    mut captured: Captured,
    result: Result<(), WriteError>,
) -> Result<Captured, CaptureError> {
    let (kept, finished) = writer.finish();
    captured.file_bytes = kept.bytes;
    match result.and(finished) {
        Ok(()) => Ok(captured),
        Err(error) => {
            captured.packets = kept.packets;
            Err(CaptureError::Write { file: file.to_owned(), captured, error })
        }
    }
}

fn now() -> u64 {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::UdpSocket;
    use thalweg_frames::{Packet, PacketRing};

    /// A port that has so many packets waiting, and drops one whenever it is asked how many it has dropped.
    struct Full {
        left: usize,
        dropped: u64,
    }

    impl Packets for Full {
        fn receive(&mut self, each: &mut dyn FnMut(Packet<'_>) -> bool) -> Result<bool, FramesError> {
            for _ in 0..self.left.min(32) {
                self.left -= 1;
                let packet = Packet { nanos: now(), length: 60, bytes: &[1; 60], tag: None };
                if !each(packet) {
                    break;
                }
            }
            Ok(self.left > 0)
        }

        fn wait(&mut self, _longest: Duration) -> Result<(), FramesError> {
            Ok(())
        }

        fn lag(&self) -> Duration {
            Duration::ZERO
        }

        fn dropped(&mut self) -> Option<u64> {
            self.dropped += 1;
            Some(self.dropped)
        }
    }

    #[test]
    fn what_waits_in_a_port_at_the_end_is_taken_and_what_is_dropped_later_is_not_counted() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("full.pcapng");
        let options = Options { interface: "port".into(), file, snap: 100, count: None, lasting: None };
        let mut port = Full { left: 1000, dropped: 41 };
        let captured = capture(&mut port, &options, &AtomicBool::new(true), || {}).unwrap();
        assert_eq!((captured.packets, captured.dropped), (1000, Some(42)));
    }

    #[test]
    fn what_goes_over_the_loopback_is_seen_once() {
        // A loopback of its own: what others send over the host's may fill the ring.
        let run = || match thalweg_netns::separate() {
            Ok(()) => capture_loopback(),
            Err(error) => thalweg_skip::skipped(error),
        };
        if let Err(panic) = std::thread::spawn(run).join() {
            std::panic::resume_unwind(panic);
        }
    }

    fn capture_loopback() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("lo.pcapng");
        let options = Options {
            interface: "lo".into(),
            file: file.clone(),
            snap: 100,
            count: None,
            lasting: Some(Duration::from_millis(300)),
        };
        let [to, from] = [(); 2].map(|()| UdpSocket::bind("127.0.0.1:0").unwrap());
        let to = to.local_addr().unwrap();
        let mark = |number: u32| format!("thalweg {number} to {to} ");
        let mut ring = match PacketRing::open("lo", options.snap, 4 << 20, false) {
            Ok(ring) => ring,
            Err(error) => return thalweg_skip::skipped(error),
        };
        let captured = capture(&mut ring, &options, &AtomicBool::new(false), || {
            // A link that goes down and comes up again is no end.
            for state in ["down", "up"] {
                let set = std::process::Command::new("ip").args(["link", "set", "lo", state]).status();
                assert!(set.unwrap().success(), "{state}");
            }
            for number in 0..200 {
                from.send_to(mark(number).as_bytes(), to).unwrap();
            }
        });
        let captured = captured.unwrap();
        let bytes = std::fs::read(&file).unwrap();
        assert_eq!(captured.file_bytes, bytes.len() as u64);
        assert!(captured.packets == 200 && captured.seconds >= 0.3, "{captured:?}");
        for number in 0..200 {
            let mark = mark(number);
            let found = bytes.windows(mark.len()).filter(|window| *window == mark.as_bytes()).count();
            assert_eq!(found, 1, "{mark}");
        }
    }
}
