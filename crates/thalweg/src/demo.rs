//! `thalweg demo` and `thalweg run`: whole systems on this machine.

use crate::live::{self, Goal};
use crate::print;
use crate::run_options::RunOptions;
use crate::supervise::{Watched, supervise_topology};
use crate::terminal::{Failure, Output, outlet, progress};
use parking_lot::Mutex;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;
use thalweg_device::{DeviceConfig, ModelAdcConfig, devices_for};
use thalweg_link::{Adapter, Address, LinkKind, OwnAddress};
use thalweg_node::{
    BuilderNodeConfig, CheckConfig, DEFAULT_SLOT, EventRate, Feed, Policy, RunConfig, Snapshot, SourceNodeConfig,
    Topology, WINDOW, Wait,
};
use thalweg_sys::netns::Network;
use thalweg_text::{ByteSize, format_quantity, format_size, format_volume, parse_duration, wrap_words};
use thalweg_wire::{SourceId, record_bytes};

/// Bytes that the slots of all sources take at most, beyond what keeps their links busy.
const SLOT_MEMORY: usize = 512 << 20;

#[derive(Debug, clap::Args)]
pub(crate) struct Options {
    /// Number of sources. With --input, as many as the recordings have (a VDIF file has one for each thread)
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=4096))]
    sources: Option<u16>,
    /// Bytes in each fragment's payload, such as 1KiB, 64KiB, 1MiB
    #[arg(long, value_name = "BYTES", default_value = "1MiB", conflicts_with = "input")]
    size: ByteSize,
    /// Duration of the run. Without it: 5 s, and no longer than it takes to record 500 MB
    #[arg(long, value_name = "TIME", value_parser = parse_duration)]
    duration: Option<Duration>,
    /// Link that carries the data: tcp, udp, shm (shared memory), rdma (iWARP over TCP, by an adapter in software),
    /// rdma-efe (the same over UDP); af-xdp or dpdk (over virtual interfaces of hosts made
    /// for the demo: needs root; dpdk drives them by net_af_packet)
    #[arg(long, value_name = "tcp|udp|shm|rdma|rdma-efe|af-xdp|dpdk", default_value = "tcp")]
    link: LinkKind,
    /// Real recordings to replay instead of the model ADC: SigMF, VDIF, NumPy arrays, PGM and TIFF images. They are
    /// repeated until the end of the run
    #[arg(long, value_name = "FILE", num_args = 1..)]
    input: Vec<PathBuf>,
    /// Devices to record from instead: gige:NAME, v4l2:FILE, nvme:ADDRESS, edu:ADDRESS (thalweg devices lists them)
    #[arg(long, value_name = "ADDRESS", num_args = 1.., conflicts_with_all = ["input", "rate", "sources", "size"],
        value_parser = DeviceConfig::from_address)]
    device: Vec<DeviceConfig>,
    /// Events per second; without it, as fast as the builder takes them, or 1000 with --input
    #[arg(long, value_name = "HZ")]
    rate: Option<EventRate>,
    /// Directory in which the run's directory is created
    #[arg(long, value_name = "DIR", default_value = "runs")]
    out: PathBuf,
    /// Build and count events without recording them
    #[arg(long)]
    no_record: bool,
    /// Comment on the run, which is kept with it
    #[arg(long, value_name = "TEXT", default_value = "", hide_default_value = true, conflicts_with = "no_record")]
    comment: String,
    /// Part of each fragment that is checked before it counts as built: header, or payload (its CRC too). The default
    /// is payload when recording, and header with --no-record
    #[arg(long, value_name = "header|payload")]
    check: Option<CheckConfig>,
    /// TCP congestion control, as listed in /proc/sys/net/ipv4/tcp_available_congestion_control, or 'system' for the
    /// system's default. Without it: cubic
    #[arg(long, value_name = "NAME")]
    congestion: Option<String>,
    /// Print the topology that this demo runs, as a file for `thalweg run`, and do nothing else
    #[arg(long)]
    print_topology: bool,
}

pub(crate) fn run_demo(options: &Options, json: bool, verbose: u8) -> Result<ExitCode, Failure> {
    let topology = demo_topology(options)?;
    // Nodes on one host that each have an interface need one virtual host each.
    let network = match options.link.interface {
        true if options.print_topology => {
            let why = "its virtual hosts only exist during the demo, so that no file can refer to them; \
                docs/topology.md shows one for your hosts";
            return Err(Failure::Usage(format!("--print-topology: over {}, {why}", options.link)));
        }
        true => Some(create_demo_hosts(options.link, topology.sources.len())?),
        false => None,
    };
    if options.print_topology {
        let mut output = Output::new();
        output.text(&toml::to_string(&with_absolute_paths(topology)?).map_err(Failure::broken)?)?;
        output.flush()?;
        return Ok(ExitCode::SUCCESS);
    }
    if !json && !progress::is_quiet() {
        print_introduction(options, &topology);
    }
    run_on_this_machine(topology, network.as_ref(), json, verbose)
}

