//! `thalweg serve`: runs on the network.

use crate::terminal::{Failure, Output, signals};
use rustix::event::{EventfdFlags, eventfd};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use serde::{Deserialize, Serialize};
use std::fs::File;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, ToSocketAddrs};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::str::FromStr;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use thalweg_doctor::Steered;
use thalweg_serve::{Counters, ServeError, Server, Settings, Tls, Tokens, TransferMethods};
use thalweg_text::{format_quantity, format_volume, parse_duration, wrap_words};
use thalweg_transfer::{Measured, ReceiveMethod, Receiver, SendMethod};

#[derive(Debug, clap::Args)]
pub(crate) struct Options {
    /// Directory to serve, with all its files except hidden ones
    directory: PathBuf,
    /// Address and port to listen on; port 0 chooses a free one
    #[arg(long, value_name = "ADDRESS:PORT", default_value_t = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 8042), value_parser = address)]
    listen: SocketAddr,
    /// Accept uploads
    #[arg(long)]
    write: bool,
    /// Compress files and events for clients that request it (Accept-Encoding)
    #[arg(long)]
    compress: bool,
    /// TOML file with tokens and their access rights (see the documentation of the data server)
    #[arg(long, value_name = "FILE")]
    tokens: Option<PathBuf>,
    /// Allow access to every client that can connect, also from other hosts; with --write, uploads too
    #[arg(long, conflicts_with = "tokens")]
    open: bool,
    /// Use TLS with this certificate chain, a PEM file
    #[arg(long, value_name = "PEM", requires = "key")]
    certificate: Option<PathBuf>,
    /// The certificate's private key, a PEM file
    #[arg(long, value_name = "PEM", requires = "certificate")]
    key: Option<PathBuf>,
    /// Method of sending from disk to network: auto (measured at the first start), read, sendfile, splice, ahead,
    /// direct, dontcache, uring
    #[arg(long, value_name = "METHOD", default_value = "auto")]
    path: Choice<SendMethod>,
    /// Method of writing from network to disk: auto (uring if available, otherwise recv), recv, splice,
    /// dontcache, uring
    #[arg(long, value_name = "METHOD", default_value = "auto")]
    inward: Choice<ReceiveMethod>,
    /// Number of clients served at once; others wait
    #[arg(long, value_name = "N", default_value_t = 512, value_parser = connections)]
    connections: usize,
    /// Time after which a client is disconnected that transfers nothing, or fewer than 500 bytes per second of a
    /// transfer
    #[arg(long, value_name = "TIME", default_value = "30s", value_parser = timeout)]
    idle_timeout: Duration,
    /// CPUs to serve on, such as 0,2,4-7; auto: those without network interrupts, if any [default: all]
    #[arg(long, value_name = "CPUS", default_value = "", hide_default_value = true)]
    cpus: Cpus,
    /// CPUs for the network card's interrupts while serving; restored afterwards [default: unchanged]
    #[arg(long, value_name = "CPUS", value_parser = some_cpus)]
    network_cpus: Option<Cpus>,
    /// CPUs for the disk's interrupts and completions while serving [default: unchanged]
    #[arg(long, value_name = "CPUS", value_parser = some_cpus)]
    disk_cpus: Option<Cpus>,
    /// Discard earlier measurements of the methods, and measure again
    #[arg(long)]
    measure: bool,
}

/// A way of moving bytes, or the one that was measured to be the best.
#[derive(Debug, Clone, Copy)]
enum Choice<T> {
    Auto,
    This(T),
}

impl<T: FromStr> FromStr for Choice<T> {
    type Err = T::Err;

    fn from_str(name: &str) -> Result<Self, T::Err> {
        if name == "auto" { Ok(Self::Auto) } else { name.parse().map(Self::This) }
    }
}

/// CPUs by their numbers; an empty list stands for all of them.
#[derive(Debug, Clone)]
enum Cpus {
    Auto,
    These(Vec<usize>),
}

impl Cpus {
    fn cpu_numbers(&self) -> Vec<u32> {
        let these = if let Self::These(cpus) = self { &cpus[..] } else { &[] };
        these.iter().filter_map(|cpu| u32::try_from(*cpu).ok()).collect()
    }
}

