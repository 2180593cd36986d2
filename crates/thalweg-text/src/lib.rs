//! Numbers, sizes, rates, sentences and tables, in the form in which people read and write them.
//!
//! Measured values have decimal units ([`format_volume`], [`format_rate`]); sizes that were given in binary units keep them
//! ([`format_size`], [`ByteSize`]).
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
    Align, NOTHING, TEXT_COLUMNS, Table, break_into_lines, format_bit_rate, format_count, format_number,
    format_quantity, format_rate, format_seconds, format_size, format_tai, format_times, format_utc, format_volume,
    replace_controls, replace_controls_in_lines, wrap_words,
};
