//! A connection's bytes, in the clear or through TLS.

use crate::client::Client;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustls::{ServerConfig, ServerConnection, StreamOwned};
use std::io::{self, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::time::Instant;

/// A connection.
#[derive(Debug)]
pub(crate) enum Wire {
    Plain(Socket),
    Tls(Box<StreamOwned<ServerConnection, Socket>>),
}

/// A socket that is waited for until a moment, if there is one: however many reads it takes.
#[derive(Debug)]
pub(crate) struct Socket {
    client: Arc<Client>,
    until: Option<Instant>,
}

impl Wire {
    pub(crate) fn plain(client: Arc<Client>) -> Self {
        Self::Plain(Socket { client, until: None })
    }

    /// With TLS. The handshake has to be done at a certain moment.
    pub(crate) fn tls(client: Arc<Client>, config: &Arc<ServerConfig>, until: Instant) -> io::Result<Self> {
        let mut tls = ServerConnection::new(Arc::clone(config)).map_err(io::Error::other)?;
        let mut socket = Socket { client, until: Some(until) };
        tls.complete_io(&mut socket)?;
        Ok(Self::Tls(Box::new(StreamOwned::new(tls, socket))))
    }

    fn socket(&self) -> &Socket {
        match self {
            Self::Plain(socket) => socket,
            Self::Tls(stream) => &stream.sock,
        }
    }

    /// From now on, reading ends at this moment with `TimedOut`; without one, when nothing came for as long as the socket's own time
    /// says (`SO_RCVTIMEO`).
    pub(crate) fn read_until(&mut self, until: Option<Instant>) {
        match self {
            Self::Plain(socket) => socket.until = until,
            Self::Tls(stream) => stream.sock.until = until,
        }
    }

    /// The socket, where what goes into it is what the client gets.
    pub(crate) fn clear(&self) -> Option<BorrowedFd<'_>> {
        match self {
            Self::Plain(socket) => Some(socket.stream().as_fd()),
            Self::Tls(_) => None,
        }
    }

    /// Sends all of it; with `more`, something follows at once.
    pub(crate) fn send(&mut self, bytes: &[u8], more: bool) -> io::Result<()> {
        match self {
            Self::Plain(socket) if more => {
                let mut rest = bytes;
                while !rest.is_empty() {
                    let flags = rustix::net::SendFlags::NOSIGNAL | rustix::net::SendFlags::MORE;
                    match rustix::net::send(socket.stream(), rest, flags) {
                        Ok(sent) => rest = &rest[sent..],
                        Err(rustix::io::Errno::INTR) => {}
                        Err(error) => return Err(error.into()),
                    }
                }
                Ok(())
            }
            Self::Plain(socket) => socket.write_all(bytes),
            Self::Tls(stream) => stream.write_all(bytes),
        }
    }

    /// Says that nothing more will be sent, and takes in what the client still sends until it closes too, or the moment comes: who
    /// closes on bytes that were not read takes back what was just answered (RFC 9112, section 9.6).
    pub(crate) fn close(&mut self, until: Instant) {
        if let Self::Tls(stream) = self {
            // RFC 9112, section 9.8. A client that does not take it is gone.
            stream.conn.send_close_notify();
            while stream.conn.wants_write() && stream.conn.write_tls(&mut stream.sock).is_ok() {}
        }
        self.read_until(Some(until));
        let mut socket = self.socket();
        let _ = socket.stream().shutdown(Shutdown::Write);
        while matches!(socket.read(&mut [0; 4096]), Ok(1..)) {}
    }
}

impl Read for Wire {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        match self {
            Self::Plain(socket) => socket.read(into),
            Self::Tls(stream) => match stream.read(into) {
                // A client that closes the connection without saying goodbye has said all it wanted.
                Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Ok(0),
                result => result,
            },
        }
    }
}

impl Socket {
    pub(crate) fn stream(&self) -> &TcpStream {
        &self.client.socket
    }

    fn wait(&self, until: Instant) -> io::Result<()> {
        loop {
            let left = until.saturating_duration_since(Instant::now());
            let left = Timespec::try_from(left).map_err(|_| io::ErrorKind::InvalidInput)?;
            match poll(&mut [PollFd::new(self.stream(), PollFlags::IN)], Some(&left)) {
                Ok(0) => return Err(io::ErrorKind::TimedOut.into()),
                Ok(_) => return Ok(()),
                Err(rustix::io::Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }
}

impl Read for &Socket {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        if let Some(until) = self.until {
            self.wait(until)?;
        }
        self.stream().read(into)
    }
}

impl Read for Socket {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        (&*self).read(into)
    }
}

impl Write for Socket {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.stream().write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
