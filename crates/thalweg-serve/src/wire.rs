//! A connection's bytes, in the clear or through TLS.

use rustls::{ServerConnection, StreamOwned};
use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::os::fd::{AsFd, BorrowedFd};

/// A connection.
#[derive(Debug)]
pub(crate) enum Wire {
    Plain(TcpStream),
    Tls(Box<StreamOwned<ServerConnection, TcpStream>>),
}

impl Wire {
    pub(crate) fn socket(&self) -> &TcpStream {
        match self {
            Self::Plain(socket) => socket,
            Self::Tls(stream) => &stream.sock,
        }
    }

    /// The socket, where what goes into it is what the client gets.
    pub(crate) fn plain(&self) -> Option<BorrowedFd<'_>> {
        match self {
            Self::Plain(socket) => Some(socket.as_fd()),
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
                    match rustix::net::send(&*socket, rest, flags) {
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
