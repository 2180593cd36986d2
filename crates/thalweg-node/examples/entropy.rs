//! Driver for a PCI device, as a source: virtio's entropy device, which fills memory with random numbers.
//!
//!     entropy 0000:00:0f.0 tcp:127.0.0.1:7700 1.0
//!
//! See docs/drivers.md for an explanation. Sections are those of the VIRTIO specification, version 1.1.

#![expect(clippy::multiple_unsafe_ops_per_block, reason = "registers that are set together have one reason")]

use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};
use std::time::Duration;
use thalweg_arena::{Arena, PAGE_BYTES, Span};
use thalweg_device::{Acquired, Acquisition, Buffer, Description, DeviceError, Frame, HeaderValues};
use thalweg_node::{Feed, Handle, Policy, SourceNode, SourceSettings, Wait};
use thalweg_pci::{DeviceMemory, Function, Interrupt, PciError};
use thalweg_wire::{PayloadType, Status, TaiNanos, record_bytes};

/// Bytes in a fragment, and number of fragments requested at a time.
const SIZE: usize = 4096;
const DEPTH: u16 = 8;
/// Vendor-specific capability (4.1.4), and its kinds: the location of the registers, and the doorbell.
const CAPABILITY: u8 = 9;
const COMMON: u8 = 1;
const NOTIFY: u8 = 2;
/// Offsets of registers (4.1.4.3), from the location that the capability gives.
const OFFERED_SELECT: usize = 0;
const OFFERED: usize = 4;
const FEATURE_SELECT: usize = 8;
const FEATURE: usize = 12;
const STATUS: usize = 20;
const QUEUE_SIZE: usize = 24;
const QUEUE_VECTOR: usize = 26;
const QUEUE_ENABLE: usize = 28;
const QUEUE_NOTIFY: usize = 30;
const QUEUE_PARTS: usize = 32;
/// Device status (2.1): acknowledged, driver, features OK; and these with driver OK.
const CHOSEN: u8 = 1 | 2 | 8;
const BEGUN: u8 = CHOSEN | 4;
/// Features among the upper 32 (6): version 1, and access through the IOMMU.
const VERSION_1: u32 = 1;
const BY_IOMMU: u32 = 2;
/// Offsets of two of the three parts of a page shared with the device (2.6): buffer descriptors come first, then the
/// buffers that are available, and those that are used.
const AVAILABLE: usize = 1024;
const USED: usize = 2048;
/// Flag of a buffer that the device writes to.
const WRITES: u16 = 2;

/// Open device. Fields are dropped in order, so the device stops writing before the memory that it writes to is freed.
#[derive(Debug)]
struct Entropy {
    function: Function,
    interrupt: Interrupt,
    doorbell: usize,
    slots: Option<DeviceMemory>,
    _queue: DeviceMemory,
    shared: Span,
    under_way: Vec<Option<Buffer>>,
    /// Number of buffers handed over (`handed`) and returned (`back`).
    handed: u16,
    back: u16,
    number: u64,
    description: Description,
}

impl Entropy {
    fn open(address: &str) -> Result<Self, PciError> {
        let function = Function::open(address.parse()?, 4)?;
        let wrong = |problem: &str| PciError::Device { device: address.into(), problem: problem.into() };
        let (mut common, mut doorbell) = (None, None);
        for capability in function.find_capabilities(CAPABILITY)? {
            let number =
                |at: usize| capability[at..].first_chunk().map_or(0, |four| u32::from_le_bytes(*four) as usize);
            match capability[3] {
                COMMON => common = Some(number(8)),
                NOTIFY => doorbell = Some((number(8), number(16))),
                _ => {}
            }
        }
        let (common, doorbell) = common.zip(doorbell).ok_or_else(|| wrong("it is no virtio device"))?;
        let (registers, shared) = (function.registers(), Arena::create("queue", PAGE_BYTES));
        let shared = shared.map_err(|error| wrong(&error.to_string()))?;
        // SAFETY: this ends whatever the device did for a previous user (3.1.1), and no memory has been passed to it
        // yet.
        unsafe { registers.write_u8(common + STATUS, 0) };
        while registers.read_u8(common + STATUS) != 0 {
            std::thread::yield_now();
        }
        // SAFETY: as above.
        unsafe {
            registers.write_u32(common + OFFERED_SELECT, 1);
            let offered = registers.read_u32(common + OFFERED);
            let needed = if function.has_iommu() { VERSION_1 | BY_IOMMU } else { VERSION_1 };
            if offered & needed != needed {
                return Err(wrong("it has not the features of version 1, or passes the IOMMU by"));
            }
            registers.write_u32(common + FEATURE_SELECT, 1);
            registers.write_u32(common + FEATURE, offered & (VERSION_1 | BY_IOMMU));
            registers.write_u8(common + STATUS, CHOSEN);
        }
        if registers.read_u8(common + STATUS) != CHOSEN {
            return Err(wrong("it does not take the features of version 1"));
        }
        let interrupt = function.enable_interrupts(1)?.remove(0);
        function.enable_memory_access()?;
        let queue = function.share_arena(shared.arena())?;
        let place = |at| queue.bus_address(at, PAGE_BYTES - at).ok_or_else(|| wrong("a page is not in one piece"));
        let parts = [place(0)?, place(AVAILABLE)?, place(USED)?];
        let doorbell = doorbell.0 + usize::from(registers.read_u16(common + QUEUE_NOTIFY)) * doorbell.1;
        // SAFETY: the page is shared with the device alone, for as long as it is driven, and names no buffers yet.
        unsafe {
            registers.write_u16(common + QUEUE_SIZE, DEPTH);
            registers.write_u16(common + QUEUE_VECTOR, 0);
            for (part, at) in parts.into_iter().zip((QUEUE_PARTS..).step_by(8)) {
                registers.write_u32(common + at, part as u32);
                registers.write_u32(common + at + 4, (part >> 32) as u32);
            }
            registers.write_u16(common + QUEUE_ENABLE, 1);
            registers.write_u8(common + STATUS, BEGUN);
        }
        let description = Description {
            kind: "entropy".into(),
            payload_type: PayloadType::RAW.type_name().into(),
            record_bytes: Some(SIZE as u64),
            ..Description::default()
        };
        let under_way = (0..DEPTH).map(|_| None).collect();
        let (slots, handed, back, number) = (None, 0, 0, 0);
        let _queue = queue;
        Ok(Self { function, interrupt, doorbell, slots, _queue, shared, under_way, handed, back, number, description })
    }

