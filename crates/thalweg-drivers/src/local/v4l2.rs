//! The kernel's interface to video devices, as far as a capture needs it (include/uapi/linux/videodev2.h).

use crate::local::ioctl::Request;
use std::fmt;
use std::os::fd::{AsRawFd, BorrowedFd};

/// Type of buffer for capture: `V4L2_BUF_TYPE_VIDEO_CAPTURE`.
pub(crate) const CAPTURE: u32 = 1;
/// Capabilities: `V4L2_CAP_VIDEO_CAPTURE`, `V4L2_CAP_STREAMING`.
pub(crate) const CAN_CAPTURE: u32 = 1;
pub(crate) const CAN_STREAM: u32 = 0x0400_0000;
/// Flags of a buffer: `V4L2_BUF_FLAG_ERROR`, `V4L2_BUF_FLAG_TIMESTAMP_MASK`, `V4L2_BUF_FLAG_TIMESTAMP_MONOTONIC`.
pub(crate) const DAMAGED: u32 = 0x40;
pub(crate) const CLOCK: u32 = 0xe000;
pub(crate) const MONOTONIC: u32 = 0x2000;
/// Type of a control that names a group: `V4L2_CTRL_TYPE_CTRL_CLASS`.
pub(crate) const GROUP: u32 = 6;
/// Flags to request the next control, and for a rate that can be set: `V4L2_CTRL_FLAG_NEXT_CTRL`,
/// `V4L2_CAP_TIMEPERFRAME`.
pub(crate) const NEXT_CONTROL: u32 = 0x8000_0000;
pub(crate) const CAN_PACE: u32 = 0x1000;

/// Kind of memory that images are written into.
#[repr(u32)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Memory {
    /// Memory of the driver (`V4L2_MEMORY_MMAP`).
    Own = 1,
    /// Pages of this process (`V4L2_MEMORY_USERPTR`).
    Pages = 2,
    /// DMA buffers (`V4L2_MEMORY_DMABUF`).
    DmaBufs = 4,
}

/// `struct v4l2_capability`.
#[repr(C)]
#[derive(Debug, Default)]
pub(crate) struct Capability {
    pub(crate) driver: [u8; 16],
    pub(crate) card: [u8; 32],
    pub(crate) bus: [u8; 32],
    version: u32,
    capabilities: u32,
    pub(crate) device: u32,
    reserved: [u32; 3],
}

/// `struct v4l2_format` with a `struct v4l2_pix_format`. With `SET` the request sets the nearest format there is;
/// without, it reads the present one.
#[repr(C, align(8))]
#[derive(Debug, Clone, Copy)]
pub(crate) struct Format<const SET: bool> {
    pub(crate) kind: u32,
    gap: u32,
    pub(crate) width: u32,
    pub(crate) height: u32,
    pub(crate) pixels: FourCc,
    pub(crate) field: u32,
    pub(crate) line: u32,
    pub(crate) size: u32,
    rest: [u32; 44],
}

impl<const SET: bool> Default for Format<SET> {
    fn default() -> Self {
        let pixels = FourCc([0; 4]);
        Self { kind: CAPTURE, gap: 0, width: 0, height: 0, pixels, field: 0, line: 0, size: 0, rest: [0; 44] }
    }
}

impl Format<false> {
    /// Returns true if images have the same format.
    pub(crate) fn has_format_of(&self, other: &Self) -> bool {
        let [own, others] = [self, other].map(|it| (it.width, it.height, it.pixels, it.line, it.size));
        own == others
    }

    /// Returns the same format as a request that sets it.
    pub(crate) fn to_request(self) -> Format<true> {
        let Self { kind, gap, width, height, pixels, field, line, size, rest } = self;
        Format { kind, gap, width, height, pixels, field, line, size, rest }
    }
}

impl Format<true> {
    /// Returns the format that the driver has set.
    pub(crate) fn to_reported(self) -> Format<false> {
        let Self { kind, gap, width, height, pixels, field, line, size, rest } = self;
        Format { kind, gap, width, height, pixels, field, line, size, rest }
    }
}

/// Pixel format: a code of four letters.
#[repr(transparent)]
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct FourCc(pub(crate) [u8; 4]);

impl FourCc {
    /// Parses one to four letters, and fills up with blanks; `None` for anything else.
    pub(crate) fn parse_letters(letters: &str) -> Option<Self> {
        let mut code = [b' '; 4];
        code.get_mut(..letters.len())?.copy_from_slice(letters.as_bytes());
        (letters.is_ascii() && !letters.is_empty()).then_some(Self(code))
    }
}

impl fmt::Debug for FourCc {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl fmt::Display for FourCc {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(String::from_utf8_lossy(&self.0).trim_end())
    }
}

/// `struct v4l2_streamparm` with a `struct v4l2_captureparm`.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub(crate) struct Pace<const SET: bool> {
    pub(crate) kind: u32,
    pub(crate) can: u32,
    mode: u32,
    /// Time from frame to frame in seconds, as a numerator and a denominator.
    pub(crate) period: [u32; 2],
    rest: [u32; 46],
}

impl<const SET: bool> Default for Pace<SET> {
    fn default() -> Self {
        Self { kind: CAPTURE, can: 0, mode: 0, period: [0; 2], rest: [0; 46] }
    }
}

