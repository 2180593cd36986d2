//! Features of the kernel that are available to this process.

mod config;
mod io_uring;
mod mitigations;
pub(crate) mod privileges;
mod struct_ops;
mod version;

use crate::Finding;

pub(crate) use config::Config;
pub(crate) use version::{at_least, release};

pub(crate) fn examine() -> Vec<Finding> {
    let ring = ::io_uring::IoUring::new(8);
    vec![
        version::probe(),
        io_uring::probe(&ring),
        io_uring::operations(&ring),
        mitigations::probe(),
        struct_ops::probe(),
        privileges::probe(),
        privileges::seccomp(),
    ]
}
