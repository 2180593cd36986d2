//! Asking a driver something (ioctl(2)).

use rustix::io::Errno;
use std::mem;
use std::os::fd::{AsRawFd, BorrowedFd};

/// What a structure is asked with, and by whom it is filled.
pub(crate) trait Request: Sized {
    /// The command's letter and number, and whether the kernel reads (1) and writes (2) the structure.
    const COMMAND: (u8, u8, u32);
    /// How long the structure is, by which the command is known.
    const LENGTH: usize = mem::size_of::<Self>();
}

/// Asks the device, and returns its number, which is mostly 0.
pub(crate) fn ask<R: Request>(fd: BorrowedFd<'_>, request: &mut R) -> Result<u32, Errno> {
    let (letter, number, direction) = R::COMMAND;
    // `_IOC` (include/uapi/asm-generic/ioctl.h).
    let command = direction << 30 | (R::LENGTH as u32) << 16 | u32::from(letter) << 8 | u32::from(number);
    loop {
        // SAFETY: the command's number says how long the structure is, and the kernel reads and writes no more than that; of
        // one that is an array, no more than there are. Where a structure has an address in it, who puts one there answers
        // for it.
        let result = unsafe { libc::ioctl(fd.as_raw_fd(), libc::Ioctl::from(command), std::ptr::from_mut(request)) };
        if let Ok(number) = u32::try_from(result) {
            return Ok(number);
        }
        match Errno::from_io_error(&std::io::Error::last_os_error()) {
            Some(Errno::INTR) => {}
            error => return Err(error.unwrap_or(Errno::IO)),
        }
    }
}

/// Tells the device a number: a command whose argument is that and no address.
pub(crate) fn ask_with(fd: BorrowedFd<'_>, (letter, number): (u8, u8), value: u32) -> Result<(), Errno> {
    let command = u32::from(letter) << 8 | u32::from(number);
    // SAFETY: the command (`_IO`) has no structure: no memory is read or written.
    let result = unsafe { libc::ioctl(fd.as_raw_fd(), libc::Ioctl::from(command), libc::c_ulong::from(value)) };
    if result >= 0 {
        return Ok(());
    }
    Err(Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO))
}
