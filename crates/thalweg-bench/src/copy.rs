//! Memory: copies, reads and checksums, from the caches and from memory. The cost of a copy is the saving of a path
//! without copies.
//!
//! - *hot*: the same source and destination again and again; data that fits into a cache stays in it.
//! - *cold*: source and destination move through far more memory than the caches hold (at least four times the last
//!   level, and at least 256 MiB, together over all threads), in ascending order, as in a ring of buffers: every byte
//!   comes from memory, with the help of the processor's prefetchers.
//! - *copy* is `memcpy` of the C library, *read* adds up 64-bit words, *crc32c* is [`thalweg_wire::crc32c`].
//!
//! Each thread has its own memory, which it touches itself and for which it asks for transparent huge pages.

use crate::BenchError;
use crate::clock::Clock;
use crate::cpu::Usage;
use crate::drive::{Instrument, Stop};
use crate::memory::{Memory, PageKind, available_memory_bytes, ensure_memory_available, transparent_huge_page_mode};
use crate::options::Timing;
use crate::plan::InstrumentOptions;
use crate::point::{Figures, Key, Latency};
use crate::sizes::Sizes;
use hdrhistogram::Histogram;
use std::collections::BTreeMap;
use std::fs;
use std::hint::black_box;
use std::sync::{OnceLock, mpsc};
use std::time::{Duration, Instant};
use thalweg_text::ByteSize;

/// Options of `thalweg bench copy`.
#[derive(Debug, Clone, clap::Args)]
pub struct Options {
    #[command(flatten)]
    pub(crate) timing: Timing,
    /// Bytes in one copy, read or checksum
    #[arg(long, value_name = "SIZES", default_value = "4KiB..64MiB:x4")]
    sizes: Sizes,
    /// Methods to measure (default: all)
    #[arg(long, value_enum, value_delimiter = ',', default_values_t = Method::ALL)]
    method: Vec<Method>,
    /// Threads that do it at once, each in its own memory
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=1024))]
    threads: u32,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Method {
    /// Copies, from cache to cache where they fit
    CopyHot,
    /// Copies, from memory to memory
    CopyCold,
    /// Reads, from memory
    ReadCold,
    /// Checksums, from the cache where they fit
    Crc32cHot,
    /// Checksums, from memory
    Crc32cCold,
}

impl Method {
    const ALL: [Self; 5] = [Self::CopyHot, Self::CopyCold, Self::ReadCold, Self::Crc32cHot, Self::Crc32cCold];

    fn display_name(self) -> &'static str {
        match self {
            Self::CopyHot => "copy hot",
            Self::CopyCold => "copy cold",
            Self::ReadCold => "read cold",
            Self::Crc32cHot => "crc32c hot",
            Self::Crc32cCold => "crc32c cold",
        }
    }

    fn has_destination(self) -> bool {
        matches!(self, Self::CopyHot | Self::CopyCold)
    }

    fn is_cold(self) -> bool {
        matches!(self, Self::CopyCold | Self::ReadCold | Self::Crc32cCold)
    }

    fn run_operation(self, from: &[u8], to: &mut [u8]) {
        match self {
            Self::CopyHot | Self::CopyCold => {
                to.copy_from_slice(from);
                black_box(to);
            }
            Self::ReadCold => {
                black_box(sum_bytes(from));
            }
            Self::Crc32cHot | Self::Crc32cCold => {
                black_box(thalweg_wire::crc32c(black_box(from)));
            }
        }
    }
}

/// Reads every byte, eight at a time, and returns a sum of them.
fn sum_bytes(bytes: &[u8]) -> u64 {
    let (words, rest) = bytes.as_chunks::<8>();
    let sum = words.iter().fold(0u64, |sum, word| sum.wrapping_add(u64::from_ne_bytes(*word)));
    rest.iter().fold(sum, |sum, byte| sum.wrapping_add(u64::from(*byte)))
}

impl InstrumentOptions for Options {
    fn timing(&self) -> Timing {
        self.timing
    }

    fn create_instrument(&self) -> Result<Box<dyn Instrument>, BenchError> {
        if self.sizes.0.contains(&0) {
            return Err(BenchError::Usage("--sizes: 0 bytes cannot be copied".to_owned()));
        }
        Ok(Box::new(Copying { options: self.clone(), clock: Clock::new(), notes: BTreeMap::new() }))
    }
}

