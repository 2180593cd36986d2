//! Measurement of the cheapest method: each is tried on a file of the directory, over loopback.

use crate::{SendMethod, Sender, Stored};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{Advice, fadvise};
use rustix::net::sockopt::set_tcp_cork;
use serde::{Deserialize, Serialize};
use std::fs::File;
use std::io;
use std::net::{TcpListener, TcpStream};
use std::ops::Range;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Cost of a method.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Cost {
    /// Rate, in bytes per second.
    pub rate: f64,
    /// CPU time of the sending thread per GiB, in seconds, in user program and kernel.
    pub cpu_per_gib: f64,
}

/// Trial of a method.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Trial {
    /// Method that was tried.
    pub method: SendMethod,
    /// Cost of the method, or the reason why it is not available here.
    pub cost: Result<Cost, String>,
}

/// Results of the measurement for a directory's file system.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Measured {
    /// Trials with a file that is in the page cache.
    pub cached: Vec<Trial>,
    /// Trials with the same file when it is not in the page cache.
    pub uncached: Vec<Trial>,
}

impl Measured {
    /// Returns the cheapest method for bytes in the page cache, of those available to an event loop
    /// ([`Sender::supports_send_some`]).
    pub fn best_cached(&self) -> Option<SendMethod> {
        cheapest_method(self.cached.iter().filter(|trial| Sender::supports_send_some(trial.method)))
    }

    /// Returns the cheapest method for bytes that are not in the page cache.
    pub fn best_uncached(&self) -> Option<SendMethod> {
        cheapest_method(self.uncached.iter())
    }
}

/// Returns the method with the least CPU time of those that are nearly as fast as the fastest: a network is rarely
/// faster than any of them, and the builder on the same host needs the CPU.
fn cheapest_method<'a>(trials: impl Iterator<Item = &'a Trial>) -> Option<SendMethod> {
    let costs: Vec<(SendMethod, Cost)> =
        trials.filter_map(|trial| Some((trial.method, *trial.cost.as_ref().ok()?))).collect();
    let fastest = costs.iter().map(|(_, cost)| cost.rate).fold(0.0, f64::max);
    let fast_enough = costs.iter().filter(|(_, cost)| cost.rate >= 0.8 * fastest);
    fast_enough.min_by(|(_, a), (_, b)| a.cpu_per_gib.total_cmp(&b.cpu_per_gib)).map(|(method, _)| *method)
}

/// Sends up to `bytes` of a file with each method: from the disk with those that bypass the page cache, from the page
/// cache with the others. Takes no longer than about `timeout` for each transfer.
///
/// # Errors
/// The loopback is not available, or the file cannot be read at all.
pub fn measure_methods(file: File, bytes: u64, timeout: Duration) -> io::Result<Measured> {
    let bytes = bytes.min(file.metadata()?.len());
    let stored = Arc::new(Stored::new(file));
    let mut measured = Measured { cached: Vec::new(), uncached: Vec::new() };
    for method in SendMethod::ALL {
        if method.is_uncached() {
            drop_cached_pages(&stored, bytes);
            measured
                .uncached
                .push(Trial { method, cost: measure_cost(method, &stored, bytes, timeout).map_err(|e| e.to_string()) });
        } else {
            fadvise(stored.buffered_file(), 0, None, Advice::Normal)?;
            let warm = measure_cost(method, &stored, bytes, timeout);
            let again = warm.and_then(|_| measure_cost(method, &stored, bytes, timeout));
            measured.cached.push(Trial { method, cost: again.map_err(|error| error.to_string()) });
        }
    }
    drop_cached_pages(&stored, bytes);
    Ok(measured)
}

fn drop_cached_pages(stored: &Stored, bytes: u64) {
    let _ = fadvise(stored.buffered_file(), 0, std::num::NonZeroU64::new(bytes), Advice::DontNeed);
}

fn measure_cost(method: SendMethod, stored: &Arc<Stored>, bytes: u64, timeout: Duration) -> io::Result<Cost> {
    let listener = TcpListener::bind(("127.0.0.1", 0))?;
    let sending = TcpStream::connect(listener.local_addr()?)?;
    let (mut receiving, _) = listener.accept()?;
    if Sender::supports_send_some(method) {
        sending.set_nonblocking(true)?;
        set_tcp_cork(&sending, true)?;
    }
    sending.set_write_timeout(Some(Duration::from_secs(5)))?;
    std::thread::scope(|scope| {
        let sink = scope.spawn(move || {
            let mut buffer = vec![0; 256 << 10];
            while io::Read::read(&mut receiving, &mut buffer).is_ok_and(|read| read > 0) {}
        });
        let mut sender = Sender::new();
        let (began, cpu) = (Instant::now(), thread_cpu_time());
        let mut at = 0;
        let mut result = Ok(());
        while at < bytes && began.elapsed() < timeout {
            let piece = at..bytes.min(at + PIECE_BYTES);
            at = piece.end;
            result = if Sender::supports_send_some(method) {
                send_as_event_loop(&mut sender, method, stored, piece, &sending)
            } else {
                sender.send_range(method, stored, piece, sending.as_fd(), at < bytes)
            };
            if result.is_err() {
                break;
            }
        }
        let (took, cpu) = (began.elapsed(), thread_cpu_time().saturating_sub(cpu));
        drop(sending);
        let _ = sink.join();
        result?;
        let gib = at as f64 / f64::from(1 << 30);
        Ok(Cost { rate: at as f64 / took.as_secs_f64(), cpu_per_gib: cpu.as_secs_f64() / gib })
    })
}

/// Sends like an event loop: as much as the socket takes, then waits for it.
fn send_as_event_loop(
    sender: &mut Sender,
    method: SendMethod,
    stored: &Stored,
    mut range: Range<u64>,
    to: &TcpStream,
) -> io::Result<()> {
    while !range.is_empty() {
        match sender.send_some(method, stored, &mut range, TURN_BYTES, to.as_fd()) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                let timeout = Timespec { tv_sec: 5, tv_nsec: 0 };
                if poll(&mut [PollFd::new(to, PollFlags::OUT)], Some(&timeout))? == 0 {
                    return Err(io::ErrorKind::TimedOut.into());
                }
            }
            sent => sent?,
        }
    }
    Ok(())
}

fn thread_cpu_time() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    Duration::new(u64::try_from(time.tv_sec).unwrap_or(0), u32::try_from(time.tv_nsec).unwrap_or(0))
}

/// Bytes that one client gets in a turn.
const TURN_BYTES: u64 = 1 << 20;
/// Bytes sent between two checks of the time.
const PIECE_BYTES: u64 = 16 << 20;
