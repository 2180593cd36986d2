//! Comparison of the data server with nginx and with the disk: whole files from the page cache, ranges requested by
//! many, files that are not in the page cache, uploads.
//!
//! Every server is a process of its own, started for each turn on one processor, while the client has another; only the
//! server's processor time is counted. Points of one kind take turns. The client is the same for all of them: see
//! [`client`].
//!
//! - *cached*: one connection fetches a file that is in the page cache, again and again.
//! - *ranges*: many connections each request a random range of it, and the next one when it has arrived. Latency is
//!   from the request to the last byte. A failed request fails the point.
//! - *uncached*: one connection fetches the file after it was dropped from the page cache; for comparison, `fio` reads
//!   the same file with `O_DIRECT`, 32 pieces of 1 MiB in flight. The part of the file that the page cache holds is
//!   read (`cachestat`) whenever 32 MiB have arrived, and the largest is kept.
//! - *upload*: one connection sends a file, from the page cache, that is on the disk when the response comes; for
//!   comparison, `fio` writes one of the same length with `O_DIRECT` and an `fsync` at the end.
//! - *mounted*: `thalweg bench file` reads the file in blocks, sequentially and in random order, where `thalweg mount`
//!   shows it. Neither page cache has it at the beginning.

mod client;
mod command;

use crate::building::Scratch;
use crate::cpu::Used;
use crate::drive::{Instrument, Stop};
use crate::file::target::{Target, describe_mount};
use crate::memory::ensure_memory_available;
use crate::net::bind_to_processor;
use crate::network::{End, Network};
use crate::options::{Cpus, NetworkPath, Timing};
use crate::peers::first_two_processors;
use crate::plan::InstrumentOptions;
use crate::point::{Figures, Key, Latency, Point, median_value};
use crate::{BenchError, Clock, Sizes, Usage};
use client::{Connection, DATA, RangeClients};
use command::{Contender, Mount, Server, read_mounted_file, run_fio_pass};
use std::fs::File;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::thread;
use std::time::Duration;
use thalweg_text::ByteSize;
use thalweg_transfer::{ReceiveMethod, SendMethod, cached_bytes};

/// Options of `thalweg bench serve`.
#[derive(Debug, Clone, clap::Args)]
pub struct Options {
    #[command(flatten)]
    pub(crate) timing: Timing,
    /// Kinds of work to measure
    #[arg(long, value_enum, value_delimiter = ',', default_values_t = [Work::Cached, Work::Ranges, Work::Uncached, Work::Upload])]
    work: Vec<Work>,
    /// Network between client and server
    #[arg(long, value_enum, value_delimiter = ',', default_values_t = [NetworkPath::Loopback])]
    on: Vec<NetworkPath>,
    /// Directory on the disk, for temporary files
    #[arg(long, value_name = "DIR", default_value = ".")]
    path: PathBuf,
    /// Bytes in the file that is fetched, and in the one that is sent
    #[arg(long, value_name = "SIZE", default_value = "1GiB")]
    file_size: ByteSize,
    /// Bytes in a range
    #[arg(long, value_name = "SIZES", default_value = "64KiB,1MiB")]
    ranges: Sizes,
    /// Bytes in a block that is read through a mount
    #[arg(long, value_name = "SIZES", default_value = "64KiB,4MiB")]
    blocks: Sizes,
    /// Connections that request ranges
    #[arg(long, value_name = "N", default_value_t = 200, value_parser = clap::value_parser!(u32).range(1..=4000))]
    clients: u32,
    /// TCP congestion control of the client that sends files, or 'system' for the system's default. Servers send with
    /// the system's
    #[arg(short = 'C', long, value_name = "NAME", default_value = "cubic")]
    congestion: String,
    /// Processors of client and server, or none; without it, the first two there are
    #[arg(short = 'A', long, value_name = "N/M")]
    cpu: Option<Cpus>,
    /// The program that serves
    #[arg(skip)]
    program: Option<PathBuf>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Work {
    /// A file that is in the page cache
    Cached,
    /// Ranges of it, requested by many clients
    Ranges,
    /// A file that is on the disk
    Uncached,
    /// A file that is uploaded
    Upload,
    /// A file on the disk, read through `thalweg mount`
    Mounted,
}

impl Work {
    fn display_name(self) -> &'static str {
        match self {
            Self::Cached => "cached",
            Self::Ranges => "ranges",
            Self::Uncached => "uncached",
            Self::Upload => "upload",
            Self::Mounted => "mounted",
        }
    }

