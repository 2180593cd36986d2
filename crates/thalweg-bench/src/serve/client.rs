//! Client of the data server, the same for every server: whole files one after the other, ranges requested over many
//! connections at once, uploads.
//!
//! Received data is counted and discarded in the kernel (`MSG_TRUNC`, tcp(7)), so that the server is measured and not
//! the client's memory; the first bytes of each response are checked.

use crate::drive::Stop;
use crate::file::target::fill_with_pattern;
use crate::net::set_congestion_control;
use crate::point::Latency;
use crate::{BenchError, Clock};
use hdrhistogram::Histogram;
use rustix::event::{Timespec, epoll};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, recv, send};
use socket2::SockRef;
use std::fs::File;
use std::io;
use std::net::{SocketAddr, TcpStream};
use std::ops::Range;
use std::os::fd::AsFd;
use std::time::Duration;
use thalweg_wire::mix_bits;

/// Connection that is kept from request to request.
#[derive(Debug)]
pub(super) struct Connection {
    socket: TcpStream,
    server: SocketAddr,
    /// Buffer for responses: only heads are written to it.
    room: Box<[u8]>,
    /// Head of the response in progress.
    head: Vec<u8>,
    /// Bytes of the response that are still to come, once its head has been read.
    left: Option<u64>,
}

/// Progress of a response.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Progress {
    /// Complete response.
    Whole,
    /// Incomplete response, with no more data available now.
    Later,
}

impl Connection {
    pub(super) fn connect_to_server(server: SocketAddr) -> Result<Self, BenchError> {
        let socket =
            TcpStream::connect_timeout(&server, STALL_TIMEOUT).map_err(|error| connection_failure(server, error))?;
        let set = socket.set_nodelay(true).and_then(|()| socket.set_read_timeout(Some(STALL_TIMEOUT)));
        set.and_then(|()| socket.set_write_timeout(Some(STALL_TIMEOUT)))
            .map_err(|error| connection_failure(server, error))?;
        Ok(Self { socket, server, room: vec![0; MAX_RECEIVE_BYTES].into(), head: Vec::new(), left: None })
    }

    /// Sets the TCP congestion control of the connection; `system` keeps the system's.
    pub(super) fn set_congestion_control(&self, congestion: &str) -> Result<(), BenchError> {
        if congestion == "system" { Ok(()) } else { set_congestion_control(&SockRef::from(&self.socket), congestion) }
    }

    /// Requests a file, or a range of it, whose bytes are those of [`fill_with_pattern`].
    fn send_get_request(&mut self, range: Option<&Range<u64>>) -> Result<(), BenchError> {
        let range = range.map(|range| format!("Range: bytes={}-{}\r\n", range.start, range.end - 1));
        let text = format!("GET /{DATA} HTTP/1.1\r\nHost: bench\r\n{}\r\n", range.unwrap_or_default());
        self.send_all(text.as_bytes())
    }

    fn send_all(&mut self, mut text: &[u8]) -> Result<(), BenchError> {
        while !text.is_empty() {
            match send(&self.socket, text, SendFlags::NOSIGNAL) {
                Ok(sent) => text = &text[sent..],
                Err(Errno::INTR) => {}
                Err(error) => return Err(connection_failure(self.server, error.into())),
            }
        }
        Ok(())
    }

    /// Receives the next part of a response, as much as one system call returns. `expected` is the expected status and,
    /// if there is content, its range in the pattern.
    fn receive_part(&mut self, expected: &Expected) -> Result<Progress, BenchError> {
        let server = self.server;
        let (room, flags) = match self.left {
            None => (MAX_RESPONSE_HEAD_BYTES, RecvFlags::empty()),
            Some(left) => (usize::try_from(left).unwrap_or(MAX_RECEIVE_BYTES).min(MAX_RECEIVE_BYTES), RecvFlags::TRUNC),
        };
        let got = match recv(&self.socket, &mut self.room[..room], flags) {
            Ok((_, 0)) => return Err(connection_failure(server, io::ErrorKind::UnexpectedEof.into())),
            Ok((_, got)) => got,
            Err(Errno::INTR) => return Ok(Progress::Later),
            Err(error) => return Err(connection_failure(server, error.into())),
        };
        let Some(left) = self.left else {
            self.head.extend_from_slice(&self.room[..got.min(MAX_RESPONSE_HEAD_BYTES)]);
            return self.check_response_head(expected);
        };
        let left = left.saturating_sub(got as u64);
        self.left = (left > 0).then_some(left);
        Ok(if left > 0 { Progress::Later } else { Progress::Whole })
    }