impl FromStr for Cpus {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text == "auto" {
            return Ok(Self::Auto);
        }
        let mut cpus = Vec::new();
        for part in text.split(',').filter(|part| !part.is_empty()) {
            let (first, last) = part.split_once('-').unwrap_or((part, part));
            let (Ok(first), Ok(last)) = (first.parse::<usize>(), last.parse::<usize>()) else {
                return Err(format!("{part} is neither a CPU nor a range of CPUs"));
            };
            if first > last || last >= MOST_CPUS {
                return Err(format!("{part} is not a range of CPUs"));
            }
            cpus.extend(first..=last);
        }
        Ok(Self::These(cpus))
    }
}

fn some_cpus(text: &str) -> Result<Cpus, String> {
    match text.parse()? {
        Cpus::These(cpus) if !cpus.is_empty() => Ok(Cpus::These(cpus)),
        _ => Err("CPUs, as 0,2,4-7".to_owned()),
    }
}

fn connections(text: &str) -> Result<usize, String> {
    text.parse().ok().filter(|connections| *connections > 0).ok_or_else(|| "a number from 1 on".to_owned())
}

/// Parses an address, or a name of this host.
fn address(text: &str) -> Result<SocketAddr, String> {
    let mut found = text.to_socket_addrs().map_err(|error| {
        format!(
            "{error}; write an address such as 127.0.0.1:8042, [::1]:8042 \
            or localhost:8042"
        )
    })?;
    found.next().ok_or_else(|| "this name has no address".to_owned())
}

/// Parses a time of at least 1 ms: in less no client can be served.
fn timeout(text: &str) -> Result<Duration, String> {
    let time = parse_duration(text).map_err(|error| error.to_string())?;
    if time < Duration::from_millis(1) { Err("a timeout is at least 1ms".to_owned()) } else { Ok(time) }
}

/// Message when the server is ready.
#[derive(Debug, Serialize)]
struct Ready {
    /// URL that opens in a browser of this network.
    url: String,
    /// The same for each of the host's addresses, if the server listens on all of them.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    urls: Vec<String>,
    directory: PathBuf,
    write: bool,
    cached: SendMethod,
    uncached: SendMethod,
    inward: ReceiveMethod,
    /// Part of the system that encrypts.
    #[serde(skip_serializing_if = "Option::is_none")]
    tls: Option<&'static str>,
    why: String,
}

/// Serves a directory. Exit code 0: it was asked to stop.
pub(crate) fn run_serve(options: &Options, json: bool) -> Result<ExitCode, Failure> {
    let tokens = admitted_tokens(options)?;
    let tls = match (&options.certificate, &options.key) {
        (Some(certificate), Some(key)) => Some(Tls::read_certificate(certificate, key).map_err(Failure::usage)?),
        _ => None,
    };
    let scheme = if tls.is_some() { "https" } else { "http" };
    let encrypts = tls.as_ref().map(|tls| match tls.is_kernel_tls_available() {
        Ok(()) => ("kernel", "The kernel encrypts.".to_owned()),
        Err(why) => ("rustls", format!("Bytes are copied and encrypted in this program with every method: {why}.")),
    });
    if !options.directory.is_dir() {
        return Err(Failure::Usage(format!("{} is not a directory", options.directory.display())));
    }
    let (ways, mut why) = choose_transfer_ways(options)?;
    if let Some((_, sentence)) = &encrypts {
        why.push_str(&format!(" {sentence}"));
    }
    // The CPUs are set until the server has ended.
    let network =
        options.network_cpus.as_ref().map(|cpus| Steered::steer_network(options.listen.ip(), &cpus.cpu_numbers()));
    let disk = options.disk_cpus.as_ref().map(|cpus| Steered::steer_disk(&options.directory, &cpus.cpu_numbers()));
    let _steered = [network.transpose().map_err(Failure::broken)?, disk.transpose().map_err(Failure::broken)?];
    let cpus = serving_cpus(options, &mut why)?;
    let settings = Settings {
        directory: options.directory.clone(),
        address: options.listen,
        write: options.write,
        compress: options.compress,
        tokens,
        tls,
        connections: options.connections,
        timeout: options.idle_timeout,
        ways,
        cpus,
    };
    raise_open_file_limit(options.connections);
    let stop = stop_on_signals()?;
    let server = Server::bind_listener(settings).map_err(|error| match error {
        ServeError::Listen { .. } => Failure::Usage(format!("{error}; choose another address with --listen")),
        error => Failure::broken(error),
    })?;
    let mut urls = openable_urls(scheme, server.local_address());
    let ready = Ready {
        url: urls.first().cloned().unwrap_or_default(),
        urls: if urls.len() > 1 { std::mem::take(&mut urls) } else { Vec::new() },
        directory: options.directory.clone(),
        write: options.write,
        cached: ways.cached,
        uncached: ways.uncached,
        inward: ways.inward,
        tls: encrypts.map(|(who, _)| who),
        why,
    };
    warn_of_open_uploads(options, &ready.url);
    let mut out = Output::new();
    if json {
        out.json(&ready)?;
    } else {
        out.text(&ready_text(&ready))?;
    }
    out.flush()?;
    server.run_until_stopped(&*stop).map_err(Failure::broken)?;
    print_served_totals(&mut out, server.work_counters(), json)?;
    Ok(ExitCode::SUCCESS)
}

