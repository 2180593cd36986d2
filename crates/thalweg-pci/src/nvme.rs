//! An NVMe disk, as a source's device: it writes its blocks into slots itself. Sections are those of the NVM Express
//! Base Specification, revision 1.4.
//!
//! Frame *n* is the *n*th part of the disk's first namespace. Several reads are under way, each into a slot. A source
//! never writes to the disk. A [`DmaEngine`], which exists for measurements, writes to it where its caller requests
//! that.

use crate::NvmeConfig;
use crate::container::DeviceMemory;
use crate::{Function, Interrupt, Location, PciError, device_error, hardware_error, ready_location};
use std::collections::VecDeque;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};
use std::time::{Duration, Instant};
use thalweg_arena::{Arena, PAGE_BYTES, Span};
use thalweg_device::{Acquired, Acquisition, Buffer, Description, DeviceError, DeviceOptions, Filled, Frame};
use thalweg_wire::{PayloadType, Status, TaiNanos};

/// Class code of NVMe disks: mass storage, non-volatile memory, NVM Express.
const CLASS: u32 = 0x01_08_02;
/// Registers (3.1): capabilities, configuration, status, attributes and addresses of the admin queues; doorbells.
const CAPABILITIES: usize = 0x00;
const CONFIGURATION: usize = 0x14;
const STATUS: usize = 0x1c;
const ADMIN_ATTRIBUTES: usize = 0x24;
const ADMIN_COMMANDS: usize = 0x28;
const ADMIN_COMPLETIONS: usize = 0x30;
const DOORBELLS: usize = 0x1000;
/// Configuration: enabled, with entries of 64 and of 16 bytes (3.1.5).
const ENABLED: u32 = 1 | 6 << 16 | 4 << 20;
/// Status (3.1.6): ready, and failed.
const READY: u32 = 1;
const FATAL: u32 = 2;
/// Lengths in bytes of a command and of a completion (4.2, 4.6).
const COMMAND: usize = 64;
const COMPLETION: usize = 16;
/// Number of entries of each queue. One always stays empty, so that there may be one read less.
const ENTRIES: u32 = 16;
/// Maximum number of reads under way.
const DEPTH: usize = 8;
/// Flags of a completion queue (5.3): it is contiguous, and sends an interrupt for a completion.
const IN_ONE_PIECE: u32 = 1;
const CALLS: u32 = 1 << 1;
/// Opcodes of commands (5.3, 5.4, 5.15, 6.9).
const CREATE_COMMANDS: u32 = 1;
const CREATE_COMPLETIONS: u32 = 5;
const IDENTIFY: u32 = 6;
const READ: u32 = 2;
const WRITE: u32 = 1;
/// Numbers of the admin queues and of the queues for reads and writes.
const ADMIN: u32 = 0;
const OURS: u32 = 1;
/// Number of the namespace that is read.
const NAMESPACE: u32 = 1;
/// Offsets in the memory for queues: commands of both pairs, completions of both, one page for the answer to Identify,
/// and one page for each read, which lists the pages of its slot.
const COMMANDS: usize = 0;
const COMPLETIONS: usize = 2 * PAGE_BYTES;
const IDENTITY: usize = 4 * PAGE_BYTES;
const LISTS: usize = 5 * PAGE_BYTES;
/// Maximum time for an answer of the controller.
const PATIENCE: Duration = Duration::from_secs(20);
/// Time from one look to the next, at a device that sends no interrupts.
const PACE: Duration = Duration::from_millis(1);

/// An NVMe disk, which is opened when it is shown the arena.
#[derive(Debug)]
pub struct Nvme {
    // The order matters: what is dropped first writes no more to what is dropped next.
    open: Option<Open>,
    reads: [Option<(u64, Buffer)>; DEPTH],
    posted: VecDeque<Buffer>,
    location: Location,
    config: NvmeConfig,
    description: Description,
    started: bool,
    next: u64,
    look: Option<Duration>,
    /// Time since which reads have been under way without an answer.
    silent: Option<Duration>,
    /// Number of interrupts.
    interrupts: u64,
}