    /// Returns the programs that do this work, in the order of their turns.
    fn contenders(self) -> Vec<Contender> {
        let nginx = Contender::Nginx { sendfile: true };
        match self {
            Self::Cached => {
                let ways = SendMethod::ALL.into_iter().filter(|way| !way.is_uncached()).map(Contender::ServeBy);
                [nginx, Contender::Nginx { sendfile: false }].into_iter().chain(ways).collect()
            }
            Self::Ranges => {
                vec![nginx, Contender::ServeBy(SendMethod::Sendfile), Contender::ServeBy(SendMethod::Splice)]
            }
            Self::Uncached => {
                [Contender::Fio, nginx].into_iter().chain(SendMethod::ALL.map(Contender::ServeBy)).collect()
            }
            Self::Upload => [Contender::Fio].into_iter().chain(ReceiveMethod::ALL.map(Contender::ReceiveBy)).collect(),
            Self::Mounted => [false, true].map(|random| Contender::Mounted { random }).into(),
        }
    }

    /// Returns the references for the others: the usual server and, if the disk takes part, the speed of the disk and
    /// the cost of the plainest method.
    fn reference_contenders(self) -> Vec<Contender> {
        match self {
            Self::Cached | Self::Ranges => vec![Contender::Nginx { sendfile: true }],
            Self::Uncached => vec![Contender::Fio, Contender::ServeBy(SendMethod::Read)],
            Self::Upload => vec![Contender::Fio, Contender::ReceiveBy(ReceiveMethod::Recv)],
            Self::Mounted => vec![],
        }
    }

    const ALL: [Self; 5] = [Self::Cached, Self::Ranges, Self::Uncached, Self::Upload, Self::Mounted];
}

/// A point, as identified by its key.
#[derive(Debug, Clone, Copy)]
struct Case {
    on: NetworkPath,
    work: Work,
    contender: Contender,
    size: u64,
}

impl InstrumentOptions for Options {
    fn timing(&self) -> Timing {
        self.timing
    }

    fn create_instrument(&self) -> Result<Box<dyn Instrument>, BenchError> {
        let bytes = self.file_size.0;
        if bytes == 0 {
            return Err(BenchError::Usage("--file-size: a file has at least 1 byte".to_owned()));
        }
        if let Some(range) =
            self.work.iter().flat_map(|work| self.work_sizes(*work)).find(|size| !(1..=bytes).contains(*size))
        {
            return Err(BenchError::Usage(format!(
                "a file of {} has no piece of {}; ask for a larger --file-size or smaller pieces (--ranges, --blocks)",
                self.file_size,
                ByteSize(*range)
            )));
        }
        let program = match &self.program {
            Some(program) => program.clone(),
            None => crate::readout_program().map_err(BenchError::os_error("finding the program thalweg"))?,
        };
        let path = std::path::absolute(&self.path).map_err(BenchError::file_error(&self.path))?;
        if !path.is_dir() {
            return Err(BenchError::Usage(format!("--path {}: no such directory", self.path.display())));
        }
        let scratch = Scratch::create_below(&path, "serve")?;
        let target = Target::create_named(&scratch.0.join(DATA), bytes)?;
        let cpus = self.cpu.unwrap_or_else(|| match first_two_processors() {
            Some([client, server]) => Cpus { asking: u32::try_from(client).ok(), serving: u32::try_from(server).ok() },
            None => Cpus::default(),
        });
        let networks = self.on.iter().map(|_| None).collect();
        let disk = format!("{} is {}", self.path.display(), describe_mount(&path));
        Ok(Box::new(Serving {
            options: self.clone(),
            program,
            cpus,
            target,
            scratch,
            networks,
            clock: Clock::new(),
            disk,
        }))
    }
}

impl Options {
    /// Returns the sizes of a kind of work.
    fn work_sizes(&self, work: Work) -> &[u64] {
        match work {
            Work::Ranges => &self.ranges.0,
            Work::Mounted => &self.blocks.0,
            _ => std::slice::from_ref(&self.file_size.0),
        }
    }

    fn requested_cases(&self) -> Vec<Case> {
        let mut cases = Vec::new();
        for &on in &self.on {
            for &work in &self.work {
                for &size in self.work_sizes(work) {
                    cases.extend(work.contenders().into_iter().map(|contender| Case { on, work, contender, size }));
                }
            }
        }
        cases
    }

    fn point_key(&self, case: &Case) -> Key {
        let key = Key::new(case.on.display_name(), case.work.display_name(), case.size)
            .with_setting("server", case.contender.display_name());
        match (case.work, case.contender) {
            (Work::Ranges, _) => key.with_setting("clients", self.clients),
            (Work::Upload, Contender::ReceiveBy(_)) => key.with_setting("congestion", &self.congestion),
            _ => key,
        }
    }
}

