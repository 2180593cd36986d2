//! QEMU's edu device, as a source's device: the simplest device with DMA
//! (<https://www.qemu.org/docs/master/specs/edu.html>).
//!
//! The device has a buffer of 4 KiB, and copies between that and memory. Each frame is a pattern that the driver has
//! the device fetch, and that the device then writes into a slot. So the contents of the slot were written by the
//! device. Byte `i` of frame `n` is `7 i + n`, modulo 256.

use crate::EduConfig;
use crate::container::DeviceMemory;
use crate::{Function, Location, PciError, device_error, hardware_error, ready_location};
use std::collections::VecDeque;
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};
use std::time::{Duration, Instant};
use thalweg_arena::{Arena, PAGE_BYTES, Span};
use thalweg_device::{Acquired, Acquisition, Buffer, Description, DeviceError, DeviceOptions, Filled, Frame};
use thalweg_wire::{PayloadType, Status, TaiNanos};

/// Registers: identity; source, destination and length in bytes of a copy, and its command.
const IDENTITY: usize = 0x00;
const FROM: usize = 0x80;
const TO: usize = 0x88;
const COUNT: usize = 0x90;
const COMMAND: usize = 0x98;
/// Bits of the command: begin, which reads as one until the copy is done; and the direction, from the buffer to memory.
const BEGIN: u64 = 1;
const READ_BUFFER: u64 = 2;
/// Address of the device's buffer, as the device sees it.
const BUFFER: u64 = 0x40000;
/// Time after which a copy is taken to have failed: it takes a tenth of a second.
const PATIENCE: Duration = Duration::from_secs(10);
/// Time from one look at the device to the next.
const PACE: Duration = Duration::from_millis(1);

/// The edu device, which is opened when it is shown the arena.
#[derive(Debug)]
pub struct Edu {
    // The order matters: what is dropped first writes no more to what is dropped next.
    open: Option<Open>,
    step: Step,
    posted: VecDeque<Buffer>,
    location: Location,
    config: EduConfig,
    description: Description,
    started: bool,
    next: u64,
    look: Option<Duration>,
    /// Time since which the device has been copying.
    busy: Option<Duration>,
}

#[derive(Debug)]
enum Step {
    Idle,
    /// The device fetches the pattern for this buffer.
    Fetching(Buffer),
    /// The device writes the pattern into this buffer.
    Writing(Buffer),
}

#[derive(Debug)]
struct Open {
    function: Function,
    slots: DeviceMemory,
    pattern: DeviceMemory,
    bytes: Span,
}

impl Edu {
    /// Number of buffers that the device takes at a time. It fills one after the other.
    const DEPTH: u32 = 4;

    /// Takes the device that a topology names. It is opened later.
    ///
    /// # Errors
    /// Fails if the device is not there, or an option makes no sense.
    pub fn new(config: &EduConfig) -> Result<Self, DeviceError> {
        config.check_options()?;
        let location = ready_location(&config.address)?;
        let description = Description {
            kind: "edu".into(),
            payload_type: PayloadType::RAW.type_name().into(),
            simulated: true,
            record_bytes: Some(config.size.0),
            ..Description::default()
        };
        Ok(Self {
            open: None,
            step: Step::Idle,
            posted: VecDeque::new(),
            location,
            config: config.clone(),
            description,
            started: false,
            next: 0,
            look: None,
            busy: None,
        })
    }

    fn payload_bytes(&self) -> usize {
        usize::try_from(self.config.size.0).unwrap_or(usize::MAX)
    }

    fn open_device(&self, arena: &Arc<Arena>) -> Result<Open, PciError> {
        let function = Function::open(self.location, 0)?;
        let identity = function.registers().read_u32(IDENTITY);
        if identity & 0xffff != 0x00ed {
            let problem = format!("it is not an edu device: its identity is {identity:#010x}");
            return Err(PciError::from_problem(self.location, problem));
        }
        // An earlier user may have left a copy under way. It must end before the device reaches any memory.
        wait_until_idle(&function).map_err(|problem| PciError::from_problem(self.location, problem))?;
        function.enable_memory_access()?;
        let bytes = Arena::create("edu", PAGE_BYTES)
            .map_err(|error| PciError::from_problem(self.location, error.to_string()))?;
        let (slots, pattern) = (function.share_arena(arena)?, function.share_arena(bytes.arena())?);
        Ok(Open { function, slots, pattern, bytes })
    }

    /// Has the device write to memory that it was not shown, and fails if it does.
    fn test_stray_write(&mut self) -> Result<(), DeviceError> {
        let (size, device) = (self.payload_bytes(), &self.config.address);
        let Some(open) = &mut self.open else { return Ok(()) };
        if !open.function.has_iommu() {
            return Err(hardware_error(
                device,
                "`stray` needs a device behind an IOMMU: without one nothing would stop its writes",
            ));
        }
        let other =
            Arena::create("not shown", PAGE_BYTES).map_err(|error| hardware_error(device, error.to_string()))?;
        // A frame other than 0, whose first byte is the value that is there already.
        open.start_pattern_fetch(1, size);
        open.wait_for_copy().map_err(|problem| hardware_error(device, problem))?;
        let address = other.as_ptr().addr() as u64;
        // SAFETY: the memory belongs to this function alone, and is read as memory that the device may have written:
        // the test looks for an IOMMU that lets the device through.
        unsafe { open.start_copy(BUFFER, address, size, BEGIN | READ_BUFFER) };
        open.wait_for_copy().map_err(|problem| hardware_error(device, problem))?;
        let changed = (0..other.len()).any(|at| {
            // SAFETY: within the memory, which belongs to this function.
            unsafe { ptr::from_ref(&other[at]).read_volatile() != 0 }
        });
        if changed {
            let problem = "it wrote to memory that is not mapped for it: the IOMMU does not stop it";
            return Err(hardware_error(device, problem));
        }
        tracing::info!("{}: wrote to {address:#x}, outside of the arena, and nothing changed there", self.location);
        Ok(())
    }
}

