//! Instruments that measure any leg of the data path as well as the reference tools do.
//!
//! A [`Plan`] is one line of `thalweg bench`: an instrument with its options. [`measure_plan`] measures its points one after the
//! other, each for the given number of repeats, and passes each on when it is done; the [`Report`] keeps them with what
//! is known of the machine, so that two reports can be [compared](compare).
//!
//! # Definitions of the figures
//!
//! - *latency*: half of a round trip, in microseconds, from a histogram of all round trips (HDR, three digits).
//! - *goodput*: payload bits that arrived at the other end, per second between the first and the last of them.
//! - *copies per byte*: number of times that the processors moved a payload byte from one place in memory to another,
//!   both ends together, counted as the bytes that went through calls that copy.
//! - *system calls per megabyte* (10⁶ bytes): both ends together, counted where they are made.
//! - *CPU*: see [`Cpu`] for its three definitions.
//! - A point's figures are the medians over its repeats; *spread* is the distance from the least to the greatest of
//!   its principal figure, in percent of the median.
//!
//! # No unmeasured work on the measured path
//!
//! Time is read from the processor's counter (no system call), counters are integers of the thread that counts, and
//! everything else is read before and after a point, not during it.
//!
//! # Files, in the order of the data path
//!
//! | file | what is in it |
//! | --- | --- |
//! | `plan` | Grammar of `thalweg bench`: one instrument and its options |
//! | `options` | Options that several instruments share, with the letters of iperf3 where they mean the same |
//! | `sizes` | Parser of sizes: `64KiB`, `1,512,4KiB`, `1..128KiB:x2`, `1KiB..16KiB:+1KiB` |
//! | `drive` | Measures the points of an instrument, one after the other, and reports what makes their figures less certain |
//! | `point` | Results of a measurement: points with their figures, and the machine on which they were taken |
//! | `principal` | Principal figures: those by which the points of an instrument are judged |
//! | `doubt` | Conditions on the machine that make a figure doubtful, each a warning beside the figure |
//! | `clock` | Stopwatch: the processor's time-stamp counter where it is steady, `clock_gettime` elsewhere; neither is a system call on Linux (vDSO) |
//! | `cpu` | Processor use during a measurement, by three stated definitions |
//! | `host` | Description of the machine on which a report was taken |
//! | `access` | One-byte reads of device memory that is mapped into this process, against the same reads through the kernel: the cost of reading a register or a doorbell (the ExpEther paper, section 6.3: 0.58 µs mapped, 1.27 µs through a driver, one million reads of a NIC's memory) |
//! | `memory` | Memory to measure with: fresh, page-aligned, made of the requested kind of page, and used by no one else |
//! | `pin` | Time to find out the physical addresses of memory, against the time to pin it: the cost, before the first byte moves, of a device that reads and writes host memory by itself (the ExpEther paper, section 6.2) |
//! | `copy` | Memory: copies, reads and checksums, from the caches and from memory |
//! | `dma` | DMA of a PCI device: throughput to memory, from memory, and both at once, by the size of a transfer |
//! | `net` | From one process to another: by kernel sockets as ordinary programs use them, and by shared memory as Thalweg does |
//! | `building` | Events built from N sources: the whole path, by the same processes that `thalweg run` starts |
//! | `file` | A disk, by block size: sequential and random reads and writes, through the page cache and past it |
//! | `verbs` | Verbs of the RNIC in software (`thalweg-rdma`): the time from posting a request to its completion, and the rate and goodput of several outstanding ones, by operation and size |
//! | `network` | Network between client and server: this host's loopback, or a virtual cable with a network of its own at each end |
//! | `transfer` | From a file to a socket in pieces of one size, by each available method (`thalweg-transfer`), with each end's cost |
//! | `serve` | Comparison of the data server with nginx and with the disk: whole files from the page cache, ranges requested by many, files that are not in the page cache, uploads |
//! | `peers` | Comparison of Thalweg with the tools that laboratories measure with, and the libraries they would use instead |
//! | `programs` | Programs of this machine, and the user's cache for what is built once |
//! | `compare` | Comparison of two reports, point by point |
//! | `render` | Reports for people: a table in a terminal, Markdown, and pictures |
//! | `reproduce` | Published measurements repeated: the paper's measurements, the method here, the figures side by side, and which of the findings hold here: on this machine, or in the laboratory of `thalweg-lab` |
//! | `error` | Errors of measurements |

mod access;
mod building;
mod clock;
pub mod compare;
mod copy;
mod cpu;
mod dma;
mod doubt;
mod drive;
mod error;
mod file;
mod host;
mod memory;
pub mod net;
mod network;
mod options;
pub mod peers;
pub mod pin;
mod plan;
mod point;
mod principal;
mod programs;
pub mod render;
pub mod reproduce;
mod serve;
mod sizes;
mod transfer;
mod verbs;

pub use clock::Clock;
pub use cpu::{Cpu, Usage};
pub use doubt::{Conditions, Warning, WarningKind, Watch, worst_warnings};
pub use drive::{Observer, Stop, measure_plan};
pub use error::BenchError;
pub use host::{Host, Interface};
pub use options::{Cpus, Timing};
pub use plan::Plan;
pub use point::{Figures, Key, Latency, Loss, Point, Report};
pub use programs::{cache_directory, find_program};
pub use sizes::Sizes;

/// Returns the path of the program `thalweg`, whose nodes and servers are measured: it is beside this program.
///
/// # Errors
/// This program's own path is not known.
pub fn readout_program() -> std::io::Result<std::path::PathBuf> {
    std::env::current_exe().map(|program| program.with_file_name("thalweg"))
}
