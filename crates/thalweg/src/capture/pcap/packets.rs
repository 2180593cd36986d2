//! Origins of packets: the kernel's ring, or a port that bypasses the kernel.

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use std::thread;
use std::time::Duration;
use thalweg_frames::{FrameIo, FramesError, Packet, PacketRing};

/// Interval between two polls of a port that has no wake-up.
const POLL_INTERVAL: Duration = Duration::from_micros(50);

/// Origin of packets.
pub(crate) trait Packets {
    /// Passes packets that have arrived to `each`, until it returns false: later ones are lost to it. Returns true if
    /// there may be more.
    ///
    /// # Errors
    /// If nothing can be received any more.
    fn receive_packets(&mut self, each: &mut dyn FnMut(Packet<'_>) -> bool) -> Result<bool, FramesError>;

    /// Waits for packets, at most for `longest`.
    ///
    /// # Errors
    /// If the interface is gone or down.
    fn wait_for_packets(&mut self, longest: Duration) -> Result<(), FramesError>;

    /// Returns the maximum time that a packet may take from the interface to here.
    fn max_packet_lag(&self) -> Duration;

    /// Returns the number of packets for which there was no room, if known.
    fn dropped_count(&mut self) -> Option<u64>;
}

impl Packets for PacketRing {
    fn receive_packets(&mut self, each: &mut dyn FnMut(Packet<'_>) -> bool) -> Result<bool, FramesError> {
        Ok(PacketRing::receive_packets(self, each))
    }

    fn wait_for_packets(&mut self, longest: Duration) -> Result<(), FramesError> {
        PacketRing::wait_for_packets(self, longest)
    }

    /// Returns 100 ms: the kernel hands packets over after 20 ms; the rest is for a busy machine.
    fn max_packet_lag(&self) -> Duration {
        Duration::from_millis(100)
    }

    fn dropped_count(&mut self) -> Option<u64> {
        let counted = self.packet_counters().inspect_err(|error| tracing::warn!("{error}"));
        counted.ok().map(|(_, dropped)| dropped)
    }
}

/// Packets taken by a port, which no other program receives then. A packet's time is when it was read: it may have
/// waited in the port while the file kept this program busy.
#[derive(Debug)]
pub(crate) struct Taken(Box<dyn FrameIo>);

impl Taken {
    /// Returns the origin of the packets that this port takes.
    pub(crate) fn from_port(port: impl FrameIo + 'static) -> Self {
        Self(Box::new(port))
    }
}

impl Packets for Taken {
    fn receive_packets(&mut self, each: &mut dyn FnMut(Packet<'_>) -> bool) -> Result<bool, FramesError> {
        let (nanos, mut wanted) = (crate::capture::pcap::unix_nanos(), true);
        self.0.receive_frames(&mut |frame| {
            wanted = wanted && each(Packet { nanos, length: frame.len(), bytes: frame, tag: None });
        })
    }

    fn wait_for_packets(&mut self, longest: Duration) -> Result<(), FramesError> {
        if self.0.descriptor().is_none() {
            thread::sleep(POLL_INTERVAL.min(longest));
            return Ok(());
        }
        if !self.0.prepare_wait() {
            return Ok(());
        }
        let Some(fd) = self.0.descriptor() else { return Ok(()) };
        let longest = Timespec { tv_sec: longest.as_secs().cast_signed(), tv_nsec: longest.subsec_nanos().into() };
        match poll(&mut [PollFd::from_borrowed_fd(fd, PollFlags::IN)], Some(&longest)) {
            Ok(_) | Err(Errno::INTR) => Ok(()),
            Err(error) => Err(FramesError { doing: "waiting for packets".into(), error: error.into() }),
        }
    }

    fn max_packet_lag(&self) -> Duration {
        Duration::ZERO
    }

    fn dropped_count(&mut self) -> Option<u64> {
        Some(self.0.port_counters().dropped)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;
    use std::os::fd::{AsFd, BorrowedFd};
    use std::os::unix::net::UnixStream;
    use std::sync::Arc;
    use std::time::Instant;
    use thalweg_arena::{Arena, Piece};
    use thalweg_frames::Counters;

    /// A port without any packets, with a descriptor.
    #[derive(Debug)]
    struct Port {
        tells: UnixStream,
        prepared: bool,
    }

    impl FrameIo for Port {
        fn register_memory(&mut self, _memory: &Arc<Arena>) -> Result<(), FramesError> {
            Ok(())
        }

        fn mac_address(&self) -> [u8; 6] {
            [2; 6]
        }

        fn max_frame_bytes(&self) -> usize {
            1514
        }

        fn has_send_room(&mut self) -> bool {
            false
        }

        fn queue_frame(&mut self, _head: &[u8], _piece: Option<Piece<'_>>) -> bool {
            false
        }

        fn flush_burst(&mut self) -> Result<bool, FramesError> {
            Ok(true)
        }

        fn receive_frames(&mut self, _each: &mut dyn FnMut(&[u8])) -> Result<bool, FramesError> {
            Ok(false)
        }

        fn receive_room_frames(&self) -> usize {
            0
        }

        fn descriptor(&self) -> Option<BorrowedFd<'_>> {
            Some(self.tells.as_fd())
        }

        fn prepare_wait(&mut self) -> bool {
            self.prepared = true;
            true
        }

        fn copies_per_byte(&self) -> (u64, u64) {
            (0, 0)
        }

        fn port_counters(&self) -> Counters {
            Counters::default()
        }
    }

    #[test]
    fn a_port_with_a_descriptor_is_waited_for_there() {
        let (tells, mut other) = UnixStream::pair().unwrap();
        let mut port = Taken::from_port(Port { tells, prepared: false });
        let waited = |port: &mut Taken, longest| {
            let begun = Instant::now();
            port.wait_for_packets(longest).unwrap();
            begun.elapsed()
        };
        let short = Duration::from_millis(20);
        assert!(waited(&mut port, short) >= short, "nothing came");
        other.write_all(&[1]).unwrap();
        assert!(waited(&mut port, Duration::from_secs(60)) < Duration::from_secs(30));
    }
}