#[derive(Debug)]
struct Open {
    function: Function,
    /// Interrupt that the disk sends when reads are done, if it sends any.
    interrupt: Option<Interrupt>,
    slots: DeviceMemory,
    queues: DeviceMemory,
    commands: Span,
    /// Completions, which the disk writes at any time: they are read by pointer, and never borrowed.
    completions: Span,
    identity: Span,
    lists: Vec<Span>,
    pairs: [Pair; 2],
    /// Number of bytes from one doorbell to the next.
    stride: usize,
    /// Length of a block in bytes, as a power of two, and total number of frames.
    shift: u32,
    frames: u64,
}

/// A queue for commands and one for completions: the position in each, and the phase of the next completion.
#[derive(Debug, Default)]
struct Pair {
    tail: u32,
    head: u32,
    phase: bool,
}

/// A completion: the number of the command, and its status.
#[derive(Debug, Clone, Copy)]
struct Completion {
    command: u16,
    status: u16,
}

impl Nvme {
    /// Takes the disk that a topology names. It is opened later.
    ///
    /// # Errors
    /// Fails if the disk is not there, or an option makes no sense.
    pub fn new(config: &NvmeConfig) -> Result<Self, DeviceError> {
        config.check_options()?;
        let location = ready_location(&config.address)?;
        // This is checked before anything is written to one of its registers.
        if location.class_code() != Some(CLASS) {
            return Err(hardware_error(&location.to_string(), "it is not an NVMe disk"));
        }
        let description = Description {
            kind: "nvme".into(),
            payload_type: PayloadType::RAW.type_name().into(),
            replayed: true,
            record_bytes: Some(config.size.0),
            file: Some(config.address.clone()),
            ..Description::default()
        };
        Ok(Self {
            open: None,
            reads: Default::default(),
            posted: VecDeque::new(),
            location,
            config: config.clone(),
            description,
            started: false,
            next: 0,
            look: None,
            silent: None,
            interrupts: 0,
        })
    }

    fn payload_bytes(&self) -> usize {
        usize::try_from(self.config.size.0).unwrap_or(usize::MAX)
    }

    fn device_problem(&self, problem: impl Into<String>) -> DeviceError {
        hardware_error(&self.config.address, problem)
    }

    /// Starts reads into the slots that are there.
    fn start_reads(&mut self) -> Result<(), DeviceError> {
        let size = self.payload_bytes();
        let Some(open) = &mut self.open else { return Ok(()) };
        // No read is further ahead of the oldest than was promised: see `reorders`.
        while self.next < open.frames
            && self.reads.iter().flatten().all(|(number, _)| self.next - number <= DEPTH as u64)
            && let Some(free) = self.reads.iter().position(Option::is_none)
            && let Some(buffer) = self.posted.pop_front()
        {
            let shown = open.slots.is_for_arena(buffer.arena()) && buffer.payload_capacity() >= size;
            if !shown || !open.start_transfer(READ, free, self.next, buffer.arena_offset(), size) {
                return Err(self.device_problem("a slot is too short, or not mapped for the device"));
            }
            self.reads[free] = Some((self.next, buffer));
            self.next += 1;
        }
        Ok(())
    }
}

impl Open {
    /// Opens the disk. `calls`: true if it is to send interrupts for completions, if it can; a caller that polls needs
    /// none.
    fn new(location: Location, arena: &Arc<Arena>, size: usize, calls: bool) -> Result<Self, PciError> {
        let function = Function::open(location, 0)?;
        let registers = function.registers();
        let stride = 4 << (registers.read_u64(CAPABILITIES) >> 32 & 0xf);
        if DOORBELLS + 4 * stride > registers.size_bytes() {
            let problem =
                format!("it has {} bytes of registers, and its doorbells lie beyond them", registers.size_bytes());
            return Err(PciError::from_problem(location, problem));
        }
        // Operations of an earlier user end before the disk is shown memory.
        // SAFETY: a disabled controller does nothing.
        unsafe { registers.write_u32(CONFIGURATION, 0) };
        wait_for_status(&function, 0).map_err(|problem| PciError::from_problem(location, problem))?;
        let interrupt = calls.then(|| function.enable_interrupts(1)).transpose().unwrap_or_else(|error| {
            tracing::info!("{error}; polling it every {PACE:?}");
            None
        });
        let interrupt = interrupt.and_then(|interrupts| interrupts.into_iter().next());
        function.enable_memory_access()?;
        let mut lists = Arena::create("nvme", LISTS + DEPTH * PAGE_BYTES)
            .map_err(|error| PciError::from_problem(location, error.to_string()))?;
        let (slots, queues) = (function.share_arena(arena)?, function.share_arena(lists.arena())?);
        let commands = lists.take_front(2 * PAGE_BYTES);
        let completions = lists.take_front(2 * PAGE_BYTES);
        let identity = lists.take_front(PAGE_BYTES);
        let lists = (0..DEPTH).map(|_| lists.take_front(PAGE_BYTES)).collect();
        let pairs = [true, true].map(|phase| Pair { phase, ..Pair::default() });
        let (shift, frames) = (0, 0);
        let mut open = Self {
            function,
            interrupt,
            slots,
            queues,
            commands,
            completions,
            identity,
            lists,
            pairs,
            stride,
            shift,
            frames,
        };
        open.prepare_controller(size).map_err(|problem| PciError::from_problem(location, problem))?;
        Ok(open)
    }

