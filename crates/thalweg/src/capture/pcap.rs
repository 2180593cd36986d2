//! Captures packets of an interface into a pcapng file, as fast as the disk takes them.
//!
//! [`capture_packets`] copies packets from the kernel's ring (`PacketRing` of `thalweg-frames`), or from a port that
//! bypasses the kernel, into buffers, in the format of the file, and has full buffers written past the page cache while
//! it continues. While all buffers are being written it waits, and the ring fills; packets that find no room there are
//! counted. The file records that count, and is valid however it ends.
//!
//! # Files, in the order of the data path
//!
//! | file | contents |
//! | --- | --- |
//! | `packets` | Origins of packets: the kernel's ring, or a port that bypasses the kernel |
//! | `pcapng` | Blocks of the format |
//! | `writer` | A file that is written in large pieces, several at a time |

mod packets;
mod pcapng;
mod writer;

pub(crate) use packets::{Packets, Taken};
pub(crate) use writer::WriteError;

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant, SystemTime};
use thalweg_frames::FramesError;
use thiserror::Error;
use writer::Writer;

/// Maximum time to wait for packets before checking whether to end.
const END_CHECK_INTERVAL: Duration = Duration::from_millis(50);
/// Time after the end during which packets waiting in a port are still taken: more may keep coming.
const DRAIN_TIME: Duration = Duration::from_millis(100);

/// Options of a capture: its source, its file and its limits.
#[derive(Debug, Clone)]
pub(crate) struct Options {
    /// Name of the interface in the file.
    pub interface: String,
    /// Path of the file, which must not exist yet.
    pub file: PathBuf,
    /// Maximum number of bytes kept of a packet.
    pub snap: u32,
    /// Number of packets after which the capture ends.
    pub count: Option<u64>,
    /// Duration after which the capture ends.
    pub lasting: Option<Duration>,
}

/// Amount of data that was captured.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(crate) struct Captured {
    /// Number of packets in the file.
    pub packets: u64,
    /// Number of bytes that these packets had on the wire.
    pub bytes: u64,
    /// Number of packets for which there was no room, if known.
    pub dropped: Option<u64>,
    /// Number of bytes in the file.
    pub file_bytes: u64,
    /// Duration of the capture, in seconds.
    pub seconds: f64,
}

/// Reason why there is no capture, or why it ended early.
#[derive(Debug, Error)]
pub(crate) enum CaptureError {
    /// An interface that disappeared during the capture. The file is valid.
    #[error("{error}; {} contains the {} packets before that", file.display(), captured.packets)]
    Gone {
        /// Path of the file.
        file: PathBuf,
        /// Contents of the file.
        captured: Captured,
        /// Error of the interface.
        error: FramesError,
    },
    /// A file that could not be written further. The part written before the error is valid.
    #[error("{error}; {} contains the {} packets before that, and can be read", file.display(), captured.packets)]
    Write {
        /// Path of the file.
        file: PathBuf,
        /// Contents of the file.
        captured: Captured,
        /// Error of the write.
        error: WriteError,
    },
    /// A file that cannot be created.
    #[error("making {}: {error}", file.display())]
    Create {
        /// Path of the file.
        file: PathBuf,
        /// Error of the operating system.
        error: std::io::Error,
    },
}

