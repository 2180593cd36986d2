//! Requests to a driver (ioctl(2)).

use rustix::io::Errno;
use std::mem;
use std::os::fd::{AsRawFd, BorrowedFd};

/// Structure of a request, which the kernel reads, fills, or both.
pub(crate) trait Request: Sized {
    /// Letter and number of the command, and flags: 1 if the kernel reads the structure, 2 if it writes it.
    const COMMAND: (u8, u8, u32);
    /// Length of the structure in bytes, which is a part of the command.
    const LENGTH: usize = mem::size_of::<Self>();
}

/// Sends a request to the device, and returns the call's result, which is mostly 0.
pub(crate) fn send_request<R: Request>(fd: BorrowedFd<'_>, request: &mut R) -> Result<u32, Errno> {
    let (letter, number, direction) = R::COMMAND;
    // `_IOC` (include/uapi/asm-generic/ioctl.h).
    let command = direction << 30 | (R::LENGTH as u32) << 16 | u32::from(letter) << 8 | u32::from(number);
    loop {
        // SAFETY: the command contains the length of the structure, and the kernel reads and writes no more than that;
        // if the structure is an array, no more than there are elements. If a structure contains an address, the code
        // that puts the address there is responsible for it.
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

/// Returns the text in a field of fixed length, which ends with zero bytes.
pub(crate) fn field_text(field: &[u8]) -> String {
    String::from_utf8_lossy(field).trim_end_matches('\0').to_owned()
}

/// Sends the device a command whose argument is a number and not an address.
pub(crate) fn send_value(fd: BorrowedFd<'_>, (letter, number): (u8, u8), value: u32) -> Result<(), Errno> {
    let command = u32::from(letter) << 8 | u32::from(number);
    // SAFETY: the command (`_IO`) has no structure: no memory is read or written.
    let result = unsafe { libc::ioctl(fd.as_raw_fd(), libc::Ioctl::from(command), libc::c_ulong::from(value)) };
    if result >= 0 {
        return Ok(());
    }
    Err(Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO))
}
