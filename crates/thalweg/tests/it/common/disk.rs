//! Disks that a test makes for itself: small ones that fill up, and ones that stand still when told to.

use std::path::{Path, PathBuf};
use std::process::Command;

/// A file system that is mounted as long as this lives.
#[derive(Debug)]
pub(crate) struct Disk {
    at: PathBuf,
    frozen: bool,
}

impl Disk {
    /// A file system in memory.
    pub(crate) fn in_memory(at: &Path, mebibytes: u32) -> Result<Self, String> {
        let size = format!("size={mebibytes}m");
        Self::mount(at, &["-t", "tmpfs", "-o", &size, "tmpfs"])
    }

    /// A file system of its own in a file: one that takes direct writes, and can be frozen.
    pub(crate) fn in_file(image: &Path, at: &Path, mebibytes: u32) -> Result<Self, String> {
        let file = std::fs::File::create(image).map_err(|error| error.to_string())?;
        file.set_len(u64::from(mebibytes) << 20).map_err(|error| error.to_string())?;
        let image = image.to_str().ok_or("a path that is not UTF-8")?;
        run("mkfs.ext4", &["-q", "-F", image])?;
        Self::mount(at, &["-o", "loop", image])
    }

    /// One that takes no writes.
    pub(crate) fn read_only(at: &Path) -> Result<Self, String> {
        Self::mount(at, &["-t", "tmpfs", "-o", "ro", "tmpfs"])
    }

    fn mount(at: &Path, arguments: &[&str]) -> Result<Self, String> {
        std::fs::create_dir_all(at).map_err(|error| error.to_string())?;
        let path = at.to_str().ok_or("a path that is not UTF-8")?;
        run("mount", &[arguments, &[path]].concat())?;
        Ok(Self { at: at.to_owned(), frozen: false })
    }

    /// From now on every write to it waits.
    pub(crate) fn freeze(&mut self) {
        run("fsfreeze", &["-f", self.at.to_str().unwrap()]).unwrap();
        self.frozen = true;
    }

    /// Writes go on.
    pub(crate) fn thaw(&mut self) {
        run("fsfreeze", &["-u", self.at.to_str().unwrap()]).unwrap();
        self.frozen = false;
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        if self.frozen {
            self.thaw();
        }
        // Lazily: a process that is being killed may still have files open.
        let _ = Command::new("umount").arg("-l").arg(&self.at).status();
    }
}

fn run(program: &str, arguments: &[&str]) -> Result<(), String> {
    let output = Command::new(program).args(arguments).output().map_err(|error| format!("{program}: {error}"))?;
    let said = String::from_utf8_lossy(&output.stderr);
    if output.status.success() { Ok(()) } else { Err(format!("{program} {}: {}", arguments.join(" "), said.trim())) }
}
