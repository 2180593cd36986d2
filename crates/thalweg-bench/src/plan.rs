//! Grammar of `thalweg bench`: one instrument and its options.

use crate::drive::Instrument;
use crate::options::Timing;
use crate::{BenchError, access, building, copy, dma, file, net, pin, serve, transfer, verbs};
use clap::Parser;

/// One measurement, as the command line asks for it.
#[derive(Debug, Clone, clap::Subcommand)]
pub enum Plan {
    /// Time of a message from one process to another and back, halved, by message size
    Latency(net::latency::Options),
    /// Bytes per second from one process to another, by message size
    Bandwidth(net::bandwidth::Options),
    /// Packets per second through one port, by frame size, and the part that arrives
    Packets(net::packets::Options),
    /// Latency while messages are sent at a fixed rate, corrected for coordinated omission
    UnderLoad(net::load::Options),
    /// Events built from N sources, by fragment size: the whole path
    Build(building::Options),
    /// Verbs of the RNIC in software: time and rate by operation and size
    Verbs(verbs::Options),
    /// Memory: copies, reads and checksums, from the caches and from memory
    Copy(copy::Options),
    /// A PCI device's DMA: to memory, from memory, both at once
    Dma(dma::Options),
    /// A disk: sequential and random reads and writes, by block size
    File(file::Options),
    /// From a file to a socket by each method, by the size of the pieces
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
    pub fn parse_words(words: &[String]) -> Result<Self, BenchError> {
        Line::try_parse_from(words).map(|line| line.plan).map_err(|error| BenchError::Usage(error.to_string()))
    }

    /// Returns the instrument's name, as on the command line.
    pub fn instrument_name(&self) -> &'static str {
        self.name_and_options().0
    }

    /// Returns how long and how often each point is measured.
    pub fn timing(&self) -> Timing {
        self.name_and_options().1.timing()
    }

    pub(crate) fn create_instrument(&self) -> Result<Box<dyn Instrument>, BenchError> {
        self.name_and_options().1.create_instrument()
    }

    /// Returns the host at the other end, if any: the network interface to describe is the one that leads there.
    pub(crate) fn peer_host(&self) -> Option<&str> {
        self.name_and_options().1.peer_host()
    }

    /// Returns the name and the options of the instrument.
    fn name_and_options(&self) -> (&'static str, &dyn InstrumentOptions) {
        match self {
            Self::Latency(options) => ("latency", options),
            Self::Bandwidth(options) => ("bandwidth", options),
            Self::Packets(options) => ("packets", options),
            Self::UnderLoad(options) => ("under-load", options),
            Self::Build(options) => ("build", options),
            Self::Verbs(options) => ("verbs", options),
            Self::Copy(options) => ("copy", options),
            Self::Dma(options) => ("dma", options),
            Self::File(options) => ("file", options),
            Self::Transfer(options) => ("transfer", options),
            Self::Serve(options) => ("serve", options),
            Self::Pin(options) => ("pin", options),
            Self::Access(options) => ("access", options),
        }
    }
}

/// Options of one instrument.
pub(crate) trait InstrumentOptions {
    /// Returns how long and how often each point is measured.
    fn timing(&self) -> Timing;

    /// Makes the instrument, or returns an error if the options make no sense or cannot be met here.
    fn create_instrument(&self) -> Result<Box<dyn Instrument>, BenchError>;

    /// Returns the host at the other end, if it is another one.
    fn peer_host(&self) -> Option<&str> {
        None
    }
}
