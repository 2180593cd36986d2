//! From a file to a socket in pieces of one size, by each available method (`thalweg-transfer`), with each end's cost.
//!
//! Two threads of this process share a TCP connection over loopback: one sends pieces, one after the other; the other
//! receives them and discards them in the kernel (`MSG_TRUNC`, tcp(7)). Each has a processor of its own if there are
//! two.
//!
//! Files are *warm*, in the page cache, or *cold*: dropped from it before every pass over the file, outside the
//! measured time. Methods that leave the page cache as it was are measured cold.

use crate::drive::{Instrument, Stop};
use crate::file::target::{Target, describe_mount};
use crate::memory::ensure_memory_available;
use crate::net::bind_to_processor;
use crate::options::{Cpus, Timing};
use crate::peers::first_two_processors;
use crate::plan::InstrumentOptions;
use crate::point::{Figures, Key};
use crate::{BenchError, Clock, Cpu, Sizes, Usage};
use rustix::net::{RecvFlags, recv};
use rustix::time::{ClockId, clock_gettime};
use std::io;
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::os::fd::AsFd;
use std::path::PathBuf;
use std::sync::Arc;
use std::thread;
use std::time::Duration;
use thalweg_text::ByteSize;
use thalweg_transfer::{SendMethod, Sender, Stored};

/// Options of `thalweg bench transfer`.
#[derive(Debug, Clone, clap::Args)]
pub struct Options {
    #[command(flatten)]
    pub(crate) timing: Timing,
    /// Directory on the disk, for a temporary file
    #[arg(long, value_name = "DIR", default_value = ".")]
    path: PathBuf,
    /// Bytes in that file
    #[arg(long, value_name = "SIZE", default_value = "1GiB")]
    file_size: ByteSize,
    /// Bytes that are sent at a time
    #[arg(long, value_name = "SIZES", default_value = "4KiB,64KiB,1MiB")]
    sizes: Sizes,
    /// Methods of sending: read, sendfile, splice, ahead, direct, dontcache, uring
    #[arg(long, value_delimiter = ',', default_values_t = SendMethod::ALL)]
    method: Vec<SendMethod>,
    /// Whether the file is in the page cache
    #[arg(long, value_enum, value_delimiter = ',', default_values_t = [Cache::Warm, Cache::Cold])]
    cache: Vec<Cache>,
    /// Processors of sender and receiver, or none; without it, the first two there are
    #[arg(short = 'A', long, value_name = "N/M")]
    cpu: Option<Cpus>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Cache {
    Cold,
    Warm,
}

/// A point, as identified by its key.
#[derive(Debug, Clone, Copy)]
struct Case {
    method: SendMethod,
    cache: Cache,
    size: u64,
}

impl Case {
    fn point_key(self) -> Key {
        let cache = if self.cache == Cache::Warm { "warm" } else { "cold" };
        Key::new("tcp", self.method.method_name(), self.size).with_setting("cache", cache)
    }
}

impl InstrumentOptions for Options {
    fn timing(&self) -> Timing {
        self.timing
    }

    fn create_instrument(&self) -> Result<Box<dyn Instrument>, BenchError> {
        if self.sizes.0.contains(&0) || self.sizes.largest_size() > self.file_size.0 {
            return Err(BenchError::Usage(format!(
                "--sizes: a piece has at least 1 byte, and no more than the file ({})",
                self.file_size
            )));
        }
        let target = Target::create_unnamed(&self.path, self.file_size.0)?;
        let disk = format!("{} is {}", self.path.display(), describe_mount(&self.path));
        Ok(Box::new(Transfer { options: self.clone(), target, clock: Clock::new(), disk }))
    }
}

impl Options {
    /// Returns all points; those that are compared with each other are adjacent.
    fn requested_cases(&self) -> Vec<Case> {
        let mut cases = Vec::new();
        for &cache in &self.cache {
            for &method in self.method.iter().filter(|method| cache == Cache::Cold || !method.is_uncached()) {
                cases.extend(self.sizes.0.iter().map(|&size| Case { method, cache, size }));
            }
        }
        cases
    }
}

struct Transfer {
    options: Options,
    target: Target,
    clock: Clock,
    disk: String,
}

/// Work done and time used.
#[derive(Debug, Default)]
struct Done {
    bytes: u64,
    seconds: f64,
    /// Processor time, in seconds, of everything except the receiving thread.
    sender: f64,
    receiver: f64,
    system: f64,
    steal: f64,
}

impl Instrument for Transfer {
    fn point_keys(&self) -> Vec<Key> {
        self.options.requested_cases().into_iter().map(Case::point_key).collect()
    }

