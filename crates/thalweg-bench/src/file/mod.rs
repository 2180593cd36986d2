//! A disk, by block size: sequential and random reads and writes, through the page cache and past it.
//!
//! One temporary file without a name serves all points, or an existing one (`--read-only`), which is only read. A
//! temporary file is written before it is read, so that no read is of a hole, and writes overwrite existing data; reads
//! and writes are of whole blocks, at multiples of their size. *Random* takes every block once, in a pseudo-random
//! order, before it takes one again.
//!
//! - *buffered*: `pread`, `pwrite` through the page cache, one after the other. Reads are *cold* (the file's pages are
//!   dropped before every pass over it, outside the measured time) or *warm* (the file is read once before).
//!   `posix_fadvise` announces sequential or random access to the kernel, as fio does.
//! - *uncached*: the same with `RWF_DONTCACHE` (Linux 6.14): through the page cache, which keeps none of the data.
//! - *direct*: `pread`, `pwrite` with `O_DIRECT`, one after the other.
//! - *`io_uring`*: `O_DIRECT` with registered buffers and a registered file, `--depth` blocks in flight at once.
//!
//! Writes through the page cache end with `fdatasync`, after each pass over the file and at the end, inside the
//! measured time. Direct writes end when the disk reports them: it may have a cache of its own.
//!
//! Latency is the time of one block; messages are blocks.

pub(crate) mod target;
mod work;

use crate::BenchError;
use crate::clock::Clock;
use crate::drive::{Instrument, Stop};
use crate::memory::{PageKind, ensure_memory_available};
use crate::options::Timing;
use crate::plan::InstrumentOptions;
use crate::point::{Figures, Key, Latency};
use crate::sizes::Sizes;
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;
use target::Target;
use thalweg_text::ByteSize;
use work::Work;
pub(crate) use work::{registration_error, ring_setup_error};

