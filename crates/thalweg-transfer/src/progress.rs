//! Sending to a slow peer.

use std::io;
use std::os::fd::BorrowedFd;
use thalweg_sys::tcp::connection_progress;

/// Repeats a send after the socket's `SO_SNDTIMEO`, as long as the peer has acknowledged something meanwhile. The
/// kernel wakes a waiting sender only when a third of the send buffer is free (`sk_stream_write_space`), and that may
/// be megabytes.
///
/// # Errors
/// Errors of `send`; `WouldBlock` if a time-out passed in which the peer took nothing, or the socket is not TCP.
pub fn retry_while_moving<T>(to: BorrowedFd<'_>, mut send: impl FnMut() -> io::Result<T>) -> io::Result<T> {
    let mut moved = 0;
    loop {
        match send() {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                match connection_progress(to).filter(|progress| progress.moved > moved) {
                    Some(progress) => moved = progress.moved,
                    None => return Err(error),
                }
            }
            sent => return sent,
        }
    }
}
