//! One-byte reads of device memory that is mapped into this process, against the same reads through the kernel: the
//! cost of reading a register or a doorbell (the ExpEther paper, section 6.3: 0.58 µs mapped, 1.27 µs through a driver,
//! one million reads of a NIC's memory).
//!
//! Reading a device's registers may change them, so a PCI resource is chosen automatically only if reading it is
//! harmless: memory that its device declares prefetchable (a read has no side effect, PCI Local Bus Specification 3.0,
//! section 6.2.5.1) and that belongs to a display or to a device without a driver. `--resource` accepts any, at the
//! user's risk.
//!
//! If there is none, its substitute is a page that this process shares with another one, which has it mapped for
//! writing: the page lies in this processor's cache, so its times show the cost of the access path and not that of PCI
//! Express. The substitute also has a *doorbell*: a flag in the shared page, against an eventfd that has been rung.
//!
//! The mean is computed as in the paper: the time of all reads divided by their number. Percentiles are of
//! [`READS_PER_BATCH`] reads at a time, taken in a second pass, since one mapped read is shorter than reading the
//! clock.

mod pci;

use crate::BenchError;
use crate::clock::Clock;
use crate::cpu::Usage;
use crate::drive::{Instrument, Stop};
use crate::net::PeerMemory;
use crate::options::Timing;
use crate::plan::InstrumentOptions;
use crate::point::{Figures, Key, Latency};
use memmap2::{MmapOptions, MmapRaw};
use pci::Resource;
use rustix::event::{EventfdFlags, eventfd};
use std::hint::black_box;
use std::io;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use thalweg_arena::PAGE_BYTES;

/// Options of `thalweg bench access`. A point ends after a number of reads, not after a time.
#[derive(Debug, Clone, clap::Args)]
pub struct Options {
    #[command(flatten)]
    pub(crate) timing: Timing,
    /// A PCI resource to read: /sys/bus/pci/devices/…/resourceN (default: one that cannot be harmed, or else a shared
    /// page)
    #[arg(long, value_name = "FILE")]
    resource: Option<PathBuf>,
    /// Offset in the resource of the byte that is read
    #[arg(long, value_name = "BYTES", default_value_t = 0)]
    offset: u64,
    /// Reads of one byte, for each point
    #[arg(long, value_name = "N", default_value_t = 1_000_000, value_parser = clap::value_parser!(u64).range(READS_PER_BATCH..=1_000_000_000_000))]
    reads: u64,
}

/// Number of reads that are timed together for the percentiles.
const READS_PER_BATCH: u64 = 1000;

/// Results of the ExpEther paper, table 3.
const PAPER: &str = "the paper read a NIC's memory in 0.58 µs mapped, 1.27 µs through a driver";

impl InstrumentOptions for Options {
    fn timing(&self) -> Timing {
        self.timing
    }

    fn create_instrument(&self) -> Result<Box<dyn Instrument>, BenchError> {
        let resource = match &self.resource {
            Some(file) => Some(Resource::from_file_path(file)?),
            None => pci::find_harmless_resource(Path::new("/sys/bus/pci/devices")),
        };
        if let Some(resource) = &resource
            && self.offset >= resource.len
        {
            return Err(BenchError::Usage(format!(
                "--offset {}: {} has {} bytes",
                self.offset,
                resource.file.display(),
                resource.len
            )));
        }
        if resource.is_none() && self.offset > 0 {
            return Err(BenchError::Usage("--offset: it goes with --resource".to_owned()));
        }
        Ok(Box::new(Access { reads: self.reads, offset: self.offset, resource, memory: None, clock: Clock::new() }))
    }
}

#[derive(Debug)]
struct Access {
    reads: u64,
    offset: u64,
    resource: Option<Resource>,
    /// Substitute for the resource, made when it is first needed.
    memory: Option<PeerMemory>,
    clock: Clock,
}

const PCI: &str = "PCI memory";
const PORT: &str = "PCI port";
const SHARED: &str = "shared page";
const MAPPED: &str = "mapped";
const KERNEL: &str = "through the kernel";

impl Instrument for Access {
    fn point_keys(&self) -> Vec<Key> {
        match &self.resource {
            Some(resource) => {
                let link = if resource.port { PORT } else { PCI };
                [MAPPED, KERNEL].map(|method| Key::new(link, method, 1)).to_vec()
            }
            None => [(MAPPED, "byte"), (KERNEL, "byte"), (MAPPED, "doorbell"), (KERNEL, "doorbell")]
                .map(|(method, of)| Key::new(SHARED, method, 1).with_setting("of", of))
                .to_vec(),
        }
    }

