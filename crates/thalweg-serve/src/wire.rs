//! A connection's bytes, through the socket alone or through TLS in this program.

use crate::client::Client;
use crate::kernel_tls::KernelTls;
use crate::limits::LINGER;
use crate::socket::Socket;
use crate::tls::Tls;
use rustix::io::Errno;
use rustix::net::{RecvFlags, recv};
use rustls::{ServerConnection, StreamOwned};
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::{Arc, Mutex};
use std::time::Instant;

/// A connection.
#[derive(Debug)]
pub(crate) enum Wire {
    /// What goes into the socket is what the client gets; it may be encrypted on the way.
    Socket(Socket),
    Rustls(Box<StreamOwned<ServerConnection, Socket>>),
}

impl Wire {
    pub(crate) fn new(client: Arc<Client>) -> Self {
        Self::Socket(Socket { client, until: None })
    }

    /// With TLS. The handshake has to be done at a certain moment.
    pub(crate) fn with_tls(client: Arc<Client>, tls: &Tls, until: Instant) -> io::Result<Self> {
        let mut socket = Socket { client, until: Some(until) };
        if tls.by_kernel().is_ok() && KernelTls::prepare(&socket) {
            let accepted = KernelTls::accept(&tls.config, &mut socket);
            let kernel = accepted.inspect_err(|_| socket.close(Instant::now() + LINGER))?;
            let _ = socket.client.tls.set(Mutex::new(kernel));
            return Ok(Self::Socket(socket));
        }
        let mut connection = ServerConnection::new(Arc::clone(&tls.config)).map_err(io::Error::other)?;
        connection.complete_io(&mut socket)?;
        Ok(Self::Rustls(Box::new(StreamOwned::new(connection, socket))))
    }

    /// Whether the socket encrypts.
    pub(crate) fn by_kernel(&self) -> bool {
        self.socket().client.tls.get().is_some()
    }

    /// Takes what is here of a socket that encrypts, without waiting for more: bytes, and whatever else comes between
    /// them. Says whether the client may send more.
    pub(crate) fn take_in(&mut self, bytes: &mut Vec<u8>) -> io::Result<bool> {
        let client = &self.socket().client;
        let mut buffer = [0; 4096];
        for _ in 0..MESSAGES {
            match (recv(&client.socket, &mut buffer, RecvFlags::DONTWAIT), client.tls()) {
                (Ok((0, _)), _) => return Ok(false),
                (Ok((read, _)), _) => {
                    bytes.extend_from_slice(&buffer[..read]);
                    break;
                }
                (Err(Errno::AGAIN), _) => break,
                (Err(Errno::INTR), _) => {}
                (Err(Errno::IO), Some(mut tls)) => {
                    if !tls.hear(&client.socket)? {
                        return Ok(false);
                    }
                }
                (Err(error), _) => return Err(error.into()),
            }
        }
        Ok(true)
    }

    fn socket(&self) -> &Socket {
        match self {
            Self::Socket(socket) => socket,
            Self::Rustls(stream) => &stream.sock,
        }
    }

    /// From now on, reading ends at this moment with `TimedOut`; without one, when nothing came for as long as the
    /// socket's own time says (`SO_RCVTIMEO`).
    pub(crate) fn read_until(&mut self, until: Option<Instant>) {
        match self {
            Self::Socket(socket) => socket.until = until,
            Self::Rustls(stream) => stream.sock.until = until,
        }
    }

    /// The socket, where what goes into it is what the client gets. What was sent into it is to be told to
    /// [`has_sent`](Self::has_sent).
    pub(crate) fn clear(&self) -> Option<BorrowedFd<'_>> {
        match self {
            Self::Socket(socket) => Some(socket.stream().as_fd()),
            Self::Rustls(_) => None,
        }
    }

    /// Notes that bytes were sent, and agrees on new keys where the old ones have seen enough of them.
    pub(crate) fn has_sent(&mut self, bytes: u64) -> io::Result<()> {
        let Some(mut tls) = self.socket().client.tls() else { return Ok(()) };
        tls.has_sent(bytes);
        if tls.is_worn() { tls.renew(self.socket().stream()) } else { Ok(()) }
    }

    /// Sends all of it; with `more`, something follows at once.
    pub(crate) fn send(&mut self, bytes: &[u8], more: bool) -> io::Result<()> {
        match self {
            Self::Socket(socket) => {
                thalweg_transfer::send_all(socket.stream().as_fd(), bytes, more)?;
                self.has_sent(bytes.len() as u64)
            }
            Self::Rustls(stream) => stream.write_all(bytes),
        }
    }

    /// Says that nothing more will be sent, and takes in what the client still sends until it closes too, or the moment
    /// comes: who closes on bytes that were not read takes back what was just answered (RFC 9112, section 9.6).
    pub(crate) fn close(&mut self, until: Instant) {
        if let Self::Rustls(stream) = self {
            // RFC 9112, section 9.8. A client that does not take it is gone.
            stream.conn.send_close_notify();
            while stream.conn.wants_write() && stream.conn.write_tls(&mut stream.sock).is_ok() {}
        }
        match self {
            Self::Socket(socket) => socket.close(until),
            Self::Rustls(stream) => stream.sock.close(until),
        }
    }
}

impl Read for Wire {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        match self {
            Self::Socket(socket) => socket.read(into),
            Self::Rustls(stream) => match stream.read(into) {
                // A client that closes the connection without saying goodbye has said all it wanted.
                Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Ok(0),
                result => result,
            },
        }
    }
}

/// Messages that are no data, one behind the other, before others have their turn.
const MESSAGES: u32 = 32;
