//! The kernel's interface to boards that sample (include/uapi/linux/comedi.h), as far as reading by command needs it.

use crate::local::ioctl::{Request, field_text, send_request, send_value};
use rustix::io::Errno;
use std::os::fd::BorrowedFd;

/// `TRIG_NONE`, `TRIG_NOW`, `TRIG_FOLLOW`, `TRIG_TIMER`, `TRIG_COUNT`.
const NONE: u32 = 0x01;
const NOW: u32 = 0x02;
const FOLLOW: u32 = 0x04;
const TIMER: u32 = 0x10;
const COUNT: u32 = 0x20;
/// `SDF_CMD_READ`, `SDF_LSAMPL`.
const READS: u32 = 0x8000;
const WIDE: u32 = 0x1000_0000;
/// `SDF_RANGETYPE`: each channel has its own ranges. `SDF_MAXDATA`: each channel has its own highest value.
const OWN_RANGES: u32 = 0x0040;
const OWN_MAXIMUM: u32 = 0x0010;
/// Maximum number of times that a command is adapted to what a board can do: each time another part of it may change.
const MAX_ADAPTATIONS: usize = 6;

/// `struct comedi_devinfo`.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
struct Device {
    version: u32,
    subdevices: u32,
    driver: [u8; 20],
    board: [u8; 20],
    read: i32,
    write: i32,
    unused: [i32; 30],
}

/// `struct comedi_subdinfo`, one of an array of as many as there are.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default)]
struct Part {
    kind: u32,
    channels: u32,
    flags: u32,
    timer: u32,
    most_channels: u32,
    maximum: u32,
    state: u32,
    ranges: u32,
    settling: u32,
    bits: u32,
    unused: [u32; 8],
}

impl Part {
    fn reads_by_command(&self) -> bool {
        self.flags & READS != 0
    }
}

/// `struct comedi_rangeinfo`.
#[repr(C)]
struct Ranges {
    kind: u32,
    at: *mut Range,
}

/// `struct comedi_krange`: millionths of a unit.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default)]
struct Range {
    least: i32,
    most: i32,
    unit: u32,
}

/// `struct comedi_cmd`.
#[repr(C)]
struct Command<const BEGIN: bool> {
    part: u32,
    flags: u32,
    start: [u32; 2],
    scan_begin: [u32; 2],
    convert: [u32; 2],
    scan_end: [u32; 2],
    stop: [u32; 2],
    channels: *const u32,
    channel_count: u32,
    data: *mut i16,
    data_length: u32,
}

/// `struct comedi_bufconfig`.
#[repr(C)]
#[derive(Default)]
struct Memory {
    part: u32,
    flags: u32,
    most: u32,
    size: u32,
    unused: [u32; 4],
}

impl Request for Device {
    const COMMAND: (u8, u8, u32) = (b'd', 1, 2);
}

impl Request for Ranges {
    const COMMAND: (u8, u8, u32) = (b'd', 8, 2);
}

impl Request for Command<true> {
    const COMMAND: (u8, u8, u32) = (b'd', 9, 2);
}

impl Request for Command<false> {
    const COMMAND: (u8, u8, u32) = (b'd', 10, 2);
}

impl Request for Memory {
    const COMMAND: (u8, u8, u32) = (b'd', 13, 2);
}

/// Descriptions of all parts of a board: room for more than any board has, since the kernel writes as many as there
/// are.
struct Parts([Part; 256]);

impl Request for Parts {
    const COMMAND: (u8, u8, u32) = (b'd', 2, 2);
    /// Length of one part, by which the command is recognized.
    const LENGTH: usize = size_of::<Part>();
}

// Lengths that `sizeof` gives in C on machines of 64 bits.
const _: () = assert!(size_of::<Device>() == 176 && size_of::<Part>() == 72 && size_of::<Ranges>() == 16);
const _: () = assert!(size_of::<Command<true>>() == 80 && size_of::<Memory>() == 32 && size_of::<Range>() == 12);

/// Settings of a board's clock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Pace {
    scan_begin: [u32; 2],
    convert: [u32; 2],
    /// Time from one round of all channels to the next, in nanoseconds.
    pub(crate) nanos: u32,
}

/// Properties of a board.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Board {
    pub(crate) name: String,
    pub(crate) driver: String,
    /// Number of the board's part that reads by command.
    pub(crate) part: u32,
    /// Number of channels of that part, and maximum number that it samples in a round.
    pub(crate) channels: u32,
    pub(crate) most_channels: u32,
    /// True if a sample has 32 bits, false if it has 16.
    pub(crate) wide: bool,
    /// Highest value of a sample; `None` if channels differ.
    pub(crate) maximum: Option<u32>,
    /// Lowest and highest value of each range, in volts (or the range's unit); empty if channels differ.
    pub(crate) ranges: Vec<[f64; 2]>,
}