/// Creates a host for the builder, and one for each source. If the nodes drive their interfaces, these have no
/// addresses in the kernel.
fn create_demo_hosts(link: LinkKind, sources: usize) -> Result<Network, Failure> {
    let count = u16::try_from(1 + sources).map_err(Failure::usage)?;
    let made = if link.adapter { Network::without_addresses(count, MTU) } else { Network::new(count, MTU) };
    made.map_err(|error| Failure::Usage(format!("cannot create the network of the demo: {error}")))
}

#[derive(Debug, clap::Args)]
pub(crate) struct RunFile {
    /// The topology
    file: PathBuf,
    #[command(flatten)]
    options: RunOptions,
}

pub(crate) fn run_topology_file(run: &RunFile, json: bool, verbose: u8) -> Result<ExitCode, Failure> {
    run_on_this_machine(run.options.load_topology(&run.file, None)?, None, json, verbose)
}

pub(crate) fn run_on_this_machine(
    topology: Topology,
    network: Option<&Network>,
    json: bool,
    verbose: u8,
) -> Result<ExitCode, Failure> {
    crate::terminal::raise_open_file_limit();
    // Together the nodes may need more than each of them alone. Nodes on other hosts check their host themselves.
    if network.is_none() {
        crate::preflight::run_preflight(&topology, None)?;
    }
    let shown = Arc::<Mutex<Snapshot>>::default();
    let line = live::Line::new("thalweg", Goal::from(&topology.run), {
        let shown = Arc::clone(&shown);
        move || shown.lock().clone()
    });
    let watched = supervise_topology(topology, network, verbose, &|now| {
        *shown.lock() = now;
    });
    line.clear_line();
    let Watched { report, failures } = watched?;
    for failure in &failures {
        outlet::stderr().put_text(progress::error_text(failure));
    }
    Ok(print::print_run_report(&report, json))
}

fn print_introduction(options: &Options, topology: &Topology) {
    let what = if !options.device.is_empty() {
        options.device.iter().map(|device| device.kind_name()).collect::<Vec<_>>().join(", ")
    } else if options.input.is_empty() {
        format!("model ADC, simulated, fragments of {}", format_size(options.size.0))
    } else {
        "real recordings, replayed".to_owned()
    };
    let to =
        if options.no_record { "not recorded".to_owned() } else { format!("recorded in {}", options.out.display()) };
    let time = topology.run.duration.map_or(String::new(), |time| humantime::format_duration(time).to_string());
    let mut text = wrap_words(
        "",
        &format!(
            "{} ({what}) -> 1 builder over {}, {time}, {to}",
            format_quantity(topology.sources.len() as u64, "source"),
            options.link
        ),
    );
    if options.duration.is_none() {
        let sooner = match topology.run.events {
            Some(events) => format!(" or {} ({})", format_volume(LITTLE), format_quantity(events, "event")),
            None => String::new(),
        };
        text.push_str(&wrap_words("", &format!("It ends after {time}{sooner}; change that with --duration.")));
    }
    outlet::stdout().put_text(text);
}

/// Returns the adapter of a demo's source or builder, if its link drives an adapter: the interface of the node's host.
fn demo_adapter(link: LinkKind, source: Option<usize>) -> Option<Adapter> {
    let host = source.and_then(|source| u16::try_from(1 + source).ok());
    let address = host.map(|host| OwnAddress { ip: Network::host_address(host), prefix: Some(Network::PREFIX_BITS) });
    let device = format!("net_af_packet0,iface={}", Network::INTERFACE);
    link.adapter.then_some(Adapter { device, address, gateway: None, mtu: None })
}

/// MTU in bytes of the network of a demo whose nodes have hosts of their own: as in networks built for readout.
const MTU: u32 = 9000;

/// Maximum number of bytes that a demo records if no duration is given.
const LITTLE: u64 = 500_000_000;

/// Returns the devices that the demo's sources read from.
fn demo_devices(options: &Options) -> Result<Vec<DeviceConfig>, Failure> {
    if !options.device.is_empty() {
        if options.link.interface {
            let why = "its sources run on virtual hosts, which have no devices";
            return Err(Failure::Usage(format!("--device cannot be used over {}: {why}", options.link)));
        }
        return Ok(options.device.clone());
    }
    if options.input.is_empty() {
        let size = usize::try_from(options.size.0).unwrap_or(usize::MAX);
        if options.size.0 == 0 || options.size.0 > 1 << 29 {
            return Err(Failure::Usage(format!("--size {}: it must be 1 byte to 512 MiB", options.size.0)));
        }
        // The period is as many waveforms as the slots hold: after the first round a slot has its contents already, as
        // with the ring of buffers a digitizer writes by DMA, and the model costs nothing.
        let period = u64::from(slot_count_for(size)) * records_per_slot(size) as u64;
        let models = (0..options.sources.unwrap_or(3)).map(|_| {
            DeviceConfig::from(ModelAdcConfig { size: options.size, size_from: None, seed: 1, source: None, period })
        });
        Ok(models.collect())
    } else {
        let devices = devices_for(&options.input, true).map_err(Failure::usage)?;
        Ok(match options.sources {
            Some(count) if usize::from(count) > devices.len() => {
                return Err(Failure::Usage(format!(
                    "--sources {count}: the recordings have data for only {}",
                    devices.len()
                )));
            }
            Some(count) => devices.into_iter().take(count.into()).collect(),
            None => devices,
        })
    }
}