/// Warns if any host may upload.
fn warn_of_open_uploads(options: &Options, url: &str) {
    if options.write && options.open && !options.listen.ip().is_loopback() {
        tracing::warn!(
            "--open --write: any host that reaches {url} may read everything and upload here; --tokens FILE restricts it"
        );
    }
}

/// Returns the URLs by which other hosts reach a server: one for the address that it listens on, or one for each of this
/// host's addresses if it listens on all.
fn openable_urls(scheme: &str, listens: SocketAddr) -> Vec<String> {
    let url = |ip: IpAddr| format!("{scheme}://{}/", SocketAddr::new(ip, listens.port()));
    if !listens.ip().is_unspecified() {
        return vec![url(listens.ip())];
    }
    let interfaces = if_addrs::get_if_addrs().unwrap_or_default();
    // A link-local address needs the name of an interface, which differs from host to host.
    let reachable = interfaces.iter().map(if_addrs::Interface::ip).filter(|ip| match ip {
        IpAddr::V4(ip) => !ip.is_loopback() && !ip.is_link_local(),
        IpAddr::V6(ip) => listens.is_ipv6() && !ip.is_loopback() && !ip.is_unicast_link_local(),
    });
    let urls: Vec<String> = reachable.map(url).collect();
    if urls.is_empty() { vec![url(Ipv4Addr::LOCALHOST.into())] } else { urls }
}

/// Returns the tokens of the users; `None` if everyone on this host is admitted.
fn admitted_tokens(options: &Options) -> Result<Option<Tokens>, Failure> {
    let tokens = options.tokens.as_deref().map(read_tokens).transpose()?;
    if !options.listen.ip().is_loopback() && tokens.is_none() && !options.open {
        return Err(Failure::Usage(format!(
            "{} can be reached from other hosts: set access rights with --tokens FILE, or allow everyone to read with \
             --open",
            options.listen
        )));
    }
    Ok(tokens)
}

/// Returns the processors that the server runs on; adds the reason to `why` if it chose them itself.
fn serving_cpus(options: &Options, why: &mut String) -> Result<Vec<usize>, Failure> {
    match &options.cpus {
        Cpus::These(cpus) => {
            check_cpus_allowed(cpus)?;
            Ok(cpus.clone())
        }
        Cpus::Auto => {
            let placed = thalweg_doctor::choose_placement(options.listen.ip(), &options.directory);
            why.push_str(&format!(" CPUs: {}.", placed.why));
            Ok(placed.cpus.into_iter().filter_map(|cpu| usize::try_from(cpu).ok()).collect())
        }
    }
}

fn print_served_totals(out: &mut Output, counters: &Counters, json: bool) -> Result<(), Failure> {
    let Counters { connections, requests, sent, received, .. } = counters;
    let [connections, requests, sent, received] =
        [connections, requests, sent, received].map(|counter| counter.load(Ordering::Relaxed));
    if json {
        out.json(&serde_json::json!({
            "connections": connections, "requests": requests, "sent_bytes": sent, "received_bytes": received,
        }))?;
    } else {
        let (sent, received) = (format_volume(sent), format_volume(received));
        let (requests, connections) =
            (format_quantity(requests, "request"), format_quantity(connections, "connection"));
        out.text(&format!("{requests} on {connections}: {sent} sent, {received} received\n"))?;
    }
    out.flush()?;
    Ok(())
}