    fn check_response_head(&mut self, expected: &Expected) -> Result<Progress, BenchError> {
        let mut fields = [httparse::EMPTY_HEADER; 32];
        let mut reply = httparse::Response::new(&mut fields);
        let parsed = reply.parse(&self.head);
        let length = match parsed.map_err(|error| self.response_error(format!("this is not HTTP: {error}")))? {
            httparse::Status::Complete(length) => length,
            httparse::Status::Partial if self.head.len() >= MAX_RESPONSE_HEAD_BYTES => {
                return Err(self.response_error("its head has no end".to_owned()));
            }
            httparse::Status::Partial => return Ok(Progress::Later),
        };
        let status = reply.code.unwrap_or_default();
        if status != expected.status {
            return Err(self.response_error(format!("it answered {status} instead of {}", expected.status)));
        }
        let named = reply.headers.iter().find(|field| field.name.eq_ignore_ascii_case("content-length"));
        let content = named.and_then(|field| std::str::from_utf8(field.value).ok()?.trim().parse::<u64>().ok());
        let content = content.unwrap_or(0);
        let here = &self.head[length..];
        if let Some(range) = &expected.content {
            if content != range.end - range.start {
                return Err(self.response_error(format!("it sends {content} bytes, not {}", range.end - range.start)));
            }
            let checked = &here[..here.len().min(CHECKED_BYTES)];
            let mut should = [0; CHECKED_BYTES];
            fill_with_pattern(&mut should, range.start);
            if let Some(at) = checked.iter().zip(&should).position(|(is, should)| is != should) {
                return Err(BenchError::Corrupt { message: range.start, at });
            }
        }
        let Some(left) = content.checked_sub(here.len() as u64) else {
            return Err(self.response_error("it sends more than it says".to_owned()));
        };
        self.head.clear();
        self.left = (left > 0).then_some(left);
        Ok(if left > 0 { Progress::Later } else { Progress::Whole })
    }

    /// Makes the error for a response that violates the protocol, or is not the expected one.
    fn response_error(&self, why: String) -> BenchError {
        BenchError::Peer { peer: self.server.to_string(), why }
    }

    /// Fetches a file of `bytes` bytes. `on_progress` is called about every [`PROGRESS_INTERVAL_BYTES`] bytes.
    pub(super) fn fetch_file(
        &mut self,
        bytes: u64,
        stop: &Stop,
        mut on_progress: impl FnMut(),
    ) -> Result<(), BenchError> {
        self.send_get_request(None)?;
        let expected = Expected { status: 200, content: Some(0..bytes) };
        let mut last_interval = u64::MAX;
        while self.receive_part(&expected)? == Progress::Later {
            if let Some(left) = self.left.filter(|left| left / PROGRESS_INTERVAL_BYTES < last_interval) {
                last_interval = left / PROGRESS_INTERVAL_BYTES;
                on_progress();
                if stop.is_requested() {
                    return Err(BenchError::Stopped);
                }
            }
        }
        Ok(())
    }

    /// Uploads `bytes` bytes of a file under a name that does not exist yet.
    pub(super) fn upload_file(&mut self, name: &str, from: &File, bytes: u64) -> Result<(), BenchError> {
        self.send_all(format!("PUT /{name} HTTP/1.1\r\nHost: bench\r\nContent-Length: {bytes}\r\n\r\n").as_bytes())?;
        let mut at = 0;
        while at < bytes {
            let length = usize::try_from(bytes - at).unwrap_or(1 << 30).min(1 << 30);
            match rustix::fs::sendfile(&self.socket, from, Some(&mut at), length) {
                Ok(0) => return Err(connection_failure(self.server, io::ErrorKind::UnexpectedEof.into())),
                Ok(_) | Err(Errno::INTR) => {}
                Err(error) => return Err(connection_failure(self.server, error.into())),
            }
        }
        let expected = Expected { status: 201, content: None };
        while self.receive_part(&expected)? == Progress::Later {}
        Ok(())
    }
}

