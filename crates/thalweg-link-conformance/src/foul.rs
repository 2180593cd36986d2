//! A port that drops, duplicates or delays a tenth of its datagrams each: for tests.

use std::net::SocketAddr;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::Duration;
use thalweg_arena::{Arena, KeptPiece, Piece};
use thalweg_frames::{Arrival, Counters, DatagramIo, FramesError};
use thalweg_wire::{GOLDEN_GAMMA, mix_bits};

/// A port that drops, duplicates or delays a tenth of its datagrams each, drawn from a seed.
#[derive(Debug)]
pub struct Foul<I> {
    io: I,
    drawn: u64,
    /// Delayed datagram, which is sent after the next one, or with the next burst.
    late: Option<(SocketAddr, Vec<u8>, Option<KeptPiece>)>,
}

impl<I: DatagramIo> Foul<I> {
    /// Makes such a port from a good one.
    pub fn new(io: I, seed: u64) -> Self {
        Self { io, drawn: seed, late: None }
    }

    /// Draws a number below ten.
    fn draw_below_ten(&mut self) -> u64 {
        self.drawn = self.drawn.wrapping_add(GOLDEN_GAMMA);
        mix_bits(self.drawn) % 10
    }

    fn send_delayed(&mut self) {
        if let Some((to, head, piece)) = self.late.take() {
            self.io.queue_datagram(to, &head, piece.as_ref().map(KeptPiece::borrowed_piece));
        }
    }
}

impl<I: DatagramIo> DatagramIo for Foul<I> {
    fn register_memory(&mut self, memory: &Arc<Arena>) -> Result<(), FramesError> {
        self.io.register_memory(memory)
    }

    fn local_address(&self) -> SocketAddr {
        self.io.local_address()
    }

    fn max_datagram_bytes(&mut self, to: SocketAddr) -> Result<usize, FramesError> {
        self.io.max_datagram_bytes(to)
    }

    fn reserve_receive_bytes(&mut self, bytes: u64) -> u64 {
        self.io.reserve_receive_bytes(bytes)
    }

    fn has_send_room(&mut self) -> bool {
        self.io.has_send_room()
    }

    fn queue_datagram(&mut self, to: SocketAddr, head: &[u8], piece: Option<Piece<'_>>) {
        match self.draw_below_ten() {
            0 => {}
            1 => {
                self.io.queue_datagram(to, head, piece);
                self.io.queue_datagram(to, head, piece);
            }
            2 if self.late.is_none() => self.late = Some((to, head.to_vec(), piece.map(Piece::keep_arena))),
            _ => {
                self.io.queue_datagram(to, head, piece);
                self.send_delayed();
            }
        }
    }

    fn copies_per_byte(&self) -> (u64, u64) {
        self.io.copies_per_byte()
    }

    fn flush_burst(&mut self) -> Result<bool, FramesError> {
        let all = self.io.flush_burst();
        self.send_delayed();
        all
    }

    fn receive_datagrams(&mut self, each: &mut dyn FnMut(SocketAddr, Arrival<'_>)) -> Result<bool, FramesError> {
        self.io.receive_datagrams(each)
    }

    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        self.io.descriptor()
    }

    fn prepare_wait(&mut self) -> bool {
        self.io.prepare_wait()
    }

    fn is_cheap_to_poll(&self) -> bool {
        self.io.is_cheap_to_poll()
    }

    fn port_counters(&self) -> Counters {
        self.io.port_counters()
    }

    fn current_time(&self, now: Duration) -> Duration {
        self.io.current_time(now)
    }

    fn next_arrival(&self) -> Option<Duration> {
        self.io.next_arrival()
    }
}