struct Copying {
    options: Options,
    clock: Clock,
    notes: BTreeMap<Key, Vec<String>>,
}

impl Copying {
    fn point_key(&self, method: Method, size: u64) -> Key {
        let key = Key::new("memory", method.display_name(), size);
        if self.options.threads > 1 { key.with_setting("threads", self.options.threads) } else { key }
    }
}

impl Instrument for Copying {
    fn point_keys(&self) -> Vec<Key> {
        let sizes = &self.options.sizes.0;
        self.options.method.iter().flat_map(|method| sizes.iter().map(|size| self.point_key(*method, *size))).collect()
    }

    fn measure_point(&mut self, key: &Key, timing: &Timing, stop: &Stop) -> Result<Figures, BenchError> {
        let method = Method::ALL.into_iter().find(|method| method.display_name() == key.method).expect("a key of ours");
        let threads = u64::from(self.options.threads);
        let sides = if method.has_destination() { 2 } else { 1 };
        let region = Region::for_method(method, key.size, sides * threads)?;
        let kind = if transparent_huge_page_mode().is_some_and(|mode| mode != "never") {
            PageKind::Transparent
        } else {
            PageKind::Small
        };
        let mut workers = Vec::new();
        for _ in 0..threads {
            let from = Memory::map_untouched(region.bytes, kind)?;
            let to = method.has_destination().then(|| Memory::map_untouched(region.bytes, kind)).transpose()?;
            let (size, span) = (mapped_len(key.size), mapped_len(region.bytes));
            workers.push(Worker { method, size, span, from, to, at: 0, clock: self.clock.clone() });
        }
        let (ready, all_ready) = mpsc::channel();
        let go = OnceLock::new();
        let (done, used) = std::thread::scope(|scope| {
            let mut working = Vec::new();
            for worker in &mut workers {
                let (ready, go) = (ready.clone(), &go);
                let started = std::thread::Builder::new()
                    .spawn_scoped(scope, move || worker.run_measurement(timing, stop, &ready, go));
                working.push(started.map_err(|error| {
                    // The threads that wait for the others must not wait in vain.
                    let _ = go.set(false);
                    BenchError::os_error("starting a thread")(error)
                })?);
            }
            all_ready.iter().take(working.len()).for_each(drop);
            let usage = Usage::read_counters();
            let _ = go.set(true);
            let done: Vec<WorkerResult> =
                working.into_iter().map(|worker| worker.join().expect("memory is there")).collect();
            Ok::<_, BenchError>((done, usage.used_since()))
        })?;
        if done.iter().any(|done| done.operations == 0) {
            return Err(BenchError::Stopped);
        }
        self.notes.insert(key.clone(), region.memory_notes(&workers[0].from, kind));
        let operations: u64 = done.iter().map(|done| done.operations).sum();
        let per_second: f64 = done.iter().map(|done| done.operations as f64 / done.seconds).sum();
        let mut times = Latency::new_histogram();
        for times_of_one in done.iter().filter_map(|done| done.times.as_ref()) {
            times.add(times_of_one).expect("histograms that grow");
        }
        Ok(Figures {
            latency_us: (!times.is_empty()).then(|| Latency::from_histogram(&times, 1.0)),
            goodput_bits_per_second: Some(per_second * key.size as f64 * 8.0),
            messages_per_second: Some(per_second),
            copies_per_byte: Some(if method.has_destination() { 1.0 } else { 0.0 }),
            cpu: Some(used.processor_figures(operations * key.size)),
            seconds: used.wall,
            steal_percent: used.steal_percent(),
            ..Figures::default()
        })
    }

    fn point_notes(&self, key: &Key) -> Vec<String> {
        self.notes.get(key).cloned().unwrap_or_default()
    }
}

/// Memory of one side (source or destination) of one thread.
struct Region {
    bytes: u64,
    short: Option<String>,
}

