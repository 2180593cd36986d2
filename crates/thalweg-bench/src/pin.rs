//! Time to find out the physical addresses of memory, against the time to pin it: the cost, before the first byte
//! moves, of a device that reads and writes host memory by itself (the ExpEther paper, section 6.2).
//!
//! The paper pins a buffer, then times a driver that walks its pages (8.35 µs for 1 MiB, 8.58 ms for 1 GiB), and puts
//! that beside `mlock` of as much (15.1 µs, 624 ms): 55.3 % and 1.4 %. Here:
//!
//! - *page list*: [`thalweg_arena::page_list`] of memory that was pinned before: opening and reading
//!   `/proc/self/pagemap` and making the list, no driver needed.
//! - *mlock*: `mlock` alone.
//! - *`MAP_POPULATE`*: `mmap` that brings all pages in. Where the kernel must first be advised which pages to use, the
//!   three calls `mmap`, `madvise`, `madvise(MADV_POPULATE_WRITE)` together.
//! - *`io_uring` registration*: `IORING_REGISTER_BUFFERS` alone, which is the same long-term pin (`FOLL_LONGTERM`) as
//!   that of an RDMA device or of VFIO: it also keeps pages in place.
//! - *RNIC registration*: a memfd registered at an embedded RNIC in software (`thalweg-rdma`), which maps it and pins
//!   nothing: the processor's page tables are its page list.
//!
//! Untouched memory is mapped afresh for every operation, so that bringing its pages in is part of the time; unlocking
//! and unmapping never are. Latency is the time of one operation.

use crate::BenchError;
use crate::clock::Clock;
use crate::cpu::Usage;
use crate::drive::{Instrument, Stop};
use crate::memory::{HUGE_PAGE_BYTES, Memory, PageKind, Room, ensure_memory_available, transparent_huge_page_mode};
use crate::options::Timing;
use crate::plan::InstrumentOptions;
use crate::point::{Figures, Key, Latency, Point};
use crate::sizes::Sizes;
use io_uring::IoUring;
use std::collections::BTreeMap;
use std::fs;
use std::os::fd::{AsFd, OwnedFd};
use std::time::Instant;
use thalweg_arena::{SharedMemory, page_list, pin_bytes};
use thalweg_rdma::{Access, Device, Limits, MemoryRange, ProtectionDomain};