/// Expected response.
#[derive(Debug)]
struct Expected {
    status: u16,
    content: Option<Range<u64>>,
}

/// Connections that each request a range, and the next range when that has arrived.
#[derive(Debug)]
pub(super) struct RangeClients {
    poll: std::os::fd::OwnedFd,
    clients: Vec<Client>,
    bytes: u64,
    size: u64,
    requested: u64,
}

#[derive(Debug)]
struct Client {
    connection: Connection,
    expected: Expected,
    since: u64,
}

/// Ranges received, and the time it took.
#[derive(Debug)]
pub(super) struct RangeResults {
    pub(super) ranges: u64,
    /// Times from the request to the last byte, in nanoseconds.
    pub(super) times: Histogram<u64>,
    pub(super) nanos: u64,
}

impl RangeClients {
    /// Connects `clients` clients to a server of a file of `bytes` bytes, each with a first request for a range of
    /// `size`.
    pub(super) fn connect_all(
        server: SocketAddr,
        clients: u32,
        bytes: u64,
        size: u64,
        clock: &Clock,
    ) -> Result<Self, BenchError> {
        let poll = epoll::create(epoll::CreateFlags::CLOEXEC).map_err(BenchError::os_error("making an epoll"))?;
        let mut all = Self { poll, clients: Vec::new(), bytes, size, requested: 0 };
        for number in 0..clients {
            let mut connection = Connection::connect_to_server(server)?;
            connection.socket.set_nonblocking(true).map_err(|error| connection_failure(server, error))?;
            let data = epoll::EventData::new_u64(number.into());
            epoll::add(&all.poll, connection.socket.as_fd(), data, epoll::EventFlags::IN)
                .map_err(BenchError::os_error("adding to an epoll"))?;
            let expected = all.next_range();
            connection.send_get_request(expected.content.as_ref())?;
            all.clients.push(Client { connection, expected, since: clock.read_counter() });
        }
        Ok(all)
    }

    /// Returns a range somewhere in the file, at no boundary.
    fn next_range(&mut self) -> Expected {
        self.requested += 1;
        let start = mix_bits(self.requested) % (self.bytes - self.size + 1);
        Expected { status: 206, content: Some(start..start + self.size) }
    }

    /// Runs for at least `time`. Ranges requested before count if they arrive now.
    pub(super) fn fetch_ranges_for(
        &mut self,
        time: Duration,
        clock: &Clock,
        stop: &Stop,
    ) -> Result<RangeResults, BenchError> {
        let until = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        let mut results = RangeResults { ranges: 0, times: Latency::new_histogram(), nanos: 0 };
        let mut events = Vec::with_capacity(MAX_EPOLL_EVENTS);
        let timeout = Timespec { tv_sec: STALL_TIMEOUT.as_secs().cast_signed(), tv_nsec: 0 };
        let begun = clock.read_counter();
        while results.nanos < until {
            if stop.is_requested() {
                return Err(BenchError::Stopped);
            }
            events.clear();
            match epoll::wait(&self.poll, rustix::buffer::spare_capacity(&mut events), Some(&timeout)) {
                Ok(0) => {
                    return Err(BenchError::Silent { doing: "waiting for ranges".to_owned(), timeout: STALL_TIMEOUT });
                }
                Ok(_) => {}
                Err(Errno::INTR) => continue,
                Err(error) => return Err(BenchError::os_error("waiting for ranges")(error)),
            }
            for event in &events {
                let number = usize::try_from(event.data.u64()).unwrap_or(usize::MAX);
                let client = &mut self.clients[number];
                if client.connection.receive_part(&client.expected)? == Progress::Later {
                    continue;
                }
                let now = clock.read_counter();
                results.ranges += 1;
                results.times.saturating_record(clock.elapsed_nanos(client.since, now));
                let expected = self.next_range();
                let client = &mut self.clients[number];
                client.connection.send_get_request(expected.content.as_ref())?;
                (client.expected, client.since) = (expected, now);
            }
            results.nanos = clock.elapsed_nanos(begun, clock.read_counter());
        }
        Ok(results)
    }
}