impl Region {
    /// Computes the memory of one of `sides` sides altogether.
    fn for_method(method: Method, size: u64, sides: u64) -> Result<Self, BenchError> {
        ensure_memory_available(size.saturating_mul(sides))?;
        if !method.is_cold() {
            return Ok(Self { bytes: size, short: None });
        }
        let caches = last_level_cache_bytes().map(|bytes| bytes.saturating_mul(COLD_CACHES));
        let wanted = caches.unwrap_or(0).max(COLD_LEAST);
        let all = wanted.min(available_memory_bytes() / 2);
        let short = (all < wanted).then(|| {
            let (all, wanted) = (ByteSize(all >> 20 << 20), ByteSize(wanted >> 20 << 20));
            format!(
                "memory is short: cold operations moved through {all} instead of {wanted}, part of which the caches may hold"
            )
        });
        // A whole number of operations, within the memory that all sides together may use.
        Ok(Self { bytes: (all / sides).max(1).next_multiple_of(size), short })
    }

    fn memory_notes(&self, memory: &Memory, kind: PageKind) -> Vec<String> {
        let huge = match memory.transparent_fraction() {
            _ if memory.len() < crate::memory::HUGE_PAGE_BYTES => None,
            Some(fraction) if kind == PageKind::Transparent && fraction > 0.99 => None,
            Some(fraction) => Some(format!("{:.0} % of the memory was in huge pages", 100.0 * fraction)),
            None => Some("the part of the memory in huge pages is not known".to_owned()),
        };
        self.short.iter().cloned().chain(huge).collect()
    }
}

/// Memory for cold operations: as a multiple of the last-level cache, and at least, in bytes.
const COLD_CACHES: u64 = 4;
const COLD_LEAST: u64 = 256 << 20;

/// Returns the size of the largest cache of the first processor, by `/sys`, in bytes.
fn last_level_cache_bytes() -> Option<u64> {
    let caches = fs::read_dir("/sys/devices/system/cpu/cpu0/cache").ok()?;
    let sizes = caches.flatten().filter_map(|cache| fs::read_to_string(cache.path().join("size")).ok());
    sizes.filter_map(|text| parse_cache_size(&text)).max()
}

/// Parses a size as the kernel writes it: `32768K`.
fn parse_cache_size(text: &str) -> Option<u64> {
    text.trim().strip_suffix('K')?.parse::<u64>().ok()?.checked_mul(1024)
}

fn mapped_len(size: u64) -> usize {
    usize::try_from(size).expect("as much memory was mapped")
}

struct Worker {
    method: Method,
    size: usize,
    /// Length of the memory through which the operations move, in bytes.
    span: usize,
    from: Memory,
    to: Option<Memory>,
    /// Offset of the next operation.
    at: usize,
    clock: Clock,
}

struct WorkerResult {
    operations: u64,
    seconds: f64,
    /// Times of single operations, if they are long enough for the clock.
    times: Option<Histogram<u64>>,
}

/// Shortest duration for which operations are timed one by one; shorter ones are timed in batches of about
/// [`BATCH_TIME`].
const MIN_UNBATCHED_TIME: Duration = Duration::from_micros(1);
/// Duration of a batch, beside which reading the clock, some 20 ns, is negligible.
const BATCH_TIME: Duration = Duration::from_micros(20);

impl Worker {
    fn run_measurement(
        &mut self,
        timing: &Timing,
        stop: &Stop,
        ready: &mpsc::Sender<()>,
        go: &OnceLock<bool>,
    ) -> WorkerResult {
        self.from.touch_pages();
        if let Some(to) = &mut self.to {
            to.touch_pages();
        }
        let began = Instant::now();
        let mut warm = 0;
        // At least twice: the first one may bring in code and page tables.
        while (warm < 2 || began.elapsed() < timing.warmup) && !stop.is_requested() {
            self.run_next_operation();
            warm += 1;
        }
        let each = self.shortest_operation_time();
        let batch = if each >= MIN_UNBATCHED_TIME { 1 } else { BATCH_TIME.as_nanos().div_ceil(each.as_nanos().max(1)) };
        let mut times = (batch == 1).then(Latency::new_histogram);
        let (mut operations, mut nanos) = (0, 0);
        let _ = ready.send(());
        if !*go.wait() {
            return WorkerResult { operations, seconds: 0.0, times };
        }
        let mut before = self.clock.read_counter();
        while u128::from(nanos) < timing.min_time.as_nanos().max(1) && !stop.is_requested() {
            for _ in 0..batch {
                self.run_next_operation();
            }
            let now = self.clock.read_counter();
            let passed = self.clock.elapsed_nanos(before, now);
            before = now;
            nanos += passed;
            operations += u64::try_from(batch).expect("BATCH_TIME at most");
            if let Some(times) = &mut times {
                times.saturating_record(passed);
            }
        }
        WorkerResult { operations, seconds: nanos.max(1) as f64 * 1e-9, times }
    }