struct Serving {
    options: Options,
    program: PathBuf,
    cpus: Cpus,
    target: Target,
    // Deleted after the file in it is closed.
    scratch: Scratch,
    /// Networks, made when they are first needed, in the order of `options.on`.
    networks: Vec<Option<Network>>,
    clock: Clock,
    /// Description of the disk.
    disk: String,
}

impl Instrument for Serving {
    fn point_keys(&self) -> Vec<Key> {
        self.options.requested_cases().iter().map(|case| self.options.point_key(case)).collect()
    }

    fn takes_turns_with(&self, one: &Key, next: &Key) -> bool {
        (&one.link, &one.method, one.size) == (&next.link, &next.method, next.size)
    }

    fn measure_point(&mut self, key: &Key, timing: &Timing, stop: &Stop) -> Result<Figures, BenchError> {
        let cases = self.options.requested_cases();
        let case = cases.into_iter().find(|case| self.options.point_key(case) == *key).expect("a key of ours");
        self.target.ensure_written(true, stop)?;
        match case.work {
            Work::Uncached => self.target.check_direct_access(4096)?,
            Work::Mounted => {}
            Work::Cached | Work::Ranges | Work::Upload => {
                ensure_memory_available(self.target.size_bytes())?;
                self.target.load_into_page_cache(stop)?;
            }
        }
        let at = self.options.on.iter().position(|on| *on == case.on).expect("a network of ours");
        let network = match &mut self.networks[at] {
            Some(network) => network,
            network => network.insert(Network::new(case.on)?),
        };
        let turn = Turn {
            case,
            program: &self.program,
            scratch: &self.scratch,
            target: &self.target,
            cpus: self.cpus,
            clients: self.options.clients,
            congestion: &self.options.congestion,
            clock: &self.clock,
            timing,
            stop,
        };
        // A thread, because it is bound to a processor and enters a network.
        let network = &*network;
        thread::scope(|scope| {
            let client = thread::Builder::new().name("client".to_owned());
            let client = client
                .spawn_scoped(scope, || turn.take_turn(network))
                .map_err(BenchError::os_error("starting a thread"))?;
            client.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        })
    }

    fn point_notes(&self, key: &Key) -> Vec<String> {
        let mut notes = Vec::new();
        if key.method != Work::Cached.display_name() && key.method != Work::Ranges.display_name() {
            notes.push(self.disk.clone());
        }
        notes
    }
}

/// One turn of one server.
struct Turn<'a> {
    case: Case,
    program: &'a std::path::Path,
    scratch: &'a Scratch,
    target: &'a Target,
    cpus: Cpus,
    clients: u32,
    congestion: &'a str,
    clock: &'a Clock,
    timing: &'a Timing,
    stop: &'a Stop,
}

/// Work done in a turn.
#[derive(Debug, Default)]
struct Done {
    bytes: u64,
    used: Used,
    page_cache: Option<u64>,
    latency: Option<Latency>,
    requests: u64,
}

