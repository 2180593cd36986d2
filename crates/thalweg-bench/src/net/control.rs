//! Control connection: the jobs of the asking end, and the counters of the serving end.
//!
//! JSON lines, in lock-step. The serving end sends a greeting; then for each job:
//!
//! ```text
//!  asking                                     serving
//!    ├── job ──────────────────────────────────▶ │  opens a port (or takes over shared memory)
//!    │ ◀──────────────────────── ready, or failed┤
//!    ├══ messages, a mark ══════════════════════▶│  reads its counters
//!    │ ◀───────────────────────────────── marked ┤  (streams only: a conversation answers the mark itself)
//!    ├══ messages, an end ══════════════════════▶│  reads its counters
//!    │ ◀───────────────────────── done, or failed┤
//! ```

use super::{Link, Method, PEER_TIMEOUT, Tally, Wait};
use crate::cpu::Used;
use crate::{BenchError, Host};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use std::io::{self, Read, Write};
use std::net::{IpAddr, TcpStream};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

/// Version of this protocol.
pub(super) const BENCH_PROTOCOL_VERSION: u32 = 1;

/// Longest line, in bytes: a greeting describes a host.
const MAX_LINE_BYTES: usize = 64 << 10;

/// One measurement.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Job {
    pub(super) link: Link,
    pub(super) method: Method,
    pub(super) work: Work,
    /// Number of bytes in a message.
    pub(super) size: usize,
    pub(super) wait: Wait,
    pub(super) socket_buffer: Option<u32>,
    pub(super) congestion: Option<String>,
    /// Processor that the serving end is bound to.
    pub(super) cpu: Option<u32>,
    pub(super) check_data: bool,
    /// Address at which the asking end listens, for Thalweg's own links: the source of a message opens the connection.
    pub(super) listens: Option<String>,
    /// Addresses of the asking and the serving end, on a cable of their own.
    pub(super) between: Option<[IpAddr; 2]>,
}

/// Task of the serving end.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Work {
    /// Sends back a message of the same length for each message.
    Answer,
    /// Receives messages only.
    Receive,
}

/// Counters of the serving end between mark and end.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub(crate) struct Done {
    pub(super) tally: Tally,
    /// Time between mark and end, in seconds.
    pub(super) seconds: f64,
    pub(super) used: Used,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Answer {
    Greeting(Box<Greeting>),
    Ready {
        port: u16,
        #[serde(skip_serializing_if = "Option::is_none")]
        listens: Option<String>,
    },
    Marked,
    Done(Done),
    Failed {
        why: String,
    },
}

#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Greeting {
    pub(super) thalweg_bench: u32,
    /// Boot id of the kernel: equal at both ends if they run on one kernel.
    pub(super) boot: String,
    /// Number of the serving process; 0 if it is unknown.
    #[serde(default)]
    pub(super) process: u32,
    pub(super) host: Host,
}

/// Control connection to the other end.
#[derive(Debug)]
pub(super) struct Control {
    pub(super) stream: ControlStream,
    pub(super) peer: String,
    /// Addresses of this end and of the other one, on a cable of their own.
    pub(super) between: Option<[IpAddr; 2]>,
}

#[derive(Debug)]
pub(super) enum ControlStream {
    Tcp(TcpStream),
    Unix(UnixStream),
}

impl Control {
    pub(super) fn new(stream: ControlStream, peer: String, timeout: Option<Duration>) -> Result<Self, BenchError> {
        match &stream {
            ControlStream::Tcp(tcp) => tcp.set_nodelay(true).and_then(|()| tcp.set_read_timeout(timeout)),
            ControlStream::Unix(unix) => unix.set_read_timeout(timeout),
        }
        .map_err(BenchError::os_error("setting up the control connection"))?;
        Ok(Self { stream, peer, between: None })
    }

    pub(super) fn set_read_timeout(&self, timeout: Option<Duration>) {
        let _ = match &self.stream {
            ControlStream::Tcp(tcp) => tcp.set_read_timeout(timeout),
            ControlStream::Unix(unix) => unix.set_read_timeout(timeout),
        };
    }

    /// Makes the error for a violation of the protocol by the other end.
    pub(super) fn peer_error(&self, why: impl ToString) -> BenchError {
        BenchError::Peer { peer: self.peer.clone(), why: why.to_string() }
    }

    pub(super) fn send_line(&mut self, line: &impl Serialize) -> Result<(), BenchError> {
        let mut text = serde_json::to_vec(line).map_err(|error| self.peer_error(error))?;
        text.push(b'\n');
        let written = match &mut self.stream {
            ControlStream::Tcp(tcp) => tcp.write_all(&text),
            ControlStream::Unix(unix) => unix.write_all(&text),
        };
        written.map_err(|error| self.peer_error(error))
    }

