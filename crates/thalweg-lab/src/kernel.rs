//! The kernel of the virtual laboratory: User-Mode Linux with time travel. It is built here once, kept, and booted as
//! an ordinary process without privilege.
//!
//! # Ingredients
//!
//! Debian's source package (`/usr/src/linux-source-*.tar.*`) in the configuration `kernel/config`, with the changes to
//! its text that `recipe.rs` lists, each with its reason. A kernel is kept in `$XDG_CACHE_HOME/thalweg/lab` (or below
//! `~/.cache`) under the version of its source and a hash of all these ingredients: each change gets a new kernel.
//!
//! # Own code in the kernel
//!
//! Every `kernel/modules/*.c` of this crate is compiled into the kernel as one object, in `net/ipv4/thalweg/` of its
//! source, with the `*.h` beside it. `#include "bpf/NAME"` takes a file from the repository's `bpf/` directory (which
//! is not compiled by itself), and the files it includes. The headers of `net/ipv4` (`tcp_vegas.h`) are found too. A
//! congestion control registers itself with `module_init`; warnings are errors. The sources are part of the installed
//! program (`build.rs`).
//!
//! # Properties of the machine
//!
//! The root is the host's file system (`hostfs`), with the permissions of the user who runs it, so every program of the
//! host is available. Under time travel the clock stands still while anything computes, and jumps to the next timer
//! when all programs wait. A program that never waits stops the clock, and is ended by the wall-clock limit. There is
//! one virtual CPU; no IPv6, no block devices, no modules, no BPF struct_ops (there is no JIT).

mod boot;
mod build;
mod recipe;
#[cfg(test)]
mod tests;

pub use boot::{BootError, Machine, Outcome, boot_machine, run_shell};
pub use build::{KernelError, PACKAGES, Progress};

use std::path::{Path, PathBuf};

/// A kernel that can be booted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Kernel {
    path: PathBuf,
}

impl Kernel {
    /// Returns the kernel that was built before from the same source, configuration and modules. If the source is no
    /// longer on this machine, one that was built from any source with the same configuration and modules.
    pub fn find_cached() -> Option<Self> {
        build::cached_kernel_path().map(|path| Self { path })
    }

    /// Returns the cached kernel, or builds one: about three minutes on two cores, 1 GB of temporary space in the cache
    /// directory, 6 MB of it kept.
    ///
    /// Waits while another process builds.
    ///
    /// # Errors
    /// Fails if the source, a program or space is missing, or a step fails: its log is kept, and the error names it.
    pub fn build_or_cached(mut progress: impl FnMut(Progress)) -> Result<Self, KernelError> {
        build::build_cached_kernel(&mut progress).map(|path| Self { path })
    }

    /// Installs the packages that building needs ([`PACKAGES`]) with `apt-get`, as root.
    ///
    /// # Errors
    /// Fails if there is no `apt-get`, or it fails: its log is kept, and the error names it.
    pub fn install_packages() -> Result<(), KernelError> {
        build::install_packages()
    }

    /// Returns a User-Mode Linux kernel that was built elsewhere.
    pub fn at_path(path: impl Into<PathBuf>) -> Self {
        Self { path: path.into() }
    }

    /// Returns the path of the kernel's file.
    pub fn path(&self) -> &Path {
        &self.path
    }
}