fn ready_text(ready: &Ready) -> String {
    let Ready { url, urls, directory, write, cached, uncached, inward, tls: _, why } = ready;
    let takes = if *write { format!("; uploads are written with {inward}") } else { String::new() };
    let ways = format!("Data in the page cache are sent with {cached}, other data with {uncached}{takes}. {why}");
    let more = match urls.get(1..).unwrap_or_default() {
        [] => String::new(),
        more => format!("It listens on all addresses of this host; also: {}\n", more.join(" ")),
    };
    format!("{url} serves {}. Ctrl-C ends it.\n{more}{}\n", directory.display(), wrap_words("", &ways))
}

/// Fails if this process may not run on one of these CPUs.
fn check_cpus_allowed(cpus: &[usize]) -> Result<(), Failure> {
    let allowed = rustix::thread::sched_getaffinity(None).map_err(Failure::broken)?;
    match cpus.iter().find(|cpu| !allowed.is_set(**cpu)) {
        Some(cpu) => Err(Failure::Usage(format!("this process may not run on CPU {cpu}"))),
        None => Ok(()),
    }
}

fn read_tokens(path: &Path) -> Result<Tokens, Failure> {
    let text = std::fs::read_to_string(path).map_err(|error| Failure::file_usage(path, error))?;
    Tokens::parse(&text).map_err(|error| Failure::file_usage(path, error))
}

/// Raises the limit of open files to what the clients need, as far as the process may.
fn raise_open_file_limit(connections: usize) {
    let needed = (connections as u64).saturating_mul(FILES_EACH).saturating_add(64);
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    let Some(current) = current.filter(|current| *current < needed) else { return };
    let allowed = maximum.map_or(needed, |maximum| maximum.min(needed)).max(current);
    // A client that cannot be accepted waits: a warning is enough.
    if let Err(error) = setrlimit(Resource::Nofile, Rlimit { current: Some(allowed), maximum }) {
        tracing::warn!("RLIMIT_NOFILE remains at {current}: {error}");
    } else if allowed < needed {
        tracing::warn!("{connections} clients may need {needed} open files; RLIMIT_NOFILE allows {allowed}");
    }
}

/// Returns a descriptor that becomes readable when the program is asked to stop.
fn stop_on_signals() -> Result<Arc<OwnedFd>, Failure> {
    let stop = Arc::new(eventfd(0, EventfdFlags::CLOEXEC).map_err(Failure::broken)?);
    let pressed = Arc::clone(&stop);
    signals::on_interrupt(move || _ = rustix::io::write(&*pressed, &1_u64.to_ne_bytes()))?;
    Ok(stop)
}

/// Returns the ways of moving bytes, and a sentence with the reason for these.
fn choose_transfer_ways(options: &Options) -> Result<(TransferMethods, String), Failure> {
    let inward = match options.inward {
        Choice::Auto if options.write => match Receiver::try_uring(&options.directory) {
            Ok(()) => ReceiveMethod::Uring,
            Err(error) if error.raw_os_error().is_some_and(is_write_refused) => {
                return Err(Failure::Usage(format!(
                    "--write: cannot write into {}: {error}",
                    options.directory.display()
                )));
            }
            Err(error) => {
                tracing::warn!(
                    "uploads are written with {}: {} is not available here ({error})",
                    ReceiveMethod::Recv,
                    ReceiveMethod::Uring
                );
                ReceiveMethod::Recv
            }
        },
        Choice::Auto => ReceiveMethod::Uring,
        Choice::This(way) => way,
    };
    if let Choice::This(way) = options.path {
        return Ok((TransferMethods { cached: way, uncached: way, inward }, "Chosen with --path.".to_owned()));
    }
    let usual = TransferMethods { cached: SendMethod::Splice, uncached: SendMethod::Ahead, inward };
    let Some(file) = largest_file(&options.directory) else {
        return Ok((usual, "Not measured: the directory has no file of 16 MiB or more yet.".to_owned()));
    };
    let known = Known::for_directory(&options.directory);
    let kept = known.as_ref().filter(|_| !options.measure).and_then(Known::read_measurements);
    let (measured, when) = match kept {
        Some(measured) => (measured, "Measured at an earlier start (--measure repeats it)."),
        None => {
            let open = File::open(&file).map_err(Failure::broken)?;
            let measured = thalweg_transfer::measure_methods(open, MEASURED, TIMEOUT).map_err(Failure::broken)?;
            if let Some(known) = &known {
                known.keep_measurements(&measured);
            }
            (measured, "Measured now, with a file of this directory, over loopback.")
        }
    };
    for trial in measured.cached.iter().chain(&measured.uncached) {
        match &trial.cost {
            Ok(cost) => {
                tracing::info!(
                    "{}: {:.0} MB/s, {:.3} s of CPU per GiB",
                    trial.method,
                    cost.rate / 1e6,
                    cost.cpu_per_gib
                )
            }
            Err(error) => tracing::info!("{}: {error}", trial.method),
        }
    }
    let cached = measured.best_cached().unwrap_or(usual.cached);
    let uncached = measured.best_uncached().unwrap_or(usual.uncached);
    Ok((TransferMethods { cached, uncached, inward }, when.to_owned()))
}

