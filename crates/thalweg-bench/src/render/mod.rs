//! A report as people see it: a table in a terminal, Markdown, and pictures.

pub mod columns;
pub(crate) mod html;
pub(crate) mod markdown;
pub(crate) mod plot;
pub(crate) mod sections;
mod table;
pub mod text;

pub use html::html;
pub use markdown::markdown;
pub use plot::{PlotError, svg};
pub use table::Table;
