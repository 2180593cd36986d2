//! A client's socket, with a deadline for reads.

use crate::client::Client;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{RecvFlags, recv};
use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::time::Instant;

/// A socket whose reads share one deadline, if it is set, no matter how many they are.
#[derive(Debug)]
pub(crate) struct Socket {
    pub(crate) client: Arc<Client>,
    pub(crate) until: Option<Instant>,
}

impl Socket {
    pub(crate) fn tcp_stream(&self) -> &TcpStream {
        &self.client.socket
    }

    /// Returns the socket if it carries only data, with no TLS records between.
    pub(crate) fn plain_descriptor(&self) -> Option<BorrowedFd<'_>> {
        self.client.tls.get().is_none().then(|| self.tcp_stream().as_fd())
    }

    pub(crate) fn close_until(&mut self, until: Instant) {
        self.client.announce_end();
        self.until = Some(until);
        if self.client.tls.get().is_some() {
            // An incomplete TLS record cannot be read, and some kernels wake up for it all the same: only the end of
            // the stream is waited for.
            self.discard_received();
            let _ = self.wait_for_events(PollFlags::RDHUP, until);
            self.discard_received();
        } else {
            while matches!(self.read(&mut [0; 4096]), Ok(1..)) {}
        }
    }

    /// Discards the bytes that are here, up to as many as a client may send in a moment.
    fn discard_received(&self) {
        let mut buffer = [0; 4096];
        for _ in 0..MAX_DISCARDED_BYTES / buffer.len() {
            if !matches!(recv(self.tcp_stream(), &mut buffer, RecvFlags::DONTWAIT), Ok((1.., _))) {
                break;
            }
        }
    }

    fn wait_readable(&self, until: Instant) -> io::Result<()> {
        self.wait_for_events(PollFlags::IN, until)
    }

    fn wait_for_events(&self, what: PollFlags, until: Instant) -> io::Result<()> {
        loop {
            let left = until.saturating_duration_since(Instant::now());
            // Checked each time: a client that never stops sending reaches its deadline, too.
            if left.is_zero() {
                return Err(io::ErrorKind::TimedOut.into());
            }
            let left = Timespec::try_from(left).map_err(|_| io::ErrorKind::InvalidInput)?;
            match poll(&mut [PollFd::new(self.tcp_stream(), what)], Some(&left)) {
                Ok(0) => return Err(io::ErrorKind::TimedOut.into()),
                Ok(_) => return Ok(()),
                Err(Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }
}

impl Read for &Socket {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        if let Some(until) = self.until {
            self.wait_readable(until)?;
        }
        loop {
            match (self.tcp_stream().read(into), self.client.lock_tls()) {
                (Err(error), Some(mut tls)) if Errno::from_io_error(&error) == Some(Errno::IO) => {
                    if !tls.handle_control_record(self.tcp_stream())? {
                        return Ok(0);
                    }
                }
                (read, _) => return read,
            }
        }
    }
}

impl Read for Socket {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        (&*self).read(into)
    }
}

impl Write for Socket {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        thalweg_transfer::retry_while_moving(self.tcp_stream().as_fd(), || self.tcp_stream().write(bytes))
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Maximum number of bytes discarded at once from a client that got its last answer.
const MAX_DISCARDED_BYTES: usize = 4 << 20;
