//! Verbs of the RNIC in software (`thalweg-rdma`): the time from posting a request to its completion, and the rate and
//! goodput of several outstanding ones, by operation and size.
//!
//! The two queue pairs are of one RNIC, which copies from memory to memory (*local*), or of two, over TCP or EFE, on this
//! host. The RNIC is *embedded* in the calls of the thread that posts, or runs in a *thread* of its own.
//!
//! A write and a send complete when the RNIC needs their memory no more: on the way to another RNIC that may be before
//! they have arrived. The answer to a last read is waited for, so goodput counts what has arrived. *Ping-pong* is a write
//! there and a write back, each end watching its memory; the time is half of both, as `ib_write_lat` shows it.

mod ends;

use crate::drive::{Instrument, Stop};
use crate::network::Network;
use crate::options::{NetworkPath, Timing};
use crate::peers::first_two_processors;
use crate::plan::InstrumentOptions;
use crate::point::{Figures, Key, Latency};
use crate::{BenchError, Clock, Sizes};
use ends::Exchanged;

/// Options of `thalweg bench verbs`.
#[derive(Debug, Clone, clap::Args)]
pub struct Options {
    #[command(flatten)]
    pub(crate) timing: Timing,
    /// Way between the two queue pairs
    #[arg(long, value_enum, value_delimiter = ',', default_values_t = Path::ALL)]
    path: Vec<Path>,
    /// Place where the RNIC runs
    #[arg(long, value_enum, value_delimiter = ',', default_values_t = [Engine::Embedded])]
    rnic: Vec<Engine>,
    /// Operations to measure (default: all)
    #[arg(long, value_enum, value_delimiter = ',', default_values_t = Operation::ALL)]
    operation: Vec<Operation>,
    /// Bytes of a message; atomics have 8
    #[arg(long, value_name = "SIZES", default_value = "1,4KiB,128KiB")]
    sizes: Sizes,
    /// Requests that are posted before the first of them completes; several, to compare
    #[arg(long, value_name = "NUMBER", value_delimiter = ',', default_values_t = [1, 32], value_parser = clap::value_parser!(u32).range(1..=i64::from(MAX_OUTSTANDING)))]
    outstanding: Vec<u32>,
    /// Network between two RNICs. Veth needs root
    #[arg(long, value_enum, default_value = "loopback")]
    on: NetworkPath,
}

/// Requests that may be outstanding.
const MAX_OUTSTANDING: u32 = 1024;

/// Longest message, in bytes: each end keeps two.
const MAX_MESSAGE_BYTES: u64 = 256 << 20;

/// Length of an atomic operand in bytes.
const ATOMIC_BYTES: u64 = 8;

/// Way between the two queue pairs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Path {
    /// Both are of one RNIC
    Local,
    /// Two RNICs that speak iWARP (MPA) over TCP
    Tcp,
    /// Two RNICs that speak EFE in UDP datagrams
    Efe,
}

/// Place where the RNIC runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Engine {
    /// In the calls of the thread that posts
    Embedded,
    /// In a thread of its own
    Thread,
}

/// Measured operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Operation {
    /// RDMA write
    Write,
    /// RDMA read
    Read,
    /// Send to a posted receive
    Send,
    /// Atomic addition to 8 bytes
    FetchAdd,
    /// Atomic comparison and exchange of 8 bytes
    CompareSwap,
    /// A write there and a write back, halved
    PingPong,
}

impl Path {
    const ALL: [Self; 3] = [Self::Local, Self::Tcp, Self::Efe];

    fn display_name(self) -> &'static str {
        match self {
            Self::Local => "local",
            Self::Tcp => "mpa/tcp",
            Self::Efe => "efe/udp",
        }
    }
}

impl Engine {
    fn display_name(self) -> &'static str {
        match self {
            Self::Embedded => "embedded",
            Self::Thread => "thread",
        }
    }
}

impl Operation {
    const ALL: [Self; 6] = [Self::Write, Self::Read, Self::Send, Self::FetchAdd, Self::CompareSwap, Self::PingPong];

    fn display_name(self) -> &'static str {
        match self {
            Self::Write => "write",
            Self::Read => "read",
            Self::Send => "send",
            Self::FetchAdd => "fetch-add",
            Self::CompareSwap => "compare-swap",
            Self::PingPong => "ping-pong",
        }
    }

    fn is_atomic(self) -> bool {
        matches!(self, Self::FetchAdd | Self::CompareSwap)
    }
}

/// A point, as identified by its key.
#[derive(Debug, Clone, Copy)]
struct Case {
    path: Path,
    engine: Engine,
    operation: Operation,
    outstanding: u32,
    size: u64,
}

impl Case {
    fn point_key(self) -> Key {
        Key::new(self.path.display_name(), self.operation.display_name(), self.size)
            .with_setting("rnic", self.engine.display_name())
            .with_setting("outstanding", self.outstanding)
    }

    /// Returns whether the far end needs a thread: to drive its RNIC, to post receives, or to write back.
    fn has_far_thread(self) -> bool {
        match self.operation {
            Operation::PingPong | Operation::Send => true,
            _ => self.path != Path::Local && self.engine == Engine::Embedded,
        }
    }

