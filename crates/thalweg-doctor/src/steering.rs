//! Temporary steering of interrupts to chosen processors.

use crate::disk::completions;
use crate::placement::{interfaces_towards, interrupt_lines, join_numbers};
use crate::read;
use std::io;
use std::net::IpAddr;
use std::path::{Path, PathBuf};

/// Changed settings of the kernel, restored when this is dropped.
#[derive(Debug, Default)]
pub struct Steered {
    /// Files, and their content before.
    before: Vec<(PathBuf, String)>,
}

/// Reason why interrupts stay where they are.
#[derive(Debug, thiserror::Error)]
pub enum SteerError {
    /// No interrupts belong to these packets.
    #[error("no network card is on the path to {0}: there are no interrupts to move")]
    NoCard(IpAddr),
    /// No interrupts are known for these files.
    #[error("{}: the interrupts of its disk are not listed by the kernel", .0.display())]
    NoDisk(PathBuf),
    /// The kernel refuses: for lack of privilege, because a processor does not exist, or because the driver keeps the
    /// interrupts where they are.
    #[error(
        "cannot write {wanted} to {}: {error}. This needs root, existing processors, and interrupts that the kernel \
         does not manage itself (as it does for most disks with several queues)",
        path.display()
    )]
    Refused {
        /// File of the setting.
        path: PathBuf,
        /// The value that was to be set.
        wanted: String,
        /// Error of the system.
        error: io::Error,
    },
}

impl Steered {
    /// Steers the interrupts of the network cards on which packets for an address arrive to these processors
    /// (`/proc/irq/*/smp_affinity_list`, Documentation/core-api/irq/irq-affinity.rst).
    ///
    /// # Errors
    /// No network card leads there, or the kernel does not move an interrupt. All settings are as before then.
    pub fn steer_network(address: IpAddr, cpus: &[u32]) -> Result<Self, SteerError> {
        let interfaces =
            interfaces_towards(address).into_iter().filter_map(|interface| interface.device_file("msi_irqs"));
        let interrupts: Vec<u32> = interfaces.flat_map(|list| interrupt_numbers(&list)).collect();
        if interrupts.is_empty() {
            return Err(SteerError::NoCard(address));
        }
        Self::default().with_interrupts(&interrupts, cpus)
    }

    /// Steers the interrupts of the disk below a directory to these processors, and has reads and writes complete there
    /// (`rq_affinity` 0, Documentation/ABI/stable/sysfs-block).
    ///
    /// # Errors
    /// The interrupts of the disk are not listed, or the kernel does not move one. All settings are as before then.
    pub fn steer_disk(directory: &Path, cpus: &[u32]) -> Result<Self, SteerError> {
        let disk = completions::completions_of_disk(directory);
        let interrupts =
            disk.as_ref().and_then(|disk| disk.interrupts.as_deref()).map(interrupt_numbers).unwrap_or_default();
        let Some(disk) = disk.filter(|_| !interrupts.is_empty()) else {
            return Err(SteerError::NoDisk(directory.to_owned()));
        };
        let mut steered = Self::default().with_interrupts(&interrupts, cpus)?;
        steered.write_setting(disk.queue.join("rq_affinity"), "0".to_owned())?;
        Ok(steered)
    }

    fn with_interrupts(mut self, interrupts: &[u32], cpus: &[u32]) -> Result<Self, SteerError> {
        for number in interrupts {
            self.write_setting(format!("/proc/irq/{number}/smp_affinity_list").into(), join_numbers(cpus))?;
        }
        Ok(self)
    }

    fn write_setting(&mut self, path: PathBuf, wanted: String) -> Result<(), SteerError> {
        let before = read::read_text(&path).unwrap_or_default();
        match std::fs::write(&path, &wanted) {
            Ok(()) => self.before.push((path, before)),
            Err(error) => return Err(SteerError::Refused { path, wanted, error }),
        }
        Ok(())
    }
}

impl Drop for Steered {
    fn drop(&mut self) {
        for (path, before) in self.before.drain(..).rev() {
            // A setting that was written can be written again; one that has disappeared meanwhile needs none.
            let _ = std::fs::write(path, before);
        }
    }
}

fn interrupt_numbers(msi_irqs: &Path) -> Vec<u32> {
    interrupt_lines(msi_irqs).into_iter().map(|(number, _)| number).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_set_is_as_before_afterwards() {
        let directory = tempfile::tempdir().unwrap();
        let [one, two, missing] = ["one", "two", "no/where"].map(|name| directory.path().join(name));
        std::fs::write(&one, "0-3\n").unwrap();
        std::fs::write(&two, "1\n").unwrap();
        let mut steered = Steered::default();
        steered.write_setting(one.clone(), "2".to_owned()).unwrap();
        steered.write_setting(two.clone(), "0".to_owned()).unwrap();
        assert_eq!(std::fs::read_to_string(&one).unwrap(), "2");
        let refused = steered.write_setting(missing, "0".to_owned()).unwrap_err();
        assert!(refused.to_string().starts_with("cannot write 0 to /"), "{refused}");
        drop(steered);
        assert_eq!([&one, &two].map(|path| std::fs::read_to_string(path).unwrap()), ["0-3", "1"]);
    }

    #[test]
    fn what_interrupts_nobody_cannot_be_moved() {
        let loopback = IpAddr::from([127, 0, 0, 1]);
        let error = Steered::steer_network(loopback, &[0]).unwrap_err().to_string();
        assert_eq!(error, "no network card is on the path to 127.0.0.1: there are no interrupts to move");
        let error = Steered::steer_disk(Path::new("/proc"), &[0]).unwrap_err().to_string();
        assert_eq!(error, "/proc: the interrupts of its disk are not listed by the kernel");
    }
}
