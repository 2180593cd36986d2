//! Source of bytes: opened, waited for, and reopened after it was unplugged.

use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{FileType, Mode, OFlags, fstat, open};
use rustix::io::{Errno, IoSliceMut, readv};
use rustix::pipe::fcntl_setpipe_size;
use rustix::termios::{OptionalActions, QueueSelector, Termios, tcflush, tcgetattr, tcsetattr};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use thalweg_device::DeviceError;

/// Capacity that is requested for a pipe, in bytes: the most that any user may request (pipe(7), `pipe-max-size`).
const PIPE_BYTES: usize = 1 << 20;

/// An open file that is read from its beginning to its end.
#[derive(Debug)]
pub(crate) struct Port {
    fd: OwnedFd,
    kind: Kind,
    /// Settings of the port before it was opened, which are restored.
    before: Option<Termios>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// A regular file: always has all the data it will ever have.
    File,
    /// A named pipe: perhaps no program has opened it for writing yet.
    Fifo,
    Serial,
    /// A pipe or socket that another program opened.
    Given,
}

/// Outcome of a read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Read {
    Bytes(usize),
    NotYet,
    End,
    /// The port was unplugged.
    Gone,
}

impl Port {
    /// Opens a file without waiting for a writer. A serial port gives bytes as they arrive, at `baud` bits per second.
    pub(crate) fn open(file: &Path, baud: Option<u32>) -> io::Result<Self> {
        let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
        let fd = open(file, flags, Mode::empty())?;
        let kind = match FileType::from_raw_mode(fstat(&fd)?.st_mode) {
            FileType::RegularFile => Kind::File,
            FileType::Fifo => Kind::Fifo,
            FileType::CharacterDevice if rustix::termios::isatty(&fd) => Kind::Serial,
            FileType::CharacterDevice => Kind::Given,
            _ => return Err(invalid_input("it is not a pipe, a serial port or a file")),
        };
        let mut port = Self { fd, kind, before: None };
        match kind {
            Kind::Serial => port.set_up_terminal(baud)?,
            _ if baud.is_some() => {
                return Err(invalid_input("baud is only for serial ports, and this is not one"));
            }
            Kind::Fifo => drop(fcntl_setpipe_size(&port.fd, PIPE_BYTES)),
            Kind::File | Kind::Given => {}
        }
        Ok(port)
    }

    /// Takes standard input, which was opened for this process. Other processes share its flags, which stay as they
    /// are.
    pub(crate) fn from_standard_input() -> io::Result<Self> {
        let fd = io::stdin().as_fd().try_clone_to_owned()?;
        let kind = match FileType::from_raw_mode(fstat(&fd)?.st_mode) {
            FileType::RegularFile => Kind::File,
            _ => Kind::Given,
        };
        let _ = fcntl_setpipe_size(&fd, PIPE_BYTES);
        Ok(Self { fd, kind, before: None })
    }

    fn set_up_terminal(&mut self, baud: Option<u32>) -> io::Result<()> {
        let before = tcgetattr(&self.fd)?;
        let mut raw = before.clone();
        raw.make_raw();
        if let Some(baud) = baud {
            raw.set_speed(baud)?;
        }
        tcsetattr(&self.fd, OptionalActions::Now, &raw)?;
        self.before = Some(before);
        // The call may succeed although only a part of the settings could be made (tcsetattr(3)).
        let speed = tcgetattr(&self.fd)?.output_speed();
        match baud.filter(|baud| *baud != speed) {
            Some(baud) => Err(invalid_input(format!("the port uses {speed} bits per second instead of {baud}"))),
            None => Ok(()),
        }
    }

    /// Returns true for a serial port, on which a sender may already be sending.
    pub(crate) fn is_serial(&self) -> bool {
        self.kind == Kind::Serial
    }

    /// Returns true if there is something to wait for: a regular file has all its data.
    pub(crate) fn signals_readiness(&self) -> bool {
        self.kind != Kind::File
    }

    /// Discards the bytes in a serial port's buffer, which are from before. Bytes in a pipe were written to be read.
    pub(crate) fn discard_pending(&self) -> io::Result<()> {
        match self.kind {
            Kind::Serial => Ok(tcflush(&self.fd, QueueSelector::IFlush)?),
            _ => Ok(()),
        }
    }

