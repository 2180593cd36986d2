//! Other flows through the first receiver's port: plain TCP connections that always have more to send.

use super::watch::Watched;
use crate::LabError;
use crate::network::Network;
use crate::report;
use crate::scenario::Scenario;
use std::io::{self, ErrorKind, Read, Write};
use std::net::{Ipv4Addr, Shutdown, TcpListener, TcpStream};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Instant;

/// Port of the receiver's host that they connect to.
const CROSS_TRAFFIC_PORT: u16 = 7300;

/// Flows that are running.
pub(super) struct Cross {
    streams: Vec<TcpStream>,
    threads: Vec<JoinHandle<()>>,
    received: Arc<Mutex<Vec<(Instant, u64)>>>,
}

/// Starts the flows.
pub(super) fn start_flows(scenario: &Scenario, network: &Network) -> Result<Cross, LabError> {
    let mut cross = Cross { streams: Vec::new(), threads: Vec::new(), received: Arc::default() };
    let (Some(from), Some(to)) = (&network.cross, network.receivers.first()) else { return Ok(cross) };
    let doing = "beginning the other flows";
    let listener = to
        .space
        .run_inside(|| TcpListener::bind((to.address, CROSS_TRAFFIC_PORT)))?
        .map_err(LabError::system_error(doing))?;
    for _ in 0..scenario.traffic.cross {
        let stream = from.space.run_inside(|| connect_flow(to.address))?.map_err(LabError::system_error(doing))?;
        let (accepted, _) = listener.accept().map_err(LabError::system_error(doing))?;
        let copy = stream.try_clone().map_err(LabError::system_error(doing))?;
        let received = cross.received.clone();
        cross.streams.push(stream);
        cross.threads.push(thread::spawn(move || send_until_closed(copy)));
        cross.threads.push(thread::spawn(move || receive_until_closed(accepted, &received)));
    }
    Ok(cross)
}

impl Cross {
    /// Stops the flows and returns their results; `None` if there were none.
    pub(super) fn finish_flows(mut self, watched: &Watched) -> Option<report::Cross> {
        self.stop_flows();
        let counted = watched.cross?;
        let (from, to) = watched.measured;
        let received = self.received.lock().unwrap_or_else(PoisonError::into_inner);
        let bytes: u64 = received.iter().filter(|(at, _)| (from..to).contains(at)).map(|(_, bytes)| bytes).sum();
        let seconds = to.duration_since(from).as_secs_f64();
        Some(report::Cross {
            flows: u32::try_from(self.streams.len()).unwrap_or(u32::MAX),
            goodput_bits_per_second: if seconds > 0.0 { bytes as f64 * 8.0 / seconds } else { 0.0 },
            retransmissions: counted.measured.retransmissions,
        })
    }
}

impl Cross {
    fn stop_flows(&mut self) {
        for stream in &self.streams {
            // A stream that is closed already needs no shutdown.
            let _ = stream.shutdown(Shutdown::Both);
        }
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

impl Drop for Cross {
    fn drop(&mut self) {
        self.stop_flows();
    }
}

const BUFFER_BYTES: usize = 64 << 10;

fn connect_flow(receiver: Ipv4Addr) -> io::Result<TcpStream> {
    let stream = TcpStream::connect((receiver, CROSS_TRAFFIC_PORT))?;
    rustix::net::sockopt::set_tcp_congestion(&stream, "cubic")?;
    Ok(stream)
}

fn send_until_closed(mut stream: TcpStream) {
    // The loop ends when the stream is shut down.
    while stream.write_all(&[0; BUFFER_BYTES]).is_ok() {}
}

fn receive_until_closed(mut stream: TcpStream, received: &Mutex<Vec<(Instant, u64)>>) {
    let mut piece = vec![0; BUFFER_BYTES];
    loop {
        match stream.read(&mut piece) {
            Ok(0) => return,
            Ok(bytes) => {
                received.lock().unwrap_or_else(PoisonError::into_inner).push((Instant::now(), bytes as u64));
            }
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(_) => return,
        }
    }
}