    fn measure_point(&mut self, key: &Key, timing: &Timing, stop: &Stop) -> Result<Figures, BenchError> {
        let mapped = key.method == MAPPED;
        if let Some(resource) = &self.resource {
            if mapped {
                let page = resource.map_into_process()?;
                return self.time_reads(timing, stop, page.dependent_reader(self.offset));
            }
            let access = resource.open_kernel_access()?;
            let offset = access.begins + self.offset;
            return self.time_reads(timing, stop, || {
                read_byte_at(&access.file, offset).map_err(|error| access.read_error(error))
            });
        }
        let doorbell = key.settings.get("of").is_some_and(|of| of == "doorbell");
        if doorbell && !mapped {
            // A semaphore with a higher count than it will be read: every read finds it rung.
            let bell = eventfd(u32::MAX - 1, EventfdFlags::SEMAPHORE | EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC)
                .map_err(BenchError::os_error("making an eventfd"))?;
            let mut left = u32::MAX - 1;
            return self.time_reads(timing, stop, || {
                if left == 0 {
                    left = u32::MAX - 1;
                    rustix::io::write(&bell, &u64::from(left).to_ne_bytes())
                        .map_err(BenchError::os_error("ringing an eventfd"))?;
                }
                left -= 1;
                let mut count = [0; 8];
                rustix::io::read(&bell, &mut count).map_err(BenchError::os_error("reading an eventfd"))?;
                Ok(count[0])
            });
        }
        let memory = match self.memory.take() {
            Some(memory) => memory,
            None => PeerMemory::start_process()?,
        };
        let page = Mapped::map_file(memory.memory_fd(), PAGE_BYTES as u64)
            .map_err(BenchError::os_error("mapping a shared page"))?;
        let figures = match mapped {
            true => self.time_reads(timing, stop, page.dependent_reader(0)),
            false => self.time_reads(timing, stop, || {
                read_byte_at(memory.memory_fd(), 0).map_err(BenchError::os_error("reading a shared page"))
            }),
        };
        self.memory = Some(memory);
        figures
    }

    fn point_notes(&self, key: &Key) -> Vec<String> {
        let mut notes = Vec::new();
        match &self.resource {
            Some(resource) => {
                notes.push(format!("read {} of {}", resource.kind_description(), resource.file.display()));
                if let (Some(driver), false) = (&resource.driver, resource.prefetchable) {
                    notes.push(format!("the driver {driver} uses this device: reading it may have disturbed both"));
                }
                if resource.disabled {
                    notes.push(
                        "the device does not answer (its memory is not enabled): these were reads of nothing".into(),
                    );
                }
            }
            None => {
                notes.push(
                    "no device memory that may be read without harm: a page shared with another process stands in, which lies in the cache"
                        .to_owned(),
                );
                if key.settings.get("of").is_some_and(|of| of == "doorbell") && key.method == KERNEL {
                    notes.push("an eventfd that was rung: every read takes one ring".to_owned());
                }
            }
        }
        notes.push(format!("percentiles are of {READS_PER_BATCH} reads at a time"));
        notes.push(PAPER.to_owned());
        notes
    }
}

impl Access {
    /// Performs the requested number of reads twice: once for the mean, once for the percentiles.
    fn time_reads(
        &self,
        timing: &Timing,
        stop: &Stop,
        mut read: impl FnMut() -> Result<u8, BenchError>,
    ) -> Result<Figures, BenchError> {
        let warmup_began = Instant::now();
        while warmup_began.elapsed() < timing.warmup.max(Duration::from_nanos(1)) {
            read_batch(&mut read, stop)?;
        }
        let batches = self.reads / READS_PER_BATCH;
        let usage = Usage::read_counters();
        let began = self.clock.read_counter();
        for _ in 0..batches {
            read_batch(&mut read, stop)?;
        }
        let all = self.clock.elapsed_nanos(began, self.clock.read_counter());
        let mut times = Latency::new_histogram();
        let mut before = self.clock.read_counter();
        for _ in 0..batches {
            read_batch(&mut read, stop)?;
            let now = self.clock.read_counter();
            times.saturating_record(self.clock.elapsed_nanos(before, now));
            before = now;
        }
        let used = usage.used_since();
        let mean = all as f64 * 1e-3 / (batches * READS_PER_BATCH) as f64;
        Ok(Figures {
            latency_us: Some(Latency { mean, ..Latency::from_histogram(&times, READS_PER_BATCH as f64) }),
            messages_per_second: (mean > 0.0).then(|| 1e6 / mean),
            seconds: used.wall,
            steal_percent: used.steal_percent(),
            ..Figures::default()
        })
    }
}