    fn prepare_controller(&mut self, size: usize) -> Result<(), String> {
        self.enable_controller()?;
        self.read_geometry(size)?;
        self.make_queues()
    }

    fn enable_controller(&self) -> Result<(), String> {
        let registers = self.function.registers();
        let last = ENTRIES - 1;
        let places =
            [(ADMIN_COMMANDS, self.page_address(COMMANDS)), (ADMIN_COMPLETIONS, self.page_address(COMPLETIONS))];
        // SAFETY: the pages belong to memory that the disk was shown and that has no other use, and have room for the
        // entries.
        unsafe { registers.write_u32(ADMIN_ATTRIBUTES, last << 16 | last) };
        for (register, place) in places {
            // SAFETY: as above.
            unsafe { registers.write_u64(register, place) };
        }
        // SAFETY: as above.
        unsafe { registers.write_u32(CONFIGURATION, ENABLED) };
        wait_for_status(&self.function, READY)
    }

    /// Reads the length of blocks, their number, and the maximum length of a read, and checks them against `size`.
    fn read_geometry(&mut self, size: usize) -> Result<(), String> {
        let identity = self.page_address(IDENTITY);
        self.run_admin_command(build_command(IDENTIFY, 0, [identity, 0], [1, 0, 0]))?;
        // Identify Controller (5.15.2.2), MDTS: a power of two of pages; 0: any.
        let pages = self.identity[77];
        if pages > 0 && pages < 20 && size > PAGE_BYTES << pages {
            return Err(format!("size: it transfers at most {} bytes at a time", PAGE_BYTES << pages));
        }
        self.run_admin_command(build_command(IDENTIFY, NAMESPACE, [identity, 0], [0, 0, 0]))?;
        // Identify Namespace (5.15.2.1): NSZE, FLBAS, LBAF.
        let bytes = &self.identity[..];
        let blocks = u64::from_le_bytes(bytes[..8].try_into().unwrap_or_default());
        let format = usize::from(bytes[26] & 0xf);
        if blocks == 0 {
            return Err(format!("it has no namespace {NAMESPACE}"));
        }
        let entry = &bytes[128 + 4 * format..][..4];
        if entry[..2] != [0, 0] {
            return Err("its blocks have metadata, which is not supported".into());
        }
        let shift = u32::from(entry[2]);
        if !(9..=16).contains(&shift) || !size.is_multiple_of(1 << shift) {
            return Err(format!(
                "size: {size} bytes are not a multiple of its blocks of {} bytes",
                1_u64 << shift.min(63)
            ));
        }
        self.shift = shift;
        self.frames = blocks / (size as u64 >> shift);
        if self.frames == 0 {
            return Err(format!("size: it has fewer than {size} bytes"));
        }
        Ok(())
    }

    fn make_queues(&mut self) -> Result<(), String> {
        let size = (ENTRIES - 1) << 16 | OURS;
        let (commands, completions) =
            (self.page_address(COMMANDS + PAGE_BYTES), self.page_address(COMPLETIONS + PAGE_BYTES));
        let calls = if self.interrupt.is_some() { CALLS } else { 0 };
        self.run_admin_command(build_command(
            CREATE_COMPLETIONS,
            0,
            [completions, 0],
            [size, IN_ONE_PIECE | calls, 0],
        ))?;
        self.run_admin_command(build_command(CREATE_COMMANDS, 0, [commands, 0], [size, OURS << 16 | IN_ONE_PIECE, 0]))
    }

    /// Returns the address of a page of the memory for queues.
    fn page_address(&self, at: usize) -> u64 {
        self.queues.bus_address(at, PAGE_BYTES).expect("a page is in one piece")
    }

