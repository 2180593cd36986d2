//! One-way stream of messages, as fast as the link takes them.

use super::control::Work;
use super::latency::{Net, figures};
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

    fn instrument(&self) -> Result<Box<dyn Instrument>, BenchError> {
        Ok(Box::new(Stream { net: Net::new(&self.path, &self.ends, &self.sizes)?, line_rate: line_rate(&self.ends) }))
    }

    fn peer(&self) -> Option<&str> {
        self.ends.peer.as_deref()
    }
}

/// Returns the line rate of the interface towards the other end, in bit/s.
pub(super) fn line_rate(ends: &Ends) -> Option<f64> {
    Host::probe(ends.peer.as_deref()).interface.and_then(|interface| interface.bits_per_second)
}

/// Sends messages for the time `duration`.
fn stream(exchange: &mut dyn Exchange, clock: &Clock, duration: Duration, stop: &Stop) -> Result<(), BenchError> {
    let duration = u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX);
    let begun = clock.raw();
    while clock.nanos(begun, clock.raw()) < duration && !stop.pressed() {
        exchange.send(Phase::Ordinary)?;
    }
    exchange.flush()
}

pub(super) struct Stream {
    pub(super) net: Net,
    pub(super) line_rate: Option<f64>,
}

impl Instrument for Stream {
    fn keys(&self) -> Vec<Key> {
        self.net.keys()
    }

    /// Returns whether the points differ in the processor that receives packets: those are measured to be compared.
    fn in_turns(&self, one: &Key, next: &Key) -> bool {
        [one, next].iter().all(|key| key.settings.contains_key("interrupts"))
            && (&one.link, &one.method) == (&next.link, &next.method)
    }

    fn measure(&mut self, key: &Key, timing: &Timing, stop: &Stop) -> Result<Figures, BenchError> {
        let line_rate = self.line_rate;
        self.net.measure(key, Work::Receive, |other, exchange, job, clock| {
            stream(exchange, clock, timing.warmup, stop)?;
            other.mark(exchange, job)?;
            let before = (Usage::now(), exchange.tally());
            stream(exchange, clock, timing.min_time, stop)?;
            let sent = exchange.tally().sent - before.1.sent;
            let done = other.end(exchange, job)?;
            let ours = (exchange.tally() - before.1, before.0.used());
            if sent == 0 || done.seconds <= 0.0 {
                return Err(BenchError::Stopped);
            }
            let bytes = done.tally.received_bytes;
            let mut figures = figures(job, ours, done, other.same_host(), bytes);
            let goodput = bytes as f64 * 8.0 / done.seconds;
            figures.goodput_bits_per_second = Some(goodput);
            figures.messages_per_second = Some(bytes as f64 / key.size as f64 / done.seconds);
            figures.percent_of_line_rate =
                line_rate.filter(|_| !job.link.is_shared()).map(|rate| 100.0 * goodput / rate);
            figures.seconds = done.seconds;
            figures.loss = job.link.loses().then_some(Loss { sent, received: done.tally.received.min(sent) });
            Ok(figures)
        })
    }

    fn peer(&self) -> Option<Host> {
        self.net.host.clone()
    }
}