/// Returns the topology that a demo's options stand for.
fn demo_topology(options: &Options) -> Result<Topology, Failure> {
    let name = format!("thalweg-{}.sock", std::process::id());
    let listen = match options.link.interface {
        true => Address::new(options.link, &format!("{}:7400", Network::host_address(0))),
        false => Address::on_this_host(options.link, &std::env::temp_dir(), &name),
    }
    .map_err(Failure::Usage)?;
    let devices = demo_devices(options)?;
    let recorded = if options.input.is_empty() { None } else { EventRate::try_from(1000.0).ok() };
    let mut largest = 0;
    let mut event_bytes = 0;
    let mut sources = Vec::new();
    let share = SLOT_MEMORY / devices.len().max(1);
    for (index, mut device) in devices.into_iter().enumerate() {
        let id = SourceId::new(1, u16::try_from(index).map_err(Failure::usage)?);
        device.set_default_source(id);
        let payload = match device.options_as::<ModelAdcConfig>() {
            Some(model) => usize::try_from(model.size.0).unwrap_or(usize::MAX),
            None => Feed::from(device.open_device(None).map_err(Failure::usage)?).max_payload(),
        };
        let rate = options.rate.or(recorded);
        let source = SourceNodeConfig {
            name: format!("{}-{index}", device.kind_name()),
            id: id.to_string(),
            device: Some(device),
            beat: None,
            link: options.link,
            adapter: demo_adapter(options.link, Some(index)),
            congestion: options.congestion.clone(),
            rate,
            burst: 1,
            policy: Policy::Block,
            slots: slot_count_at(rate, payload, share),
            slot: None,
            wait: Wait::default(),
            cpu: None,
        };
        largest = largest.max(source.slot_bytes(payload));
        event_bytes += payload as u64;
        sources.push(source);
    }
    let check = options.check.unwrap_or(if options.no_record { CheckConfig::Header } else { CheckConfig::Payload });
    let mut builder = BuilderNodeConfig::new("builder", vec![listen]);
    builder.check = check;
    builder.adapter = demo_adapter(options.link, None);
    builder.block = ByteSize(builder.block.0.max((largest as u64 + (1 << 17)).next_multiple_of(1 << 20)));
    // The window has room for several fetches under way, however large they are.
    builder.window = Some(ByteSize(WINDOW.max(4 * largest as u64)));
    let topology = Topology {
        run: RunConfig {
            directory: options.out.clone(),
            record: !options.no_record,
            comment: options.comment.clone(),
            duration: Some(options.duration.unwrap_or(Duration::from_secs(5))),
            events: (options.duration.is_none() && !options.no_record).then(|| (LITTLE / event_bytes.max(1)).max(1)),
            ..RunConfig::default()
        },
        builders: vec![builder],
        sources,
        ..Topology::default()
    };
    topology.check_values().map_err(|(field, problem)| Failure::Usage(format!("{field}: {problem}")))?;
    Ok(topology)
}

/// Returns the topology with absolute paths, since those in a file are relative to it, wherever it is saved.
fn with_absolute_paths(mut topology: Topology) -> Result<Topology, Failure> {
    let here = std::env::current_dir().map_err(Failure::broken)?;
    topology.resolve_paths(&here);
    topology.check_values().map_err(|(field, problem)| Failure::Usage(format!("{field}: {problem}")))?;
    Ok(topology)
}

/// Returns the number of slots of a source with this rate: as many as hold what comes in a second, so that nothing is
/// lost while a busy machine, or its disk, stands still for that long. They take at most `share` bytes, where that is
/// enough to keep the link busy.
fn slot_count_at(rate: Option<EventRate>, payload: usize, share: usize) -> u32 {
    let count = slot_count_for(payload);
    let wanted = rate.map_or(0.0, |rate| rate.events_per_second() / records_per_slot(payload) as f64);
    let most = share / record_bytes(payload).max(DEFAULT_SLOT);
    // A multiple: what fills a slot once fills it again.
    let times = (wanted.min(most as f64) / f64::from(count)).floor() as u32;
    count * times.max(1)
}

/// Returns the number of records that share a slot.
fn records_per_slot(payload: usize) -> usize {
    (DEFAULT_SLOT / record_bytes(payload)).max(1)
}

/// Returns the number of slots of a source: enough to keep the link busy, few enough to stay in the cache.
fn slot_count_for(payload: usize) -> u32 {
    match record_bytes(payload) {
        large if large > 64 << 20 => 3,
        large if large > DEFAULT_SLOT => 4,
        _ => 6,
    }
}
