//! A whole PC in QEMU, for what a container and User-Mode Linux lack: PCI devices behind an IOMMU, VFIO, NICs with
//! DPDK's own drivers, huge pages, kernel modules.
//!
//! [`prepare`] sets it up once, with packages of this system's own archive; nothing is installed, and nothing else is
//! downloaded. A [`Machine`] says which devices there are; [`Machine::run`] boots it, runs one command there as root
//! and returns its exit code.
//!
//! # What the command sees
//!
//! The host's file system, read-only, with the unpacked packages laid over it. Whatever is written goes to memory and
//! vanishes, but for `/out`, which is a directory of the host. `/dev`, `/proc`, `/sys`, `/run` and `/dev/shm` are the
//! machine's own. There is no network to the outside. The processor is emulated (TCG), so this takes no privilege and
//! runs inside a virtual machine, too; it is some ten times slower than the host, and says nothing about speed.
//!
//! Two commands are there beside the host's: `bindto DRIVER ADDRESS...` gives PCI devices to a driver, and `huge N`
//! sets huge pages aside. Modules that Debian does not build lie beside them in `/usr/lib/thalweg-machine`: `vfio.ko`
//! with the no-IOMMU mode (`bindto vfio-pci` takes it where there is no IOMMU), `siw.ko` (RDMA over TCP),
//! `iio_dummy.ko` with what it needs, and `udmabuf.ko` (memory of a program as a driver's buffer).
//!
//! # Files
//!
//! | file | what is in it |
//! | --- | --- |
//! | `machine` | The machine: processors, memory, devices and their addresses |
//! | `boot` | One run: QEMU started, watched and ended, the command's output and exit code brought back |
//! | `qemu` | A machine as QEMU's command line |
//! | `shelf` | What was set up, and where it is kept; setting it up once, whoever asks |
//! | `setup` | From the system's package archive to a kernel, its first programs, and packages laid out to be mounted |
//! | `modules` | Kernel modules that Debian leaves out, compiled for its kernel |
//! | `initramfs` | The kernel's first file system: a shell, and the modules without which the host's is not reached |
#![forbid(unsafe_code)]

mod boot;
mod initramfs;
mod machine;
mod modules;
mod qemu;
mod setup;
mod shelf;

pub use boot::{Outcome, RunError};
pub use machine::{
    EDU, Iommu, MOST_NICS, MOST_NVMES, Machine, Nic, NicModel, RNG, UnknownNic, nic_address, nvme_address,
};
pub use setup::{PACKAGES, PrepareError, Progress};
pub use shelf::{Prepared, prepare};