/// Captures until `stop` is set, or the limits of `options` are reached. `begun` is called at the time from which
/// packets are captured.
///
/// # Errors
/// If the interface disappeared, or the file cannot be written. The part that was written is readable.
pub(crate) fn capture_packets(
    from: &mut dyn Packets,
    options: &Options,
    stop: &AtomicBool,
    begun: impl FnOnce(),
) -> Result<Captured, CaptureError> {
    let Options { interface, file, snap, .. } = options;
    let mut writer = Writer::create(file).map_err(|error| CaptureError::Create { file: file.clone(), error })?;
    let mut captured = Captured::default();
    let (clock, began) = (Instant::now(), unix_nanos());
    let deadline = options.lasting.map(|lasting| clock + lasting);
    begun();
    let mut result = writer.append_blocks(0, |out| {
        pcapng::append_section(out, concat!("thalweg ", env!("CARGO_PKG_VERSION")));
        pcapng::append_interface(out, interface, *snap);
    });
    // Latest time of a packet that still counts, and the number of packets dropped by then: packets
    // from before are still taken.
    let mut end: Option<(u64, Option<u64>)> = None;
    let mut enough = false;
    let mut gone = None;
    while result.is_ok() && !enough {
        let received = from.receive_packets(&mut |packet| {
            enough |= options.count.is_some_and(|count| captured.packets >= count);
            enough |= end.is_some_and(|(end, _)| packet.nanos > end);
            if enough {
                return false;
            }
            result = writer.append_blocks(1, |out| pcapng::append_packet(out, &packet, *snap));
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
            end = Some(last_packet_time(from));
        } else if !more && !enough && result.is_ok() {
            let left =
                deadline.map_or(END_CHECK_INTERVAL, |deadline| deadline.saturating_duration_since(Instant::now()));
            if let Err(error) = from.wait_for_packets(END_CHECK_INTERVAL.min(left.max(Duration::from_millis(1)))) {
                (gone, end) = (Some(error), end.or_else(|| Some(last_packet_time(from))));
            }
        }
    }
    captured.dropped = end.map_or_else(|| from.dropped_count(), |(_, dropped)| dropped);
    captured.seconds = clock.elapsed().as_secs_f64();
    if result.is_ok() {
        result = writer.append_blocks(0, |out| {
            pcapng::append_statistics(out, began, unix_nanos(), captured.packets, captured.dropped)
        });
    }
    let captured = finish_capture(file, writer, captured, result)?;
    gone.map_or(Ok(captured), |error| Err(CaptureError::Gone { file: file.clone(), captured, error }))
}

/// Returns the latest time of a packet that still counts, in nanoseconds, and the number of packets dropped so far,
/// after waiting until packets from before the call have arrived here.
fn last_packet_time(from: &mut dyn Packets) -> (u64, Option<u64>) {
    let (dropped, lag) = (from.dropped_count(), from.max_packet_lag());
    // If packets are stamped when they are read, those already waiting count as in time.
    let grace = if lag.is_zero() { DRAIN_TIME } else { Duration::ZERO };
    let end = unix_nanos() + grace.as_nanos() as u64;
    std::thread::sleep(lag);
    (end, dropped)
}

fn finish_capture(
    file: &Path,
    writer: Writer,
    mut captured: Captured,
    result: Result<(), WriteError>,
) -> Result<Captured, CaptureError> {
    let (kept, finished) = writer.finish_file();
    captured.file_bytes = kept.bytes;
    match result.and(finished) {
        Ok(()) => Ok(captured),
        Err(error) => {
            captured.packets = kept.packets;
            Err(CaptureError::Write { file: file.to_owned(), captured, error })
        }
    }
}

fn unix_nanos() -> u64 {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::UdpSocket;
    use thalweg_frames::{Packet, PacketRing};

    /// A port with a given number of waiting packets, which drops one more whenever it is asked for the number of
    /// dropped packets.
    struct Full {
        left: usize,
        dropped: u64,
    }

    impl Packets for Full {
        fn receive_packets(&mut self, each: &mut dyn FnMut(Packet<'_>) -> bool) -> Result<bool, FramesError> {
            for _ in 0..self.left.min(32) {
                self.left -= 1;
                let packet = Packet { nanos: unix_nanos(), length: 60, bytes: &[1; 60], tag: None };
                if !each(packet) {
                    break;
                }
            }
            Ok(self.left > 0)
        }

        fn wait_for_packets(&mut self, _longest: Duration) -> Result<(), FramesError> {
            Ok(())
        }

        fn max_packet_lag(&self) -> Duration {
            Duration::ZERO
        }

        fn dropped_count(&mut self) -> Option<u64> {
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
        let captured = capture_packets(&mut port, &options, &AtomicBool::new(true), || {}).unwrap();
        assert_eq!((captured.packets, captured.dropped), (1000, Some(42)));
    }

    #[test]
    fn what_goes_over_the_loopback_is_seen_once() {
        // A separate loopback interface: traffic of other programs on the host's may fill the ring.
        let run = || match thalweg_sys::netns::enter_private_network() {
            Ok(()) => capture_loopback(),
            Err(error) => thalweg_testing::skip::skipped(error),
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
        let mut ring = match PacketRing::open_interface("lo", options.snap, 4 << 20, false) {
            Ok(ring) => ring,
            Err(error) => return thalweg_testing::skip::skipped(error),
        };
        let captured = capture_packets(&mut ring, &options, &AtomicBool::new(false), || {
            // A link that goes down and comes up again does not end the capture.
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
