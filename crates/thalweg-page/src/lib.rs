//! How reports look: what instruments, the laboratory and published experiments have in common when they show what they
//! found. What is shown is theirs.
//!
//! - [`html`]: pages that need nothing else, and what stands in them.
//! - [`plot`]: the canvas and colours of pictures, which the pages' style sheet knows.
//! - [`paper`]: a paper's tables and findings beside ours.
#![forbid(unsafe_code)]

pub mod html;
pub mod paper;
pub mod plot;
