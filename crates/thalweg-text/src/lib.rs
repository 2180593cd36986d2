//! Numbers, sizes, rates, sentences and tables, in the form in which people read and write them.
//!
//! Measured values have three digits and the decimal unit that suits them ([`format_volume`], [`format_rate`],
//! [`format_bit_rate`], [`format_seconds`], [`format_per_second`], [`format_cpu_cost`], [`format_share`]). Values that were
//! chosen are exact, so that their text can be parsed again ([`ByteSize`], [`BitRate`], [`duration`]).
//!
//! # Files
//!
//! | file | what is in it |
//! | --- | --- |
//! | `text` | Numbers, times, sentences and tables for a terminal |
//! | `tone` | Verdicts in colour, for a terminal |
//! | `html` | Self-contained pages and their parts |
//! | `plot` | Charts with their origin, and the canvas and the colours of pictures, which the pages' style sheet refers to |
//! | `output_file` | Files of results, in the format that their ending gives |
//! | `byte_size` | Sizes in bytes, as in options and topologies |
//! | `bit_rate` | Rates in bits or bytes per second, as in options and topologies |
//! | `duration` | Durations, as in options and topologies |
//! | `decimal` | Decimal numbers in front of a unit |
#![forbid(unsafe_code)]

mod bit_rate;
mod byte_size;
mod decimal;
pub mod duration;
pub mod html;
mod output_file;
#[cfg(feature = "plot")]
pub mod plot;
mod text;
pub mod tone;

pub use bit_rate::{BitRate, BitRateError, ByteRate, ByteRateError};
pub use byte_size::{ByteSize, ByteSizeError};
pub use duration::{DurationError, parse_duration};
pub use output_file::{FileFormat, FileFormatError, OutputFile};
pub use text::{
    Align, NOTHING, TEXT_COLUMNS, Table, break_into_lines, format_bit_rate, format_count, format_cpu_cost,
    format_number, format_per_second, format_quantity, format_rate, format_seconds, format_share, format_size,
    format_tai, format_times, format_utc, format_volume, replace_controls, replace_controls_in_lines, wrap_words,
};
