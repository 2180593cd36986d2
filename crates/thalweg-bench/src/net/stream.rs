//! Messages over a TCP connection, one system call after the other.

use super::control::{Job, Watchdog, connection_error};
use super::exchange::Messages;
use super::{Exchange, Method, PEER_TIMEOUT, Phase, Tally, Wait};
use crate::BenchError;
use rustix::fs::MemfdFlags;
use rustix::io::Errno;
use rustix::net::{RecvAncillaryBuffer, RecvFlags, SendAncillaryBuffer, SendFlags};
use std::io::{IoSlice, IoSliceMut, Read, Write};
use std::mem::MaybeUninit;
use std::net::TcpStream;
use std::os::fd::{AsRawFd, OwnedFd};

/// One end of a TCP connection.
#[derive(Debug)]
pub(super) struct Stream {
    socket: TcpStream,
    method: Method,
    poll: bool,
    check: bool,
    size: usize,
    messages: Messages,
    /// Copy of the messages from which sendfile can send.
    file: Option<OwnedFd>,
    zerocopy: Zerocopy,
    received: Vec<u8>,
    tally: Tally,
}

impl Stream {
    pub(super) fn new(socket: TcpStream, job: &Job) -> Result<Self, BenchError> {
        let set = socket.set_nodelay(true).and_then(|()| socket.set_read_timeout(Some(PEER_TIMEOUT)));
        set.and_then(|()| socket.set_write_timeout(Some(PEER_TIMEOUT)))
            .map_err(BenchError::os_error("setting up a TCP socket"))?;
        let messages = Messages::new(job.size);
        let mut file = None;
        if job.method == Method::Sendfile {
            let memfd = rustix::fs::memfd_create("thalweg-bench", MemfdFlags::CLOEXEC)
                .map_err(BenchError::os_error("memfd_create"))?;
            let mut memfd = std::fs::File::from(memfd);
            memfd.write_all(messages.all_bytes()).map_err(BenchError::os_error("filling a memfd"))?;
            file = Some(OwnedFd::from(memfd));
        }
        if job.method == Method::Zerocopy {
            enable_zerocopy(&socket)?;
        }
        Ok(Self {
            socket,
            method: job.method,
            poll: job.wait == Wait::Poll,
            check: job.check_data,
            size: job.size,
            messages,
            file,
            zerocopy: Zerocopy::default(),
            received: vec![0; job.size],
            tally: Tally::default(),
        })
    }

    fn send_some(&mut self, phase: Phase, at: usize) -> Result<usize, Errno> {
        let rest = &self.messages.message_bytes(phase)[at..];
        self.tally.calls += 1;
        match self.method {
            Method::Sendmsg => {
                let (first, second) = rest.split_at(rest.len() / 2);
                let pieces = [IoSlice::new(first), IoSlice::new(second)];
                rustix::net::sendmsg(&self.socket, &pieces, &mut SendAncillaryBuffer::default(), SendFlags::NOSIGNAL)
            }
            Method::Sendfile => {
                let Some(file) = &self.file else { return Err(Errno::BADF) };
                let mut offset = (self.messages.message_offset(phase) + at) as u64;
                rustix::fs::sendfile(&self.socket, file, Some(&mut offset), rest.len())
            }
            Method::Zerocopy => self.zerocopy.send_uncopied(&self.socket, rest, &mut self.tally.calls),
            _ => rustix::io::write(&self.socket, rest),
        }
    }

    fn receive_some(&mut self, at: usize) -> Result<usize, Errno> {
        let rest = &mut self.received[at..];
        self.tally.calls += 1;
        if self.method == Method::Sendmsg {
            let half = rest.len() / 2;
            let (first, second) = rest.split_at_mut(half);
            let mut pieces = [IoSliceMut::new(first), IoSliceMut::new(second)];
            let flags = if self.poll { RecvFlags::DONTWAIT } else { RecvFlags::empty() };
            return rustix::net::recvmsg(&self.socket, &mut pieces, &mut RecvAncillaryBuffer::default(), flags)
                .map(|message| message.bytes);
        }
        match self.poll {
            true => rustix::net::recv(&self.socket, rest, RecvFlags::DONTWAIT).map(|(count, _)| count),
            false => rustix::io::read(&self.socket, rest),
        }
    }
}

