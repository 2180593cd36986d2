//! Operations for the kernel, each with its file and its memory.

use crate::uring::{Memory, Slot};
use io_uring::{opcode, squeue, types};
use memmap2::MmapMut;
use rustix::fs::{AtFlags, FallocateFlags, Mode, OFlags};
use rustix::io::Errno;
use std::ffi::{CStr, CString};
use std::ops::Range;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::Arc;

/// The file of an operation.
#[derive(Debug, Clone)]
pub enum File {
    /// No file.
    None,
    /// An open file.
    Open(Arc<OwnedFd>),
    /// The file that was registered with the ring ([`Ring::register_file`](crate::uring::Ring::register_file)).
    Registered,
}

/// An operation, and the memory it works on.
#[derive(Debug)]
pub struct Operation<M> {
    action: Action,
    pub(crate) file: File,
    pub(crate) memory: M,
}

#[derive(Debug, Clone)]
enum Action {
    Read { range: Range<usize>, offset: u64 },
    Write { range: Range<usize>, offset: u64 },
    Send { range: Range<usize>, more: bool },
    Allocate { offset: u64, length: u64 },
    Truncate { length: u64 },
    Create { name: Arc<CStr>, direct: bool },
    Remove { name: Arc<CStr> },
    Sync,
    Nothing,
}

/// Change that an operation makes to its file.
#[derive(Debug, Clone, Copy)]
pub enum Effect<'a> {
    /// Bytes are written.
    Write {
        /// Offset in the file in bytes.
        offset: u64,
        /// All bytes to be written; the operation may be cut short.
        bytes: &'a [u8],
    },
    /// Space is allocated.
    Allocate {
        /// Offset in the file in bytes.
        offset: u64,
        /// Length of the space in bytes.
        length: u64,
    },
    /// The length of the file is set.
    Truncate {
        /// New length in bytes.
        length: u64,
    },
    /// A new file is created in this directory.
    Create {
        /// Name of the file.
        name: &'a CStr,
    },
    /// A file is removed from this directory.
    Remove {
        /// Name of the file.
        name: &'a CStr,
    },
    /// All bytes written before are on the disk itself.
    Sync,
    /// No change.
    Nothing,
}