/// Name of the file that is fetched.
pub(super) const DATA: &str = "data";
/// Number of bytes between two calls of `on_progress` in [`Connection::fetch_file`].
const PROGRESS_INTERVAL_BYTES: u64 = 32 << 20;
/// Longest time without data: a shared disk is slow at times.
const STALL_TIMEOUT: Duration = Duration::from_secs(60);
/// Number of bytes that one system call receives at most.
const MAX_RECEIVE_BYTES: usize = 1 << 20;
/// Longest head, with the data that may come with it, in bytes.
const MAX_RESPONSE_HEAD_BYTES: usize = 4096;
/// Number of bytes of a response that are compared with the expected ones.
const CHECKED_BYTES: usize = 256;
/// Number of events that one call of epoll returns at most.
const MAX_EPOLL_EVENTS: usize = 64;

fn connection_failure(server: SocketAddr, error: io::Error) -> BenchError {
    let why = match error.kind() {
        io::ErrorKind::WouldBlock => format!("nothing moved for {} s", STALL_TIMEOUT.as_secs()),
        io::ErrorKind::UnexpectedEof => "it closed the connection in the middle of an answer".to_owned(),
        _ => error.to_string(),
    };
    BenchError::Peer { peer: server.to_string(), why }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Write};
    use std::net::TcpListener;

    /// Answers one request with these bytes, and closes.
    fn answered(answer: Vec<u8>) -> (SocketAddr, std::thread::JoinHandle<String>) {
        let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
        let address = listener.local_addr().unwrap();
        let server = std::thread::spawn(move || {
            let (mut socket, _) = listener.accept().unwrap();
            let mut request = vec![0; 4096];
            let length = socket.read(&mut request).unwrap();
            socket.write_all(&answer).unwrap();
            String::from_utf8_lossy(&request[..length]).into_owned()
        });
        (address, server)
    }

    fn fetched(answer: Vec<u8>, bytes: u64) -> Result<(), BenchError> {
        let (address, server) = answered(answer);
        let result = Connection::connect_to_server(address).unwrap().fetch_file(bytes, &Stop::default(), || {});
        assert!(server.join().unwrap().starts_with("GET /data HTTP/1.1\r\n"));
        result
    }

    fn with_head(head: &str, bytes: usize) -> Vec<u8> {
        let mut content = vec![0; bytes];
        fill_with_pattern(&mut content, 0);
        [head.as_bytes(), &content].concat()
    }

    #[test]
    fn a_file_is_fetched_whole_or_not_at_all() {
        let ok = "HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n";
        fetched(with_head(ok, 100_000), 100_000).unwrap();
        let error = |answer, bytes| fetched(answer, bytes).unwrap_err().to_string();
        assert!(error(with_head(ok, 99_999), 100_000).contains("in the middle of an answer"));
        assert!(error(with_head(ok, 100_000), 100_001).contains("it sends 100000 bytes, not 100001"));
        let missing = "HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n";
        assert!(error(with_head(missing, 0), 1).contains("it answered 404 instead of 200"));
        assert!(error(b"SSH-2.0-x\r\n".to_vec(), 1).contains("this is not HTTP"));
        assert!(error(with_head("HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\n", 2), 1).contains("more than it says"));
    }

    #[test]
    fn bytes_of_another_file_are_found_out() {
        let mut answer = with_head("HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n", 100);
        *answer.last_mut().unwrap() ^= 1;
        // If the head arrives alone, no content is compared; here both arrive together, or the test would prove
        // nothing.
        match fetched(answer, 100) {
            Err(BenchError::Corrupt { at: 99, .. }) => {}
            other => panic!("{other:?}"),
        }
    }
}