/// Options of `thalweg bench pin`.
#[derive(Debug, Clone, clap::Args)]
pub struct Options {
    #[command(flatten)]
    pub(crate) timing: Timing,
    /// Bytes to pin
    #[arg(long, value_name = "SIZES", default_value = "4KiB..1GiB:x4")]
    sizes: Sizes,
    /// Pages that the memory is made of (default: small, transparent where the kernel has them, huge where some are
    /// reserved)
    #[arg(long, value_enum, value_delimiter = ',')]
    pages: Vec<Pages>,
    /// Whether the memory was written before
    #[arg(long, value_enum, value_delimiter = ',', default_values_t = [Before::Touched, Before::Untouched])]
    before: Vec<Before>,
    /// Operations to time
    #[arg(long, value_enum, value_delimiter = ',', default_values_t = [Method::PageList, Method::Mlock, Method::Populate, Method::IoUring, Method::Register])]
    method: Vec<Method>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Pages {
    /// 4 KiB
    Small,
    /// Huge where the kernel can
    Transparent,
    /// 2 MiB, reserved
    Huge,
}

impl Pages {
    fn page_kind(self) -> PageKind {
        match self {
            Self::Small => PageKind::Small,
            Self::Transparent => PageKind::Transparent,
            Self::Huge => PageKind::Huge,
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Before {
    Touched,
    Untouched,
}

impl Before {
    fn display_name(self) -> &'static str {
        match self {
            Self::Touched => "touched",
            Self::Untouched => "untouched",
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Method {
    /// Find the physical addresses of the memory
    PageList,
    /// Keep it in memory
    Mlock,
    /// Bring its pages in
    #[value(name = "map-populate")]
    Populate,
    /// Keep it in place, for devices
    IoUring,
    /// Register a memfd of it at an RNIC in software
    Register,
}

impl Method {
    fn display_name(self) -> &'static str {
        match self {
            Self::PageList => "page list",
            Self::Mlock => "mlock",
            Self::Populate => "MAP_POPULATE",
            Self::IoUring => "io_uring registration",
            Self::Register => "RNIC registration",
        }
    }

    /// Returns whether the method applies: a page list needs pages that are present, populating needs absent ones. A
    /// memfd is populated when it is made, and its pages are the kernel's choice.
    fn applies_to(self, before: Before, pages: Pages) -> bool {
        match self {
            Self::PageList => before == Before::Touched,
            Self::Populate => before == Before::Untouched,
            Self::Mlock | Self::IoUring => true,
            Self::Register => before == Before::Touched && pages == Pages::Small,
        }
    }
}

/// Time of a page list beside that of pinning the same memory, as in the paper; the paper's `mlock` is of memory fresh
/// from `malloc`, so the comparable ratio is the one of untouched memory.
#[derive(Debug, Clone, PartialEq)]
pub struct Ratio {
    /// Size of the memory, in bytes.
    pub size: u64,
    /// Kind of page: `4 KiB`, `transparent`, `2 MiB`.
    pub pages: String,
    /// Whether `mlock` found the memory touched; the page list is always of touched memory.
    pub touched: bool,
    /// Median time of the page list, in microseconds.
    pub page_list_us: f64,
    /// Median time of `mlock`, in microseconds.
    pub mlock_us: f64,
    /// Time of the page list in percent of that of `mlock`.
    pub percent: f64,
    /// Percentage in the paper for this size.
    pub paper_percent: Option<f64>,
}

/// Returns the ratios for each size and kind of page, and for touched and untouched memory.
pub fn page_list_ratios(points: &[Point]) -> Vec<Ratio> {
    let mlock = points.iter().filter(|point| point.key.method == Method::Mlock.display_name());
    mlock.filter_map(|mlock| page_list_ratio(points, mlock)).collect()
}

/// Returns the ratio of the page list of the same memory to a point of `mlock`.
fn page_list_ratio(points: &[Point], mlock: &Point) -> Option<Ratio> {
    let (size, settings) = (mlock.key.size, &mlock.key.settings);
    let mut lists = points.iter().filter(|point| point.key.method == Method::PageList.display_name());
    let list = lists.find(|list| list.key.size == size && list.key.settings.get("pages") == settings.get("pages"))?;
    let [page_list_us, mlock_us] =
        [list, mlock].map(|point| point.figures.latency_us.map(|latency| latency.p50).filter(|p50| *p50 > 0.0));
    let (page_list_us, mlock_us) = (page_list_us?, mlock_us?);
    Some(Ratio {
        size,
        pages: settings.get("pages").cloned().unwrap_or_default(),
        touched: settings.get("before").is_some_and(|before| before == Before::Touched.display_name()),
        page_list_us,
        mlock_us,
        percent: 100.0 * page_list_us / mlock_us,
        paper_percent: PAPER_PERCENT.iter().find(|(bytes, _)| *bytes == size).map(|(_, percent)| *percent),
    })
}

/// Page list in percent of pinning, by size (the ExpEther paper, section 7).
const PAPER_PERCENT: [(u64, f64); 2] = [(1 << 20, 55.3), (1 << 30, 1.4)];

impl InstrumentOptions for Options {
    fn timing(&self) -> Timing {
        self.timing
    }

    fn create_instrument(&self) -> Result<Box<dyn Instrument>, BenchError> {
        if self.sizes.0.contains(&0) {
            return Err(BenchError::Usage("--sizes: there is nothing to pin in 0 bytes".to_owned()));
        }
        let pin =
            Pin { options: self.clone(), pages: self.requested_pages(), clock: Clock::new(), notes: BTreeMap::new() };
        if pin.requested_cases().is_empty() {
            return Err(BenchError::Usage(
                "nothing is left to measure: huge pages want --sizes in multiples of 2 MiB; a page list is of memory that \
                 was touched before, and MAP_POPULATE of memory that was not"
                    .to_owned(),
            ));
        }
        Ok(Box::new(pin))
    }
}

impl Options {
    fn requested_pages(&self) -> Vec<Pages> {
        if !self.pages.is_empty() {
            return self.pages.clone();
        }
        let transparent = transparent_huge_page_mode().is_some_and(|mode| mode != "never");
        let reserved = fs::read_to_string("/sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages");
        let huge = reserved.is_ok_and(|number| number.trim().parse::<u64>().is_ok_and(|number| number > 0));
        let had = [(Pages::Small, true), (Pages::Transparent, transparent), (Pages::Huge, huge)];
        had.into_iter().filter_map(|(pages, had)| had.then_some(pages)).collect()
    }
}

struct Pin {
    options: Options,
    pages: Vec<Pages>,
    clock: Clock,
    notes: BTreeMap<Key, Vec<String>>,
}

/// A point, as identified by its key.
#[derive(Debug, Clone, Copy)]
struct Case {
    method: Method,
    pages: Pages,
    before: Before,
    size: u64,
}

impl Case {
    fn point_key(self) -> Key {
        Key::new("memory", self.method.display_name(), self.size)
            .with_setting("pages", self.pages.page_kind().display_name())
            .with_setting("before", self.before.display_name())
    }
}

impl Pin {
    fn requested_cases(&self) -> Vec<Case> {
        let mut cases = Vec::new();
        for &pages in &self.pages {
            for &before in &self.options.before {
                for &method in self.options.method.iter().filter(|method| method.applies_to(before, pages)) {
                    // A part of a huge page is no huge page.
                    let sizes = self
                        .options
                        .sizes
                        .0
                        .iter()
                        .filter(|size| pages == Pages::Small || size.is_multiple_of(HUGE_PAGE_BYTES as u64));
                    cases.extend(sizes.map(|&size| Case { method, pages, before, size }));
                }
            }
        }
        cases
    }
}

impl Instrument for Pin {
    fn point_keys(&self) -> Vec<Key> {
        self.requested_cases().into_iter().map(Case::point_key).collect()
    }

    fn measure_point(&mut self, key: &Key, timing: &Timing, stop: &Stop) -> Result<Figures, BenchError> {
        let case = self.requested_cases().into_iter().find(|case| case.point_key() == *key).expect("a key of ours");
        case.check_available()?;
        let mut operation = Operation::new(case)?;
        let warm_until = Instant::now() + timing.warmup;
        while Instant::now() < warm_until && !stop.is_requested() {
            operation.time_once(&self.clock)?;
        }
        let usage = Usage::read_counters();
        let began = Instant::now();
        let mut times = Latency::new_histogram();
        while times.len() < MIN_OPERATION_COUNT || began.elapsed() < timing.min_time {
            if stop.is_requested() {
                return Err(BenchError::Stopped);
            }
            times.saturating_record(operation.time_once(&self.clock)?);
        }
        let used = usage.used_since();
        self.notes.insert(key.clone(), operation.memory_notes()?);
        Ok(Figures {
            latency_us: Some(Latency::from_histogram(&times, 1.0)),
            seconds: used.wall,
            steal_percent: used.steal_percent(),
            ..Figures::default()
        })
    }

    fn point_notes(&self, key: &Key) -> Vec<String> {
        self.notes.get(key).cloned().unwrap_or_default()
    }
}

/// Minimum number of operations of a point, however long they take.
const MIN_OPERATION_COUNT: u64 = 3;

impl Case {
    fn check_available(self) -> Result<(), BenchError> {
        if self.pages == Pages::Transparent && transparent_huge_page_mode().is_some_and(|mode| mode == "never") {
            return Err(BenchError::Unavailable {
                what: "transparent huge pages".to_owned(),
                why: "they are switched off; `echo madvise > /sys/kernel/mm/transparent_hugepage/enabled`".to_owned(),
            });
        }
        // Reserved huge pages are not counted as available memory: mapping them reports a shortage.
        if self.pages == Pages::Huge { Ok(()) } else { ensure_memory_available(self.size) }
    }
}

/// Operation that is repeated, with its resources.
struct Operation {
    case: Case,
    /// Memory of all operations, or of the last one.
    memory: Option<Memory>,
    ring: Option<IoUring>,
    shared: Option<(ProtectionDomain, OwnedFd, SharedMemory)>,
    extents: usize,
}

impl Operation {
    fn new(case: Case) -> Result<Self, BenchError> {
        let kind = case.pages.page_kind();
        if case.method == Method::PageList {
            // One page is asked for first: a process that may not see addresses finds that out without pinning a
            // gigabyte.
            read_page_list(&Memory::map_touched(1, PageKind::Small)?)?;
        }
        let ring = (case.method == Method::IoUring).then(create_ring).transpose()?;
        let shared = (case.method == Method::Register).then(|| create_shared_memory(case.size)).transpose()?;
        let touched = case.before == Before::Touched && shared.is_none();
        let memory = touched.then(|| Memory::map_touched(case.size, kind)).transpose()?;
        Ok(Self { case, memory, ring, shared, extents: 0 })
    }

    /// Performs the operation once and returns its duration in nanoseconds.
    fn time_once(&mut self, clock: &Clock) -> Result<u64, BenchError> {
        let (size, kind) = (self.case.size, self.case.pages.page_kind());
        if let Some((domain, fd, memory)) = &self.shared {
            return time_rnic_registration(domain, fd, memory, clock);
        }
        if self.case.before == Before::Untouched {
            // The last memory is freed before the next is mapped: there may be space for only one.
            self.memory = None;
        }
        if self.case.method == Method::Populate {
            let room = Room::reserve(size, kind)?;
            let began = clock.read_counter();
            let memory = room.map_memory(kind, true)?;
            let ended = clock.read_counter();
            self.memory = Some(memory);
            return Ok(clock.elapsed_nanos(began, ended));
        }
        if self.memory.is_none() {
            self.memory = Some(Memory::map_untouched(size, kind)?);
        }
        let memory = self.memory.as_ref().expect("just made");
        match self.case.method {
            Method::PageList => {
                let _pinned =
                    pin_bytes(memory).map_err(|error| unavailable_error("a page list of pinned memory", &error))?;
                let began = clock.read_counter();
                let list = read_page_list(memory)?;
                let ended = clock.read_counter();
                self.extents = list.merged_extents().count();
                Ok(clock.elapsed_nanos(began, ended))
            }
            Method::Mlock => {
                let began = clock.read_counter();
                let pinned = pin_bytes(memory);
                let ended = clock.read_counter();
                drop(pinned.map_err(|error| unavailable_error("mlock", &error))?);
                Ok(clock.elapsed_nanos(began, ended))
            }
            Method::IoUring => time_registration(self.ring.as_ref().expect("made for this"), memory, clock),
            Method::Populate | Method::Register => unreachable!("done above"),
        }
    }

    /// Returns remarks on the pages of the memory and the number of pieces it lay in.
    fn memory_notes(&self) -> Result<Vec<String>, BenchError> {
        let (Some(memory), kind) = (&self.memory, self.case.pages.page_kind()) else { return Ok(Vec::new()) };
        let mut notes = Vec::new();
        if kind == PageKind::Transparent {
            let fraction = memory.transparent_fraction();
            if fraction == Some(0.0) {
                return Err(BenchError::Unavailable {
                    what: "transparent huge pages".to_owned(),
                    why: "the kernel gave none (memory may be too fragmented: `echo 1 > /proc/sys/vm/compact_memory`)"
                        .to_owned(),
                });
            }
            notes.push(match fraction {
                Some(fraction) => format!("{:.0} % of the memory was in transparent huge pages", 100.0 * fraction),
                None => {
                    "the part in transparent huge pages is not known: /proc/self/smaps does not state it".to_owned()
                }
            });
        }
        if self.case.method == Method::PageList {
            notes.push(format!("the memory lay in {} physically contiguous pieces", self.extents));
        }
        Ok(notes)
    }
}

fn read_page_list(memory: &[u8]) -> Result<thalweg_arena::PageList, BenchError> {
    page_list(memory).map_err(|error| unavailable_error("a page list", &error))
}

fn unavailable_error(what: &str, why: &dyn std::error::Error) -> BenchError {
    BenchError::Unavailable { what: what.to_owned(), why: why.to_string() }
}

fn create_ring() -> Result<IoUring, BenchError> {
    IoUring::new(4).map_err(|error| crate::file::ring_setup_error(&error))
}

/// Largest registered buffer, in bytes (io_uring_register(2)).
const MAX_REGISTERED_BYTES: usize = 1 << 30;

/// Registers `memory`, and unregisters it after reading the clock; returns the nanoseconds of the registration.
fn time_registration(ring: &IoUring, memory: &Memory, clock: &Clock) -> Result<u64, BenchError> {
    let vectors: Vec<libc::iovec> = memory
        .chunks(MAX_REGISTERED_BYTES)
        .map(|part| libc::iovec { iov_base: part.as_ptr().cast_mut().cast(), iov_len: part.len() })
        .collect();
    let began = clock.read_counter();
    // SAFETY: the kernel pins the pages and is never asked to read or write them; they are unregistered below, before
    // the memory can be freed.
    let registered = unsafe { ring.submitter().register_buffers(&vectors) };
    let ended = clock.read_counter();
    registered.map_err(|error| crate::file::registration_error(memory.len() as u64, error))?;
    ring.submitter().unregister_buffers().map_err(BenchError::os_error("unregistering buffers"))?;
    Ok(clock.elapsed_nanos(began, ended))
}

/// Creates memory that can be registered, all of it present, and the domain of an RNIC for it.
fn create_shared_memory(size: u64) -> Result<(ProtectionDomain, OwnedFd, SharedMemory), BenchError> {
    let unavailable = |error: &dyn std::error::Error| unavailable_error("an RNIC in software", error);
    let device = Device::open_embedded(Limits::default()).map_err(|error| unavailable(&error))?;
    let domain = device.allocate_domain().map_err(|error| unavailable(&error))?;
    let (fd, memory) = SharedMemory::create("thalweg-bench-pin", size as usize)
        .map_err(|error| unavailable_error("a memfd", &error))?;
    Ok((domain, fd, memory))
}

/// Registers memory, and deregisters it after reading the clock; returns the nanoseconds of the registration.
fn time_rnic_registration(
    domain: &ProtectionDomain,
    fd: &OwnedFd,
    memory: &SharedMemory,
    clock: &Clock,
) -> Result<u64, BenchError> {
    let range = MemoryRange { offset: 0, length: memory.size_bytes() as u64, base: memory.base_address() };
    let began = clock.read_counter();
    let region = domain.register_memory(fd.as_fd(), range, Access::all());
    let ended = clock.read_counter();
    drop(region.map_err(|error| unavailable_error("registering memory", &error))?);
    Ok(clock.elapsed_nanos(began, ended))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::options::parsed;

    fn options(words: &str) -> Options {
        parsed(&format!("-t 1ms -O 0 --repeat 1 {words}"))
    }

    fn measure(words: &str) -> Vec<Point> {
        let options = options(words);
        let mut instrument = options.create_instrument().unwrap();
        let measured = |key: Key| match instrument.measure_point(&key, &options.timing, &Stop::default()) {
            Ok(figures) => Point::new("pin", key.clone(), vec![figures], instrument.point_notes(&key), None),
            Err(error) => Point::new("pin", key, vec![], vec![], Some(error.to_string())),
        };
        let keys = options.create_instrument().unwrap().point_keys();
        keys.into_iter().map(measured).collect()
    }

    #[test]
    fn every_method_takes_some_time_or_is_unavailable_with_a_reason() {
        let points = measure("--sizes 4KiB,2MiB --pages small,transparent,huge");
        // Two sizes of small pages and one of each other kind; six combinations each, and one more of small pages.
        assert_eq!(points.len(), 6 * 4 + 2);
        for point in points {
            match (point.figures.latency_us, &point.error) {
                (Some(latency), None) => {
                    assert!(latency.count >= MIN_OPERATION_COUNT && latency.p50 > 0.0, "{point:?}")
                }
                (None, Some(error)) => assert!(error.contains("not available here"), "{error}"),
                _ => panic!("{point:?}"),
            }
        }
    }

    #[test]
    fn huge_pages_are_reserved_or_the_error_says_how_to() {
        let points = measure("--sizes 512GiB --pages huge --method mlock --before untouched");
        let error = points[0].error.as_ref().unwrap();
        assert!(error.contains("reserve 262144 with `sysctl vm.nr_hugepages=262144`"), "{error}");
    }

    #[test]
    fn sizes_that_do_not_fit_into_memory_are_not_tried() {
        let points = measure("--sizes 1024GiB --pages small --method mlock");
        assert!(points.iter().all(|point| point.error.as_ref().unwrap().contains("of memory: not available here")));
    }

    #[test]
    fn parts_of_huge_pages_are_left_out_and_an_empty_list_is_an_error() {
        assert_eq!(
            options("--sizes 4KiB,2MiB --pages small,transparent").create_instrument().unwrap().point_keys().len(),
            6 * 3 + 2
        );
        for words in ["--sizes 4KiB --pages huge", "--method page-list --before untouched", "--sizes 0"] {
            assert!(options(words).create_instrument().is_err_and(|error| error.is_usage_error()), "{words}");
        }
    }

    #[test]
    fn without_the_privilege_page_lists_name_it_and_the_rest_is_measured() {
        use rustix::thread::{CapabilitySet, capabilities, set_capabilities};
        // Capabilities belong to a thread: this one drops its own.
        let points = std::thread::spawn(|| {
            let mut sets = capabilities(None).unwrap();
            sets.effective.remove(CapabilitySet::SYS_ADMIN);
            set_capabilities(None, sets).unwrap();
            measure("--sizes 4KiB --pages small --method page-list,mlock")
        });
        let points = points.join().unwrap();
        assert!(points[0].error.as_ref().unwrap().contains("CAP_SYS_ADMIN"), "{:?}", points[0]);
        assert!(points[1..].iter().all(|point| point.error.is_none()), "{points:?}");
    }

    #[test]
    fn ratios_stand_beside_the_papers() {
        let point = |method: &str, size: u64, before: &str, us: f64| {
            let key = Key::new("memory", method, size).with_setting("pages", "4 KiB").with_setting("before", before);
            let latency = Latency { p50: us, ..Latency::default() };
            Point::new("pin", key, vec![Figures { latency_us: Some(latency), ..Figures::default() }], vec![], None)
        };
        let points = [
            point("page list", 1 << 20, "touched", 8.35),
            point("mlock", 1 << 20, "touched", 15.1),
            point("mlock", 1 << 20, "untouched", 100.0),
            point("mlock", 4096, "touched", 1.0),
        ];
        let ratios = page_list_ratios(&points);
        assert_eq!(ratios.len(), 2, "{ratios:?}");
        assert!((ratios[0].percent - 55.3).abs() < 0.1 && ratios[0].touched && ratios[0].paper_percent == Some(55.3));
        assert!((ratios[1].percent - 8.35).abs() < 1e-9 && !ratios[1].touched);
    }
}