/// Returns the largest file in the directory and in the runs in it, if it is large enough to measure with.
fn largest_file(directory: &Path) -> Option<PathBuf> {
    let inner = directory_entries(directory)
        .take(1000)
        .flat_map(|path| if path.is_dir() { directory_entries(&path).collect() } else { vec![path] });
    let sized = inner.filter_map(|path| Some((path.metadata().ok().filter(std::fs::Metadata::is_file)?.len(), path)));
    sized.filter(|(bytes, _)| *bytes >= SMALLEST).max_by_key(|(bytes, _)| *bytes).map(|(_, path)| path)
}

fn directory_entries(directory: &Path) -> impl Iterator<Item = PathBuf> {
    std::fs::read_dir(directory).into_iter().flatten().flatten().map(|entry| entry.path())
}

/// Path of the file that keeps the measurements, one for each file system and kernel.
struct Known(PathBuf);

#[derive(Serialize, Deserialize)]
struct Kept {
    /// Version of the method of measurement.
    method: u32,
    measured: Measured,
}

impl Known {
    fn for_directory(directory: &Path) -> Option<Self> {
        let stat = rustix::fs::stat(directory).ok()?;
        let state = std::env::var_os("XDG_STATE_HOME").map(PathBuf::from);
        let state = state.or_else(|| Some(PathBuf::from(std::env::var_os("HOME")?).join(".local/state")))?;
        let kernel = rustix::system::uname().release().to_string_lossy().into_owned();
        Some(Self(state.join("thalweg/serve").join(format!("{:x}-{kernel}.json", stat.st_dev))))
    }

    fn read_measurements(&self) -> Option<Measured> {
        let text = std::fs::read(&self.0).ok()?;
        let kept = serde_json::from_slice::<Kept>(&text).ok()?;
        (kept.method == METHOD).then_some(kept.measured)
    }

    /// Keeps the measurements. If that fails, they are repeated at the next start.
    fn keep_measurements(&self, measured: &Measured) {
        let kept = serde_json::to_vec_pretty(&Kept { method: METHOD, measured: measured.clone() });
        let made = self.0.parent().map(std::fs::create_dir_all);
        if let (Ok(text), Some(Ok(()))) = (kept, made)
            && let Err(error) = std::fs::write(&self.0, text)
        {
            tracing::info!("{}: {error}", self.0.display());
        }
    }
}

fn is_write_refused(errno: i32) -> bool {
    let errno = rustix::io::Errno::from_raw_os_error(errno);
    [rustix::io::Errno::ROFS, rustix::io::Errno::ACCESS, rustix::io::Errno::PERM].contains(&errno)
}

/// Number of files that a client may need: its socket, a file, the same with `O_DIRECT`, a pipe, a ring.
const FILES_EACH: u64 = 6;
/// Maximum number of CPUs that can be named.
const MOST_CPUS: usize = 1024;
/// Minimum size of a file to measure with, in bytes.
const SMALLEST: u64 = 16 << 20;
/// Maximum number of bytes to measure with, for each way.
const MEASURED: u64 = 256 << 20;
/// Present version of the method: measurements by another one do not count.
const METHOD: u32 = 2;
/// Duration of the measurement of one way.
const TIMEOUT: Duration = Duration::from_millis(300);
