//! A port that drops, duplicates or delays a tenth of its datagrams each: for tests.

use std::net::SocketAddr;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::Duration;
use thalweg_arena::{Arena, KeptPiece, Piece};
use thalweg_frames::{Arrival, Counters, FrameIo, FramesError};
use thalweg_wire::{GOLDEN_GAMMA, mix};

/// A port that drops, duplicates or delays a tenth of its datagrams each, drawn from a seed.
#[derive(Debug)]
pub struct Foul<I> {
    io: I,
    drawn: u64,
    /// Delayed datagram, which is sent after the next one, or with the next burst.
    late: Option<(SocketAddr, Vec<u8>, Option<KeptPiece>)>,
}

impl<I: FrameIo> Foul<I> {
    /// Makes such a port from a good one.
    pub fn new(io: I, seed: u64) -> Self {
        Self { io, drawn: seed, late: None }
    }

    /// Draws a number below ten.
    fn draw(&mut self) -> u64 {
        self.drawn = self.drawn.wrapping_add(GOLDEN_GAMMA);
        mix(self.drawn) % 10
    }

    fn catch_up(&mut self) {
        if let Some((to, head, piece)) = self.late.take() {
            self.io.send(to, &head, piece.as_ref().map(KeptPiece::piece));
        }
    }
}

impl<I: FrameIo> FrameIo for Foul<I> {
    fn register(&mut self, memory: &Arc<Arena>) -> Result<(), FramesError> {
        self.io.register(memory)
    }

    fn local(&self) -> SocketAddr {
        self.io.local()
    }

    fn longest(&mut self, to: SocketAddr) -> Result<usize, FramesError> {
        self.io.longest(to)
    }

    fn hold(&mut self, bytes: u64) -> u64 {
        self.io.hold(bytes)
    }

    fn has_room(&mut self) -> bool {
        self.io.has_room()
    }

    fn send(&mut self, to: SocketAddr, head: &[u8], piece: Option<Piece<'_>>) {
        match self.draw() {
            0 => {}
            1 => {
                self.io.send(to, head, piece);
                self.io.send(to, head, piece);
            }
            2 if self.late.is_none() => self.late = Some((to, head.to_vec(), piece.map(Piece::keep))),
            _ => {
                self.io.send(to, head, piece);
                self.catch_up();
            }
        }
    }

    fn copies(&self) -> (u64, u64) {
        self.io.copies()
    }

    fn flush(&mut self) -> Result<bool, FramesError> {
        let all = self.io.flush();
        self.catch_up();
        all
    }

    fn receive(&mut self, each: &mut dyn FnMut(SocketAddr, Arrival<'_>)) -> Result<bool, FramesError> {
        self.io.receive(each)
    }

    fn fd(&self) -> Option<BorrowedFd<'_>> {
        self.io.fd()
    }

    fn prepare_wait(&mut self) -> bool {
        self.io.prepare_wait()
    }

    fn sees(&self) -> bool {
        self.io.sees()
    }

    fn counters(&self) -> Counters {
        self.io.counters()
    }

    fn time(&self, now: Duration) -> Duration {
        self.io.time(now)
    }

    fn next_arrival(&self) -> Option<Duration> {
        self.io.next_arrival()
    }
}