    /// Gives the controller an admin command, and waits until it is done.
    fn run_admin_command(&mut self, command: [u32; 16]) -> Result<(), String> {
        self.submit_command(ADMIN, command);
        let begun = Instant::now();
        loop {
            match self.next_completion(ADMIN) {
                Some(Completion { status: 0, .. }) => return Ok(()),
                Some(Completion { status, .. }) => return Err(format!("it refused a command: status {status:#x}")),
                None if begun.elapsed() > PATIENCE => return Err("it does not answer".into()),
                None => std::thread::sleep(PACE),
            }
        }
    }

    /// Hands over a command. The memory that it reads and writes was shown to the disk, and must not be used by other
    /// code until the command is done.
    fn submit_command(&mut self, queue: u32, command: [u32; 16]) {
        let pair = &mut self.pairs[queue as usize];
        let at = queue as usize * PAGE_BYTES + pair.tail as usize * COMMAND;
        for (to, word) in self.commands[at..at + COMMAND].as_chunks_mut::<4>().0.iter_mut().zip(command) {
            *to = word.to_le_bytes();
        }
        pair.tail = (pair.tail + 1) % ENTRIES;
        fence(Ordering::Release);
        let doorbell = DOORBELLS + 2 * queue as usize * self.stride;
        // SAFETY: the commands up to there are complete, and were made by this file.
        unsafe { self.function.registers().write_u32(doorbell, pair.tail) };
    }

    /// Returns the next completion; `None` if no further command is done.
    fn next_completion(&mut self, queue: u32) -> Option<Completion> {
        let pair = &mut self.pairs[queue as usize];
        let at = COMPLETIONS + queue as usize * PAGE_BYTES + pair.head as usize * COMPLETION;
        let last = self.completions.arena().mapped_range().cast::<u8>().wrapping_add(at + 12).cast::<u32>();
        // SAFETY: four bytes of that span, aligned, which the device may be writing now, and no other code writes.
        let last = u32::from_le(unsafe { last.read_volatile() });
        if (last >> 16 & 1 == 1) != pair.phase {
            return None;
        }
        // Other data that the device has written is read after this.
        fence(Ordering::Acquire);
        pair.head = (pair.head + 1) % ENTRIES;
        pair.phase ^= pair.head == 0;
        let doorbell = DOORBELLS + (2 * queue as usize + 1) * self.stride;
        // SAFETY: the device may write to entries that have been read.
        unsafe { self.function.registers().write_u32(doorbell, pair.head) };
        #[expect(clippy::cast_possible_truncation, reason = "fields of 16 and of 15 bits")]
        Some(Completion { command: last as u16, status: (last >> 17) as u16 })
    }

    /// Starts reading a frame into the slots' memory, or writing it from there. Returns false if the frame's place is
    /// not in the memory that the disk was shown.
    fn start_transfer(&mut self, operation: u32, slot: usize, frame: u64, begin: usize, size: usize) -> bool {
        let offsets = (0..size).step_by(PAGE_BYTES);
        let pages: Option<Vec<u64>> =
            offsets.map(|offset| self.slots.bus_address(begin + offset, PAGE_BYTES.min(size - offset))).collect();
        let Some(pages) = pages.filter(|_| begin.is_multiple_of(PAGE_BYTES)) else { return false };
        // Physical Region Pages (4.3): the first page; and the second, or a list of the others.
        let second = match &pages[1..] {
            [] => 0,
            [one] => *one,
            many => {
                // No more than fit into a page: `NvmeConfig::check` allows no longer fragment.
                for (to, page) in self.lists[slot].as_chunks_mut::<8>().0.iter_mut().zip(many) {
                    *to = page.to_le_bytes();
                }
                self.page_address(LISTS + slot * PAGE_BYTES)
            }
        };
        let blocks = size as u64 >> self.shift;
        let first = frame * blocks;
        #[expect(clippy::cast_possible_truncation, reason = "halves, and at most 513 pages of blocks")]
        let words = [first as u32, (first >> 32) as u32, blocks as u32 - 1];
        let mut command = build_command(operation, NAMESPACE, [pages[0], second], words);
        #[expect(clippy::cast_possible_truncation, reason = "one of a few")]
        let number = slot as u32;
        command[0] |= number << 16;
        if operation == READ && tracing::enabled!(tracing::Level::DEBUG) {
            // Without an IOMMU the pages of a slot lie anywhere.
            let mut left = size;
            for run in pages.chunk_by(|page, next| *next == page + PAGE_BYTES as u64) {
                let length = left.min(run.len() * PAGE_BYTES);
                left -= length;
                tracing::debug!("frame {frame} is written to {:#x}, {length} bytes", run[0]);
            }
        }
        self.submit_command(OURS, command);
        true
    }
}

