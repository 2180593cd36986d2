//! Reports for people: a table in a terminal, Markdown, CSV, and pictures.

pub mod columns;
mod csv;
pub(crate) mod html;
pub(crate) mod markdown;
mod peers;
pub(crate) mod plot;
pub(crate) mod sections;
mod table;
#[cfg(test)]
mod tests;

pub use csv::report_csv;
pub use html::report_html;
pub use markdown::report_markdown;
pub use peers::{format_pairing, format_peers_end, peers_csv, peers_html, peers_markdown, peers_svg};
pub use plot::{PlotError, report_svg};
pub use table::Table;
