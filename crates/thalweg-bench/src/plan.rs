//! Grammar of `thalweg bench`: one instrument and its options.

use crate::drive::Instrument;
use crate::options::Timing;
use crate::{BenchError, access, building, copy, dma, file, net, pin, serve, transfer};
use clap::Parser;

/// One measurement, as the command line asks for it.
#[derive(Debug, Clone, clap::Subcommand)]
pub enum Plan {
    /// Time of a message from one process to another and back, halved, by message size
    Latency(net::latency::Options),
    /// Bytes per second from one process to another, by message size
    Bandwidth(net::bandwidth::Options),
    /// Packets per second through one port, by frame size, and what of them arrives
    Packets(net::packets::Options),
    /// Latency while messages are sent at a fixed rate, corrected for coordinated omission
    UnderLoad(net::load::Options),
    /// Events built from N sources, by fragment size: the whole path
    Build(building::Options),
    /// Memory: copies, reads and checksums, from the caches and from memory
    Copy(copy::Options),
    /// A PCI device's DMA: to memory, from memory, both at once
    Dma(dma::Options),
    /// A disk: sequential and random reads and writes, by block size
    File(file::Options),
    /// From a file to a socket by each way, by the size of the pieces
    Transfer(transfer::Options),
    /// The data server beside nginx, and beside what the disk gives
    Serve(serve::Options),
    /// Time to find out where memory lies physically, against the time to pin it
    Pin(pin::Options),
    /// One-byte reads of device memory, mapped against through the kernel
    Access(access::Options),
}

#[derive(Debug, Parser)]
#[command(name = "thalweg bench", no_binary_name = true)]
struct Line {
    #[command(subcommand)]
    plan: Plan,
}

impl Plan {
    /// Parses the words after `thalweg bench`.
    ///
    /// # Errors
    /// [`BenchError::Usage`] if the words are not those of an instrument; the text lists the valid ones.
    pub fn parse(words: &[String]) -> Result<Self, BenchError> {
        Line::try_parse_from(words).map(|line| line.plan).map_err(|error| BenchError::Usage(error.to_string()))
    }

    /// Returns the instrument's name, as on the command line.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Latency(_) => "latency",
            Self::Bandwidth(_) => "bandwidth",
            Self::Packets(_) => "packets",
            Self::UnderLoad(_) => "under-load",
            Self::Build(_) => "build",
            Self::Copy(_) => "copy",
            Self::Dma(_) => "dma",
            Self::File(_) => "file",
            Self::Transfer(_) => "transfer",
            Self::Serve(_) => "serve",
            Self::Pin(_) => "pin",
            Self::Access(_) => "access",
        }
    }

    /// Returns how long and how often each point is measured.
    pub fn timing(&self) -> Timing {
        match self {
            Self::Latency(options) => options.timing,
            Self::Bandwidth(options) => options.timing,
            Self::Packets(options) => options.timing,
            Self::UnderLoad(options) => options.timing,
            Self::Build(options) => options.timing,
            Self::Copy(options) => options.timing,
            Self::Dma(options) => options.timing,
            Self::File(options) => options.timing,
            Self::Transfer(options) => options.timing,
            Self::Serve(options) => options.timing,
            Self::Pin(options) => options.timing,
            Self::Access(options) => options.timing,
        }
    }

    pub(crate) fn instrument(&self) -> Result<Box<dyn Instrument>, BenchError> {
        match self {
            Self::Latency(options) => options.instrument(),
            Self::Bandwidth(options) => options.instrument(),
            Self::Packets(options) => options.instrument(),
            Self::UnderLoad(options) => options.instrument(),
            Self::Build(options) => options.instrument(),
            Self::Copy(options) => options.instrument(),
            Self::Dma(options) => options.instrument(),
            Self::File(options) => options.instrument(),
            Self::Transfer(options) => options.instrument(),
            Self::Serve(options) => options.instrument(),
            Self::Pin(options) => options.instrument(),
            Self::Access(options) => options.instrument(),
        }
    }

    /// Returns the host at the other end, if any: the network interface to describe is the one that leads there.
    pub(crate) fn interface(&self) -> Option<String> {
        match self {
            Self::Latency(options) => options.ends.peer.clone(),
            Self::Bandwidth(options) => options.ends.peer.clone(),
            Self::Packets(options) => options.ends.peer.clone(),
            Self::UnderLoad(options) => options.ends.peer.clone(),
            _ => None,
        }
    }
}
