//! The kernel of the virtual laboratory: User-Mode Linux with time travel, built here once, kept, and booted as an
//! ordinary process without privilege.
//!
//! # What is built
//!
//! Debian's source package (`/usr/src/linux-source-*.tar.*`) in the configuration `kernel/config`, with what
//! `recipe.rs` changes in its text, each with its reason. A kernel is kept in `$XDG_CACHE_HOME/thalweg/lab` (or
//! below `~/.cache`) under the version of its source and a hash of everything that went into it: whoever changes any
//! of that gets a new kernel.
//!
//! # Our own code in it
//!
//! Every `kernel/modules/*.c` of this crate is compiled into the kernel as one object, in `net/ipv4/thalweg/` of its
//! source, with the `*.h` beside it. `#include "bpf/NAME"` takes a file from the repository's `bpf/` directory (which
//! is not compiled by itself), and what that includes. The headers of `net/ipv4` (`tcp_vegas.h`) are found too. A
//! congestion control registers itself with `module_init`; warnings are errors. The sources are part of the installed
//! program (`build.rs`).
//!
//! # What the kernel gives and takes
//!
//! The root is the host's file system (`hostfs`), with the permissions of the user who runs it, so every program of the
//! host is there. Under time travel the clock stands still while anything computes, and jumps to the next timer when
//! all programs wait. A program that never waits stops the clock, and is ended by the wall-clock limit. One virtual
//! CPU; no IPv6, no block devices, no modules, no BPF struct_ops (there is no JIT).

mod boot;
mod build;
mod recipe;
#[cfg(test)]
mod tests;

pub use boot::{BootError, Machine, Outcome, boot, shell};
pub use build::{KernelError, PACKAGES, Progress};

use std::path::{Path, PathBuf};

/// A kernel that can be booted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Kernel {
    path: PathBuf,
}

impl Kernel {
    /// The kernel that was built before from the same source, configuration and modules. Where the source is no longer
    /// on this machine, one that was built from any source with the same configuration and modules.
    pub fn cached() -> Option<Self> {
        build::cached().map(|path| Self { path })
    }

    /// The cached kernel, or a new one: about three minutes on two cores, 1 GB of temporary space in the cache
    /// directory, 6 MB of it kept.
    ///
    /// A build by another process at the same time is waited for.
    ///
    /// # Errors
    /// Where the source, a program or space is missing, or a step fails: its log is kept, and the error names it.
    pub fn build(mut progress: impl FnMut(Progress)) -> Result<Self, KernelError> {
        build::build(&mut progress).map(|path| Self { path })
    }

    /// Installs the packages that building needs ([`PACKAGES`]) with `apt-get`, as root.
    ///
    /// # Errors
    /// Where there is no `apt-get`, or it fails: its log is kept, and the error names it.
    pub fn install_packages() -> Result<(), KernelError> {
        build::install_packages()
    }

    /// A User-Mode Linux kernel built elsewhere.
    pub fn at(path: impl Into<PathBuf>) -> Self {
        Self { path: path.into() }
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }
}