    /// Returns the number of threads that poll.
    fn polling_threads(self) -> usize {
        let rnics = match (self.engine, self.path) {
            (Engine::Embedded, _) => 0,
            (Engine::Thread, Path::Local) => 1,
            (Engine::Thread, Path::Tcp | Path::Efe) => 2,
        };
        1 + usize::from(self.has_far_thread()) + rnics
    }
}

impl InstrumentOptions for Options {
    fn timing(&self) -> Timing {
        self.timing
    }

    fn create_instrument(&self) -> Result<Box<dyn Instrument>, BenchError> {
        let largest = self.sizes.largest_size();
        if self.sizes.0.contains(&0) || largest > MAX_MESSAGE_BYTES {
            return Err(BenchError::Usage("--sizes: a message has 1 byte to 256 MiB here".to_owned()));
        }
        if self.requested_cases().is_empty() {
            return Err(BenchError::Usage("nothing is left to measure: ping-pong wants --outstanding 1".to_owned()));
        }
        let network = Network::new(self.on)?;
        Ok(Box::new(Verbs { options: self.clone(), network, clock: Clock::new() }))
    }
}

impl Options {
    fn requested_cases(&self) -> Vec<Case> {
        let mut cases = Vec::new();
        for &path in &self.path {
            for &engine in &self.rnic {
                for &operation in &self.operation {
                    let sizes = if operation.is_atomic() { vec![ATOMIC_BYTES] } else { self.sizes.0.clone() };
                    for size in sizes {
                        let numbers = self.outstanding.iter().copied();
                        let numbers = numbers.filter(|number| operation != Operation::PingPong || *number == 1);
                        cases.extend(numbers.map(|outstanding| Case { path, engine, operation, outstanding, size }));
                    }
                }
            }
        }
        cases
    }
}

struct Verbs {
    options: Options,
    network: Network,
    clock: Clock,
}

impl Instrument for Verbs {
    fn point_keys(&self) -> Vec<Key> {
        self.options.requested_cases().into_iter().map(Case::point_key).collect()
    }

    fn takes_turns_with(&self, one: &Key, next: &Key) -> bool {
        one.method == next.method && one.size == next.size && one.link == next.link
    }

    fn measure_point(&mut self, key: &Key, timing: &Timing, stop: &Stop) -> Result<Figures, BenchError> {
        let case = self.find_case(key);
        let processors = first_two_processors();
        if case.has_far_thread() && processors.is_none() {
            return Err(BenchError::Unavailable {
                what: "a processor for each of two ends that poll".to_owned(),
                why: "this process may use one processor only".to_owned(),
            });
        }
        let exchanged = ends::exchange_messages(case, &self.network, &self.clock, timing, stop)?;
        let Exchanged { operations, times, used } = exchanged;
        let per_second = operations as f64 / used.wall;
        let (bytes, ping_pong) = (operations * case.size, case.operation == Operation::PingPong);
        Ok(Figures {
            latency_us: (case.outstanding == 1)
                .then(|| Latency::from_histogram(&times, if ping_pong { 2.0 } else { 1.0 })),
            goodput_bits_per_second: (!ping_pong).then_some(per_second * case.size as f64 * 8.0),
            messages_per_second: Some(per_second),
            cpu: Some(used.processor_figures(bytes)),
            seconds: used.wall,
            steal_percent: used.steal_percent(),
            // The near end polls.
            starved_percent: Some(used.percent_of_wall(used.waited)),
            ..Figures::default()
        })
    }

    fn point_notes(&self, key: &Key) -> Vec<String> {
        let case = self.find_case(key);
        let mut notes = Vec::new();
        let (threads, processors) =
            (case.polling_threads(), std::thread::available_parallelism().map_or(1, usize::from));
        if threads > processors {
            notes.push(format!("{threads} threads poll on {processors} processors: they wait for each other's turns"));
        }
        if case.path != Path::Local
            && matches!(case.operation, Operation::Write | Operation::Send)
            && case.outstanding == 1
        {
            notes.push(
                "completes when the RNIC needs the message's memory no more, before or after it has arrived".to_owned(),
            );
        }
        notes
    }
}

impl Verbs {
    fn find_case(&self, key: &Key) -> Case {
        self.options.requested_cases().into_iter().find(|case| case.point_key() == *key).expect("a key of ours")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::options::parsed;

    #[test]
    fn every_operation_completes_over_every_path() {
        let options: Options = parsed("--sizes 1,70000 --rnic embedded,thread --outstanding 1,8 -t 1ms -O 1ms");
        let mut instrument = options.create_instrument().unwrap();
        let keys = instrument.point_keys();
        // Three operations of two sizes and two atomics, each with 1 and 8 outstanding; ping-pong of two sizes with 1.
        assert_eq!(keys.len(), 3 * 2 * ((3 * 2 + 2) * 2 + 2));
        for key in keys {
            let figures = instrument.measure_point(&key, &options.timing, &Stop::default()).unwrap();
            assert!(figures.messages_per_second > Some(0.0), "{key:?}");
            assert_eq!(figures.latency_us.is_some(), key.settings["outstanding"] == "1", "{key:?}");
        }
    }

    #[test]
    fn what_cannot_be_measured_is_refused() {
        for words in ["--sizes 0", "--sizes 2GiB", "--operation ping-pong --outstanding 8"] {
            assert!(parsed::<Options>(words).create_instrument().err().unwrap().is_usage_error(), "{words}");
        }
    }
}
