//! Reads and writes of blocks, one after the other or many at once, with their counts and times.

use super::target::{Target, misaligned, pattern};
use super::{Case, Direction, Method, Pattern, buffers};
use crate::BenchError;
use crate::clock::Clock;
use crate::cpu::{Usage, Used};
use crate::drive::Stop;
use crate::memory::Memory;
use crate::point::Latency;
use hdrhistogram::Histogram;
use rustix::io::{Errno, ReadWriteFlags, preadv2, pwritev2};
use std::io::{self, IoSlice, IoSliceMut};
use std::time::Duration;
use thalweg_sys::uring::{File, Operation, Ring, Slot, slots};
use thalweg_text::ByteSize;
use thalweg_wire::{GOLDEN_GAMMA, mix};

/// Blocks of one point, and the memory they come from or go to.
pub(super) struct Work<'a> {
    case: Case,
    target: &'a mut Target,
    clock: &'a Clock,
    check: bool,
    blocks: u64,
    /// Memory for one block each, of the blocks that are not in flight.
    free: Vec<Slot<Memory>>,
    ring: Option<Ring<Slot<Memory>>>,
    depth: u32,
}

/// Work done, and the time it took.
#[derive(Debug)]
pub(super) struct Tally {
    pub(super) operations: u64,
    pub(super) calls: u64,
    pub(super) nanos: u64,
    /// Times of single blocks.
    pub(super) times: Histogram<u64>,
    pub(super) used: Used,
}

impl Tally {
    fn new() -> Self {
        let times = Latency::histogram();
        Self { operations: 0, calls: 0, nanos: 0, times, used: Used::default() }
    }
}

/// Order in which blocks are taken.
#[derive(Debug, Clone)]
struct Walk {
    pattern: Pattern,
    blocks: u64,
    taken: u64,
    /// Number of blocks after which the walk pauses.
    until: u64,
}

impl Walk {
    /// Returns the `number`th block that is taken.
    fn block(&self, number: u64) -> u64 {
        let (pass, at) = (number / self.blocks, number % self.blocks);
        match self.pattern {
            Pattern::Sequential => at,
            Pattern::Random => shuffled(at, self.blocks, pass),
        }
    }
}

impl Iterator for Walk {
    type Item = u64;

    #[inline]
    fn next(&mut self) -> Option<u64> {
        if self.taken == self.until {
            return None;
        }
        self.taken += 1;
        Some(self.block(self.taken - 1))
    }
}

/// Returns the place of `at` in a permutation of the numbers below `count` that depends on `seed`: adding, multiplying
/// by odd numbers and folding halves permute the numbers below a power of two; results that are not below `count` are
/// permuted again.
fn shuffled(at: u64, count: u64, seed: u64) -> u64 {
    let bits = (u64::BITS - (count - 1).leading_zeros()).max(2);
    let (mask, fold) = (u64::MAX >> (u64::BITS - bits), bits / 2);
    let mut number = at;
    loop {
        for round in 0..3 {
            let key = mix(GOLDEN_GAMMA.wrapping_add(seed * 3 + round));
            number = number.wrapping_add(key).wrapping_mul(GOLDEN_GAMMA) & mask;
            number ^= number >> fold;
        }
        if number < count {
            return number;
        }
    }
}

impl<'a> Work<'a> {
    pub(super) fn new(case: Case, target: &'a mut Target, clock: &'a Clock, check: bool) -> Result<Self, BenchError> {
        let blocks = target.size() / case.size;
        let most = u32::try_from(blocks).unwrap_or(u32::MAX);
        let depth = if case.method == Method::IoUring { case.depth.min(most) } else { 1 };
        let (mut memory, stride) = buffers(case.size, depth)?;
        pattern(&mut memory, 0);
        let mut free = slots(memory, stride);
        let ring = match case.method {
            Method::IoUring => Some(ring(&mut free, target)?),
            _ => None,
        };
        Ok(Self { case, target, clock, check, blocks, free, ring, depth })
    }

    pub(super) fn target(&mut self) -> &mut Target {
        self.target
    }