/// `struct v4l2_requestbuffers`.
#[repr(C)]
#[derive(Debug, Default)]
pub(crate) struct Buffers {
    pub(crate) count: u32,
    pub(crate) kind: u32,
    pub(crate) memory: u32,
    pub(crate) capabilities: u32,
    pub(crate) flags: u32,
}

/// `struct v4l2_buffer`, with the number of the request.
#[repr(C, align(8))]
#[derive(Debug, Default, Clone, Copy)]
pub(crate) struct Place<const HOW: u8> {
    pub(crate) index: u32,
    pub(crate) kind: u32,
    pub(crate) used: u32,
    pub(crate) flags: u32,
    pub(crate) field: u32,
    pub(crate) gap: u32,
    pub(crate) seconds: i64,
    pub(crate) micros: i64,
    pub(crate) time_code: [u32; 4],
    pub(crate) sequence: u32,
    pub(crate) memory: u32,
    /// Offset, address or descriptor of the buffer, by its kind of memory.
    place: u64,
    pub(crate) length: u32,
    pub(crate) reserved: u32,
    pub(crate) request: u32,
    pub(crate) gap_too: u32,
}

impl Place<QUERY> {
    /// Returns the offset to map the buffer from: the kernel has written a 32-bit offset there.
    pub(crate) fn mapping_offset(&self) -> u64 {
        self.place & 0xffff_ffff
    }
}

impl<const HOW: u8> Place<HOW> {
    /// Describes a buffer of the driver's own, or none in particular.
    pub(crate) fn for_buffer(index: u32, memory: Memory) -> Self {
        Self { index, kind: CAPTURE, memory: memory as u32, ..Self::default() }
    }
}

impl Place<ENQUEUE> {
    /// Describes memory of this process for the driver to write into.
    ///
    /// # Safety
    /// There are `length` bytes at `address`, which no other code reads, writes or frees until the buffer was taken
    /// back or the device's file is closed.
    pub(crate) unsafe fn for_pages(index: u32, address: *mut u8, length: u32) -> Self {
        Self { place: address.addr() as u64, length, ..Self::for_buffer(index, Memory::Pages) }
    }

    /// Describes a DMA buffer for the driver to write into.
    ///
    /// # Safety
    /// No other code reads or writes its contents until the buffer was taken back or the device's file is closed.
    pub(crate) unsafe fn for_dma_buf(index: u32, fd: BorrowedFd<'_>, length: u32) -> Self {
        Self { place: u64::from(fd.as_raw_fd().cast_unsigned()), length, ..Self::for_buffer(index, Memory::DmaBufs) }
    }
}

pub(crate) const QUERY: u8 = 9;
pub(crate) const ENQUEUE: u8 = 15;
pub(crate) const DEQUEUE: u8 = 17;

/// Request to begin to capture (`VIDIOC_STREAMON`), or to stop.
#[repr(transparent)]
#[derive(Debug)]
pub(crate) struct Stream<const ON: bool>(pub(crate) u32);

/// `struct v4l2_queryctrl`.
#[repr(C)]
#[derive(Debug, Default)]
pub(crate) struct Control {
    pub(crate) id: u32,
    pub(crate) kind: u32,
    pub(crate) name: [u8; 32],
    pub(crate) least: i32,
    pub(crate) most: i32,
    pub(crate) step: i32,
    pub(crate) default: i32,
    pub(crate) flags: u32,
    pub(crate) reserved: [u32; 2],
}

impl Control {
    /// Returns the name in the form that v4l2-ctl uses: `brightness`, `auto_exposure`.
    pub(crate) fn option_name(&self) -> String {
        let letters = self.name.iter().take_while(|letter| **letter != 0);
        let letters =
            letters.map(|letter| if letter.is_ascii_alphanumeric() { letter.to_ascii_lowercase() } else { b' ' });
        let letters = String::from_utf8_lossy(&letters.collect::<Vec<u8>>()).into_owned();
        letters.split_whitespace().collect::<Vec<_>>().join("_")
    }
}

/// `struct v4l2_control`.
#[repr(C)]
#[derive(Debug)]
pub(crate) struct Setting {
    pub(crate) id: u32,
    pub(crate) value: i32,
}

macro_rules! requests {
    ($($type:ty: $number:literal, $direction:literal, $bytes:literal;)*) => {
        $(impl Request for $type { const COMMAND: (u8, u8, u32) = (b'V', $number, $direction); })*
        // Lengths that `sizeof` gives in C on machines of 64 bits: otherwise the kernel would not recognize the
        // command.
        $(const _: () = assert!(size_of::<$type>() == $bytes);)*
    };
}

requests! {
    Capability: 0, 2, 104;
    Format<false>: 4, 3, 208;
    Format<true>: 5, 3, 208;
    Buffers: 8, 3, 20;
    Place<QUERY>: 9, 3, 88;
    Place<ENQUEUE>: 15, 3, 88;
    Place<DEQUEUE>: 17, 3, 88;
    Stream<true>: 18, 1, 4;
    Stream<false>: 19, 1, 4;
    Pace<false>: 21, 3, 204;
    Pace<true>: 22, 3, 204;
    Setting: 28, 3, 8;
    Control: 36, 3, 68;
}
