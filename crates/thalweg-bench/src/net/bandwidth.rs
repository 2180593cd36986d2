//! One-way stream of messages, as fast as the link takes them.

use super::control::Work;
use super::latency::{Net, combine_counters};
use super::{Ends, Exchange, Path, Phase};
use crate::drive::{Instrument, Stop};
use crate::options::Timing;
use crate::plan::InstrumentOptions;
use crate::point::{Figures, Key, Loss};
use crate::{BenchError, Clock, Host, Sizes, Usage};
use std::time::Duration;

/// Options of `thalweg bench bandwidth`.
#[derive(Debug, Clone, clap::Args)]
pub struct Options {
    #[command(flatten)]
    pub(crate) path: Path,
    /// Bytes in a message: 1, 64KiB, 1,1KiB, 1..128KiB:x2, 1KiB..8KiB:+1KiB
    #[arg(
        short = 'l',
        long,
        visible_alias = "size",
        value_name = "BYTES",
        default_value = "1,64,1KiB,8KiB,64KiB,128KiB,1MiB"
    )]
    pub(crate) sizes: Sizes,
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
        Ok(Box::new(Stream {
            net: Net::new(&self.path, &self.ends, &self.sizes)?,
            line_rate: interface_line_rate(&self.ends),
        }))
    }

    fn peer_host(&self) -> Option<&str> {
        self.ends.peer.as_deref()
    }
}

/// Returns the line rate of the interface towards the other end, in bit/s.
pub(super) fn interface_line_rate(ends: &Ends) -> Option<f64> {
    Host::probe_this_machine(ends.peer.as_deref()).interface.and_then(|interface| interface.bits_per_second)
}

/// Sends messages for the time `duration`, one at least.
fn send_messages_for(
    exchange: &mut dyn Exchange,
    clock: &Clock,
    duration: Duration,
    stop: &Stop,
) -> Result<(), BenchError> {
    let duration = u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX);
    let begun = clock.read_counter();
    while !stop.is_requested() {
        exchange.send_message(Phase::Ordinary)?;
        if clock.elapsed_nanos(begun, clock.read_counter()) >= duration {
            break;
        }
    }
    exchange.flush_pending()
}

pub(super) struct Stream {
    pub(super) net: Net,
    pub(super) line_rate: Option<f64>,
}

impl Instrument for Stream {
    fn point_keys(&self) -> Vec<Key> {
        self.net.point_keys()
    }

    /// Returns whether the points differ in the processor that receives packets: those are measured to be compared.
    fn takes_turns_with(&self, one: &Key, next: &Key) -> bool {
        [one, next].iter().all(|key| key.settings.contains_key("interrupts"))
            && (&one.link, &one.method) == (&next.link, &next.method)
    }

    fn measure_point(&mut self, key: &Key, timing: &Timing, stop: &Stop) -> Result<Figures, BenchError> {
        let line_rate = self.line_rate;
        self.net.measure_exchange(key, Work::Receive, |other, exchange, job, clock| {
            send_messages_for(exchange, clock, timing.warmup, stop)?;
            other.request_mark(exchange, job)?;
            let before = (Usage::read_counters(), exchange.counters());
            send_messages_for(exchange, clock, timing.min_time, stop)?;
            let sent = exchange.counters().sent - before.1.sent;
            let done = other.end_stream(exchange, job)?;
            let ours = (exchange.counters() - before.1, before.0.used_since());
            if sent == 0 || done.seconds <= 0.0 {
                return Err(BenchError::Stopped);
            }
            let bytes = done.tally.received_bytes;
            let mut figures = combine_counters(job, ours, done, other.is_same_host(), bytes);
            let goodput = bytes as f64 * 8.0 / done.seconds;
            figures.goodput_bits_per_second = Some(goodput);
            figures.messages_per_second = Some(bytes as f64 / key.size as f64 / done.seconds);
            figures.percent_of_line_rate =
                line_rate.filter(|_| !job.link.is_shared_memory()).map(|rate| 100.0 * goodput / rate);
            figures.seconds = done.seconds;
            figures.loss =
                job.link.may_lose_messages().then_some(Loss { sent, received: done.tally.received.min(sent) });
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
