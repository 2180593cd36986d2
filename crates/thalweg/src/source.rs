//! `thalweg source`: records that any program writes into a pipe, as a source of a run.

use crate::live::{self, Goal};
use crate::node::stop_on_signals;
use crate::print;
use crate::terminal::Failure;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;
use thalweg_device::StoredType;
use thalweg_drivers::local::Stream;
use thalweg_drivers::local::{LengthPrefix, Mark, StreamConfig};
use thalweg_link::Address;
use thalweg_node::{Feed, Handle, Policy, SourceNode, SourceSettings, Wait};
use thalweg_text::{ByteSize, parse_duration};
use thalweg_wire::{SourceId, record_bytes};

#[derive(Debug, clap::Args)]
#[command(group = clap::ArgGroup::new("input").args(["stdin", "file"]).required(true))]
pub(crate) struct Options {
    /// Addresses of the builders: tcp:HOST:PORT, udp:HOST:PORT, shm:PATH; of several, all in the topology's order
    #[arg(required = true)]
    builders: Vec<Address>,
    /// The id of a source without a `device` in the topology: 2.0
    #[arg(long, value_parser = parse_id)]
    id: SourceId,
    /// Name of the source in the run [default: its id]
    #[arg(long)]
    name: Option<String>,
    /// Read records from standard input
    #[arg(long)]
    stdin: bool,
    /// Read records from a named pipe or a serial port
    #[arg(long, value_name = "FILE")]
    file: Option<PathBuf>,
    /// Bytes in each record
    #[arg(long, value_name = "SIZE", required_unless_present_any = ["shape", "length", "end"])]
    record: Option<ByteSize>,
    /// Type of a record's elements: u8, i16, f32, ci16, i16_be, …
    #[arg(long = "type", value_name = "TYPE")]
    stored: Option<StoredType>,
    /// A record's axes, the last one without gaps: 480,640
    #[arg(long, value_name = "LENGTHS", value_delimiter = ',', requires = "stored")]
    shape: Option<Vec<u64>>,
    /// Number of bytes of the length field before each record, which has the length of the record in bytes
    #[arg(long, value_name = "BYTES", requires = "size", value_parser = clap::value_parser!(u8).range(1..=8))]
    length: Option<u8>,
    /// The length field is little-endian
    #[arg(long, requires = "length")]
    little_endian: bool,
    /// Bytes before each record, as hexadecimal digits, by which the next record is found after a lost byte
    #[arg(long, value_name = "HEX", value_parser = parse_mark)]
    mark: Option<Mark>,
    /// Bytes after each record, as hexadecimal digits: 0a for lines of text
    #[arg(long, value_name = "HEX", requires = "size", value_parser = parse_mark, conflicts_with_all = ["mark", "length"])]
    end: Option<Mark>,
    /// Bytes in the longest of such records
    #[arg(long, value_name = "SIZE")]
    size: Option<ByteSize>,
    /// A serial port's bits per second
    #[arg(long, requires = "file")]
    baud: Option<u32>,
    /// Number of records buffered until a builder fetches them
    #[arg(long, value_name = "N", default_value_t = 64, value_parser = clap::value_parser!(u32).range(1..=65_536))]
    slots: u32,
    /// Time to wait for the builders
    #[arg(long, value_name = "TIME", default_value = "10s", value_parser = parse_duration)]
    timeout: Duration,
}

fn parse_id(text: &str) -> Result<SourceId, String> {
    text.parse()
}

fn parse_mark(text: &str) -> Result<Mark, String> {
    text.to_owned().try_into()
}

/// Feeds one run, to the end of the input or of the run.
pub(crate) fn run_source(options: Options, json: bool) -> Result<ExitCode, Failure> {
    let name = options.name.unwrap_or_else(|| options.id.to_string());
    let little_endian = options.little_endian;
    let config = StreamConfig {
        file: options.file.clone().unwrap_or_else(|| "standard input".into()),
        record: options.record,
        stored: options.stored,
        shape: options.shape,
        length: options.length.map(|bytes| LengthPrefix { bytes, little_endian }),
        size: options.size,
        mark: options.mark,
        end: options.end,
        baud: options.baud,
    };
    let stream = if options.stdin { Stream::from_standard_input(&config) } else { Stream::open(&config) };
    let feed = Feed::Acquisition(Box::new(stream.map_err(Failure::usage)?));
    let settings = SourceSettings {
        name: name.clone(),
        id: options.id,
        slot_bytes: record_bytes(feed.max_payload()),
        feed,
        builders: options.builders,
        adapter: None,
        congestion: None,
        rate: None,
        burst: 1,
        policy: Policy::Block,
        slots: options.slots,
        timeout: options.timeout,
        wait: Wait::default(),
        cpu: None,
    };
    let handle = Handle::new().map_err(Failure::broken)?;
    stop_on_signals(handle.clone())?;
    let line = live::Line::new(&name, Goal::default(), {
        let handle = handle.clone();
        move || (*handle.latest_snapshot()).clone()
    });
    let report = SourceNode::new(settings).and_then(|node| node.run(&handle));
    line.clear_line();
    print::print_source_report(&report?, json);
    Ok(ExitCode::SUCCESS)
}