    /// Receives the next line; `None` if the connection has ended between lines. The ends send in turn, so there is no
    /// data after it.
    pub(super) fn receive_line<T: DeserializeOwned>(&mut self) -> Result<Option<T>, BenchError> {
        let mut line = Vec::new();
        let mut some = [0; 4096];
        while line.last() != Some(&b'\n') {
            let read = match &mut self.stream {
                ControlStream::Tcp(tcp) => tcp.read(&mut some),
                ControlStream::Unix(unix) => unix.read(&mut some),
            };
            match read {
                Ok(0) if line.is_empty() => return Ok(None),
                Ok(0) => return Err(self.peer_error("it is gone, in the middle of a word")),
                Ok(count) => line.extend_from_slice(&some[..count]),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    return Err(self.peer_error("it sends nothing"));
                }
                Err(error) => return Err(self.peer_error(error)),
            }
            if line.len() > MAX_LINE_BYTES {
                return Err(self.peer_error("it says more than is to be said; is this a Thalweg bench?"));
            }
        }
        serde_json::from_slice(&line).map(Some).map_err(|error| {
            self.peer_error(format_args!(
                "it does not speak as a Thalweg bench of version {BENCH_PROTOCOL_VERSION} does ({error})"
            ))
        })
    }

    pub(super) fn receive_answer(&mut self) -> Result<Answer, BenchError> {
        match self.receive_line()? {
            Some(Answer::Failed { why }) => Err(self.peer_error(why)),
            Some(answer) => Ok(answer),
            None => Err(self.peer_error("it is gone")),
        }
    }

    /// Returns the Unix socket, for passing memory.
    pub(super) fn unix_stream(&self) -> Result<&UnixStream, BenchError> {
        match &self.stream {
            ControlStream::Unix(unix) => Ok(unix),
            ControlStream::Tcp(_) => {
                Err(BenchError::Usage("--link shm is for two processes of one host: leave out --peer".to_owned()))
            }
        }
    }

    /// Returns the address of the data connection, at this end or at the other.
    pub(super) fn data_address(&self, local: bool) -> Result<IpAddr, BenchError> {
        match &self.stream {
            ControlStream::Unix(_) => {
                let [here, there] = self.between.unwrap_or([IpAddr::from([127, 0, 0, 1]); 2]);
                Ok(if local { here } else { there })
            }
            ControlStream::Tcp(tcp) => {
                let address = if local { tcp.local_addr() } else { tcp.peer_addr() };
                address.map(|address| address.ip()).map_err(|error| self.peer_error(error))
            }
        }
    }
}

impl Control {
    pub(super) fn wait_until_readable(&self, timeout: Duration) -> Result<bool, BenchError> {
        use rustix::event::{PollFd, PollFlags, poll};
        let fd = match &self.stream {
            ControlStream::Tcp(tcp) => PollFd::new(tcp, PollFlags::IN),
            ControlStream::Unix(unix) => PollFd::new(unix, PollFlags::IN),
        };
        let timeout = rustix::time::Timespec { tv_sec: 0, tv_nsec: i64::from(timeout.subsec_nanos()) };
        match poll(&mut [fd], Some(&timeout)) {
            Ok(count) => Ok(count > 0),
            Err(rustix::io::Errno::INTR) => Ok(false),
            Err(error) => Err(self.peer_error(io::Error::from(error))),
        }
    }
}

/// Returns whether a receive would not block. A socket at its end, or in error, counts as readable.
pub(super) fn has_pending_data(socket: impl std::os::fd::AsFd) -> Result<bool, BenchError> {
    use rustix::net::RecvFlags;
    match rustix::net::recv(socket, &mut [0][..], RecvFlags::PEEK | RecvFlags::DONTWAIT) {
        Err(rustix::io::Errno::AGAIN | rustix::io::Errno::INTR) => Ok(false),
        _ => Ok(true),
    }
}

/// Makes the error for a measured connection that ended too early.
pub(super) fn connection_error(why: &str) -> BenchError {
    BenchError::Peer { peer: "on the measured connection".to_owned(), why: why.to_owned() }
}

/// Timeout for a busy-polling loop.
#[derive(Debug, Default)]
pub(super) struct Watchdog {
    polls: u32,
    since: Option<Instant>,
}

impl Watchdog {
    /// Counts a poll without a result. After the first 10 µs or so, this processor is yielded: the other end may be
    /// waiting for it.
    #[inline]
    pub(super) fn count_empty_poll(&mut self, doing: &str) -> Result<(), BenchError> {
        std::hint::spin_loop();
        self.polls = self.polls.wrapping_add(1);
        if self.polls.is_multiple_of(1 << 10) {
            std::thread::yield_now();
            if self.since.get_or_insert_with(Instant::now).elapsed() > PEER_TIMEOUT {
                return Err(BenchError::Silent { doing: doing.to_owned(), timeout: PEER_TIMEOUT });
            }
        }
        Ok(())
    }
}

pub(super) fn read_boot_id() -> String {
    let id = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    id.trim().to_owned()
}