    /// Processes blocks for at least `time`, beginning with the first.
    pub(super) fn run(&mut self, time: Duration, stop: &Stop) -> Result<Tally, BenchError> {
        if self.case.direction == Direction::Write {
            self.target.overwritten();
        }
        let until = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        let mut tally = Tally::new();
        let mut walk = Walk { pattern: self.case.pattern, blocks: self.blocks, taken: 0, until: u64::MAX };
        while tally.nanos < until && !stop.pressed() {
            if self.case.reads_cold() {
                self.target.drop_cache()?;
            }
            if self.case.reads_cold() || self.case.writes_behind() {
                // Data that was read is in the cache now, and data that was written is not on the disk: handle that
                // after each pass.
                walk.until = walk.taken + self.blocks;
            }
            let usage = Usage::now();
            match self.case.method {
                Method::IoUring => self.many(&mut walk, until, stop, &mut tally)?,
                _ => self.one_by_one(&mut walk, until, stop, &mut tally)?,
            }
            if self.case.writes_behind() {
                let before = self.clock.raw();
                rustix::fs::fdatasync(self.target.fd()).map_err(self.target.error("writing back a file"))?;
                tally.nanos += self.clock.nanos(before, self.clock.raw());
                tally.calls += 1;
            }
            tally.used = tally.used + usage.used();
        }
        Ok(tally)
    }

    /// Reads back, from the disk, the blocks that the last run wrote, and compares them.
    pub(super) fn read_back(&mut self, operations: u64, stop: &Stop) -> Result<(), BenchError> {
        self.target.set_direct(false)?;
        match self.target.drop_cache() {
            // Files that exist only in the page cache are read from there.
            Ok(()) | Err(BenchError::Unavailable { .. }) => {}
            Err(error) => return Err(error),
        }
        let walk =
            Walk { pattern: self.case.pattern, blocks: self.blocks, taken: 0, until: operations.min(self.blocks) };
        let len = self.len();
        let mut expected = vec![0; len];
        for block in walk {
            if stop.pressed() {
                return Err(BenchError::Stopped);
            }
            let offset = block * self.case.size;
            let bytes = &mut self.free[0][..len];
            let read = rustix::io::pread(self.target.fd(), &mut *bytes, offset)
                .map_err(self.target.error("reading back a file"))?;
            whole(read, len)?;
            compare(bytes, &mut expected, block, self.case.size)?;
        }
        self.target.set_direct(self.case.method.is_direct())
    }

    /// Returns the remarks on the point.
    pub(super) fn notes(&self) -> Vec<String> {
        let mut notes = Vec::new();
        if self.case.method == Method::IoUring && self.depth < self.case.depth {
            notes.push(format!("{} blocks were under way at once: the file has no more", self.depth));
        }
        if self.check {
            notes.push("all bytes were compared, partly inside the time (--check-data)".to_owned());
        }
        notes
    }

    fn len(&self) -> usize {
        usize::try_from(self.case.size).expect("as much memory was mapped")
    }

    /// Processes one block after the other, until the time is over or `walk` pauses.
    fn one_by_one(&mut self, walk: &mut Walk, until: u64, stop: &Stop, tally: &mut Tally) -> Result<(), BenchError> {
        let (size, len) = (self.case.size, self.len());
        let flags = match self.case.method {
            Method::Uncached => ReadWriteFlags::from_bits_retain(libc::RWF_DONTCACHE.cast_unsigned()),
            _ => ReadWriteFlags::empty(),
        };
        let mut expected = vec![0; if self.check { len } else { 0 }];
        let mut before = self.clock.raw();
        for block in walk.by_ref() {
            let (offset, bytes) = (block * size, &mut self.free[0][..len]);
            let moved = match self.case.direction {
                Direction::Read => preadv2(self.target.fd(), &mut [IoSliceMut::new(bytes)], offset, flags),
                Direction::Write => {
                    if self.check {
                        pattern(bytes, offset);
                    }
                    pwritev2(self.target.fd(), &[IoSlice::new(bytes)], offset, flags)
                }
            };
            let moved = moved.map_err(|error| refused(self.case, error, self.target))?;
            whole(moved, len)?;
            if self.check && self.case.direction == Direction::Read {
                compare(bytes, &mut expected, block, size)?;
            }
            let now = self.clock.raw();
            let passed = self.clock.nanos(before, now);
            before = now;
            tally.times.saturating_record(passed);
            tally.nanos += passed;
            tally.operations += 1;
            tally.calls += 1;
            if tally.nanos >= until || stop.pressed() {
                break;
            }
        }
        Ok(())
    }