/// Returns a command (4.2): its opcode, its namespace, the addresses of its data, and three more words.
fn build_command(operation: u32, namespace: u32, places: [u64; 2], words: [u32; 3]) -> [u32; 16] {
    let mut command = [0; 16];
    (command[0], command[1]) = (operation, namespace);
    for (pair, place) in command[6..10].as_chunks_mut::<2>().0.iter_mut().zip(places) {
        #[expect(clippy::cast_possible_truncation, reason = "halves")]
        let halves = [place as u32, (place >> 32) as u32];
        *pair = halves;
    }
    command[10..13].copy_from_slice(&words);
    command
}

/// Waits until the controller is ready, or no longer ready.
fn wait_for_status(function: &Function, ready: u32) -> Result<(), String> {
    let begun = Instant::now();
    loop {
        let status = function.registers().read_u32(STATUS);
        // A reset repairs a controller that has failed.
        if ready == READY && status & FATAL != 0 {
            return Err(format!("its controller has failed: status {status:#x}"));
        }
        if status & READY == ready {
            return Ok(());
        }
        if begun.elapsed() > PATIENCE {
            return Err("its controller did not become ready".into());
        }
        std::thread::sleep(PACE);
    }
}

/// Direction of a transfer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Way {
    /// The device writes to memory.
    ToMemory,
    /// The device reads memory.
    FromMemory,
}

/// An NVMe disk as a DMA engine, for measurements. It moves a few parts of the disk to memory and back, again and
/// again: the bytes that it writes to the disk are those that it has read there.
#[derive(Debug)]
pub struct DmaEngine {
    // The order matters, as above.
    open: Open,
    location: Location,
    under_way: [bool; Self::PLACES],
    size: usize,
}

impl DmaEngine {
    /// Maximum number of transfers under way. Each has its own place in memory, and its own part of the disk.
    pub const PLACES: usize = DEPTH;

    /// Opens the disk at an address, for transfers of `size` bytes.
    ///
    /// # Errors
    /// Fails if the device is not there, is not bound to `vfio-pci`, is no NVMe disk, or is too small for that many
    /// places of `size` bytes.
    pub fn open_disk(address: &str, size: u64) -> Result<Self, DeviceError> {
        let config = NvmeConfig { address: address.to_owned(), size: thalweg_text::ByteSize(size) };
        let disk = Nvme::new(&config)?;
        let (size, location) = (disk.payload_bytes(), disk.location);
        let pages = size.next_multiple_of(PAGE_BYTES);
        let memory =
            Arena::create("dma", Self::PLACES * pages).map_err(|error| disk.device_problem(error.to_string()))?;
        let open = Open::new(location, memory.arena(), size, false).map_err(|error| device_error(address, &error))?;
        if open.frames < Self::PLACES as u64 {
            return Err(disk.device_problem(format!("size: it has fewer than {} times {size} bytes", Self::PLACES)));
        }
        let mut engine = Self { open, location, under_way: [false; Self::PLACES], size };
        // Later writes write back what is read here.
        for place in 0..Self::PLACES {
            engine.begin_transfer(place, Way::ToMemory)?;
        }
        let begun = Instant::now();
        while engine.under_way.contains(&true) {
            engine.finished_place()?;
            if begun.elapsed() > PATIENCE {
                return Err(engine.device_problem("it does not complete a transfer"));
            }
        }
        Ok(engine)
    }

    fn device_problem(&self, problem: &str) -> DeviceError {
        hardware_error(&self.location.to_string(), problem)
    }

    /// Starts a transfer at a place where none is under way.
    ///
    /// # Errors
    /// Fails if one is under way.
    pub fn begin_transfer(&mut self, place: usize, way: Way) -> Result<(), DeviceError> {
        let operation = if way == Way::ToMemory { READ } else { WRITE };
        let at = place * self.size.next_multiple_of(PAGE_BYTES);
        if self.under_way.get(place) != Some(&false)
            || !self.open.start_transfer(operation, place, place as u64, at, self.size)
        {
            return Err(self.device_problem("a transfer cannot begin while another is in progress"));
        }
        self.under_way[place] = true;
        Ok(())
    }

