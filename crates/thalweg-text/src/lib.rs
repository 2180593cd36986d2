//! Numbers, sizes, rates, sentences and tables as a person reads and writes them.
//!
//! Decimal units for what is measured ([`volume`], [`rate`]); binary ones where a size was given so ([`size`],
//! [`ByteSize`]).
//!
//! # Files
//!
//! | file | what is in it |
//! | --- | --- |
//! | `text` | Numbers, times, sentences and tables for a terminal |
//! | `tone` | Verdicts in colour, for a terminal |
//! | `byte_size` | Sizes in bytes, as options and topologies have them |
//! | `bit_rate` | Rates of links in bits per second, as options and topologies have them |
#![forbid(unsafe_code)]

mod bit_rate;
mod byte_size;
mod text;
pub mod tone;

pub use bit_rate::{BitRate, BitRateError};
pub use byte_size::{ByteSize, ByteSizeError};
pub use text::{
    Align, NOTHING, Table, WIDTH, broken, count, many, number, plain, plain_lines, rate, seconds, size, tai, times,
    utc, volume, wrapped,
};
