//! `thalweg capture`: writes the packets of an interface into a file.

pub(crate) mod pcap;

use crate::capture::pcap::{CaptureError, Captured, Packets, Taken};
use crate::terminal::{Failure, Output, outlet, progress, signals};
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use thalweg_dpdk::DpdkPort;
use thalweg_frames::PacketRing;
use thalweg_text::{ByteSize, format_count, format_quantity, format_rate, format_volume, parse_duration};

/// Maximum length of a packet in bytes: what every reader of captures takes (`MAXIMUM_SNAPLEN` of libpcap).
const MOST: u32 = 262_144;
/// Size of the kernel's ring in bytes.
const BUFFER: usize = 128 << 20;

#[derive(Debug, clap::Args)]
pub(crate) struct Options {
    /// The interface, as `ip link` names it; or dpdk:DEVICE, an adapter that this program drives, or af-xdp:HOST:PORT,
    /// the datagrams for a port of this host. While capturing from these two, no other program receives their packets
    interface: String,
    /// The file to create; it must not exist
    file: PathBuf,
    /// Maximum number of bytes kept of each packet
    #[arg(long, value_name = "BYTES", default_value_t = MOST, value_parser = clap::value_parser!(u32).range(1..))]
    snap: u32,
    /// End after this number of packets
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    count: Option<u64>,
    /// End after this time
    #[arg(long = "for", value_name = "TIME", value_parser = parse_duration)]
    lasting: Option<Duration>,
    /// Memory in which packets of an interface wait for the disk, up to 4GiB [default: 128MiB]
    #[arg(long, value_name = "SIZE")]
    buffer: Option<ByteSize>,
    /// Do not set promiscuous mode: capture only packets to this host, or to all
    #[arg(long)]
    no_promiscuous: bool,
}

impl Options {
    /// Fails if an option is given that has no effect on this interface.
    fn refuse_ineffective_option(&self, option: &str, is_given: bool) -> Result<(), Failure> {
        match is_given {
            true => Err(Failure::Usage(format!("{}: {option} has no effect", self.interface))),
            false => Ok(()),
        }
    }
}

pub(crate) fn run_capture(options: Options, json: bool) -> Result<ExitCode, Failure> {
    let stop = Arc::new(AtomicBool::new(false));
    signals::on_interrupt({
        let stop = Arc::clone(&stop);
        move || {
            // A second request means that the user does not want to wait for the disk.
            if stop.swap(true, Ordering::Relaxed) {
                std::process::exit(1);
            }
        }
    })?;
    let wanted = crate::capture::pcap::Options {
        interface: options.interface.clone(),
        file: options.file.clone(),
        snap: options.snap.min(MOST),
        count: options.count,
        lasting: options.lasting,
    };
    let mut from = open_packet_source(&options, wanted.snap)?;
    let captured = crate::capture::pcap::capture_packets(&mut *from, &wanted, &stop, || {
        if !progress::is_quiet() {
            outlet::stderr().put_text(format!("capturing on {}\n", options.interface));
        }
    });
    let captured = captured.map_err(|error| match error {
        CaptureError::Create { .. } => Failure::usage(error),
        CaptureError::Gone { .. } | CaptureError::Write { .. } => Failure::broken(error),
    })?;
    let mut output = Output::new();
    if json {
        let Captured { packets, bytes, dropped, file_bytes, seconds } = captured;
        output.json(&serde_json::json!({
            "file": options.file, "packets": packets, "bytes": bytes, "dropped": dropped, "file_bytes": file_bytes,
            "seconds": seconds,
        }))?;
    } else {
        output.text(&capture_summary(&options, &captured))?;
    }
    output.flush()?;
    Ok(ExitCode::SUCCESS)
}

/// Opens the interface, adapter or port that packets come from.
fn open_packet_source(options: &Options, snap: u32) -> Result<Box<dyn Packets>, Failure> {
    if let Some(device) = options.interface.strip_prefix("dpdk:") {
        options.refuse_ineffective_option("--buffer", options.buffer.is_some())?;
        let wanted = thalweg_dpdk::Options {
            promiscuous: !options.no_promiscuous,
            descriptors: 4096,
            ..thalweg_dpdk::Options::default()
        };
        return Ok(Box::new(Taken::from_port(DpdkPort::open_device(device, &wanted).map_err(Failure::usage)?)));
    }
    if let Some(place) = options.interface.strip_prefix("af-xdp:") {
        options.refuse_ineffective_option("--buffer", options.buffer.is_some())?;
        options.refuse_ineffective_option("--no-promiscuous", options.no_promiscuous)?;
        return open_steered_port(place);
    }
    let bytes = options.buffer.map_or(BUFFER, |buffer| usize::try_from(buffer.0).unwrap_or(usize::MAX));
    if bytes > PacketRing::MAX_BYTES {
        let most = ByteSize(PacketRing::MAX_BYTES as u64);
        return Err(Failure::Usage(format!("--buffer: the kernel's rings hold up to {most}")));
    }
    let ring = PacketRing::open_interface(&options.interface, snap, bytes, !options.no_promiscuous);
    Ok(Box::new(ring.map_err(Failure::usage)?))
}

#[cfg(feature = "af-xdp")]
fn open_steered_port(place: &str) -> Result<Box<dyn Packets>, Failure> {
    use std::net::ToSocketAddrs;
    let found = place.to_socket_addrs().map_err(|error| Failure::Usage(format!("af-xdp:{place}: {error}")))?.next();
    let at = found.ok_or_else(|| Failure::Usage(format!("af-xdp:{place}: this name has no address")))?;
    let port = thalweg_frames::AfXdpPort::open_at_address(at).map_err(Failure::usage)?;
    Ok(Box::new(Taken::from_port(port.into_raw_port())))
}

#[cfg(not(feature = "af-xdp"))]
fn steered(_place: &str) -> Result<Box<dyn Packets>, Failure> {
    Err(Failure::Usage("this thalweg was built without AF_XDP".to_owned()))
}

fn capture_summary(options: &Options, captured: &Captured) -> String {
    let Captured { packets, bytes, dropped, file_bytes, seconds } = *captured;
    let rate = format_rate(bytes as f64 / seconds.max(1e-9));
    let dropped = dropped.map_or("an unknown number".to_owned(), format_count);
    format!(
        "{}, {} in {seconds:.2} s ({rate})\n{dropped} dropped because a buffer was full\n{}: {}\n",
        format_quantity(packets, "packet"),
        format_volume(bytes),
        options.file.display(),
        format_volume(file_bytes)
    )
}
