//! A machine as QEMU's command line.

use crate::pc::machine::{EDU_SLOT, Iommu, Machine, NIC_SLOT, NVME_SLOT, NicModel, RNG_SLOT};
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

pub(crate) const QEMU: &str = "qemu-system-x86_64";

/// Files and directories that a run gives its machine.
#[derive(Debug)]
pub(crate) struct Files<'a> {
    pub(crate) kernel: PathBuf,
    pub(crate) initramfs: PathBuf,
    /// Directory that is laid over the host's root.
    pub(crate) packages: PathBuf,
    /// Directory shared with the guest: the command and its exit code. Disks and the console are in it, too.
    pub(crate) room: &'a Path,
    pub(crate) out: &'a Path,
    /// Paths that the command's standard output and standard error are written to.
    pub(crate) streams: [PathBuf; 2],
}

impl Files<'_> {
    pub(crate) fn console_path(&self) -> PathBuf {
        self.room.join("console")
    }
}

/// The kernel's options: only errors on the console, no reboot, and none of the features that cost time and are of no
/// use in an emulated machine.
///
/// The kernel boots on one processor, and the others join before the command begins: while the kernel patches its own
/// code (static branches), a second processor that QEMU emulates sometimes never leaves the breakpoint that was there.
const KERNEL: &str = "console=ttyS0 quiet panic=-1 mitigations=off tsc=reliable no_timer_check nowatchdog \
                      rcupdate.rcu_expedited=1 random.trust_cpu=on maxcpus=1";

/// Returns QEMU's arguments. Creates the files of the machine's disks.
pub(crate) fn qemu_arguments(machine: &Machine, files: &Files) -> io::Result<Vec<OsString>> {
    let mut all = Arguments(Vec::new());
    // Without the features by which the kernel copies with `rep movsb`: QEMU emulates that byte by byte.
    all.add_words(
        "-nodefaults -no-user-config -display none -no-reboot -accel tcg,thread=multi -cpu max,erms=off,fsrm=off",
    );
    all.add_words(&format!("-smp {} -m {}M", machine.processors, machine.memory.0.div_ceil(1 << 20)));
    all.add_word("-kernel").add_word(&files.kernel).add_word("-initrd").add_word(&files.initramfs);
    // The IOMMU must be named before the devices it serves.
    match machine.iommu {
        Iommu::On => {
            all.add_word("-append").add_word(format!("{KERNEL} intel_iommu=on"));
            all.add_words("-M q35,kernel-irqchip=split -device intel-iommu,intremap=on,caching-mode=on,aw-bits=48");
        }
        Iommu::Off => {
            all.add_word("-append").add_word(KERNEL);
            all.add_words("-M q35");
        }
    }

    all.add_path_option("-chardev", "file,id=console", &files.console_path(), "").add_words("-serial chardev:console");
    // Files of their own, as some of QEMU's devices write remarks to QEMU's standard output (vmxnet3).
    all.add_words("-device virtio-serial");
    for (name, stream) in ["out", "err"].into_iter().zip(&files.streams) {
        all.add_path_option("-chardev", &format!("file,id={name}"), stream, ",append=on");
        all.add_words(&format!("-device virtserialport,chardev={name},name={name}"));
    }

    all.add_path_option(
        "-virtfs",
        "local,mount_tag=host",
        Path::new("/"),
        ",security_model=none,readonly=on,multidevs=remap",
    );
    all.add_path_option("-virtfs", "local,mount_tag=packages", &files.packages, ",security_model=none,readonly=on");
    all.add_path_option("-virtfs", "local,mount_tag=room", files.room, ",security_model=none");
    all.add_path_option("-virtfs", "local,mount_tag=out", files.out, ",security_model=none");

    if machine.edu {
        // A mask of all addresses: the IOMMU, not the device, is to refuse what is out of reach.
        all.add_words(&format!("-device edu,addr={EDU_SLOT:#x},dma_mask=0xffffffffffffffff"));
    }
    if machine.rng {
        let by_iommu = if machine.iommu == Iommu::On { "on" } else { "off" };
        all.add_words("-object rng-builtin,id=rng0");
        all.add_words(&format!(
            "-device virtio-rng-pci,rng=rng0,addr={RNG_SLOT:#x},disable-legacy=on,iommu_platform={by_iommu}"
        ));
    }
    for (index, nic) in machine.nics.iter().enumerate() {
        let (wire, slot, last) = (nic.wire, NIC_SLOT + index, index + 1);
        let model = nic_device_model(nic.model, machine.iommu);
        all.add_words(&format!("-netdev hubport,id=net{index},hubid={wire}"));
        // Without a boot ROM, as nothing boots from the network.
        all.add_words(&format!(
            "-device {model},addr={slot:#x},netdev=net{index},mac=52:54:00:00:00:{last:02x},romfile="
        ));
    }
    for (index, size) in machine.nvmes.iter().enumerate() {
        let disk = files.room.join(format!("nvme{index}"));
        File::create(&disk)?.set_len(size.0)?;
        all.add_path_option("-drive", &format!("if=none,format=raw,id=disk{index}"), &disk, "");
        all.add_words(&format!("-device nvme,drive=disk{index},serial=thalweg{index},addr={:#x}", NVME_SLOT + index));
    }
    Ok(all.0)
}

fn nic_device_model(model: NicModel, iommu: Iommu) -> &'static str {
    match (model, iommu) {
        // virtio bypasses the IOMMU by default (VIRTIO_F_ACCESS_PLATFORM, virtio 1.1, 6.1).
        (NicModel::Virtio, Iommu::On) => "virtio-net-pci,disable-legacy=on,iommu_platform=on",
        (NicModel::Virtio, Iommu::Off) => "virtio-net-pci,disable-legacy=on",
        (NicModel::E1000e, _) => "e1000e",
        (NicModel::Vmxnet3, _) => "vmxnet3",
        (NicModel::Igb, _) => "igb",
    }
}

struct Arguments(Vec<OsString>);

impl Arguments {
    /// Adds arguments that are separated by white space and have none in them.
    fn add_words(&mut self, words: &str) -> &mut Self {
        self.0.extend(words.split_whitespace().map(OsString::from));
        self
    }

    fn add_word(&mut self, word: impl AsRef<OsStr>) -> &mut Self {
        self.0.push(word.as_ref().to_owned());
        self
    }

    /// Adds an option one of whose values is a path. A comma in a value is doubled.
    fn add_path_option(&mut self, option: &str, before: &str, path: &Path, after: &str) -> &mut Self {
        let path = path.as_os_str().as_bytes().split(|&byte| byte == b',').collect::<Vec<_>>().join(&b",,"[..]);
        let key = if option == "-drive" { ",file=" } else { ",path=" };
        let value = [before.as_bytes(), key.as_bytes(), &path, after.as_bytes()].concat();
        self.add_word(option).add_word(OsString::from_vec(value))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_comma_in_a_path_is_part_of_it() {
        let mut all = Arguments(Vec::new());
        all.add_path_option("-virtfs", "local", Path::new("/a,b"), ",readonly=on");
        assert_eq!(all.0, ["-virtfs", "local,path=/a,,b,readonly=on"]);
    }
}
