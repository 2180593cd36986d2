//! The initramfs: a shell, and the modules that are needed to mount the host's file system.

use crate::pc::setup::Setup;
use crate::steps::StepError;
use std::fs;
use std::path::Path;

/// Modules that `init` needs, apart from their own dependencies.
const MODULES: &[&str] = &["virtio_pci", "9pnet_virtio", "9p", "overlay", "virtio_console"];
const INIT: &str = include_str!("../../pc/init");

/// Returns all texts that the archive is made of, apart from the packages.
pub(crate) fn recipe_texts() -> impl Iterator<Item = &'static str> {
    MODULES.iter().copied().chain([INIT])
}

/// Returns the archive, made from unpacked packages.
pub(crate) fn build_archive(setup: &Setup, packages: &Path, version: &str) -> Result<Vec<u8>, StepError> {
    let busybox = packages.join("usr/bin/busybox");
    let mut archive = Archive::default();
    archive.add_directory("bin");
    archive.add_program("bin/busybox", &fs::read(&busybox).map_err(StepError::file_error(&busybox))?);
    archive.add_program("init", INIT.as_bytes());
    archive.add_directory("modules");

    let tree = packages.join("usr/lib/modules").join(version);
    let list = tree.join("modules.dep");
    let dependencies = fs::read_to_string(&list).map_err(StepError::file_error(&list))?;
    let mut order = String::new();
    for path in modules_in_load_order(&dependencies) {
        let name = path.rsplit('/').next().unwrap_or(path);
        let path = tree.join(path);
        let (name, content) = match name.strip_suffix(".xz") {
            Some(name) => (name, setup.decompress_xz(&path)?),
            None => (name, fs::read(&path).map_err(StepError::file_error(&path))?),
        };
        archive.add_program(&format!("modules/{name}"), &content);
        order += &format!("{name}\n");
    }
    archive.add_program("modules/order", order.as_bytes());
    Ok(archive.into_bytes())
}

/// Returns the modules' files, each after those that it depends on. A line of modules.dep is a module and its
/// dependencies, of which the last is to be loaded first (depmod(8)).
fn modules_in_load_order(dependencies: &str) -> Vec<&str> {
    let mut order: Vec<&str> = Vec::new();
    for wanted in MODULES {
        let mut lines = dependencies.lines().filter_map(|line| line.split_once(':'));
        let line = lines.find(|(path, _)| {
            path.rsplit('/').next().and_then(|name| name.strip_prefix(wanted)).is_some_and(|end| end.starts_with(".ko"))
        });
        // A module without a file is part of the kernel.
        let Some((path, needs)) = line else { continue };
        for path in needs.split_whitespace().rev().chain([path]) {
            if !order.contains(&path) {
                order.push(path);
            }
        }
    }
    order
}

/// A cpio archive in the form that Linux unpacks ("newc", Documentation/driver-api/early-userspace/buffer-format.rst).
#[derive(Debug, Default)]
struct Archive {
    bytes: Vec<u8>,
    files: u32,
}

impl Archive {
    fn add_directory(&mut self, name: &str) {
        self.add_entry(name, 0o040_755, &[]);
    }

    fn add_program(&mut self, name: &str, content: &[u8]) {
        self.add_entry(name, 0o100_755, content);
    }

    fn add_entry(&mut self, name: &str, mode: u32, content: &[u8]) {
        self.files += 1;
        let (inode, size, name_size) = (self.files, content.len(), name.len() + 1);
        // Inode, mode, owner, group, links, time, size, four numbers of devices, length of the name, checksum.
        self.bytes.extend(b"070701");
        for field in [inode as usize, mode as usize, 0, 0, 1, 0, size, 0, 0, 0, 0, name_size, 0] {
            self.bytes.extend(format!("{field:08x}").bytes());
        }
        self.bytes.extend(name.bytes().chain([0]));
        self.pad_to_word();
        self.bytes.extend(content);
        self.pad_to_word();
    }

    fn pad_to_word(&mut self) {
        self.bytes.resize(self.bytes.len().next_multiple_of(4), 0);
    }

    fn into_bytes(mut self) -> Vec<u8> {
        self.add_entry("TRAILER!!!", 0, &[]);
        self.bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_module_comes_after_those_that_it_needs() {
        let dependencies = "kernel/fs/9p/9p.ko: kernel/net/9p/9pnet.ko kernel/fs/fscache.ko kernel/fs/netfs.ko\n\
                            kernel/net/9p/9pnet_virtio.ko.xz: kernel/net/9p/9pnet.ko kernel/virtio.ko\n\
                            kernel/net/9p/9pnet.ko:\n";
        let order = modules_in_load_order(dependencies).into_iter().map(|path| path.rsplit('/').next().unwrap());
        let expected = ["virtio.ko", "9pnet.ko", "9pnet_virtio.ko.xz", "netfs.ko", "fscache.ko", "9p.ko"];
        assert_eq!(order.collect::<Vec<_>>(), expected);
    }

    #[test]
    fn an_archive_is_in_the_format_of_cpio() {
        let mut archive = Archive::default();
        archive.add_program("init", b"hello");
        let bytes = archive.into_bytes();
        // A head of 110 bytes and "init\0" fill 116; the content fills 8.
        assert_eq!(&bytes[..14], b"07070100000001");
        assert_eq!((&bytes[110..116], &bytes[116..124]), (&b"init\0\0"[..], &b"hello\0\0\0"[..]));
        assert_eq!(&bytes[124..130], b"070701");
        assert!(bytes[124..].windows(10).any(|part| part == b"TRAILER!!!"));
    }
}