    /// Returns the shortest time of several operations.
    fn shortest_operation_time(&mut self) -> Duration {
        let times = (0..8).map(|_| {
            let before = self.clock.read_counter();
            self.run_next_operation();
            self.clock.elapsed_nanos(before, self.clock.read_counter())
        });
        Duration::from_nanos(times.min().unwrap_or(0))
    }

    #[inline]
    fn run_next_operation(&mut self) {
        let end = self.at + self.size;
        let from = &self.from[self.at..end];
        match &mut self.to {
            Some(to) => self.method.run_operation(from, &mut to[self.at..end]),
            None => self.method.run_operation(from, &mut []),
        }
        self.at = if end + self.size > self.span { 0 } else { end };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::options::parsed;

    fn options(words: &str) -> Options {
        parsed(&format!("-t 1ms -O 0 --repeat 1 {words}"))
    }

    #[test]
    fn every_method_moves_or_reads_its_bytes() {
        for words in ["--sizes 1,4096,1MiB", "--sizes 64KiB --threads 2"] {
            let options = options(words);
            let mut instrument = options.create_instrument().unwrap();
            let keys = instrument.point_keys();
            assert_eq!(keys.len(), options.sizes.0.len() * 5);
            for key in keys {
                let figures = instrument.measure_point(&key, &options.timing, &Stop::default()).unwrap();
                let bits = figures.messages_per_second.unwrap() * key.size as f64 * 8.0;
                assert!((figures.goodput_bits_per_second.unwrap() / bits - 1.0).abs() < 1e-9);
                assert_eq!(figures.copies_per_byte, Some(f64::from(u8::from(key.method.starts_with("copy")))));
                assert_eq!(key.settings.contains_key("threads"), options.threads > 1);
            }
        }
    }

    #[test]
    fn a_copy_moves_through_all_of_the_memory() {
        let mut from = Memory::map_untouched(3 * 4096, PageKind::Small).unwrap();
        let to = Memory::map_untouched(3 * 4096, PageKind::Small).unwrap();
        (1u8..).zip(from.chunks_mut(4096)).for_each(|(number, page)| page.fill(number));
        let method = Method::CopyCold;
        let mut worker =
            Worker { method, size: 4096, span: from.len(), from, to: Some(to), at: 0, clock: Clock::new() };
        for _ in 0..3 {
            worker.run_next_operation();
        }
        assert_eq!(worker.at, 0);
        assert!(worker.to.as_ref().unwrap()[..] == worker.from[..]);
    }

    #[test]
    fn cold_memory_is_a_whole_number_of_operations_and_more_than_the_caches_hold() {
        let region = Region::for_method(Method::CopyCold, 3000, 2).unwrap();
        assert!(region.bytes.is_multiple_of(3000));
        let caches = last_level_cache_bytes().unwrap_or(0);
        assert!(region.short.is_some() || region.bytes * 2 >= (caches * COLD_CACHES).max(COLD_LEAST));
        assert_eq!(Region::for_method(Method::CopyHot, 3000, 2).unwrap().bytes, 3000);
    }

    #[test]
    fn impossible_requests_are_refused() {
        assert!(options("--sizes 0").create_instrument().is_err_and(|error| error.is_usage_error()));
        let options = options("--sizes 1024GiB");
        let mut instrument = options.create_instrument().unwrap();
        let key = instrument.point_keys().remove(0);
        let error = instrument.measure_point(&key, &options.timing, &Stop::default()).unwrap_err().to_string();
        assert!(error.contains("of memory not available here"), "{error}");
        let stop = Stop::default();
        stop.request_stop();
        let small = Key::new("memory", "copy hot", 4096);
        assert!(matches!(instrument.measure_point(&small, &options.timing, &stop), Err(BenchError::Stopped)));
    }

    #[test]
    fn every_byte_is_read() {
        assert_eq!(sum_bytes(&[1; 19]), 2 * 0x0101_0101_0101_0101 + 3);
        assert_eq!(
            (parse_cache_size("32768K\n"), parse_cache_size("1M"), parse_cache_size("K")),
            (Some(32 << 20), None, None)
        );
    }
}
