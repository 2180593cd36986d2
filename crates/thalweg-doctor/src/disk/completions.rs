//! Completion of reads and writes: on the processor that requested them, or on the one that the disk interrupts.

use super::place::nearest_existing;
use crate::placement::{interrupt_lines, interrupted_processors, join_numbers};
use crate::{Finding, Needs, read};
use std::path::{Path, PathBuf};

/// Interrupts and queue settings of a directory's disk.
#[derive(Debug, Clone)]
pub(crate) struct Completions {
    disk: String,
    /// Directory that lists the disk's interrupts, if there is one; `queue`: settings of its queue.
    pub(crate) interrupts: Option<PathBuf>,
    pub(crate) queue: PathBuf,
    /// Processors that handle its interrupts; empty if none are listed.
    cpus: Vec<u32>,
    /// Completion on the processor of the interrupt (0), near the requesting one (1), or on exactly that one (2).
    rq_affinity: Option<u64>,
}

pub(super) fn probe_completions(needs: &Needs) -> Option<Finding> {
    completions_of_disk(&nearest_existing(&needs.directory)).map(|completions| completions.judge_affinity())
}

/// Returns the completions of the disk below a directory; `None` if there is not exactly one, as under btrfs or in
/// memory.
pub(crate) fn completions_of_disk(directory: &Path) -> Option<Completions> {
    let device = rustix::fs::stat(directory).ok()?.st_dev;
    let number = format!("{}:{}", rustix::fs::major(device), rustix::fs::minor(device));
    let path = Path::new("/sys/dev/block").join(number).canonicalize().ok()?;
    // A partition's directory lies in that of its disk.
    let path = if path.join("partition").exists() { path.parent()?.to_owned() } else { path };
    let interrupts: Option<PathBuf> = path.ancestors().map(|above| above.join("msi_irqs")).find(|file| file.exists());
    let queue = path.join("queue");
    Some(Completions {
        disk: path.file_name()?.to_string_lossy().into_owned(),
        cpus: interrupts.as_deref().map(|list| interrupted_processors(&interrupt_lines(list))).unwrap_or_default(),
        rq_affinity: read::read_number(queue.join("rq_affinity")),
        interrupts,
        queue,
    })
}

impl Completions {
    /// Describes the completions in words.
    pub(crate) fn describe(&self) -> String {
        let interrupts = match &self.cpus[..] {
            [] => "no interrupts are listed for it".to_owned(),
            cpus => format!("interrupts processor {}", join_numbers(cpus)),
        };
        let ends = match self.rq_affinity {
            Some(0) => "a read completes on the processor of the interrupt",
            Some(1) => "a read completes near the requesting processor",
            Some(_) => "a read completes on the requesting processor",
            None => "the completing processor is unknown",
        };
        format!("{} {interrupts}, {ends} (rq_affinity)", self.disk)
    }

    fn judge_affinity(&self) -> Finding {
        let finding = Finding::new("disk completions", self.describe());
        match self.rq_affinity {
            Some(0) => finding
                .with_degraded_level(
                    "a thread is woken on a different processor than the one with its data in the cache",
                )
                .with_remedy(format!("echo 2 > /sys/block/{}/queue/rq_affinity", self.disk)),
            _ => finding,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Level;

    #[test]
    fn a_read_that_ends_where_nobody_waits_is_worth_a_word() {
        let (interrupts, queue) = (None, PathBuf::new());
        let vda = Completions { disk: "vda".into(), interrupts, queue, cpus: vec![1], rq_affinity: None };
        let disk = |rq_affinity| Completions { rq_affinity, ..vda.clone() };
        let finding = disk(Some(1)).judge_affinity();
        assert_eq!(finding.level, Level::Ok);
        assert_eq!(
            finding.evidence,
            "vda interrupts processor 1, a read completes near the requesting processor (rq_affinity)"
        );
        let elsewhere = disk(Some(0)).judge_affinity();
        assert_eq!(elsewhere.level, Level::Degraded);
        assert_eq!(elsewhere.remedy.as_deref(), Some("echo 2 > /sys/block/vda/queue/rq_affinity"));
    }

    #[test]
    fn memory_has_no_disk() {
        assert!(completions_of_disk(Path::new("/proc")).is_none());
    }
}