impl Board {
    /// Reads the description of a board; `None` if it does not read by command.
    pub(crate) fn read_description(fd: BorrowedFd<'_>, part: Option<u32>) -> Result<Option<Self>, Errno> {
        let mut device =
            Device { version: 0, subdevices: 0, driver: [0; 20], board: [0; 20], read: 0, write: 0, unused: [0; 30] };
        send_request(fd, &mut device)?;
        let mut parts = Parts([Part::default(); 256]);
        if device.subdevices as usize > parts.0.len() {
            return Ok(None);
        }
        send_request(fd, &mut parts)?;
        let Parts(parts) = parts;
        // The driver's choice, where it has one.
        let preferred =
            usize::try_from(device.read).ok().filter(|at| parts.get(*at).is_some_and(Part::reads_by_command));
        let at = match part {
            Some(part) => Some(part as usize),
            None => preferred.or_else(|| parts.iter().position(Part::reads_by_command)),
        };
        let Some(at) = at.filter(|at| parts.get(*at).is_some_and(Part::reads_by_command)) else { return Ok(None) };
        let Part { channels, flags, most_channels, maximum, ranges: kind, .. } = parts[at];
        let mut ranges = vec![Range::default(); kind as usize & 0xffff];
        if flags & OWN_RANGES != 0 || ranges.is_empty() {
            ranges.clear();
        } else {
            // The kernel writes as many ranges as the low 16 bits of the kind state, which is the length of `ranges`.
            send_request(fd, &mut Ranges { kind, at: ranges.as_mut_ptr() })?;
        }
        let ranges = ranges.iter().map(|range| [range.least, range.most].map(|micros| f64::from(micros) / 1e6));
        Ok(Some(Self {
            name: field_text(&device.board),
            driver: field_text(&device.driver),
            part: u32::try_from(at).unwrap_or(0),
            channels,
            most_channels,
            wide: flags & WIDE != 0,
            maximum: (flags & OWN_MAXIMUM == 0).then_some(maximum),
            ranges: ranges.collect(),
        }))
    }

    /// Returns the timing with which the board can sample these channels (`CR_PACK`) one after the other, repeatedly,
    /// with about `nanos` nanoseconds from one round to the next.
    pub(crate) fn find_pace(&self, fd: BorrowedFd<'_>, channels: &[u32], nanos: u32) -> Result<Pace, Errno> {
        let count = u32::try_from(channels.len()).unwrap_or(u32::MAX).max(1);
        let mut command = self.build_command::<false>(
            channels,
            Pace { scan_begin: [TIMER | FOLLOW, nanos], convert: [NOW | TIMER, 0], nanos },
        );
        for _ in 0..MAX_ADAPTATIONS {
            // The driver returns the step at which it rejected the command, and puts the values that it prefers there
            // (comedi_cmdtest(3)).
            let accepted = send_request(fd, &mut command)? == 0;
            let Command { scan_begin, convert, .. } = &mut command;
            // A timer for the rounds, and all channels at once, if the board can do so.
            prefer_trigger(&mut scan_begin[0], TIMER, FOLLOW);
            prefer_trigger(&mut convert[0], NOW, TIMER);
            let follows = scan_begin[0] == FOLLOW;
            if follows && convert[1] == 0 {
                *convert = [TIMER, nanos / count];
            } else if accepted {
                let nanos = if follows { convert[1].saturating_mul(count) } else { scan_begin[1] };
                return Ok(Pace { scan_begin: *scan_begin, convert: *convert, nanos });
            }
        }
        Err(Errno::INVAL)
    }

    /// Selects the board's part as the one that this file reads from now on.
    pub(crate) fn select_part(&self, fd: BorrowedFd<'_>) -> Result<(), Errno> {
        send_value(fd, (b'd', 16), self.part)
    }

    /// Begins to sample.
    pub(crate) fn begin_sampling(&self, fd: BorrowedFd<'_>, channels: &[u32], pace: Pace) -> Result<(), Errno> {
        send_request(fd, &mut self.build_command::<true>(channels, pace)).map(|_| ())
    }

    /// Requests `size` bytes of buffer in the kernel, and returns the bytes that there are.
    pub(crate) fn request_memory(&self, fd: BorrowedFd<'_>, size: u32) -> Result<u32, Errno> {
        // A privileged process may have more than the administrator has set.
        let _ = send_request(fd, &mut Memory { part: self.part, most: size, ..Memory::default() });
        let mut memory = Memory { part: self.part, size, ..Memory::default() };
        if send_request(fd, &mut memory).is_err() {
            memory = Memory { part: self.part, ..Memory::default() };
            send_request(fd, &mut memory)?;
        }
        Ok(memory.size)
    }

    /// Returns a command. The kernel reads `channels` during the request: they must live until then.
    fn build_command<const BEGIN: bool>(&self, channels: &[u32], pace: Pace) -> Command<BEGIN> {
        let count = u32::try_from(channels.len()).unwrap_or(u32::MAX);
        Command {
            part: self.part,
            flags: 0,
            start: [NOW, 0],
            scan_begin: pace.scan_begin,
            convert: pace.convert,
            scan_end: [COUNT, count],
            stop: [NONE, 0],
            channels: channels.as_ptr(),
            channel_count: count,
            data: std::ptr::null_mut(),
            data_length: 0,
        }
    }
}

/// Reduces the possible triggers to one of two: the first if the board has it, otherwise the second.
fn prefer_trigger(triggers: &mut u32, first: u32, second: u32) {
    *triggers = if *triggers & first != 0 { first } else { *triggers & second };
}