    /// Reads the bytes that are there, in one call.
    pub(crate) fn read_available(&mut self, places: &mut [IoSliceMut<'_>]) -> io::Result<Read> {
        // A file that was opened elsewhere may block in a read.
        let ready = match self.kind {
            Kind::File => PollFlags::IN,
            _ => self.poll_readiness()?,
        };
        if ready.is_empty() {
            return Ok(Read::NotYet);
        }
        match readv(&self.fd, places) {
            Ok(0) => {}
            Ok(bytes) => return Ok(Read::Bytes(bytes)),
            Err(Errno::AGAIN | Errno::INTR) => return Ok(Read::NotYet),
            // A terminal whose other end is gone, or an adapter that was pulled.
            Err(Errno::IO | Errno::NODEV | Errno::NXIO) if self.kind == Kind::Serial => {}
            Err(error) => return Err(error.into()),
        }
        Ok(match self.kind {
            Kind::File | Kind::Given => Read::End,
            Kind::Serial => Read::Gone,
            // Without HUP no program has opened it for writing yet (pipe_poll, fs/pipe.c).
            Kind::Fifo if ready.contains(PollFlags::HUP) => Read::End,
            Kind::Fifo => Read::NotYet,
        })
    }

    fn poll_readiness(&self) -> io::Result<PollFlags> {
        let mut fds = [PollFd::new(&self.fd, PollFlags::IN)];
        match poll(&mut fds, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })) {
            Ok(_) => Ok(fds[0].revents()),
            Err(Errno::INTR) => Ok(PollFlags::empty()),
            Err(error) => Err(error.into()),
        }
    }

    /// Returns the number of errors that a serial port's driver has counted; `None` if it counts none.
    pub(crate) fn overrun_count(&self) -> Option<u64> {
        (self.kind == Kind::Serial).then(|| read_overruns(self.fd.as_fd())).flatten()
    }
}

impl Drop for Port {
    fn drop(&mut self) {
        if let Some(before) = &self.before {
            // If the port is gone, there is nothing to restore.
            let _ = tcsetattr(&self.fd, OptionalActions::Now, before);
        }
    }
}

impl AsFd for Port {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// Returns an error that states why a file, or a setting of it, cannot be used.
pub(crate) fn invalid_input(problem: impl Into<String>) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, problem.into())
}

/// Returns the error of an operation on a device's file that failed.
pub(crate) fn file_error(doing: &'static str, file: &Path, error: impl Into<io::Error>) -> DeviceError {
    DeviceError::File { doing, file: file.to_owned(), error: error.into() }
}

/// A descriptor to wait on that stays the same when another file is waited for.
#[derive(Debug)]
pub(crate) struct Watch(OwnedFd);

impl Watch {
    pub(crate) fn new(file: impl AsFd) -> io::Result<Self> {
        let watch = Self(epoll::create(CreateFlags::CLOEXEC)?);
        watch.add_file(file)?;
        Ok(watch)
    }

    /// Adds a file to wait for. A file that is closed is no longer waited for.
    pub(crate) fn add_file(&self, file: impl AsFd) -> io::Result<()> {
        // A file that always or never has data cannot be waited for (`do_epoll_ctl`).
        epoll::add(&self.0, file, EventData::new_u64(0), EventFlags::IN).map_err(|error| match error {
            Errno::PERM => invalid_input("it is not a pipe, a serial port, a camera or a board"),
            error => error.into(),
        })
    }

    pub(crate) fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// `struct serial_icounter_struct` (include/uapi/linux/serial.h).
#[repr(C)]
#[derive(Default)]
struct Counts {
    lines: [libc::c_int; 4],
    received: libc::c_int,
    sent: libc::c_int,
    frame: libc::c_int,
    overrun: libc::c_int,
    parity: libc::c_int,
    breaks: libc::c_int,
    buffer_overrun: libc::c_int,
    reserved: [libc::c_int; 9],
}

fn read_overruns(port: BorrowedFd<'_>) -> Option<u64> {
    use std::os::fd::AsRawFd;
    let mut counts = Counts::default();
    // SAFETY: the command fills a structure of this kind, which lives until the call is over.
    let result = unsafe { libc::ioctl(port.as_raw_fd(), libc::TIOCGICOUNT as libc::Ioctl, &raw mut counts) };
    let all = [counts.frame, counts.overrun, counts.parity, counts.buffer_overrun];
    (result == 0).then(|| all.iter().map(|count| u64::from(count.unsigned_abs())).sum())
}