impl Exchange for Stream {
    #[inline]
    fn send_message(&mut self, phase: Phase) -> Result<(), BenchError> {
        let mut at = 0;
        while at < self.size {
            match self.send_some(phase, at) {
                Ok(count) => at += count,
                Err(Errno::INTR) => {}
                Err(error) => return Err(socket_error("sending over TCP", error)),
            }
        }
        self.tally.sent += 1;
        if matches!(self.method, Method::Write | Method::Sendmsg) {
            self.tally.copied += self.size as u64;
        }
        Ok(())
    }

    #[inline]
    fn receive_message(&mut self) -> Result<Phase, BenchError> {
        let mut at = 0;
        let mut watchdog = Watchdog::default();
        while at < self.size {
            match self.receive_some(at) {
                Ok(0) => return Err(connection_error("the TCP connection ended in the middle of the measurement")),
                Ok(count) => at += count,
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) if self.poll => watchdog.count_empty_poll("waiting for a message over TCP")?,
                Err(error) => return Err(socket_error("receiving over TCP", error)),
            }
        }
        if self.check {
            self.messages.check_received(&self.received, 0, self.tally.received)?;
        }
        self.tally.received += 1;
        self.tally.received_bytes += self.size as u64;
        self.tally.copied += self.size as u64;
        Ok(Phase::from_byte(self.received[0]))
    }

    fn has_pending_message(&mut self) -> Result<bool, BenchError> {
        self.tally.calls += 1;
        super::control::has_pending_data(&self.socket)
    }

    fn counters(&self) -> Tally {
        let mut tally = self.tally;
        if self.method == Method::Zerocopy {
            tally.copied += self.zerocopy.copied_bytes();
        }
        tally
    }
}

impl Drop for Stream {
    /// Closes the connection gently: the peer may still send, and closing with unread bytes would reset the connection
    /// before our last bytes have arrived.
    fn drop(&mut self) {
        let _ = self.socket.shutdown(std::net::Shutdown::Write);
        let _ = self.socket.set_read_timeout(Some(std::time::Duration::from_millis(1)));
        let mut rest = [0; 4096];
        while matches!((&self.socket).read(&mut rest), Ok(count) if count > 0) {}
    }
}

pub(super) fn socket_error(doing: &str, error: Errno) -> BenchError {
    match error {
        Errno::AGAIN => BenchError::Silent { doing: doing.to_owned(), timeout: PEER_TIMEOUT },
        error => BenchError::Os { doing: doing.to_owned(), error: error.into() },
    }
}

/// Kernel's reports on sends that it was asked not to copy (Documentation/networking/msg_zerocopy.rst).
#[derive(Debug, Default)]
struct Zerocopy {
    /// Number of calls that the kernel has not reported on.
    in_flight: u64,
    reported: u64,
    /// Number of reported calls that it copied after all, as it does where the receiver is on this host.
    copied: u64,
    bytes: u64,
}

fn enable_zerocopy(socket: &TcpStream) -> Result<(), BenchError> {
    let on: libc::c_int = 1;
    // SAFETY: the option's value is an int, which lives through the call; its length is that of an int.
    let set = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_ZEROCOPY,
            (&raw const on).cast(),
            size_of::<libc::c_int>() as libc::socklen_t,
        )
    };
    match set {
        0 => Ok(()),
        _ => Err(BenchError::os_error("asking for SO_ZEROCOPY")(std::io::Error::last_os_error())),
    }
}