    /// Returns the place of a transfer that is done; `None` if none is.
    ///
    /// # Errors
    /// Fails if the disk refused the transfer.
    pub fn finished_place(&mut self) -> Result<Option<usize>, DeviceError> {
        let Some(Completion { command, status }) = self.open.next_completion(OURS) else { return Ok(None) };
        let place = usize::from(command);
        if self.under_way.get(place) != Some(&true) {
            return Err(self.device_problem("it completed an unknown command"));
        }
        self.under_way[place] = false;
        if status == 0 {
            Ok(Some(place))
        } else {
            Err(self.device_problem(&format!("it refused a transfer: status {status:#x}")))
        }
    }

    /// Returns true if an IOMMU is between the disk and memory.
    pub fn has_iommu(&self) -> bool {
        self.open.function.has_iommu()
    }
}

impl Drop for DmaEngine {
    fn drop(&mut self) {
        // Writes to the disk that are under way are completed.
        let begun = Instant::now();
        while self.under_way.contains(&true) && begun.elapsed() < PATIENCE {
            // A transfer that was refused has ended, too.
            let _ = self.finished_place();
        }
    }
}

impl Acquisition for Nvme {
    fn description(&self) -> &Description {
        &self.description
    }

    fn max_payload_bytes(&self) -> usize {
        self.payload_bytes()
    }

    fn max_posted_buffers(&self) -> u32 {
        2 * DEPTH as u32
    }

    fn reorder_depth(&self) -> u32 {
        DEPTH as u32
    }

    fn register_memory(&mut self, arena: &Arc<Arena>) -> Result<(), DeviceError> {
        let opened = Open::new(self.location, arena, self.payload_bytes(), true);
        self.open = Some(opened.map_err(|error| device_error(&self.location.to_string(), &error))?);
        Ok(())
    }

    fn post_buffer(&mut self, buffer: Buffer) {
        self.posted.push_back(buffer);
    }

    fn start_acquisition(&mut self, _at: TaiNanos) -> Result<(), DeviceError> {
        self.started = true;
        Ok(())
    }

    fn poll_acquired(&mut self, now: Duration) -> Result<Acquired, DeviceError> {
        if !self.started {
            return Ok(Acquired::NotYet);
        }
        self.start_reads()?;
        let Some(open) = &mut self.open else { return Ok(Acquired::NotYet) };
        let mut done = open.next_completion(OURS);
        // After an interrupt the queue is read again: a later completion sends a new interrupt.
        if done.is_none() && open.interrupt.as_ref().is_some_and(Interrupt::take_pending) {
            self.interrupts += 1;
            done = open.next_completion(OURS);
        }
        let Some(Completion { command, status }) = done else {
            let calls = open.interrupt.is_some();
            let under_way = self.reads.iter().any(Option::is_some);
            self.silent = under_way.then_some(self.silent.unwrap_or(now));
            self.look = self.silent.map(|since| if calls { since + PATIENCE } else { now + PACE });
            if self.silent.is_some_and(|since| now >= since + PATIENCE) {
                return Err(self.device_problem("it stopped answering"));
            }
            let over = !under_way && self.next >= open.frames;
            return Ok(if over { Acquired::Over } else { Acquired::NotYet });
        };
        self.silent = None;
        let Some((number, buffer)) = self.reads.get_mut(usize::from(command)).and_then(Option::take) else {
            return Err(self.device_problem(format!("it completed an unknown command, number {command}")));
        };
        if status != 0 {
            return Err(self.device_problem(format!("it cannot read frame {number}: status {status:#x}")));
        }
        let filled = Filled { payload_type: PayloadType::RAW, status: Status::REPLAYED, window: 0, timestamp: None };
        Ok(Acquired::Frame(Frame { buffer, number, len: self.payload_bytes(), filled, crc: None, copied: 0 }))
    }

    fn readiness_fd(&self) -> Option<BorrowedFd<'_>> {
        self.open.as_ref()?.interrupt.as_ref().map(Interrupt::fd)
    }

    fn next_poll_time(&self) -> Option<Duration> {
        self.look
    }

    fn report_counters(&self) -> Vec<(&'static str, u64)> {
        vec![("interrupts", self.interrupts)]
    }
}
