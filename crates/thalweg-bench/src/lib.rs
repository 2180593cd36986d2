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

mod access;
mod building;
mod clock;
pub mod compare;
mod copy;
mod cpu;
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