/// Options of `thalweg bench file`.
#[derive(Debug, Clone, clap::Args)]
pub struct Options {
    #[command(flatten)]
    pub(crate) timing: Timing,
    /// Directory on the disk, for a temporary file
    #[arg(long, value_name = "DIR", default_value = ".")]
    path: PathBuf,
    /// Read this file instead, wherever it comes from, and write nothing
    #[arg(long, value_name = "FILE", conflicts_with_all = ["path", "file_size", "check_data"])]
    read_only: Option<PathBuf>,
    /// Bytes in that file
    #[arg(long, value_name = "SIZE", default_value = "1GiB")]
    file_size: ByteSize,
    /// Bytes in a block
    #[arg(long, value_name = "SIZES", default_value = "4KiB,64KiB,1MiB,4MiB")]
    sizes: Sizes,
    /// Order of the blocks
    #[arg(long, value_enum, value_delimiter = ',', default_values_t = [Pattern::Sequential])]
    pattern: Vec<Pattern>,
    /// Reads, writes, or both
    #[arg(long, value_enum, value_delimiter = ',', default_values_t = [Direction::Read, Direction::Write])]
    direction: Vec<Direction>,
    /// System calls that move the blocks
    #[arg(long, value_enum, value_delimiter = ',', default_values_t = [Method::Buffered, Method::Direct, Method::Uncached, Method::IoUring])]
    method: Vec<Method>,
    /// Whether buffered reads find the file in the page cache
    #[arg(long, value_enum, value_delimiter = ',', default_values_t = [Cache::Cold])]
    cache: Vec<Cache>,
    /// Blocks in flight at once, with io_uring
    #[arg(long, value_name = "N", default_value_t = 32, value_parser = clap::value_parser!(u32).range(1..=4096))]
    depth: u32,
    /// Compare every byte that is read, and read back what was written; the comparison is part of the time
    #[arg(long)]
    check_data: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Pattern {
    Sequential,
    Random,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Direction {
    Read,
    Write,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Method {
    /// Through the page cache
    Buffered,
    /// Past it, one after the other
    Direct,
    /// Through it, without leaving anything there
    Uncached,
    /// Past it, many at once
    #[value(name = "io_uring", alias = "io-uring")]
    IoUring,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Cache {
    Cold,
    Warm,
}

impl Method {
    fn display_name(self) -> &'static str {
        match self {
            Self::Buffered => "buffered",
            Self::Direct => "direct",
            Self::Uncached => "uncached",
            Self::IoUring => "io_uring",
        }
    }

    /// Returns whether the method bypasses the page cache.
    fn bypasses_page_cache(self) -> bool {
        matches!(self, Self::Direct | Self::IoUring)
    }
}

/// A point, as identified by its key.
#[derive(Debug, Clone, Copy)]
struct Case {
    pattern: Pattern,
    direction: Direction,
    method: Method,
    cache: Cache,
    size: u64,
    depth: u32,
}

impl Case {
    fn point_key(self) -> Key {
        let access = match (self.pattern, self.direction) {
            (Pattern::Sequential, Direction::Read) => "sequential read",
            (Pattern::Sequential, Direction::Write) => "sequential write",
            (Pattern::Random, Direction::Read) => "random read",
            (Pattern::Random, Direction::Write) => "random write",
        };
        let key = Key::new("file", self.method.display_name(), self.size).with_setting("access", access);
        match (self.method, self.direction, self.cache) {
            (Method::IoUring, ..) => key.with_setting("depth", self.depth),
            (Method::Buffered, Direction::Read, Cache::Cold) => key.with_setting("cache", "cold"),
            (Method::Buffered, Direction::Read, Cache::Warm) => key.with_setting("cache", "warm"),
            _ => key,
        }
    }

    /// Returns whether these are reads that must come from the disk, through the page cache.
    fn is_cold_read(self) -> bool {
        self.direction == Direction::Read && !self.method.bypasses_page_cache() && self.cache == Cache::Cold
    }

    /// Returns whether these are writes that are not on the disk when the call returns.
    fn is_buffered_write(self) -> bool {
        self.direction == Direction::Write && !self.method.bypasses_page_cache()
    }
}

impl InstrumentOptions for Options {
    fn timing(&self) -> Timing {
        self.timing
    }

    fn create_instrument(&self) -> Result<Box<dyn Instrument>, BenchError> {
        if self.sizes.0.contains(&0) {
            return Err(BenchError::Usage("--sizes: a block has at least 1 byte".to_owned()));
        }
        let existing = self.read_only.as_ref().map(|file| Target::open_existing(file)).transpose()?;
        let bytes = existing.as_ref().map_or(self.file_size.0, Target::size_bytes);
        if self.sizes.largest_size() > bytes {
            return Err(BenchError::Usage(format!(
                "a file of {} holds no block of {}; ask for a larger {} or smaller --sizes",
                ByteSize(bytes),
                ByteSize(self.sizes.largest_size()),
                if existing.is_some() { "file" } else { "--file-size" }
            )));
        }
        let target = match existing {
            Some(existing) => existing,
            None => Target::create_unnamed(&self.path, bytes)?,
        };
        Ok(Box::new(Disk { options: self.clone(), target, clock: Clock::new(), notes: BTreeMap::new() }))
    }
}

impl Options {
    fn requested_cases(&self) -> Vec<Case> {
        let mut cases = Vec::new();
        for &pattern in &self.pattern {
            let directions = if self.read_only.is_some() { &[Direction::Read] } else { &self.direction[..] };
            for &direction in directions {
                for &method in &self.method {
                    let both = direction == Direction::Read && method == Method::Buffered;
                    for &cache in if both { &self.cache[..] } else { &[Cache::Cold] } {
                        let Self { sizes, depth, .. } = self;
                        cases.extend(sizes.0.iter().map(|&size| Case {
                            pattern,
                            direction,
                            method,
                            cache,
                            size,
                            depth: *depth,
                        }));
                    }
                }
            }
        }
        cases
    }
}

struct Disk {
    options: Options,
    target: Target,
    clock: Clock,
    notes: BTreeMap<Key, Vec<String>>,
}

impl Instrument for Disk {
    fn point_keys(&self) -> Vec<Key> {
        self.options.requested_cases().into_iter().map(Case::point_key).collect()
    }

    fn measure_point(&mut self, key: &Key, timing: &Timing, stop: &Stop) -> Result<Figures, BenchError> {
        let case =
            self.options.requested_cases().into_iter().find(|case| case.point_key() == *key).expect("a key of ours");
        let check = self.options.check_data;
        self.target.ensure_written(check, stop)?;
        if case.method.bypasses_page_cache() {
            self.target.check_direct_access(case.size)?;
        }
        if case.direction == Direction::Read && case.method == Method::Buffered && case.cache == Cache::Warm {
            ensure_memory_available(self.target.size_bytes())?;
            self.target.load_into_page_cache(stop)?;
        }
        self.target.advise_access_pattern(case.pattern == Pattern::Random)?;
        self.target.set_direct_access(case.method.bypasses_page_cache())?;
        let mut work = Work::new(case, &mut self.target, &self.clock, check)?;
        work.process_blocks(timing.warmup, stop)?;
        let tally = if check && case.direction == Direction::Write {
            work.target_mut().overwrite_with_zeros(stop)?;
            let tally = work.process_blocks(timing.min_time.max(Duration::from_nanos(1)), stop)?;
            work.verify_written_blocks(tally.operations, stop)?;
            tally
        } else {
            work.process_blocks(timing.min_time.max(Duration::from_nanos(1)), stop)?
        };
        if tally.operations == 0 {
            return Err(BenchError::Stopped);
        }
        let notes = work.point_notes();
        self.notes.insert(key.clone(), notes);
        let (seconds, bytes) = (tally.nanos.max(1) as f64 * 1e-9, tally.operations * case.size);
        Ok(Figures {
            latency_us: Some(Latency::from_histogram(&tally.times, 1.0)),
            goodput_bits_per_second: Some(bytes as f64 * 8.0 / seconds),
            messages_per_second: Some(tally.operations as f64 / seconds),
            copies_per_byte: Some(if case.method.bypasses_page_cache() { 0.0 } else { 1.0 }),
            system_calls_per_megabyte: Some(tally.calls as f64 * 1e6 / bytes as f64),
            cpu: Some(tally.used.processor_figures(bytes)),
            seconds,
            steal_percent: tally.used.steal_percent(),
            ..Figures::default()
        })
    }

    fn point_notes(&self, key: &Key) -> Vec<String> {
        self.notes.get(key).cloned().unwrap_or_default()
    }
}

/// Allocates memory for `count` blocks of `size` bytes, each beginning at a page boundary; returns it with the stride.
fn allocate_buffers(size: u64, count: u32) -> Result<(crate::memory::Memory, usize), BenchError> {
    let stride = size.next_multiple_of(4096);
    let all = stride.saturating_mul(u64::from(count));
    ensure_memory_available(all)?;
    let memory = crate::memory::Memory::map_touched(all, PageKind::Small)?;
    Ok((memory, usize::try_from(stride).expect("as much memory was mapped")))
}

#[cfg(test)]
mod tests;
