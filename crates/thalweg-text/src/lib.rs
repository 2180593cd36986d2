//! Numbers, sizes, rates, sentences and tables, in the form in which people read and write them.
//!
//! Measured values have decimal units ([`volume`], [`rate`]); sizes that were given in binary units keep them
//! ([`size`], [`ByteSize`]).
//!
//! # Files
//!
//! | file | what is in it |
//! | --- | --- |
//! | `text` | Numbers, times, sentences and tables for a terminal |
//! | `tone` | Verdicts in colour, for a terminal |
//! | `html` | Self-contained pages and their parts |
//! | `plot` | The canvas and the colours of pictures, which the pages' style sheet refers to |
//! | `byte_size` | Sizes in bytes, as in options and topologies |
//! | `bit_rate` | Rates of links in bits per second, as in options and topologies |
#![forbid(unsafe_code)]

mod bit_rate;
mod byte_size;
pub mod html;
#[cfg(feature = "plot")]
pub mod plot;
mod text;
pub mod tone;

pub use bit_rate::{BitRate, BitRateError};
pub use byte_size::{ByteSize, ByteSizeError};
pub use text::{
    Align, NOTHING, TEXT_COLUMNS, Table, broken, count, many, number, plain, plain_lines, rate, seconds, size, tai,
    times, utc, volume, wrapped,
};
