//! Parts of an arena as buffers that kernel drivers write to (DMA buffers), by the kernel's udmabuf.
//!
//! Documentation/driver-api/dma-buf.rst; include/uapi/linux/udmabuf.h and dma-buf.h.

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::ioctl::{self, Ioctl, IoctlOutput, Opcode};
use std::ffi::c_void;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

/// Device file that makes DMA buffers.
const MAKER: &str = "/dev/udmabuf";

/// Part of an arena that a driver can be given by descriptor. Dropping it closes this process's descriptor; a driver
/// that has one of its own keeps the pages.
#[derive(Debug)]
pub struct DmaBuf {
    fd: OwnedFd,
    length: usize,
    being_read: bool,
}

impl DmaBuf {
    /// Checks that this process can make DMA buffers: the kernel has udmabuf, and `/dev/udmabuf` may be opened.
    ///
    /// # Errors
    /// The reason why not.
    pub fn probe_support() -> Result<(), Errno> {
        Maker::open_udmabuf().map(|_| ())
    }

    /// Returns the length in bytes, a multiple of the page size.
    pub fn length_bytes(&self) -> usize {
        self.length
    }

    /// Prepares the buffer for reading by the processor. To be called after a driver has given it back: on some
    /// machines caches have to be emptied, or bytes fetched from where the device could write them.
    ///
    /// # Errors
    /// The error returned by the kernel.
    pub fn begin_reading(&mut self) -> Result<(), Errno> {
        self.sync_processor_access(Sync::DMA_BUF_SYNC_START)?;
        self.being_read = true;
        Ok(())
    }

    /// Ends reading by the processor. To be called before a driver gets the buffer.
    ///
    /// # Errors
    /// The error returned by the kernel.
    pub fn end_reading(&mut self) -> Result<(), Errno> {
        if std::mem::take(&mut self.being_read) { self.sync_processor_access(Sync::DMA_BUF_SYNC_END) } else { Ok(()) }
    }

    fn sync_processor_access(&self, which: u64) -> Result<(), Errno> {
        // SAFETY: the command reads the structure, and that is all it does with this process's memory.
        unsafe { ioctl::ioctl(&self.fd, Sync(Sync::DMA_BUF_SYNC_READ | which)) }
    }
}

impl AsFd for DmaBuf {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// The kernel's udmabuf.
#[derive(Debug)]
pub(crate) struct Maker(OwnedFd);

impl Maker {
    pub(crate) fn open_udmabuf() -> Result<Self, Errno> {
        rustix::fs::open(MAKER, OFlags::RDWR | OFlags::CLOEXEC, Mode::empty()).map(Self)
    }

    /// Makes a buffer of pages of a memfd, which is sealed against shrinking and not yet against writing. `offset` and
    /// `length` are in bytes, multiples of the page size.
    pub(crate) fn make_dma_buf(&self, memory: BorrowedFd<'_>, offset: usize, length: usize) -> Result<DmaBuf, Errno> {
        const CLOSED_BY_EXEC: u32 = 1;
        let wanted =
            Create { memory: memory.as_raw_fd(), flags: CLOSED_BY_EXEC, offset: offset as u64, length: length as u64 };
        // SAFETY: the command reads the structure, and that is all it does with this process's memory.
        let fd = unsafe { ioctl::ioctl(&self.0, wanted) }?;
        Ok(DmaBuf { fd, length, being_read: false })
    }
}

/// Argument of `UDMABUF_CREATE`: `struct udmabuf_create`.
#[repr(C)]
struct Create {
    memory: i32,
    flags: u32,
    offset: u64,
    length: u64,
}

// SAFETY: UDMABUF_CREATE reads a structure of this length, writes nothing, and returns a new descriptor or an error.
unsafe impl Ioctl for Create {
    type Output = OwnedFd;

    const IS_MUTATING: bool = false;

    fn opcode(&self) -> Opcode {
        ioctl::opcode::write::<Self>(b'u', 0x42)
    }

    fn as_ptr(&mut self) -> *mut c_void {
        std::ptr::from_mut(self).cast()
    }

    unsafe fn output_from_ptr(fd: IoctlOutput, _: *mut c_void) -> Result<OwnedFd, Errno> {
        // SAFETY: the descriptor is new, and nothing else owns it.
        Ok(unsafe { OwnedFd::from_raw_fd(fd) })
    }
}

/// Argument of `DMA_BUF_IOCTL_SYNC`: `struct dma_buf_sync`.
#[repr(transparent)]
struct Sync(u64);

impl Sync {
    const DMA_BUF_SYNC_READ: u64 = 1;
    const DMA_BUF_SYNC_START: u64 = 0;
    const DMA_BUF_SYNC_END: u64 = 4;
}

// SAFETY: DMA_BUF_IOCTL_SYNC reads a structure of this length and writes nothing.
unsafe impl Ioctl for Sync {
    type Output = ();

    const IS_MUTATING: bool = false;

    fn opcode(&self) -> Opcode {
        ioctl::opcode::write::<Self>(b'b', 0)
    }

    fn as_ptr(&mut self) -> *mut c_void {
        std::ptr::from_mut(self).cast()
    }

    unsafe fn output_from_ptr(_: IoctlOutput, _: *mut c_void) -> Result<(), Errno> {
        Ok(())
    }
}
