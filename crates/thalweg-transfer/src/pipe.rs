//! A pipe that pages are spliced through.

use crate::progress::retry_while_moving;
use rustix::pipe::{PipeFlags, SpliceFlags, splice};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

/// A pipe, as long as the system permits.
#[derive(Debug)]
pub(crate) struct Pipe {
    read: OwnedFd,
    write: OwnedFd,
    capacity: usize,
}

impl Pipe {
    pub(crate) fn new() -> io::Result<Self> {
        let (read, write) = rustix::pipe::pipe_with(PipeFlags::CLOEXEC)?;
        // A longer pipe moves more in one call. The pipe memory of a user is limited (`fs.pipe-user-pages-soft`).
        let longer = rustix::pipe::fcntl_setpipe_size(&write, PIPE_CAPACITY_BYTES);
        let capacity = longer.or_else(|_| rustix::pipe::fcntl_getpipe_size(&write))?;
        Ok(Self { read, write, capacity })
    }

    /// Returns the most bytes the pipe can hold, in whole pages.
    pub(crate) fn capacity_bytes(&self) -> usize {
        self.capacity
    }

    /// Moves up to `length` bytes into the pipe, from `offset` of a file, or from a socket. Returns the number of
    /// bytes.
    pub(crate) fn fill_from(&self, from: BorrowedFd<'_>, offset: Option<&mut u64>, length: usize) -> io::Result<usize> {
        Ok(splice(from, offset, &self.write, None, length.min(self.capacity), SpliceFlags::MOVE)?)
    }

    /// Moves all of the pipe's `length` bytes out.
    pub(crate) fn empty_into(
        &self,
        to: BorrowedFd<'_>,
        mut offset: Option<&mut u64>,
        mut length: usize,
        more: bool,
    ) -> io::Result<()> {
        let flags = SpliceFlags::MOVE | if more { SpliceFlags::MORE } else { SpliceFlags::empty() };
        while length > 0 {
            match retry_while_moving(to, || Ok(splice(&self.read, None, to, offset.as_deref_mut(), length, flags)?)) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(moved) => length -= moved,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Moves as many of the pipe's `length` bytes out as a non-blocking socket takes now. Returns the number of bytes.
    pub(crate) fn empty_some(&self, to: BorrowedFd<'_>, length: usize) -> io::Result<usize> {
        Ok(splice(&self.read, None, to, None, length, SpliceFlags::MOVE | SpliceFlags::NONBLOCK)?)
    }

    /// Takes `length` bytes out of the pipe and discards them.
    pub(crate) fn discard_bytes(&self, mut length: usize) -> io::Result<()> {
        let mut scratch = [0; 4096];
        while length > 0 {
            let most = length.min(scratch.len());
            match rustix::io::read(self.read.as_fd(), &mut scratch[..most]) {
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(read) => length -= read,
                Err(rustix::io::Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }
}

const PIPE_CAPACITY_BYTES: usize = 1 << 20;