fn read_batch(read: &mut impl FnMut() -> Result<u8, BenchError>, stop: &Stop) -> Result<(), BenchError> {
    for _ in 0..READS_PER_BATCH {
        black_box(read()?);
    }
    if stop.is_requested() { Err(BenchError::Stopped) } else { Ok(()) }
}

fn read_byte_at(fd: impl AsFd, offset: u64) -> Result<u8, rustix::io::Errno> {
    let mut byte = [0];
    match rustix::io::pread(fd, &mut byte, offset)? {
        0 => Err(rustix::io::Errno::NXIO),
        _ => Ok(byte[0]),
    }
}

/// Memory that another process or a device may write, mapped for reading byte by byte.
#[derive(Debug)]
struct Mapped(MmapRaw);

impl Mapped {
    fn map_file(fd: impl AsFd, len: u64) -> io::Result<Self> {
        let len = usize::try_from(len).map_err(|_| io::ErrorKind::FileTooLarge)?;
        MmapOptions::new().len(len).map_raw_read_only(&fd.as_fd()).map(Self)
    }

    /// Returns a function that reads the byte at `offset`, each read depending on the one before: its address is
    /// computed from the last result, as otherwise a processor would have many reads of cached memory in flight at once.
    fn dependent_reader(&self, offset: u64) -> impl FnMut() -> Result<u8, BenchError> {
        let (zero, mut last) = (black_box(0), 0);
        move || {
            last = self.read_byte(offset + (u64::from(last) & zero));
            Ok(last)
        }
    }

    /// Reads one byte. Panics if `offset` is beyond the end.
    #[inline]
    fn read_byte(&self, offset: u64) -> u8 {
        let offset = usize::try_from(offset).ok().filter(|offset| *offset < self.0.len());
        // SAFETY: `offset` is inside the mapping.
        let byte = unsafe { self.0.as_ptr().add(offset.expect("checked against the length")) };
        // SAFETY: the byte is mapped for reading as long as `self` lives; it may change at any time, hence volatile.
        unsafe { byte.read_volatile() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::options::parsed;

    fn options(words: &str) -> Options {
        parsed(&format!("-O 0 --repeat 1 {words}"))
    }

    /// Makes an instrument with a page that a thread of this process serves, in place of another process.
    fn sharing(options: &Options) -> Access {
        let memory = PeerMemory::from_serving_end(crate::net::tests::other().0).unwrap();
        Access { reads: options.reads, offset: 0, resource: None, memory: Some(memory), clock: Clock::new() }
    }

    #[test]
    fn a_shared_page_is_the_substitute_and_is_named_as_such() {
        let options = options("--reads 2000");
        let mut access = sharing(&options);
        let keys = access.point_keys();
        assert_eq!(keys.len(), 4);
        for key in keys {
            let figures = access.measure_point(&key, &options.timing, &Stop::default()).unwrap();
            let latency = figures.latency_us.unwrap();
            assert!(latency.count == 2 && latency.mean > 0.0, "{latency:?}");
            assert_eq!(key.link, "shared page");
            let notes = access.point_notes(&key).join("; ");
            assert!(notes.contains("stands in") && notes.contains("0.58 µs"), "{notes}");
        }
    }

    #[test]
    fn a_mapped_byte_is_what_another_process_wrote() {
        let mut span = thalweg_arena::Arena::create("test", 1).unwrap();
        let fd = span.arena().fd().try_clone_to_owned().unwrap();
        let page = Mapped::map_file(&fd, PAGE_BYTES as u64).unwrap();
        span[4095] = 7;
        assert_eq!((page.read_byte(4095), read_byte_at(&fd, 4095)), (7, Ok(7)));
        assert_eq!(read_byte_at(&fd, span.len() as u64), Err(rustix::io::Errno::NXIO));
    }

    #[test]
    fn a_file_that_is_no_resource_is_refused() {
        let refused = |words: &str| options(words).create_instrument().err().unwrap();
        let error = refused("--resource /etc/hostname");
        assert!(error.is_usage_error() && error.to_string().contains("/sys/bus/pci/devices/"), "{error}");
        assert!(refused("--resource /nowhere/resource0").to_string().starts_with("/nowhere/resource0: "));
    }

    #[test]
    fn it_ends_when_it_is_stopped() {
        let options = options("--reads 1000000000000");
        let mut access = sharing(&options);
        let stop = Stop::default();
        stop.request_stop();
        for key in access.point_keys() {
            assert!(matches!(access.measure_point(&key, &options.timing, &stop), Err(BenchError::Stopped)));
        }
    }
}
