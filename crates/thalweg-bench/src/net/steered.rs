//! Loopback of our own whose packets are received on a chosen processor: the equivalent of an interrupt's processor for
//! a network card.
//!
//! Loopback has no interrupts; the kernel receives a packet on the processor that sent it. With receive packet steering
//! (Documentation/networking/scaling.rst) it receives all of them on one processor, TCP included, woken there by an
//! inter-processor interrupt. That is set for a network namespace that contains no other process: the host's own
//! settings stay as they are.

use crate::BenchError;
use rustix::mount::{MountFlags, MountPropagationFlags, mount, mount_change};
use rustix::thread::{LinkNameSpaceType, UnshareFlags, move_into_link_name_space, unshare_unsafe};
use std::fs::{self, File};
use std::os::fd::AsFd;
use std::thread;
use thalweg_sys::netns::{REMEDY, enter_private_network};

/// Network namespace with steering.
#[derive(Debug)]
pub(super) struct Steered {
    space: File,
}

impl Steered {
    /// Makes a namespace whose packets are received on this processor.
    pub(super) fn on_processor(cpu: u32) -> Result<Self, BenchError> {
        // A thread of its own: it cannot leave the namespaces that it enters.
        thread::scope(|scope| {
            let thread = scope.spawn(|| {
                enter_private_network().map_err(BenchError::network_error)?;
                let path = "/proc/thread-self/ns/net";
                let space = File::open(path).map_err(BenchError::file_error(path))?;
                steer_loopback(cpu)?;
                Ok(Self { space })
            });
            thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        })
    }

    /// Moves the calling thread, and what it starts from now on, into the namespace: for threads made for this.
    pub(super) fn enter_namespace(&self) -> Result<(), BenchError> {
        move_into_link_name_space(self.space.as_fd(), Some(LinkNameSpaceType::Network))
            .map_err(BenchError::os_error("entering a network namespace"))
    }
}

/// Steers the loopback of this thread's network. Its settings show only in a sysfs that is mounted from inside.
fn steer_loopback(cpu: u32) -> Result<(), BenchError> {
    let doing = format!("having packets taken in on processor {cpu}");
    // SAFETY: unshare(2) with CLONE_NEWNS gives this thread, which ends soon, mounts and a working directory of its
    // own; files, memory and the other threads stay as they are.
    unsafe { unshare_unsafe(UnshareFlags::NEWNS) }.map_err(|error| BenchError::Unavailable {
        what: "steering packets".to_owned(),
        why: format!("{error}; {REMEDY}"),
    })?;
    mount_change("/", MountPropagationFlags::PRIVATE | MountPropagationFlags::REC)
        .map_err(BenchError::os_error(&*doing))?;
    mount("sysfs", "/sys", "sysfs", MountFlags::empty(), None).map_err(BenchError::os_error(&*doing))?;
    let mask = format_processor_mask(cpu);
    let path = "/sys/class/net/lo/queues/rx-0/rps_cpus";
    fs::write(path, mask).map_err(BenchError::os_error(format!("{doing} ({path})")))
}

/// Formats a set of one processor as the kernel does: words of 32 bits, the highest first.
fn format_processor_mask(cpu: u32) -> String {
    let words = (0..cpu / 32).map(|_| ",00000000");
    format!("{:x}{}", 1_u32 << (cpu % 32), words.collect::<String>())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::{Ipv4Addr, TcpListener, TcpStream};
    use thalweg_testing::skip::skipped;

    #[test]
    fn sets_of_processors_are_written_as_the_kernel_reads_them() {
        assert_eq!(
            [format_processor_mask(0), format_processor_mask(1), format_processor_mask(31), format_processor_mask(33)],
            ["1", "2", "80000000", "2,00000000"]
        );
    }

    #[test]
    fn the_host_keeps_its_settings_and_the_loopback_inside_works() {
        let setting = || fs::read_to_string("/sys/class/net/lo/queues/rx-0/rps_cpus").ok();
        let before = setting();
        match Steered::on_processor(0) {
            Ok(steered) => thread::scope(|scope| {
                scope.spawn(|| {
                    steered.enter_namespace().unwrap();
                    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
                    TcpStream::connect(listener.local_addr().unwrap()).unwrap();
                });
            }),
            Err(error) => skipped(error),
        }
        assert_eq!(setting(), before);
    }
}