impl Turn<'_> {
    fn take_turn(&self, network: &Network) -> Result<Figures, BenchError> {
        if let Contender::Mounted { random } = self.case.contender {
            return self.measure_mounted(network, random);
        }
        let done = self.measure_server(network)?;
        let seconds = done.used.wall;
        if done.bytes == 0 || seconds <= 0.0 {
            return Err(BenchError::Stopped);
        }
        Ok(Figures {
            latency_us: done.latency,
            goodput_bits_per_second: Some(done.bytes as f64 * 8.0 / seconds),
            messages_per_second: Some(done.requests as f64 / seconds),
            page_cache_bytes: done.page_cache.map(|bytes| bytes as f64),
            cpu: Some(done.used.processor_figures(done.bytes)),
            seconds,
            steal_percent: done.used.steal_percent(),
            ..Figures::default()
        })
    }

    fn measure_server(&self, network: &Network) -> Result<Done, BenchError> {
        // Child processes belong where this thread is.
        bind_to_processor(self.cpus.serving)?;
        network.enter_end(End::Server)?;
        if self.case.contender == Contender::Fio {
            return self.measure_fio();
        }
        let address = network.server_address()?;
        let server = Server::start_server(self.case.contender, self.program, &self.scratch.0, address, self.stop)?;
        network.enter_end(End::Client)?;
        bind_to_processor(self.cpus.asking)?;
        let mut done = Done::default();
        match self.case.work {
            Work::Cached => self.fetch_cached(&server, address, &mut done)?,
            Work::Ranges => self.fetch_ranges(&server, address, &mut done)?,
            Work::Uncached => self.fetch_uncached(&server, address, &mut done)?,
            Work::Upload => self.upload_repeatedly(&server, address, &mut done)?,
            // Measured by another program: see `mounted`.
            Work::Mounted => {}
        }
        Ok(done)
    }

    /// Fetches the whole file, which is in the page cache, again and again.
    fn fetch_cached(&self, server: &Server, address: SocketAddr, done: &mut Done) -> Result<(), BenchError> {
        let (size, min_time) = (self.case.size, self.timing.min_time);
        let mut connection = Connection::connect_to_server(address)?;
        let warm = self.clock.read_counter();
        connection.fetch_file(size, self.stop, || {})?;
        while self.elapsed_since(warm) < self.timing.warmup {
            connection.fetch_file(size, self.stop, || {})?;
        }
        self.count_resources(server, done, |done| {
            let begun = self.clock.read_counter();
            while done.requests == 0 || self.elapsed_since(begun) < min_time {
                connection.fetch_file(size, self.stop, || {})?;
                (done.requests, done.bytes) = (done.requests + 1, done.bytes + size);
            }
            Ok(())
        })?;
        Ok(())
    }

    /// Fetches ranges of the file with many clients.
    fn fetch_ranges(&self, server: &Server, address: SocketAddr, done: &mut Done) -> Result<(), BenchError> {
        let (size, min_time) = (self.case.size, self.timing.min_time);
        let mut clients = RangeClients::connect_all(address, self.clients, self.target.size_bytes(), size, self.clock)?;
        clients.fetch_ranges_for(self.timing.warmup, self.clock, self.stop)?;
        self.count_resources(server, done, |done| {
            let results = clients.fetch_ranges_for(min_time, self.clock, self.stop)?;
            (done.requests, done.bytes) = (results.ranges, results.ranges * size);
            done.latency = Some(Latency::from_histogram(&results.times, 1.0));
            Ok(())
        })?;
        Ok(())
    }

    /// Fetches the whole file, which is not in the page cache.
    fn fetch_uncached(&self, server: &Server, address: SocketAddr, done: &mut Done) -> Result<(), BenchError> {
        let (size, min_time) = (self.case.size, self.timing.min_time);
        let mut connection = Connection::connect_to_server(address)?;
        let mut most = 0;
        while done.requests == 0 || done.used.wall < min_time.as_secs_f64() {
            self.target.drop_page_cache()?;
            self.count_resources(server, done, |done| {
                connection.fetch_file(size, self.stop, || most = most.max(page_cache_bytes(self.target.file())))?;
                (done.requests, done.bytes) = (done.requests + 1, done.bytes + size);
                Ok(())
            })?;
        }
        done.page_cache = Some(most.max(page_cache_bytes(self.target.file())));
        Ok(())
    }

    /// Uploads the file again and again.
    fn upload_repeatedly(&self, server: &Server, address: SocketAddr, done: &mut Done) -> Result<(), BenchError> {
        let (size, min_time) = (self.case.size, self.timing.min_time);
        let mut connection = Connection::connect_to_server(address)?;
        connection.set_congestion_control(self.congestion)?;
        let mut most = 0;
        while done.requests == 0 || done.used.wall < min_time.as_secs_f64() {
            if self.stop.is_requested() {
                return Err(BenchError::Stopped);
            }
            let name = format!("upload-{}", done.requests);
            self.count_resources(server, done, |done| {
                connection.upload_file(&name, self.target.file(), size)?;
                (done.requests, done.bytes) = (done.requests + 1, done.bytes + size);
                Ok(())
            })?;
            let path = self.scratch.0.join(&name);
            let published = File::open(&path).map_err(BenchError::file_error(&path))?;
            let length = published.metadata().map_err(BenchError::file_error(&path))?.len();
            if length != size {
                let error = std::io::Error::other(format!("{length} bytes are there, not {size}"));
                return Err(BenchError::File { path, error });
            }
            most = most.max(page_cache_bytes(&published));
            std::fs::remove_file(&path).map_err(BenchError::file_error(&path))?;
        }
        done.page_cache = Some(most);
        Ok(())
    }

    /// Adds the resources that `act` uses, with the server's processor time in place of this process's.
    fn count_resources(
        &self,
        server: &Server,
        done: &mut Done,
        act: impl FnOnce(&mut Done) -> Result<(), BenchError>,
    ) -> Result<(), BenchError> {
        let (before, cpu) = (Usage::read_counters(), server.processor_time()?);
        act(done)?;
        let mut used = before.used_since();
        used.process = server.processor_time()?.saturating_sub(cpu).as_secs_f64();
        done.used = done.used + used;
        Ok(())
    }

    /// Measures a file that is not in the page cache, neither under its own name nor under the mounted one. The
    /// processor time is the reader's.
    fn measure_mounted(&self, network: &Network, random: bool) -> Result<Figures, BenchError> {
        bind_to_processor(self.cpus.serving)?;
        network.enter_end(End::Server)?;
        let address = network.server_address()?;
        let _server = Server::start_server(self.case.contender, self.program, &self.scratch.0, address, self.stop)?;
        network.enter_end(End::Client)?;
        bind_to_processor(self.cpus.asking)?;
        let at = self.scratch.0.join(".mounted");
        std::fs::create_dir_all(&at).map_err(BenchError::file_error(&at))?;
        let _mount = Mount::mount_at(self.program, address, &at, self.stop)?;
        self.target.drop_page_cache()?;
        read_mounted_file(self.program, &at.join(DATA), self.case.size, random, self.timing.min_time, self.stop)
    }

    fn measure_fio(&self) -> Result<Done, BenchError> {
        let write = self.case.work == Work::Upload;
        let file = self.scratch.0.join(if write { "upload-fio" } else { DATA });
        let before = Usage::read_counters();
        let pass = run_fio_pass(&file, self.case.size, write, self.stop)?;
        let used = Used { wall: pass.seconds, process: pass.cpu, ..before.used_since() };
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a count of bytes")]
        Ok(Done { bytes: pass.bytes as u64, used, requests: 1, ..Done::default() })
    }

    fn elapsed_since(&self, raw: u64) -> Duration {
        Duration::from_nanos(self.clock.elapsed_nanos(raw, self.clock.read_counter()))
    }
}

