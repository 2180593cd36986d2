//! An emulated PC (QEMU) for tests that a container or User-Mode Linux cannot run: PCI devices behind an IOMMU, VFIO,
//! NICs with DPDK's own drivers, huge pages, kernel modules.
//!
//! [`prepare_machine`] sets it up once, with packages of this system's own archive; nothing is installed, and nothing else is
//! downloaded. A [`Machine`] lists the devices; [`Machine::run_command`] boots it, runs one command in it as root and returns
//! the command's exit code.
//!
//! # Environment of the command
//!
//! The host's file system, read-only, with the unpacked packages laid over it. Writes go to memory and are lost, except
//! those to `/out`, which is a directory of the host. `/dev`, `/proc`, `/sys`, `/run` and `/dev/shm` are the machine's
//! own. There is no network to the outside. The processor is emulated (TCG): no privilege is needed, and the machine
//! runs inside a virtual machine, too. It is some ten times slower than the host, so it is of no use for measuring
//! speed.
//!
//! Two commands are added to the host's: `bindto DRIVER ADDRESS...` gives PCI devices to a driver, and `huge N` sets
//! huge pages aside. Modules that Debian does not build are in `/usr/lib/thalweg-machine`: `vfio.ko` with the no-IOMMU
//! mode (`bindto vfio-pci` uses it where there is no IOMMU), `siw.ko` (RDMA over TCP), `iio_dummy.ko` with the modules
//! it needs, and `udmabuf.ko` (memory of a program as a driver's buffer).
//!
//! # Files
//!
//! | file | what is in it |
//! | --- | --- |
//! | `machine` | The machine: processors, memory, devices and their addresses |
//! | `boot` | One run: starts QEMU, watches and ends it, and returns the command's output and exit code |
//! | `qemu` | A machine as QEMU's command line |
//! | `shelf` | The directory that holds what was set up, and the setup itself, done once however many processes request it |
//! | `setup` | Setup, from the system's package archive to a kernel, its initramfs and packages ready to be mounted |
//! | `modules` | Kernel modules that Debian leaves out, compiled for its kernel |
//! | `initramfs` | The initramfs: a shell, and the modules that are needed to mount the host's file system |

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
pub use shelf::{Prepared, prepare_machine};
