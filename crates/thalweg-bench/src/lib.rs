//! Instruments: measure any leg of the path as well as the reference tools do.
//!
//! A [`Plan`] is one line of `thalweg bench`: an instrument with its options. [`run`] takes its points one after the
//! other, each so many times, and hands them out as they are done; the [`Report`] keeps them with what is known of the
//! machine, so that two of them can be [compared](compare).
//!
//! # What every figure means
//!
//! - *latency*: half of a round trip, in microseconds, from a histogram of all of them (HDR, three digits).
//! - *goodput*: payload bits that arrived at the other end, per second between the first and the last of them.
//! - *copies per byte*: how often the processors moved a payload byte from one place in memory to another, both ends
//!   together, counted by the bytes that went through calls that copy.
//! - *system calls per megabyte* (10⁶ bytes): both ends together, counted where they are made.
//! - *CPU*: see [`Cpu`] for its three definitions.
//! - A point's figures are the medians over its repeats; *spread* is the distance from the least to the greatest of
//!   its principal figure, in percent of the median.
//!
//! # Nothing on the measured path that is not measured
//!
//! Time is read from the processor's counter (no system call), counters are integers of the thread that counts, and
//! all else is read before and after a point, not during it.
//!
//! # Files, in the order of the data's way
//!
//! | file | what is in it |
//! | --- | --- |
//! | `plan` | The grammar of `thalweg bench`: one instrument and its options |
//! | `options` | Options that instruments have in common, with the letters of iperf3 where they mean the same |
//! | `sizes` | Sizes as people ask for them: `64KiB`, `1,512,4KiB`, `1..128KiB:x2`, `1KiB..16KiB:+1KiB` |
//! | `drive` | Takes the points of an instrument, one after the other, and says what makes their figures less certain |
//! | `point` | What a measurement says: points with their figures, and the machine they were taken on |
//! | `clock` | The stopwatch: the processor's time-stamp counter where it is steady, `clock_gettime` where it is not; neither is a system call on Linux (vDSO) |
//! | `cpu` | What the processors did meanwhile, by three stated definitions |
//! | `host` | The machine a report was taken on |
//! | `access` | One-byte reads of device memory that is mapped into this process, against the same reads through the kernel: what it costs to look at a register or a doorbell (the ExpEther paper, section 6.3: 0.58 µs mapped, 1.27 µs through a driver, one million reads of a NIC's memory) |
//! | `memory` | Memory to measure with: fresh, page-aligned, of the pages that were asked for, and of nobody else |
//! | `pin` | Time to find out where memory lies physically, against the time to pin it: what a device that reads and writes host memory by itself costs before the first byte moves (the ExpEther paper, section 6.2) |
//! | `copy` | Memory: copies, reads and checksums, from the caches and from memory |
//! | `dma` | A PCI device and memory: how much its DMA moves, to memory, from memory, and both at once |
//! | `net` | From one process to another: by kernel sockets as programs use them, and by shared memory as Thalweg does |
//! | `building` | Events built from N sources: the whole path, by the very processes that `thalweg run` starts |
//! | `file` | A disk, by block size: sequential and random reads and writes, through the page cache and past it |
//! | `transfer` | From a file to a socket in pieces of one size, by each of the ways there are (`thalweg-transfer`), with what each end costs |
//! | `serve` | The data server beside nginx and beside the disk: whole files from the page cache, ranges asked for by many, files that are not in the page cache, uploads |
//! | `peers` | Thalweg beside the tools that laboratories measure with, and the libraries they would use instead |
//! | `compare` | Two reports side by side: what changed between them, point by point |
//! | `render` | A report as people see it: a table in a terminal, Markdown, and pictures |
//! | `reproduce` | Published measurements taken again: what a paper measured, how it is measured here, what stands beside what, and which of its findings hold on this machine |
//! | `error` | What can go wrong while something is measured |

mod access;
mod building;
mod clock;
pub mod compare;
mod copy;
mod cpu;
mod dma;
mod drive;
mod error;
mod file;
mod host;
mod memory;
pub mod net;
mod options;
pub mod peers;
pub mod pin;
mod plan;
mod point;
pub mod render;
pub mod reproduce;
mod serve;
mod sizes;
mod transfer;

pub use clock::Clock;
pub use cpu::{Cpu, Usage};
pub use drive::{Observer, Stop, run};
pub use error::BenchError;
pub use host::{Host, Interface};
pub use options::{Cpus, Timing};
pub use plan::Plan;
pub use point::{Figures, Key, Latency, Loss, Point, Report};
pub use sizes::Sizes;