/// Returns true while the device copies.
fn is_busy(function: &Function) -> bool {
    function.registers().read_u64(COMMAND) & BEGIN != 0
}

/// Waits until the device does not copy.
fn wait_until_idle(function: &Function) -> Result<(), &'static str> {
    let begun = Instant::now();
    while is_busy(function) {
        if begun.elapsed() > PATIENCE {
            return Err("it does not complete a copy");
        }
        std::thread::sleep(PACE);
    }
    Ok(())
}

impl Open {
    fn wait_for_copy(&self) -> Result<(), &'static str> {
        wait_until_idle(&self.function)?;
        // The bytes that the device has written are read after this.
        fence(Ordering::Acquire);
        Ok(())
    }

    /// Starts a copy.
    ///
    /// # Safety
    /// The memory that the device writes to must not be used by other code until the copy is done.
    unsafe fn start_copy(&self, from: u64, to: u64, length: usize, command: u64) {
        let registers = self.function.registers();
        // The bytes that the device is to read have been written.
        fence(Ordering::Release);
        for (register, value) in [(FROM, from), (TO, to), (COUNT, length as u64), (COMMAND, command)] {
            // SAFETY: the device does nothing before the last write; for the copy the caller is responsible.
            unsafe { registers.write_u64(register, value) };
        }
    }

    /// Starts fetching the pattern of a frame.
    fn start_pattern_fetch(&mut self, number: u64, length: usize) {
        for (byte, at) in self.bytes[..length].iter_mut().zip(0_u64..) {
            *byte = (7 * at).wrapping_add(number) as u8;
        }
        let from = self.pattern.bus_address(0, length).expect("a page is in one piece");
        // SAFETY: the device only reads memory.
        unsafe { self.start_copy(from, BUFFER, length, BEGIN) };
    }
}

impl Acquisition for Edu {
    fn description(&self) -> &Description {
        &self.description
    }

    fn max_payload_bytes(&self) -> usize {
        self.payload_bytes()
    }

    fn max_posted_buffers(&self) -> u32 {
        Self::DEPTH
    }

    fn register_memory(&mut self, arena: &Arc<Arena>) -> Result<(), DeviceError> {
        self.open = Some(self.open_device(arena).map_err(|error| device_error(&self.location.to_string(), &error))?);
        Ok(())
    }

    fn post_buffer(&mut self, buffer: Buffer) {
        self.posted.push_back(buffer);
    }

    fn start_acquisition(&mut self, _at: TaiNanos) -> Result<(), DeviceError> {
        if self.config.stray {
            self.test_stray_write()?;
        }
        self.started = true;
        Ok(())
    }

    fn poll_acquired(&mut self, now: Duration) -> Result<Acquired, DeviceError> {
        let size = self.payload_bytes();
        let Some(open) = self.open.as_mut().filter(|_| self.started) else { return Ok(Acquired::NotYet) };
        self.look = Some(now + PACE);
        if is_busy(&open.function) {
            if now > *self.busy.get_or_insert(now) + PATIENCE {
                return Err(hardware_error(&self.config.address, "it does not complete a copy"));
            }
            return Ok(Acquired::NotYet);
        }
        self.busy = None;
        match std::mem::replace(&mut self.step, Step::Idle) {
            Step::Idle => {
                let Some(buffer) = self.posted.pop_front() else {
                    self.look = None;
                    return Ok(Acquired::NotYet);
                };
                open.start_pattern_fetch(self.next, size);
                self.step = Step::Fetching(buffer);
                Ok(Acquired::NotYet)
            }
            Step::Fetching(buffer) => {
                let shown = open.slots.is_for_arena(buffer.arena()) && buffer.payload_capacity() >= size;
                let Some(to) = open.slots.bus_address(buffer.arena_offset(), size).filter(|_| shown) else {
                    let problem = "a slot is not contiguous, too short, or not mapped for the device";
                    return Err(hardware_error(&self.config.address, problem));
                };
                // SAFETY: the buffer is in the memory that the device was shown, is long enough, and belongs to this
                // device alone until it is given back, which happens when the device is no longer busy.
                unsafe { open.start_copy(BUFFER, to, size, BEGIN | READ_BUFFER) };
                tracing::debug!("{}: frame {} is written to {to:#x}, {size} bytes", self.location, self.next);
                self.step = Step::Writing(buffer);
                Ok(Acquired::NotYet)
            }
            Step::Writing(buffer) => {
                fence(Ordering::Acquire);
                let filled =
                    Filled { payload_type: PayloadType::RAW, status: Status::SIMULATED, window: 0, timestamp: None };
                let number = self.next;
                self.next += 1;
                Ok(Acquired::Frame(Frame { buffer, number, len: size, filled, crc: None, copied: 0 }))
            }
        }
    }

    fn next_poll_time(&self) -> Option<Duration> {
        self.look
    }
}