    /// Returns the location of a number that the device reads, and never writes.
    fn shared<const N: usize>(&mut self, at: usize) -> &mut [u8; N] {
        assert!(at + N <= USED, "what is behind is the device's");
        self.shared[at..].first_chunk_mut().expect("within the page")
    }

    /// Returns a number that the device may write at any time; it is never borrowed.
    fn used<T>(&self, at: usize) -> T {
        let number =
            self.shared.arena().mapped_range().cast::<u8>().wrapping_add(self.shared.arena_offset() + USED + at);
        assert!(USED + at + size_of::<T>() <= PAGE_BYTES && at.is_multiple_of(align_of::<T>()));
        // SAFETY: the location is within the page, and aligned; `T` is a number.
        unsafe { number.cast::<T>().read_volatile() }
    }
}

impl Acquisition for Entropy {
    fn description(&self) -> &Description {
        &self.description
    }

    fn max_payload_bytes(&self) -> usize {
        SIZE
    }

    fn max_posted_buffers(&self) -> u32 {
        DEPTH.into()
    }

    fn register_memory(&mut self, arena: &Arc<Arena>) -> Result<(), DeviceError> {
        let slots = self.function.share_arena(arena);
        self.slots = Some(
            slots.map_err(|error| DeviceError::Hardware { device: "entropy".into(), problem: error.to_string() })?,
        );
        Ok(())
    }

    fn post_buffer(&mut self, buffer: Buffer) {
        let Some(index) = self.under_way.iter().position(Option::is_none) else { return };
        let address = self.slots.as_ref().and_then(|slots| slots.bus_address(buffer.arena_offset(), SIZE));
        let address = address.expect("a payload of a page begins one");
        self.under_way[index] = Some(buffer);
        // Address and length of the buffer (2.6.5), and its entry among those to be filled (2.6.6).
        *self.shared(16 * index) = address.to_le_bytes();
        *self.shared(16 * index + 8) = (SIZE as u32).to_le_bytes();
        *self.shared(16 * index + 12) = WRITES.to_le_bytes();
        let entry = AVAILABLE + 4 + 2 * usize::from(self.handed % DEPTH);
        *self.shared(entry) = (index as u16).to_le_bytes();
        self.handed = self.handed.wrapping_add(1);
        fence(Ordering::Release);
        *self.shared(AVAILABLE + 2) = self.handed.to_le_bytes();
        fence(Ordering::SeqCst);
        // SAFETY: buffers that are passed to the device belong to it alone until they come back.
        unsafe { self.function.registers().write_u16(self.doorbell, 0) };
    }

    fn poll_acquired(&mut self, _now: Duration) -> Result<Acquired, DeviceError> {
        self.interrupt.take_pending();
        fence(Ordering::Acquire);
        if self.used::<u16>(2) == self.back {
            return Ok(Acquired::NotYet);
        }
        fence(Ordering::Acquire);
        // Index of the buffer, and number of bytes (2.6.8). Neither is trusted.
        let entry = 4 + 8 * usize::from(self.back % DEPTH);
        self.back = self.back.wrapping_add(1);
        let index = self.used::<u32>(entry) as usize;
        let len = (self.used::<u32>(entry + 4) as usize).min(SIZE);
        let Some(buffer) = self.under_way.get_mut(index).and_then(Option::take) else {
            let problem = format!("it gives back buffer {index}, which it has not");
            return Err(DeviceError::Hardware { device: "entropy".into(), problem });
        };
        let filled =
            HeaderValues { payload_type: PayloadType::RAW, status: Status::empty(), window: 0, timestamp: None };
        self.number += 1;
        Ok(Acquired::Frame(Frame { buffer, number: self.number - 1, len, filled, crc: None, copied: 0 }))
    }

    fn readiness_fd(&self) -> Option<BorrowedFd<'_>> {
        Some(self.interrupt.fd())
    }

    fn start_acquisition(&mut self, _at: TaiNanos) -> Result<(), DeviceError> {
        Ok(())
    }
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let words: Vec<String> = std::env::args().collect();
    let [_, address, builder, id] = &words[..] else { return Err("entropy PCI-ADDRESS BUILDER ID".into()) };
    let report = SourceNode::new(SourceSettings {
        name: "entropy".into(),
        id: id.parse()?,
        feed: Feed::Acquisition(Box::new(Entropy::open(address)?)),
        builders: vec![builder.parse()?],
        adapter: None,
        congestion: None,
        rate: None,
        burst: 1,
        policy: Policy::Block,
        slots: 64,
        slot_bytes: record_bytes(SIZE),
        timeout: Duration::from_secs(30),
        wait: Wait::Sleep,
        cpu: None,
    })?
    .run(&Handle::new()?)?;
    println!("{} fragments", report.accepted);
    Ok(())
}
