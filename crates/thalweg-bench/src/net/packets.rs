//! Packets: datagrams in frames of a given length, one way, as fast as a port takes them or at a given rate, and the
//! part that arrives.

use super::bandwidth::interface_line_rate;
use super::control::Work;
use super::latency::{Net, combine_counters};
use super::{Ends, Exchange, Link, Method, Path, Phase, Wait};
use crate::drive::{Instrument, Stop};
use crate::options::Timing;
use crate::plan::InstrumentOptions;
use crate::point::{Figures, Key, Loss};
use crate::{BenchError, Clock, Host, Sizes, Usage};
use std::time::Duration;

/// Bytes of a frame before the datagram's payload: Ethernet (14), IPv4 (20), UDP (8). Its checksum (4) does not count.
const FRAME_HEADER_BYTES: u64 = 14 + 20 + 8;

/// Options of `thalweg bench packets`.
#[derive(Debug, Clone, clap::Args)]
pub struct Options {
    /// Links that send and receive the frames
    #[arg(long, value_delimiter = ',', default_value = "udp")]
    pub(crate) link: Vec<Link>,
    /// Bytes in a frame, its checksum aside: 64, 64,1500, 64..8192:x2
    #[arg(short = 'l', long, visible_alias = "size", value_name = "BYTES", default_value = "64,128,256,512,1024,1500")]
    pub(crate) sizes: Sizes,
    /// Frames a second that are offered; without it, as many as the port takes
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) rate: Option<u64>,
    /// Method by which each end waits; without it, by the link
    #[arg(long)]
    pub(crate) wait: Option<Wait>,
    /// Check every byte that arrives, which costs time
    #[arg(long)]
    pub(crate) check_data: bool,
    #[command(flatten)]
    pub(crate) timing: Timing,
    #[command(flatten)]
    pub(crate) ends: Ends,
}

impl InstrumentOptions for Options {
    fn timing(&self) -> Timing {
        self.timing
    }

    fn create_instrument(&self) -> Result<Box<dyn Instrument>, BenchError> {
        if let Some(size) = self.sizes.0.iter().find(|size| !(FRAME_HEADER_BYTES + 1..=65_535).contains(*size)) {
            return Err(BenchError::Usage(format!(
                "a frame of {size} bytes: it has {FRAME_HEADER_BYTES} of headers, and 65535 at most"
            )));
        }
        if let Some(link) = self.link.iter().find(|link| !link.supported_methods().contains(&Method::Frames)) {
            return Err(BenchError::Usage(format!(
                "--link {} has no packets of ours: use udp, af-xdp or dpdk",
                link.display_name()
            )));
        }
        let path = Path {
            link: self.link.clone(),
            method: vec![Method::Frames],
            wait: self.wait,
            socket_buffer: Vec::new(),
            congestion: None,
            check_data: self.check_data,
        };
        let net = Net::new(&path, &self.ends, &self.sizes)?.with_frame_headers(FRAME_HEADER_BYTES);
        Ok(Box::new(Packets { net, rate: self.rate, line_rate: interface_line_rate(&self.ends) }))
    }

    fn peer_host(&self) -> Option<&str> {
        self.ends.peer.as_deref()
    }
}

struct Packets {
    net: Net,
    rate: Option<u64>,
    line_rate: Option<f64>,
}

impl Instrument for Packets {
    fn point_keys(&self) -> Vec<Key> {
        let keys = self.net.point_keys().into_iter();
        match self.rate {
            Some(rate) => keys.map(|key| key.with_setting("rate", rate)).collect(),
            None => keys.collect(),
        }
    }

    fn measure_point(&mut self, key: &Key, timing: &Timing, stop: &Stop) -> Result<Figures, BenchError> {
        let (rate, line_rate) = (self.rate, self.line_rate);
        self.net.measure_exchange(key, Work::Receive, |other, exchange, job, clock| {
            send_frames_for(exchange, clock, timing.warmup, rate, stop)?;
            other.request_mark(exchange, job)?;
            let before = (Usage::read_counters(), exchange.counters());
            send_frames_for(exchange, clock, timing.min_time, rate, stop)?;
            let ours = (exchange.counters() - before.1, before.0.used_since());
            let sent = ours.0.sent;
            let done = other.end_stream(exchange, job)?;
            if sent == 0 || done.seconds <= 0.0 {
                return Err(BenchError::Stopped);
            }
            // Marks do not count as packets.
            let received = done.tally.received.min(sent);
            let bytes = received * job.size as u64;
            let goodput = bytes as f64 * 8.0 / ours.1.wall;
            let mut figures = combine_counters(job, ours, done, other.is_same_host(), bytes);
            figures.goodput_bits_per_second = Some(goodput);
            figures.offered_per_second = Some(rate.map_or(sent as f64 / ours.1.wall, |rate| rate as f64));
            figures.messages_per_second = Some(received as f64 / ours.1.wall);
            figures.percent_of_line_rate = line_rate.map(|rate| 100.0 * goodput / rate);
            figures.seconds = ours.1.wall;
            figures.loss = Some(Loss { sent, received });
            Ok(figures)
        })
    }

    fn point_notes(&self, _key: &Key) -> Vec<String> {
        self.net.point_notes()
    }

    fn outside_processes(&self) -> Vec<u32> {
        self.net.outside_processes()
    }

    fn peer_host(&self) -> Option<Host> {
        self.net.host.clone()
    }
}

/// Sends for the time `duration`, evenly if there is a rate: a late frame does not delay those after it.
fn send_frames_for(
    exchange: &mut dyn Exchange,
    clock: &Clock,
    duration: Duration,
    rate: Option<u64>,
    stop: &Stop,
) -> Result<(), BenchError> {
    let duration = u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX);
    let (begun, mut sent) = (clock.read_counter(), 0u64);
    loop {
        let passed = clock.elapsed_nanos(begun, clock.read_counter());
        if passed >= duration || stop.is_requested() {
            return exchange.flush_pending();
        }
        let due = rate.map_or(sent + 64, |rate| (u128::from(rate) * u128::from(passed) / 1_000_000_000) as u64);
        let burst = due.saturating_sub(sent);
        for _ in 0..burst {
            exchange.send_message(Phase::Ordinary)?;
        }
        sent += burst;
        if rate.is_some() {
            exchange.flush_pending()?;
        }
    }
}
