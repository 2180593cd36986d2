//! A connection's bytes, through the socket alone or through TLS in this program.

use crate::client::Client;
use crate::kernel_tls::KernelTls;
use crate::limits::LINGER_TIME;
use crate::socket::Socket;
use crate::tls::Tls;
use parking_lot::Mutex;
use rustix::io::Errno;
use rustix::net::{RecvFlags, recv};
use rustls::{ServerConnection, StreamOwned};
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::time::Instant;

/// A connection to a client.
#[derive(Debug)]
pub(crate) enum Wire {
    /// Bytes written to the socket are those that the client gets; the kernel may encrypt them on the way.
    Socket(Socket),
    Rustls(Box<StreamOwned<ServerConnection, Socket>>),
}

impl Wire {
    pub(crate) fn new_plain(client: Arc<Client>) -> Self {
        Self::Socket(Socket { client, until: None })
    }

    /// Performs a TLS handshake, which has to finish before `until`.
    pub(crate) fn with_tls(client: Arc<Client>, tls: &Tls, until: Instant) -> io::Result<Self> {
        let mut socket = Socket { client, until: Some(until) };
        if tls.is_kernel_tls_available().is_ok() && KernelTls::prepare_socket(&socket) {
            let accepted = KernelTls::accept_handshake(&tls.config, &mut socket);
            let kernel = accepted.inspect_err(|_| socket.close_until(Instant::now() + LINGER_TIME))?;
            let _ = socket.client.tls.set(Mutex::new(kernel));
            return Ok(Self::Socket(socket));
        }
        let mut connection = ServerConnection::new(Arc::clone(&tls.config)).map_err(io::Error::other)?;
        connection.complete_io(&mut socket)?;
        Ok(Self::Rustls(Box::new(StreamOwned::new(connection, socket))))
    }

    /// Returns whether the socket encrypts.
    pub(crate) fn is_kernel_encrypted(&self) -> bool {
        self.client_socket().client.tls.get().is_some()
    }

    /// Reads from a socket that encrypts, without waiting: data, and the records between that carry no data. Returns
    /// whether the client may send more.
    pub(crate) fn read_available(&mut self, bytes: &mut Vec<u8>) -> io::Result<bool> {
        let client = &self.client_socket().client;
        let mut buffer = [0; 4096];
        for _ in 0..MAX_EMPTY_RECORDS {
            match (recv(&client.socket, &mut buffer, RecvFlags::DONTWAIT), client.lock_tls()) {
                (Ok((0, _)), _) => return Ok(false),
                (Ok((read, _)), _) => {
                    bytes.extend_from_slice(&buffer[..read]);
                    break;
                }
                (Err(Errno::AGAIN), _) => break,
                (Err(Errno::INTR), _) => {}
                (Err(Errno::IO), Some(mut tls)) => {
                    if !tls.handle_control_record(&client.socket)? {
                        return Ok(false);
                    }
                }
                (Err(error), _) => return Err(error.into()),
            }
        }
        Ok(true)
    }

    fn client_socket(&self) -> &Socket {
        match self {
            Self::Socket(socket) => socket,
            Self::Rustls(stream) => &stream.sock,
        }
    }

    /// Sets a deadline at which reads fail with `TimedOut`. Without one, a read fails when no bytes arrived for the
    /// socket's own timeout (`SO_RCVTIMEO`).
    pub(crate) fn set_read_deadline(&mut self, until: Option<Instant>) {
        match self {
            Self::Socket(socket) => socket.until = until,
            Self::Rustls(stream) => stream.sock.until = until,
        }
    }

    /// Returns the socket if bytes written to it are those that the client gets. The caller reports bytes written to it
    /// with [`count_sent_bytes`](Self::count_sent_bytes).
    pub(crate) fn plain_descriptor(&self) -> Option<BorrowedFd<'_>> {
        match self {
            Self::Socket(socket) => Some(socket.tcp_stream().as_fd()),
            Self::Rustls(_) => None,
        }
    }

    /// Counts bytes that were sent, and agrees on new keys when the old ones have encrypted enough.
    pub(crate) fn count_sent_bytes(&mut self, bytes: u64) -> io::Result<()> {
        let Some(mut tls) = self.client_socket().client.lock_tls() else { return Ok(()) };
        tls.count_sent_bytes(bytes);
        if tls.needs_new_keys() { tls.renew_keys(self.client_socket().tcp_stream()) } else { Ok(()) }
    }

    /// Sends all bytes; `more` announces that further bytes follow at once.
    pub(crate) fn send_all_bytes(&mut self, bytes: &[u8], more: bool) -> io::Result<()> {
        match self {
            Self::Socket(socket) => {
                thalweg_transfer::send_all(socket.tcp_stream().as_fd(), bytes, more)?;
                self.count_sent_bytes(bytes.len() as u64)
            }
            Self::Rustls(stream) => stream.write_all(bytes),
        }
    }

    /// Announces that nothing more will be sent, and discards what the client still sends until it closes, too, or the
    /// deadline passes: closing with unread bytes would destroy the answer that was just sent (RFC 9112, section 9.6).
    pub(crate) fn close_until(&mut self, until: Instant) {
        if let Self::Rustls(stream) = self {
            // RFC 9112, section 9.8. A client that does not read it is gone.
            stream.conn.send_close_notify();
            while stream.conn.wants_write() && stream.conn.write_tls(&mut stream.sock).is_ok() {}
        }
        match self {
            Self::Socket(socket) => socket.close_until(until),
            Self::Rustls(stream) => stream.sock.close_until(until),
        }
    }
}

impl Read for Wire {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        match self {
            Self::Socket(socket) => socket.read(into),
            Self::Rustls(stream) => match stream.read(into) {
                // A client that closes the connection without `close_notify` has sent all it wanted.
                Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Ok(0),
                result => result,
            },
        }
    }
}

/// Number of consecutive records without data that are read before other clients get their turn.
const MAX_EMPTY_RECORDS: u32 = 32;