    /// Processes many blocks at once, until the time is over; those in flight are waited for, inside the measured time.
    fn many(&mut self, walk: &mut Walk, until: u64, stop: &Stop, tally: &mut Tally) -> Result<(), BenchError> {
        let (len, size) = (self.len(), self.case.size);
        let ring = self.ring.as_mut().expect("made for this method");
        // For each slot in flight: its block, and the time at which it was requested.
        let mut requested: Vec<(u64, u64)> = vec![(0, 0); self.depth as usize];
        let mut expected = vec![0; if self.check { len } else { 0 }];
        let began = self.clock.raw();
        let mut over = false;
        loop {
            while !self.free.is_empty()
                && !over
                && let Some(block) = walk.next()
                && let Some(mut slot) = self.free.pop()
            {
                if self.check && self.case.direction == Direction::Write {
                    pattern(&mut slot[..len], block * size);
                }
                requested[usize::from(slot.number())] = (block, self.clock.raw());
                ring.push(match self.case.direction {
                    Direction::Read => Operation::read(File::Registered, slot, 0..len, block * size),
                    Direction::Write => Operation::write(File::Registered, slot, 0..len, block * size),
                });
            }
            if self.free.len() == requested.len() {
                break;
            }
            tally.calls += 1;
            ring.wait(None).map_err(self.target.error("waiting for blocks"))?;
            let now = self.clock.raw();
            while let Some(done) = ring.finished() {
                let (block, requested) = requested[usize::from(done.memory.number())];
                let moved = done.result.map_err(|error| refused(self.case, error, self.target))?;
                whole(moved as usize, len)?;
                if self.check && self.case.direction == Direction::Read {
                    compare(&done.memory[..len], &mut expected, block, size)?;
                }
                tally.times.saturating_record(self.clock.nanos(requested, now));
                tally.operations += 1;
                self.free.push(done.memory);
            }
            over |= tally.nanos + self.clock.nanos(began, now) >= until || stop.pressed();
        }
        tally.nanos += self.clock.nanos(began, self.clock.raw());
        Ok(())
    }
}

/// Makes a ring with the file and the memory registered.
fn ring(slots: &mut [Slot<Memory>], target: &Target) -> Result<Ring<Slot<Memory>>, BenchError> {
    let (count, each) = (slots.len(), slots[0].len());
    if each > 1 << 30 {
        return Err(BenchError::Unavailable {
            what: format!("io_uring with blocks of {}", ByteSize(each as u64)),
            why: "the kernel registers buffers of 1 GiB at most".to_owned(),
        });
    }
    let ring = Ring::new(u32::try_from(count).expect("4096 slots at most"));
    let mut ring = ring.map_err(|error| no_ring(&error))?;
    let mut memory: Vec<&mut [u8]> = slots.iter_mut().map(|slot| &mut slot[..]).collect();
    ring.register_memory(&mut memory).map_err(|error| not_registered((count * each) as u64, error))?;
    ring.register_file(target.fd()).map_err(BenchError::os("registering a file with io_uring"))?;
    Ok(ring)
}

/// Makes the error for a ring that could not be set up.
pub(crate) fn no_ring(error: &io::Error) -> BenchError {
    let why = match error.raw_os_error() {
        Some(libc::EPERM | libc::EACCES) => {
            "it is forbidden, by seccomp (as in most containers) or by `sysctl kernel.io_uring_disabled`".to_owned()
        }
        Some(libc::ENOSYS) => "the kernel is built without it".to_owned(),
        _ => error.to_string(),
    };
    BenchError::Unavailable { what: "io_uring".to_owned(), why }
}

/// Makes the error for memory that could not be registered with a ring.
pub(crate) fn not_registered(bytes: u64, error: io::Error) -> BenchError {
    let limit = rustix::process::getrlimit(rustix::process::Resource::Memlock).current;
    match (error.raw_os_error(), limit) {
        (Some(libc::ENOMEM), Some(limit)) => BenchError::Unavailable {
            what: format!("{} registered with io_uring", ByteSize(bytes)),
            why: format!(
                "the limit RLIMIT_MEMLOCK is {} for all of this user's; raise it with `ulimit -l`, LimitMEMLOCK= in the \
                 systemd unit, `memlock` in /etc/security/limits.conf, or give the program CAP_IPC_LOCK",
                ByteSize(limit)
            ),
        },
        _ => BenchError::os(format!("registering {} with io_uring", ByteSize(bytes)))(error),
    }
}

