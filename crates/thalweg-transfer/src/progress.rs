//! Sending to who takes long.

use std::io;
use std::os::fd::BorrowedFd;
use thalweg_tcp::progress;

/// Sends again when the socket's `SO_SNDTIMEO` is over, as long as the other end has taken something meanwhile. The
/// kernel lets who waits go on when a third of the send buffer is free (`sk_stream_write_space`), and that may be
/// megabytes.
///
/// # Errors
/// As `send`; `WouldBlock` where a time-out passed in which the other end took nothing, or the socket is not TCP.
pub fn while_it_moves<T>(to: BorrowedFd<'_>, mut send: impl FnMut() -> io::Result<T>) -> io::Result<T> {
    let mut moved = 0;
    loop {
        match send() {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                match progress(to).filter(|progress| progress.moved > moved) {
                    Some(progress) => moved = progress.moved,
                    None => return Err(error),
                }
            }
            sent => return sent,
        }
    }
}
