//! Where the end of a read or a write is noticed: on the processor that asked, or on the one that the disk interrupts.

use super::place::nearest;
use crate::placement::{join, lines, union};
use crate::{Finding, Needs, read};
use std::path::{Path, PathBuf};

/// What is known of a directory's disk.
#[derive(Debug, Clone)]
pub(crate) struct Completions {
    disk: String,
    /// Where its interrupts are listed, if they are, and the settings of its queue.
    pub(crate) interrupts: Option<PathBuf>,
    pub(crate) queue: PathBuf,
    /// Processors that take its interrupts; none where it has none that are listed.
    cpus: Vec<u32>,
    /// 0: where the interrupt was; 1: near whoever asked; 2: on that very processor.
    rq_affinity: Option<u64>,
}

pub(super) fn probe(needs: &Needs) -> Option<Finding> {
    of(&nearest(&needs.directory)).map(|completions| completions.judge())
}

/// Of the disk below a directory; none where there is not exactly one, as under btrfs or in memory.
pub(crate) fn of(directory: &Path) -> Option<Completions> {
    let device = rustix::fs::stat(directory).ok()?.st_dev;
    let number = format!("{}:{}", rustix::fs::major(device), rustix::fs::minor(device));
    let path = Path::new("/sys/dev/block").join(number).canonicalize().ok()?;
    // A partition lies in its disk's directory.
    let path = if path.join("partition").exists() { path.parent()?.to_owned() } else { path };
    let interrupts: Option<PathBuf> = path.ancestors().map(|above| above.join("msi_irqs")).find(|file| file.exists());
    let queue = path.join("queue");
    Some(Completions {
        disk: path.file_name()?.to_string_lossy().into_owned(),
        cpus: interrupts.as_deref().map(|list| union(&lines(list))).unwrap_or_default(),
        rq_affinity: read::number(queue.join("rq_affinity")),
        interrupts,
        queue,
    })
}

impl Completions {
    /// In words.
    pub(crate) fn told(&self) -> String {
        let interrupts = match &self.cpus[..] {
            [] => "no interrupts of its own are listed".to_owned(),
            cpus => format!("interrupts processor {}", join(cpus)),
        };
        let ends = match self.rq_affinity {
            Some(0) => "a read ends where the interrupt is",
            Some(1) => "a read ends near the processor that asked",
            Some(_) => "a read ends on the processor that asked",
            None => "where a read ends is unknown",
        };
        format!("{} {interrupts}, {ends} (rq_affinity)", self.disk)
    }

    fn judge(&self) -> Finding {
        let finding = Finding::new("disk completions", self.told());
        match self.rq_affinity {
            Some(0) => finding
                .degraded("a thread is woken on another processor than the one that has its data in the cache")
                .mended_by(format!("echo 2 > /sys/block/{}/queue/rq_affinity", self.disk)),
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
        let told = disk(Some(1)).judge();
        assert_eq!(told.level, Level::Ok);
        assert_eq!(
            told.evidence,
            "vda interrupts processor 1, a read ends near the processor that asked (rq_affinity)"
        );
        let elsewhere = disk(Some(0)).judge();
        assert_eq!(elsewhere.level, Level::Degraded);
        assert_eq!(elsewhere.remedy.as_deref(), Some("echo 2 > /sys/block/vda/queue/rq_affinity"));
    }

    #[test]
    fn memory_has_no_disk() {
        assert!(of(Path::new("/proc")).is_none());
    }
}
