//! DMA of a PCI device: throughput to memory, from memory, and both at once, by the size of a transfer.
//!
//! The device is an NVMe disk that is bound to `vfio-pci`, as a DMA engine that every machine can have. A few transfers
//! are always in flight; the thread that starts them polls. Bytes from memory go to the disk: the same ones that were
//! read there.

use crate::BenchError;
use crate::cpu::Usage;
use crate::drive::{Instrument, Stop};
use crate::options::Timing;
use crate::plan::InstrumentOptions;
use crate::point::{Figures, Key};
use crate::sizes::Sizes;
use std::time::{Duration, Instant};
use thalweg_device::DeviceError;
use thalweg_pci::{DmaEngine, Way};

/// Options of `thalweg bench dma`.
#[derive(Debug, Clone, clap::Args)]
pub struct Options {
    #[command(flatten)]
    pub(crate) timing: Timing,
    /// The disk's PCI address, such as 0000:01:00.0 (`thalweg devices` lists them). It must be bound to vfio-pci
    device: String,
    /// Bytes in one transfer
    #[arg(long, value_name = "SIZES", default_value = "4KiB..256KiB:x4")]
    sizes: Sizes,
    /// Write, too: each of a few blocks, as it was read before
    #[arg(long)]
    write: bool,
}

const TO: &str = "to memory";
const FROM: &str = "from memory";
const BOTH: &str = "both at once";

impl InstrumentOptions for Options {
    fn timing(&self) -> Timing {
        self.timing
    }

    fn create_instrument(&self) -> Result<Box<dyn Instrument>, BenchError> {
        Ok(Box::new(Dma { options: self.clone(), has_iommu: None }))
    }
}

struct Dma {
    options: Options,
    has_iommu: Option<bool>,
}

impl Instrument for Dma {
    fn point_keys(&self) -> Vec<Key> {
        let methods: &[&str] = if self.options.write { &[TO, FROM, BOTH] } else { &[TO] };
        let sizes = &self.options.sizes.0;
        methods.iter().flat_map(|method| sizes.iter().map(|size| Key::new("pci", method, *size))).collect()
    }

    fn measure_point(&mut self, key: &Key, timing: &Timing, stop: &Stop) -> Result<Figures, BenchError> {
        let mut engine = DmaEngine::open_disk(&self.options.device, key.size).map_err(device_error)?;
        self.has_iommu = Some(engine.has_iommu());
        let method = &key.method;
        (0..DmaEngine::PLACES)
            .try_for_each(|place| engine.begin_transfer(place, transfer_direction(method, place)))
            .map_err(device_error)?;
        let warm = Instant::now() + timing.warmup;
        let (mut usage, mut begun, mut last) = (Usage::read_counters(), None, Instant::now());
        let mut transfers = 0_u64;
        loop {
            let now = Instant::now();
            if begun.is_none() && now >= warm {
                (usage, begun, transfers) = (Usage::read_counters(), Some(now), 0);
            }
            if stop.is_requested() || begun.is_some_and(|begun| now >= begun + timing.min_time && transfers > 0) {
                break;
            }
            while let Some(place) = engine.finished_place().map_err(device_error)? {
                transfers += 1;
                last = now;
                engine.begin_transfer(place, transfer_direction(method, place)).map_err(device_error)?;
            }
            if now > last + DISK_TIMEOUT {
                return Err(BenchError::Silent {
                    doing: format!("{}: a transfer", self.options.device),
                    timeout: DISK_TIMEOUT,
                });
            }
        }
        let Some(begun) = begun.filter(|_| transfers > 0) else { return Err(BenchError::Stopped) };
        let (seconds, used) = (begun.elapsed().as_secs_f64(), usage.used_since());
        let per_second = transfers as f64 / seconds;
        Ok(Figures {
            goodput_bits_per_second: Some(per_second * key.size as f64 * 8.0),
            messages_per_second: Some(per_second),
            copies_per_byte: Some(0.0),
            cpu: Some(used.processor_figures(transfers * key.size)),
            seconds: used.wall,
            steal_percent: used.steal_percent(),
            ..Figures::default()
        })
    }

    fn point_notes(&self, key: &Key) -> Vec<String> {
        let iommu = self.has_iommu.map(|has| if has { "behind an IOMMU" } else { "without an IOMMU" }.to_owned());
        let both = (key.method == BOTH).then(|| "both ways together".to_owned());
        iommu.into_iter().chain(both).collect()
    }
}

/// Longest silence of the disk, after which it is taken to have failed.
const DISK_TIMEOUT: Duration = Duration::from_secs(20);

/// Returns the direction of the transfers in a place of the queue: with both at once, every second one is from memory.
fn transfer_direction(method: &str, place: usize) -> Way {
    match method {
        TO => Way::ToMemory,
        FROM => Way::FromMemory,
        _ if place.is_multiple_of(2) => Way::ToMemory,
        _ => Way::FromMemory,
    }
}

fn device_error(error: DeviceError) -> BenchError {
    BenchError::Unavailable { what: "this device's DMA".to_owned(), why: error.to_string() }
}