    fn takes_turns_with(&self, one: &Key, next: &Key) -> bool {
        one.settings == next.settings
    }

    fn measure_point(&mut self, key: &Key, timing: &Timing, stop: &Stop) -> Result<Figures, BenchError> {
        let case =
            self.options.requested_cases().into_iter().find(|case| case.point_key() == *key).expect("a key of ours");
        self.target.ensure_written(true, stop)?;
        self.target.advise_access_pattern(false)?;
        if case.cache == Cache::Warm {
            ensure_memory_available(self.target.size_bytes())?;
            self.target.load_into_page_cache(stop)?;
        } else if case.method.is_uncached() {
            self.target.check_direct_access(4096)?;
        }
        self.transfer_for(case, timing.warmup, stop)?;
        let done = self.transfer_for(case, timing.min_time.max(Duration::from_nanos(1)), stop)?;
        if done.bytes == 0 {
            return Err(BenchError::Stopped);
        }
        let both = done.sender + done.receiver;
        let [process_percent, system_percent, sender_percent, receiver_percent, steal_percent] =
            [both, done.system, done.sender, done.receiver, done.steal].map(|seconds| 100.0 * seconds / done.seconds);
        Ok(Figures {
            goodput_bits_per_second: Some(done.bytes as f64 * 8.0 / done.seconds),
            messages_per_second: Some(done.bytes as f64 / case.size as f64 / done.seconds),
            cpu: Some(Cpu {
                process_percent,
                system_percent,
                seconds_per_gigabyte: Some(both * 1e9 / done.bytes as f64),
                sender_percent: Some(sender_percent),
                receiver_percent: Some(receiver_percent),
            }),
            seconds: done.seconds,
            steal_percent,
            ..Figures::default()
        })
    }

    fn point_notes(&self, key: &Key) -> Vec<String> {
        let cold = key.settings.get("cache").is_some_and(|cache| cache == "cold");
        if cold { vec![self.disk.clone()] } else { Vec::new() }
    }
}

impl Transfer {
    /// Makes passes over the file; the last pass is cut short when the time is over.
    fn transfer_for(&self, case: Case, time: Duration, stop: &Stop) -> Result<Done, BenchError> {
        let mut done = Done::default();
        while done.seconds < time.as_secs_f64() && !stop.is_requested() {
            if case.cache == Cache::Cold {
                self.target.drop_page_cache()?;
            }
            let left = time.as_secs_f64() - done.seconds;
            self.transfer_once(case, Duration::from_secs_f64(left), &mut done, stop)?;
        }
        Ok(done)
    }