/// Makes the error for a block that could not be read or written.
fn refused(case: Case, error: Errno, target: &Target) -> BenchError {
    match (case.method, error) {
        (Method::Uncached, Errno::OPNOTSUPP) => BenchError::Unavailable {
            what: "uncached access (RWF_DONTCACHE)".to_owned(),
            why: "the file system does not do it, or the kernel is older than 6.14; use --method buffered".to_owned(),
        },
        (Method::Direct | Method::IoUring, Errno::INVAL) => {
            misaligned(case.size, "the file system refuses them; try multiples of 4096 B")
        }
        (_, error) => {
            let doing = if case.direction == Direction::Read { "reading" } else { "writing" };
            target.error(&format!("{doing} {}", ByteSize(case.size)))(error)
        }
    }
}

/// Returns an error if only part of a block was moved: the file is longer than that.
fn whole(moved: usize, len: usize) -> Result<(), BenchError> {
    if moved == len {
        return Ok(());
    }
    let error = io::Error::other(format!("only {moved} of {len} bytes were moved"));
    Err(BenchError::os("reading or writing a block")(error))
}

/// Returns an error if a block differs from what the file was filled with.
fn compare(bytes: &[u8], expected: &mut [u8], block: u64, size: u64) -> Result<(), BenchError> {
    pattern(expected, block * size);
    match bytes.iter().zip(expected.iter()).position(|(is, should)| is != should) {
        Some(at) => Err(BenchError::Corrupt { message: block, at }),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn random_order_takes_every_block_once_in_every_pass(blocks in 1u64..2000, pass in 0u64..5) {
            let walk = Walk { pattern: Pattern::Random, blocks, taken: pass * blocks, until: (pass + 1) * blocks };
            let mut taken: Vec<u64> = walk.collect();
            taken.sort_unstable();
            prop_assert_eq!(taken, (0..blocks).collect::<Vec<_>>());
        }
    }

    #[test]
    fn random_order_is_no_order() {
        let walk =
            |pass: u64| Walk { pattern: Pattern::Random, blocks: 1000, taken: pass * 1000, until: pass * 1000 + 1000 };
        let neighbours = |walk: Walk| {
            let blocks: Vec<u64> = walk.collect();
            blocks.windows(2).filter(|pair| pair[1] == pair[0] + 1).count()
        };
        assert!(neighbours(walk(0)) < 20 && neighbours(walk(1)) < 20);
        assert_ne!(walk(0).collect::<Vec<_>>(), walk(1).collect::<Vec<_>>());
        let sequential = Walk { pattern: Pattern::Sequential, blocks: 3, taken: 0, until: 7 };
        assert_eq!(sequential.collect::<Vec<_>>(), [0, 1, 2, 0, 1, 2, 0]);
    }

    #[test]
    fn the_pattern_does_not_depend_on_where_it_begins() {
        let mut whole = vec![0; 1000];
        pattern(&mut whole, 8000);
        for (from, to) in [(0, 1), (3, 900), (8, 16), (999, 1000), (5, 5)] {
            let mut part = vec![0; to - from];
            pattern(&mut part, 8000 + from as u64);
            assert_eq!(part, whole[from..to]);
        }
        let mut wrong = whole.clone();
        wrong[17] ^= 1;
        let error = compare(&wrong, &mut vec![0; 1000], 8, 1000).unwrap_err().to_string();
        assert_eq!(error, "byte 17 of message 8 arrived wrong");
    }

    #[test]
    fn errors_name_the_remedy() {
        let error = no_ring(&io::Error::from_raw_os_error(libc::EPERM)).to_string();
        assert!(error.contains("seccomp") && error.contains("io_uring_disabled"), "{error}");
        assert!(whole(5, 5).is_ok() && whole(4, 5).unwrap_err().to_string().contains("only 4 of 5 bytes"));
    }
}