impl<M: Memory> Operation<M> {
    /// Returns the change that the operation makes to its file.
    pub fn file_effect(&mut self) -> Effect<'_> {
        match &self.action {
            Action::Write { range, offset } => {
                let (range, offset) = (range.clone(), *offset);
                Effect::Write { offset, bytes: &self.memory.as_mut_bytes()[range] }
            }
            Action::Allocate { offset, length } => Effect::Allocate { offset: *offset, length: *length },
            Action::Truncate { length } => Effect::Truncate { length: *length },
            Action::Create { name, .. } => Effect::Create { name },
            Action::Remove { name } => Effect::Remove { name },
            Action::Sync => Effect::Sync,
            Action::Read { .. } | Action::Send { .. } | Action::Nothing => Effect::Nothing,
        }
    }

    /// Returns the file of the operation.
    pub fn target_file(&self) -> &File {
        &self.file
    }

    /// Returns the memory of an operation that is not to be performed.
    pub fn into_memory(self) -> M {
        self.memory
    }

    /// Returns an operation that reads from `offset` of a file into a range of the memory.
    ///
    /// # Panics
    /// The range does not lie within the memory.
    pub fn read_range(file: File, mut memory: M, range: Range<usize>, offset: u64) -> Self {
        check_range(&mut memory, &range);
        Self { action: Action::Read { range, offset }, file, memory }
    }

    /// Returns an operation that writes a range of the memory at `offset` of a file.
    ///
    /// # Panics
    /// The range does not lie within the memory.
    pub fn write_range(file: File, mut memory: M, range: Range<usize>, offset: u64) -> Self {
        check_range(&mut memory, &range);
        Self { action: Action::Write { range, offset }, file, memory }
    }

    /// Returns an operation that allocates space, and extends the file over it if necessary (`fallocate`).
    pub fn allocate_space(file: File, memory: M, offset: u64, length: u64) -> Self {
        Self { action: Action::Allocate { offset, length }, file, memory }
    }

    /// Returns an operation that truncates or extends a file to `length` bytes (Linux 6.9; `EINVAL` before).
    pub fn set_file_length(file: File, memory: M, length: u64) -> Self {
        Self { action: Action::Truncate { length }, file, memory }
    }

    /// Returns an operation that creates a file of that name in a directory, for writing; with `direct`, the page cache
    /// is bypassed. The memory [gets the file](Memory::accept_opened_file).
    pub fn create_file(directory: File, memory: M, name: CString, direct: bool) -> Self {
        Self { action: Action::Create { name: name.into(), direct }, file: directory, memory }
    }

    /// Returns an operation that removes a file of that name from a directory (Linux 5.11; `EINVAL` before).
    pub fn remove_file(directory: File, memory: M, name: CString) -> Self {
        Self { action: Action::Remove { name: name.into() }, file: directory, memory }
    }

    /// Returns an operation that writes all data of the file so far to the disk itself (`fsync`).
    pub fn sync_file(file: File, memory: M) -> Self {
        Self { action: Action::Sync, file, memory }
    }

    /// Returns an operation that only comes back, which makes the ring's file descriptor readable.
    pub fn no_operation(memory: M) -> Self {
        Self { action: Action::Nothing, file: File::None, memory }
    }

    /// Performs the operation by an ordinary, blocking system call, for systems without io_uring. Supports only
    /// operations on an open file. Returns the memory and the result: the number of bytes moved, or the error returned
    /// by the kernel.
    ///
    /// # Errors
    /// The error returned by the kernel.
    pub fn carry_out_blocking(mut self) -> (M, Result<u32, Errno>) {
        let result = self.system_call();
        let result = result.map(|moved| u32::try_from(moved).unwrap_or(u32::MAX));
        (self.memory, result)
    }

    fn system_call(&mut self) -> Result<usize, Errno> {
        let Self { action, file, memory } = self;
        let file = match (&*action, file) {
            (Action::Nothing, _) => return Ok(0),
            (_, File::Open(file)) => file,
            (_, File::None | File::Registered) => return Err(Errno::BADF),
        };
        match action.clone() {
            Action::Read { range, offset } => rustix::io::pread(file, &mut memory.as_mut_bytes()[range], offset),
            Action::Write { range, offset } => rustix::io::pwrite(file, &memory.as_mut_bytes()[range], offset),
            Action::Allocate { offset, length } => {
                rustix::fs::fallocate(file, FallocateFlags::empty(), offset, length).map(|()| 0)
            }
            Action::Truncate { length } => rustix::fs::ftruncate(file, length).map(|()| 0),
            Action::Create { name, direct } => {
                let created =
                    rustix::fs::openat(file, &*name, creation_flags(direct), Mode::from_bits_retain(NEW_MODE))?;
                memory.accept_opened_file(created);
                Ok(0)
            }
            Action::Remove { name } => rustix::fs::unlinkat(file, &*name, AtFlags::empty()).map(|()| 0),
            Action::Sync => rustix::fs::fsync(file).map(|()| 0),
            Action::Send { .. } => Err(Errno::OPNOTSUPP),
            Action::Nothing => Ok(0),
        }
    }

    /// Returns the submission entry for the kernel. The addresses in it are those of `memory`.
    pub(crate) fn submission_entry(&mut self) -> squeue::Entry {
        let (number, registered) = match &self.file {
            File::None => (-1, false),
            File::Open(file) => (file.as_raw_fd(), false),
            File::Registered => (0, true),
        };
        let (file, buffer) = (types::Fd(number), self.memory.registered_index());
        let entry = match self.action.clone() {
            Action::Read { range, offset } => {
                let (start, length) = range_address(&mut self.memory, range);
                match buffer {
                    Some(buffer) => opcode::ReadFixed::new(file, start, length, buffer).offset(offset).build(),
                    None => opcode::Read::new(file, start, length).offset(offset).build(),
                }
            }
            Action::Write { range, offset } => {
                let (start, length) = range_address(&mut self.memory, range);
                match buffer {
                    Some(buffer) => opcode::WriteFixed::new(file, start, length, buffer).offset(offset).build(),
                    None => opcode::Write::new(file, start, length).offset(offset).build(),
                }
            }
            Action::Send { range, more } => {
                let (start, length) = range_address(&mut self.memory, range);
                let flags = libc::MSG_NOSIGNAL | libc::MSG_WAITALL | if more { libc::MSG_MORE } else { 0 };
                let send = opcode::SendZc::new(file, start, length).buf_index(buffer).flags(flags);
                send.zc_flags(REPORT_USAGE).build()
            }
            Action::Allocate { offset, length } => opcode::Fallocate::new(file, length).offset(offset).build(),
            Action::Truncate { length } => opcode::Ftruncate::new(file, length).build(),
            Action::Create { name, direct } => {
                let flags = creation_flags(direct).bits().cast_signed();
                opcode::OpenAt::new(file, name.as_ptr()).flags(flags).mode(NEW_MODE).build()
            }
            Action::Remove { name } => opcode::UnlinkAt::new(file, name.as_ptr()).build(),
            Action::Sync => opcode::Fsync::new(file).build(),
            Action::Nothing => opcode::Nop::new().build(),
        };
        if registered { entry.flags(squeue::Flags::FIXED_FILE) } else { entry }
    }

    /// Returns whether the result is a file.
    pub(crate) fn creates_file(&self) -> bool {
        matches!(self.action, Action::Create { .. })
    }

    /// Returns whether the operation is of no use once its ring is dropped, and may never end by itself.
    pub(crate) fn can_be_cancelled(&self) -> bool {
        matches!(self.action, Action::Read { .. } | Action::Send { .. })
    }
}

