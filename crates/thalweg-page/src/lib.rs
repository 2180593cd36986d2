//! Appearance of reports, shared by the instruments, the laboratory and the reproductions of published experiments. The
//! contents are theirs.
//!
//! - [`html`]: self-contained pages and their parts.
//! - [`plot`]: the canvas and the colours of pictures, which the pages' style sheet refers to.
//! - [`paper`]: tables and findings of a paper beside ours.
#![forbid(unsafe_code)]

pub mod html;
pub mod paper;
pub mod plot;