/// Returns the bytes of a file that the page cache has; 0 if the kernel does not report it (before Linux 6.5).
fn page_cache_bytes(file: &File) -> u64 {
    cached_bytes(file, &(0..u64::MAX)).unwrap_or(0)
}

/// Figures of a server divided by those of its reference, the median over the turns.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct RelativeFigures {
    pub(crate) work: String,
    pub(crate) size: u64,
    pub(crate) server: String,
    pub(crate) of: String,
    pub(crate) goodput: Option<f64>,
    pub(crate) cpu: Option<f64>,
    pub(crate) p99: Option<f64>,
}

/// Returns all servers that can be compared with a reference.
pub(crate) fn compare_with_references(points: &[Point]) -> Vec<RelativeFigures> {
    let mut all = Vec::new();
    for work in Work::ALL {
        let yardsticks: Vec<String> = work.reference_contenders().into_iter().map(Contender::display_name).collect();
        let measured =
            points.iter().filter(|point| point.key.method == work.display_name() && !point.repeats.is_empty());
        let (references, others): (Vec<&Point>, Vec<&Point>) =
            measured.partition(|point| yardsticks.contains(&server_name(point)));
        for reference in references {
            let comparable = others
                .iter()
                .filter(|point| (&point.key.link, point.key.size) == (&reference.key.link, reference.key.size));
            all.extend(comparable.map(|point| RelativeFigures::from_points(point, reference)));
        }
    }
    all
}

impl RelativeFigures {
    fn from_points(point: &Point, reference: &Point) -> Self {
        Self {
            work: format!("{} {}", point.key.link, point.key.method),
            size: point.key.size,
            server: server_name(point),
            of: server_name(reference),
            goodput: median_ratio(point, reference, |figures| figures.goodput_bits_per_second),
            cpu: median_ratio(point, reference, |figures| figures.cpu?.seconds_per_gigabyte),
            p99: median_ratio(point, reference, |figures| Some(figures.latency_us?.p99)),
        }
    }
}

fn server_name(point: &Point) -> String {
    point.key.settings.get("server").cloned().unwrap_or_default()
}

/// Returns the median of the ratios of a figure, repeat by repeat.
fn median_ratio(point: &Point, reference: &Point, get: fn(&Figures) -> Option<f64>) -> Option<f64> {
    let both = point.repeats.iter().zip(&reference.repeats);
    let ratios = both.filter_map(|(one, other)| Some(get(one)? / get(other)?));
    median_value(ratios.filter(|ratio| ratio.is_finite()).collect())
}

#[cfg(test)]
mod tests;