impl Operation<Slot<MmapMut>> {
    /// Returns an operation that sends a range of a slot in place (`SEND_ZC`), all of it unless the connection ends.
    /// With `more`, further data follows at once. The result is known before the network is done with the memory
    /// ([`Ring::send_result`](crate::uring::Ring::send_result)), which may take as long as the other end likes. This is therefore for memory
    /// whose pages are not reused before the network has released them, even if the ring was dropped: a slot's bytes
    /// have no owner then, and unmapped pages stay pinned.
    ///
    /// # Panics
    /// The range does not lie within the slot.
    pub fn send_zero_copy(socket: File, mut memory: Slot<MmapMut>, range: Range<usize>, more: bool) -> Self {
        check_range(&mut memory, &range);
        Self { action: Action::Send { range, more }, file: socket, memory }
    }
}

fn check_range<M: Memory>(memory: &mut M, range: &Range<usize>) {
    let length = memory.as_mut_bytes().len();
    assert!(range.start <= range.end && range.end <= length, "bytes {range:?} of a memory of {length}");
}

fn range_address<M: Memory>(memory: &mut M, range: Range<usize>) -> (*mut u8, u32) {
    let bytes = &mut memory.as_mut_bytes()[range];
    // A longer range is moved in part, as by any other system call.
    (bytes.as_mut_ptr(), u32::try_from(bytes.len()).unwrap_or(MAX_RW_BYTES))
}

/// Returns the flags with which a file is created.
fn creation_flags(direct: bool) -> OFlags {
    let mut flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
    flags.set(OFlags::DIRECT, direct);
    flags
}

/// Permissions of a created file.
const NEW_MODE: u32 = 0o644;
/// Maximum number of bytes that one call moves (`MAX_RW_COUNT`).
const MAX_RW_BYTES: u32 = 0x7fff_f000;
/// `IORING_SEND_ZC_REPORT_USAGE` (Linux 6.2).
const REPORT_USAGE: u16 = 1 << 3;