    fn transfer_once(&self, case: Case, time: Duration, done: &mut Done, stop: &Stop) -> Result<(), BenchError> {
        let (sending, receiving) = connect_over_loopback().map_err(BenchError::os_error("connecting over loopback"))?;
        let file = self.target.file().try_clone().map_err(self.target.error_in_directory("reading a file"))?;
        let stored = Arc::new(Stored::new(file));
        let cpus = self.options.cpu.unwrap_or_else(|| match first_two_processors() {
            Some([one, other]) => Cpus { asking: u32::try_from(one).ok(), serving: u32::try_from(other).ok() },
            None => Cpus::default(),
        });
        let (before, begun) = (Usage::read_counters(), self.clock.read_counter());
        let until = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        let (sent, received) = thread::scope(|scope| {
            let receiver = scope.spawn(move || {
                bind_to_processor(cpus.serving)?;
                receive_all(&receiving)
            });
            let sender = scope.spawn(|| {
                // Closed at the end, so that the receiver reaches its end too.
                let sending = sending;
                bind_to_processor(cpus.asking)?;
                let mut sender = Sender::new();
                let mut at = 0;
                while at < self.target.size_bytes() && !stop.is_requested() {
                    let piece = at..self.target.size_bytes().min(at + case.size);
                    at = piece.end;
                    let sent = sender.send_range(case.method, &stored, piece, sending.as_fd(), false);
                    sent.map_err(self.target.error_in_directory(&format!("sending by {}", case.method)))?;
                    if self.clock.elapsed_nanos(begun, self.clock.read_counter()) >= until {
                        break;
                    }
                }
                Ok(at)
            });
            let sent = sender.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
            let received = receiver.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
            (sent, received)
        });
        let used = before.used_since();
        let (sent, (bytes, receiver)): (u64, (u64, f64)) = (sent?, received?);
        if sent != bytes {
            let why = format!("{bytes} of {sent} bytes arrived");
            return Err(BenchError::Peer { peer: "on the measured connection".to_owned(), why });
        }
        done.bytes += bytes;
        done.seconds += used.wall;
        done.sender += (used.process - receiver).max(0.0);
        done.receiver += receiver;
        done.system += used.system;
        done.steal += used.steal;
        Ok(())
    }
}

fn connect_over_loopback() -> io::Result<(TcpStream, TcpStream)> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
    let sending = TcpStream::connect(listener.local_addr()?)?;
    let (receiving, _) = listener.accept()?;
    sending.set_nodelay(true)?;
    sending.set_write_timeout(Some(STALL_TIMEOUT))?;
    receiving.set_read_timeout(Some(STALL_TIMEOUT))?;
    Ok((sending, receiving))
}

/// Receives everything; returns the number of bytes and this thread's processor seconds.
fn receive_all(socket: &TcpStream) -> Result<(u64, f64), BenchError> {
    let mut room = vec![0; 1 << 20];
    let mut bytes = 0;
    loop {
        match recv(socket, &mut room[..], RecvFlags::TRUNC) {
            Ok((_, 0)) => break,
            Ok((_, got)) => bytes += got as u64,
            Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(BenchError::os_error("receiving over TCP")(error)),
        }
    }
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Ok((bytes, time.tv_sec as f64 + time.tv_nsec as f64 * 1e-9))
}

/// Longest time without progress: a shared disk is slow at times.
const STALL_TIMEOUT: Duration = Duration::from_secs(60);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Plan;
    use thalweg_testing::skip::skipped;

    /// Parses options for a file on a disk: beside the tests themselves.
    fn options(words: &str) -> Options {
        let directory = std::env::current_exe().unwrap().parent().unwrap().display().to_string();
        let mut line: Vec<String> = ["transfer", "--path", &directory].map(str::to_owned).into();
        line.extend(words.split_whitespace().map(str::to_owned));
        match Plan::parse_words(&line).unwrap() {
            Plan::Transfer(options) => options,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn every_method_sends_a_whole_file_from_the_cache_or_from_the_disk() {
        let options = options("--file-size 300KiB --sizes 4KiB,64KiB -t 1ms -O 1ms");
        let mut instrument = options.create_instrument().unwrap();
        let keys = instrument.point_keys();
        // Three methods through the page cache, warm and cold; four past it, cold.
        assert_eq!(keys.len(), (3 * 2 + 4) * 2);
        for key in keys {
            match instrument.measure_point(&key, &options.timing, &Stop::default()) {
                Ok(figures) => {
                    let cpu = figures.cpu.unwrap();
                    assert!(figures.goodput_bits_per_second > Some(0.0), "{key:?}");
                    assert!(cpu.sender_percent.is_some() && cpu.receiver_percent.is_some());
                }
                Err(error) => skipped(format_args!("{key:?}: {error}")),
            }
        }
    }

    #[test]
    fn pieces_larger_than_the_file_are_refused() {
        for words in ["--file-size 4KiB --sizes 64KiB", "--sizes 0"] {
            assert!(options(words).create_instrument().err().unwrap().is_usage_error());
        }
    }
}
