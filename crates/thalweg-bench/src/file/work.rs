//! Reads and writes of blocks, one after the other or many at once, with their counts and times.

use super::target::{Target, fill_with_pattern, misaligned_error};
use super::{Case, Direction, Method, Pattern, allocate_buffers};
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
use thalweg_sys::uring::{File, Operation, Ring, Slot, divide_into_slots};
use thalweg_text::ByteSize;
use thalweg_wire::{GOLDEN_GAMMA, mix_bits};

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
        let times = Latency::new_histogram();
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
    fn block_number(&self, number: u64) -> u64 {
        let (pass, at) = (number / self.blocks, number % self.blocks);
        match self.pattern {
            Pattern::Sequential => at,
            Pattern::Random => permuted_number(at, self.blocks, pass),
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
        Some(self.block_number(self.taken - 1))
    }
}

/// Returns the place of `at` in a permutation of the numbers below `count` that depends on `seed`: adding, multiplying
/// by odd numbers and folding halves permute the numbers below a power of two; results that are not below `count` are
/// permuted again.
fn permuted_number(at: u64, count: u64, seed: u64) -> u64 {
    let bits = (u64::BITS - (count - 1).leading_zeros()).max(2);
    let (mask, fold) = (u64::MAX >> (u64::BITS - bits), bits / 2);
    let mut number = at;
    loop {
        for round in 0..3 {
            let key = mix_bits(GOLDEN_GAMMA.wrapping_add(seed * 3 + round));
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
        let blocks = target.size_bytes() / case.size;
        let most = u32::try_from(blocks).unwrap_or(u32::MAX);
        let depth = if case.method == Method::IoUring { case.depth.min(most) } else { 1 };
        let (mut memory, stride) = allocate_buffers(case.size, depth)?;
        fill_with_pattern(&mut memory, 0);
        let mut free = divide_into_slots(memory, stride);
        let ring = match case.method {
            Method::IoUring => Some(registered_ring(&mut free, target)?),
            _ => None,
        };
        Ok(Self { case, target, clock, check, blocks, free, ring, depth })
    }

    pub(super) fn target_mut(&mut self) -> &mut Target {
        self.target
    }

    /// Processes blocks for at least `time`, beginning with the first.
    pub(super) fn process_blocks(&mut self, time: Duration, stop: &Stop) -> Result<Tally, BenchError> {
        if self.case.direction == Direction::Write {
            self.target.mark_overwritten();
        }
        let until = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        let mut tally = Tally::new();
        let mut walk = Walk { pattern: self.case.pattern, blocks: self.blocks, taken: 0, until: u64::MAX };
        while tally.nanos < until && !stop.is_requested() {
            if self.case.is_cold_read() {
                self.target.drop_page_cache()?;
            }
            if self.case.is_cold_read() || self.case.is_buffered_write() {
                // Data that was read is in the cache now, and data that was written is not on the disk: handle that
                // after each pass.
                walk.until = walk.taken + self.blocks;
            }
            let usage = Usage::read_counters();
            match self.case.method {
                Method::IoUring => self.process_concurrently(&mut walk, until, stop, &mut tally)?,
                _ => self.process_one_by_one(&mut walk, until, stop, &mut tally)?,
            }
            if self.case.is_buffered_write() {
                let before = self.clock.read_counter();
                rustix::fs::fdatasync(self.target.borrowed_fd())
                    .map_err(self.target.error_in_directory("writing back a file"))?;
                tally.nanos += self.clock.elapsed_nanos(before, self.clock.read_counter());
                tally.calls += 1;
            }
            tally.used = tally.used + usage.used_since();
        }
        Ok(tally)
    }

    /// Reads back, from the disk, the blocks that the last run wrote, and compares them.
    pub(super) fn verify_written_blocks(&mut self, operations: u64, stop: &Stop) -> Result<(), BenchError> {
        self.target.set_direct_access(false)?;
        match self.target.drop_page_cache() {
            // Files that exist only in the page cache are read from there.
            Ok(()) | Err(BenchError::Unavailable { .. }) => {}
            Err(error) => return Err(error),
        }
        let walk =
            Walk { pattern: self.case.pattern, blocks: self.blocks, taken: 0, until: operations.min(self.blocks) };
        let len = self.block_bytes();
        let mut expected = vec![0; len];
        for block in walk {
            if stop.is_requested() {
                return Err(BenchError::Stopped);
            }
            let offset = block * self.case.size;
            let bytes = &mut self.free[0][..len];
            let read = rustix::io::pread(self.target.borrowed_fd(), &mut *bytes, offset)
                .map_err(self.target.error_in_directory("reading back a file"))?;
            check_whole_block(read, len)?;
            compare_block(bytes, &mut expected, block, self.case.size)?;
        }
        self.target.set_direct_access(self.case.method.bypasses_page_cache())
    }

    /// Returns the remarks on the point.
    pub(super) fn point_notes(&self) -> Vec<String> {
        let mut notes = Vec::new();
        if self.case.method == Method::IoUring && self.depth < self.case.depth {
            notes.push(format!("{} blocks were under way at once: the file has no more", self.depth));
        }
        if self.check {
            notes.push("all bytes were compared, partly inside the time (--check-data)".to_owned());
        }
        notes
    }

    fn block_bytes(&self) -> usize {
        usize::try_from(self.case.size).expect("as much memory was mapped")
    }

    /// Processes one block after the other, until the time is over or `walk` pauses.
    fn process_one_by_one(
        &mut self,
        walk: &mut Walk,
        until: u64,
        stop: &Stop,
        tally: &mut Tally,
    ) -> Result<(), BenchError> {
        let (size, len) = (self.case.size, self.block_bytes());
        let flags = match self.case.method {
            Method::Uncached => ReadWriteFlags::from_bits_retain(libc::RWF_DONTCACHE.cast_unsigned()),
            _ => ReadWriteFlags::empty(),
        };
        let mut expected = vec![0; if self.check { len } else { 0 }];
        let mut before = self.clock.read_counter();
        for block in walk.by_ref() {
            let (offset, bytes) = (block * size, &mut self.free[0][..len]);
            let moved = match self.case.direction {
                Direction::Read => preadv2(self.target.borrowed_fd(), &mut [IoSliceMut::new(bytes)], offset, flags),
                Direction::Write => {
                    if self.check {
                        fill_with_pattern(bytes, offset);
                    }
                    pwritev2(self.target.borrowed_fd(), &[IoSlice::new(bytes)], offset, flags)
                }
            };
            let moved = moved.map_err(|error| block_error(self.case, error, self.target))?;
            check_whole_block(moved, len)?;
            if self.check && self.case.direction == Direction::Read {
                compare_block(bytes, &mut expected, block, size)?;
            }
            let now = self.clock.read_counter();
            let passed = self.clock.elapsed_nanos(before, now);
            before = now;
            tally.times.saturating_record(passed);
            tally.nanos += passed;
            tally.operations += 1;
            tally.calls += 1;
            if tally.nanos >= until || stop.is_requested() {
                break;
            }
        }
        Ok(())
    }

    /// Processes many blocks at once, until the time is over; those in flight are waited for, inside the measured time.
    fn process_concurrently(
        &mut self,
        walk: &mut Walk,
        until: u64,
        stop: &Stop,
        tally: &mut Tally,
    ) -> Result<(), BenchError> {
        let (len, size) = (self.block_bytes(), self.case.size);
        let ring = self.ring.as_mut().expect("made for this method");
        // For each slot in flight: its block, and the time at which it was requested.
        let mut requested: Vec<(u64, u64)> = vec![(0, 0); self.depth as usize];
        let mut expected = vec![0; if self.check { len } else { 0 }];
        let began = self.clock.read_counter();
        let mut over = false;
        loop {
            while !self.free.is_empty()
                && !over
                && let Some(block) = walk.next()
                && let Some(mut slot) = self.free.pop()
            {
                if self.check && self.case.direction == Direction::Write {
                    fill_with_pattern(&mut slot[..len], block * size);
                }
                requested[usize::from(slot.slot_number())] = (block, self.clock.read_counter());
                ring.push_operation(match self.case.direction {
                    Direction::Read => Operation::read_range(File::Registered, slot, 0..len, block * size),
                    Direction::Write => Operation::write_range(File::Registered, slot, 0..len, block * size),
                });
            }
            if self.free.len() == requested.len() {
                break;
            }
            tally.calls += 1;
            ring.wait_for_completion(None).map_err(self.target.error_in_directory("waiting for blocks"))?;
            let now = self.clock.read_counter();
            while let Some(done) = ring.next_finished() {
                let (block, requested) = requested[usize::from(done.memory.slot_number())];
                let moved = done.result.map_err(|error| block_error(self.case, error, self.target))?;
                check_whole_block(moved as usize, len)?;
                if self.check && self.case.direction == Direction::Read {
                    compare_block(&done.memory[..len], &mut expected, block, size)?;
                }
                tally.times.saturating_record(self.clock.elapsed_nanos(requested, now));
                tally.operations += 1;
                self.free.push(done.memory);
            }
            over |= tally.nanos + self.clock.elapsed_nanos(began, now) >= until || stop.is_requested();
        }
        tally.nanos += self.clock.elapsed_nanos(began, self.clock.read_counter());
        Ok(())
    }
}

/// Makes a ring with the file and the memory registered.
fn registered_ring(slots: &mut [Slot<Memory>], target: &Target) -> Result<Ring<Slot<Memory>>, BenchError> {
    let (count, each) = (slots.len(), slots[0].len());
    if each > 1 << 30 {
        return Err(BenchError::Unavailable {
            what: format!("io_uring with blocks of {}", ByteSize(each as u64)),
            why: "the kernel registers buffers of 1 GiB at most".to_owned(),
        });
    }
    let ring = Ring::new(u32::try_from(count).expect("4096 slots at most"));
    let mut ring = ring.map_err(|error| ring_setup_error(&error))?;
    let mut memory: Vec<&mut [u8]> = slots.iter_mut().map(|slot| &mut slot[..]).collect();
    ring.register_memory(&mut memory).map_err(|error| registration_error((count * each) as u64, error))?;
    ring.register_file(target.borrowed_fd()).map_err(BenchError::os_error("registering a file with io_uring"))?;
    Ok(ring)
}

/// Makes the error for a ring that could not be set up.
pub(crate) fn ring_setup_error(error: &io::Error) -> BenchError {
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
pub(crate) fn registration_error(bytes: u64, error: io::Error) -> BenchError {
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
        _ => BenchError::os_error(format!("registering {} with io_uring", ByteSize(bytes)))(error),
    }
}

/// Makes the error for a block that could not be read or written.
fn block_error(case: Case, error: Errno, target: &Target) -> BenchError {
    match (case.method, error) {
        (Method::Uncached, Errno::OPNOTSUPP) => BenchError::Unavailable {
            what: "uncached access (RWF_DONTCACHE)".to_owned(),
            why: "the file system does not do it, or the kernel is older than 6.14; use --method buffered".to_owned(),
        },
        (Method::Direct | Method::IoUring, Errno::INVAL) => {
            misaligned_error(case.size, "the file system refuses them; try multiples of 4096 B")
        }
        (_, error) => {
            let doing = if case.direction == Direction::Read { "reading" } else { "writing" };
            target.error_in_directory(&format!("{doing} {}", ByteSize(case.size)))(error)
        }
    }
}

/// Returns an error if only part of a block was moved: the file is longer than that.
fn check_whole_block(moved: usize, len: usize) -> Result<(), BenchError> {
    if moved == len {
        return Ok(());
    }
    let error = io::Error::other(format!("only {moved} of {len} bytes were moved"));
    Err(BenchError::os_error("reading or writing a block")(error))
}

/// Returns an error if a block differs from what the file was filled with.
fn compare_block(bytes: &[u8], expected: &mut [u8], block: u64, size: u64) -> Result<(), BenchError> {
    fill_with_pattern(expected, block * size);
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
        fill_with_pattern(&mut whole, 8000);
        for (from, to) in [(0, 1), (3, 900), (8, 16), (999, 1000), (5, 5)] {
            let mut part = vec![0; to - from];
            fill_with_pattern(&mut part, 8000 + from as u64);
            assert_eq!(part, whole[from..to]);
        }
        let mut wrong = whole.clone();
        wrong[17] ^= 1;
        let error = compare_block(&wrong, &mut vec![0; 1000], 8, 1000).unwrap_err().to_string();
        assert_eq!(error, "byte 17 of message 8 arrived wrong");
    }

    #[test]
    fn errors_name_the_remedy() {
        let error = ring_setup_error(&io::Error::from_raw_os_error(libc::EPERM)).to_string();
        assert!(error.contains("seccomp") && error.contains("io_uring_disabled"), "{error}");
        assert!(
            check_whole_block(5, 5).is_ok()
                && check_whole_block(4, 5).unwrap_err().to_string().contains("only 4 of 5 bytes")
        );
    }
}
