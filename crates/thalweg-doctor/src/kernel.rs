//! Features of the kernel that are available to this process.

mod config;
mod io_uring;
mod mitigations;
pub(crate) mod privileges;
mod struct_ops;
mod version;

use crate::Finding;

pub(crate) use config::Config;
pub(crate) use version::{is_release_at_least, kernel_release};

pub(crate) fn examine_kernel() -> Vec<Finding> {
    let ring = ::io_uring::IoUring::new(8);
    vec![
        version::probe_version(),
        io_uring::probe_io_uring(&ring),
        io_uring::probe_operations(&ring),
        mitigations::probe_mitigations(),
        struct_ops::probe_struct_ops(),
        privileges::probe_capabilities(),
        privileges::probe_seccomp(),
    ]
}