impl Zerocopy {
    /// Sends without copying, and reads the reports on earlier sends from time to time: the kernel keeps only a limited
    /// number of them (`net.core.optmem_max`) and then returns ENOBUFS.
    fn send_uncopied(&mut self, socket: &TcpStream, bytes: &[u8], calls: &mut u64) -> Result<usize, Errno> {
        if self.in_flight >= 32 {
            self.read_reports(socket, calls)?;
        }
        loop {
            let flags = libc::MSG_ZEROCOPY | libc::MSG_NOSIGNAL;
            // SAFETY: the pointer and length are those of a slice that lives as long as the connection (`Stream`
            // keeps its messages until it has closed the socket) and is never written to.
            let sent = unsafe { libc::send(socket.as_raw_fd(), bytes.as_ptr().cast(), bytes.len(), flags) };
            if let Ok(count) = usize::try_from(sent) {
                self.in_flight += 1;
                self.bytes += count as u64;
                return Ok(count);
            }
            match std::io::Error::last_os_error().raw_os_error() {
                Some(libc::ENOBUFS) if self.in_flight > 0 => {
                    *calls += 1;
                    wait_for_report(socket)?;
                    self.read_reports(socket, calls)?;
                }
                error => return Err(Errno::from_raw_os_error(error.unwrap_or(libc::EIO))),
            }
        }
    }

    /// Reads all pending reports.
    fn read_reports(&mut self, socket: &TcpStream, calls: &mut u64) -> Result<(), Errno> {
        loop {
            let mut control = [MaybeUninit::<u64>::uninit(); 16];
            // SAFETY: all-zero bytes are a valid msghdr: null pointers with lengths of zero.
            let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
            message.msg_control = control.as_mut_ptr().cast();
            message.msg_controllen = size_of_val(&control);
            *calls += 1;
            // SAFETY: the header points to nothing but `control`, which is as long as it says and outlives the call.
            let got = unsafe { libc::recvmsg(socket.as_raw_fd(), &raw mut message, libc::MSG_ERRQUEUE) };
            if got < 0 {
                return match std::io::Error::last_os_error().raw_os_error() {
                    Some(libc::EAGAIN) => Ok(()),
                    error => Err(Errno::from_raw_os_error(error.unwrap_or(libc::EIO))),
                };
            }
            // SAFETY: the kernel has filled in the header and as much of `control` as it says.
            let first = unsafe { libc::CMSG_FIRSTHDR(&raw const message) };
            if first.is_null() {
                continue;
            }
            // SAFETY: not null, so it points at a whole header in `control`.
            let data = unsafe { libc::CMSG_DATA(first) }.cast::<libc::sock_extended_err>();
            // SAFETY: the kernel writes a whole `sock_extended_err` after the header of an IP_RECVERR message, which is
            // what an error queue delivers first; alignment may be that of the header only, hence the unaligned read.
            let report = unsafe { data.read_unaligned() };
            if report.ee_origin == SO_EE_ORIGIN_ZEROCOPY {
                let count = u64::from(report.ee_data.wrapping_sub(report.ee_info)) + 1;
                self.in_flight = self.in_flight.saturating_sub(count);
                self.reported += count;
                if u32::from(report.ee_code) & SO_EE_CODE_ZEROCOPY_COPIED != 0 {
                    self.copied += count;
                }
            }
        }
    }

    /// Returns the bytes copied after all, by the fraction of the reports that say so. Without reports, all of them.
    fn copied_bytes(&self) -> u64 {
        match self.reported {
            0 => self.bytes,
            reported => (u128::from(self.bytes) * u128::from(self.copied) / u128::from(reported)) as u64,
        }
    }
}

/// Origin of zerocopy reports (linux/errqueue.h).
const SO_EE_ORIGIN_ZEROCOPY: u8 = 5;
/// Flag of reports on sends that were copied (linux/errqueue.h).
const SO_EE_CODE_ZEROCOPY_COPIED: u32 = 1;

fn wait_for_report(socket: &TcpStream) -> Result<(), Errno> {
    use rustix::event::{PollFd, PollFlags, poll};
    // Errors are always polled for.
    let timeout = rustix::time::Timespec { tv_sec: 10, tv_nsec: 0 };
    match poll(&mut [PollFd::new(socket, PollFlags::empty())], Some(&timeout)) {
        Ok(0) => Err(Errno::AGAIN),
        Ok(_) | Err(Errno::INTR) => Ok(()),
        Err(error) => Err(error),
    }
}
