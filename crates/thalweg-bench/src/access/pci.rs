//! PCI resources as `/sys/bus/pci/devices` shows them (Documentation/PCI/sysfs-pci.rst).

use super::Mapped;
use crate::BenchError;
use rustix::io::Errno;
use std::fs::{self, File};
use std::path::{Path, PathBuf};

/// Address range of a device: one of its base address registers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Resource {
    /// Path of its file: `…/resourceN`.
    pub(super) file: PathBuf,
    /// First address, as the processor sees it.
    begins: u64,
    /// Length in bytes.
    pub(super) len: u64,
    /// Whether it is a range of I/O ports: accessed by special instructions, never mapped.
    pub(super) port: bool,
    /// Whether the device declares that reading it has no side effects.
    pub(super) prefetchable: bool,
    /// Driver that uses the device.
    pub(super) driver: Option<String>,
    /// Whether the device is disabled: set not to respond at this range.
    pub(super) disabled: bool,
    display: bool,
}

/// File through which the kernel reads a resource.
#[derive(Debug)]
pub(super) struct KernelAccess {
    pub(super) file: File,
    /// Offset of the resource in the file.
    pub(super) begins: u64,
    name: PathBuf,
}

/// Flags in the third column of `resource` (include/linux/ioport.h).
const IORESOURCE_IO: u64 = 0x100;
const IORESOURCE_MEM: u64 = 0x200;
const IORESOURCE_PREFETCH: u64 = 0x2000;
/// Base class of displays: base classes are the upper 8 of the 24 bits of a device's class.
const PCI_BASE_CLASS_DISPLAY: u64 = 0x03;
/// Offset of the command register in the configuration space, and its bits: responds at ports, at memory.
const COMMAND_OFFSET: usize = 4;
const ANSWERS_PORTS: u8 = 1;
const ANSWERS_MEMORY: u8 = 2;

impl Resource {
    /// Reads the description of the resource whose file is `file`, `…/resourceN`.
    pub(super) fn from_file_path(file: &Path) -> Result<Self, BenchError> {
        fs::metadata(file).map_err(BenchError::file_error(file))?;
        let number = file.file_name().and_then(|name| name.to_str()?.strip_prefix("resource")?.parse::<usize>().ok());
        let (Some(number), Some(device)) = (number, file.parent()) else { return Err(not_a_resource_error(file)) };
        let list = device.join("resource");
        let text = fs::read_to_string(&list).map_err(BenchError::file_error(&list))?;
        let line = text.lines().nth(number).and_then(parse_resource_line);
        let [begins, ends, flags] = line.ok_or_else(|| not_a_resource_error(file))?;
        let len = ends.checked_sub(begins).and_then(|len| len.checked_add(1)).filter(|_| ends > 0);
        let len = len.filter(|_| flags & (IORESOURCE_IO | IORESOURCE_MEM) != 0);
        let len = len.ok_or_else(|| not_a_resource_error(file))?;
        let port = flags & IORESOURCE_IO != 0;
        let command = fs::read(device.join("config")).ok().and_then(|config| config.get(COMMAND_OFFSET).copied());
        let answers = if port { ANSWERS_PORTS } else { ANSWERS_MEMORY };
        Ok(Self {
            file: file.to_owned(),
            begins,
            len,
            port,
            prefetchable: flags & IORESOURCE_PREFETCH != 0,
            driver: fs::read_link(device.join("driver"))
                .ok()
                .and_then(|link| Some(link.file_name()?.to_string_lossy().into_owned())),
            disabled: command.is_some_and(|command| command & answers == 0),
            display: fs::read_to_string(device.join("class")).is_ok_and(|class| {
                parse_hexadecimal(class.trim()).is_some_and(|class| class >> 16 == PCI_BASE_CLASS_DISPLAY)
            }),
        })
    }

    /// Returns the kind of resource, in words.
    pub(super) fn kind_description(&self) -> &'static str {
        match (self.port, self.prefetchable) {
            (true, _) => "I/O ports",
            (false, true) => "prefetchable memory",
            (false, false) => "registers (memory that is not prefetchable)",
        }
    }

    fn is_harmless(&self) -> bool {
        !self.port && self.prefetchable && !self.disabled && (self.display || self.driver.is_none())
    }

    /// Maps the resource into this process.
    pub(super) fn map_into_process(&self) -> Result<Mapped, BenchError> {
        let mapped = format!("{}, mapped,", self.file.display());
        if self.port {
            return Err(unavailable_error(mapped, "it is of I/O ports, which processes reach through the kernel only"));
        }
        let file = File::open(&self.file).map_err(BenchError::file_error(&self.file))?;
        Mapped::map_file(&file, self.len).map_err(|error| match Errno::from_io_error(&error) {
            Some(Errno::PERM | Errno::ACCESS) => {
                unavailable_error(mapped, "the kernel is locked down (secure boot), or this is not root")
            }
            Some(Errno::INVAL | Errno::BUSY) => unavailable_error(
                mapped,
                "its driver claims it for itself (kernel option iomem=strict), or it is no whole page",
            ),
            _ => BenchError::os_error(format!("mapping {}", self.file.display()))(error),
        })
    }

    /// Opens the file through which the kernel gives access: the resource's own for I/O ports, `/dev/mem` for memory.
    pub(super) fn open_kernel_access(&self) -> Result<KernelAccess, BenchError> {
        let name = if self.port { self.file.clone() } else { PathBuf::from("/dev/mem") };
        let begins = if self.port { 0 } else { self.begins };
        match File::open(&name) {
            Ok(file) => Ok(KernelAccess { file, begins, name }),
            Err(error) => Err(unavailable_error(
                "a read through the kernel".to_owned(),
                &format!("{}: {error}; a driver of the device's own would be the other way", name.display()),
            )),
        }
    }
}

impl KernelAccess {
    /// Makes the error for a read that failed.
    pub(super) fn read_error(&self, error: Errno) -> BenchError {
        let why = match error {
            Errno::PERM | Errno::FAULT | Errno::NXIO => {
                "the kernel keeps device memory to itself (CONFIG_STRICT_DEVMEM)"
            }
            _ => "it failed",
        };
        unavailable_error("a read through the kernel".to_owned(), &format!("{}: {error}: {why}", self.name.display()))
    }
}

fn not_a_resource_error(file: &Path) -> BenchError {
    BenchError::Usage(format!(
        "--resource {}: not a PCI resource; write /sys/bus/pci/devices/ADDRESS/resourceN, as `lspci -D` names devices",
        file.display()
    ))
}

fn unavailable_error(what: String, why: &str) -> BenchError {
    BenchError::Unavailable { what, why: why.to_owned() }
}

/// Returns the first resource under `devices` that can be read without harm, displays first.
pub(super) fn find_harmless_resource(devices: &Path) -> Option<Resource> {
    let mut found: Vec<Resource> = Vec::new();
    for device in fs::read_dir(devices).ok()?.filter_map(Result::ok) {
        for number in 0..6 {
            let file = device.path().join(format!("resource{number}"));
            found.extend(Resource::from_file_path(&file).ok().filter(Resource::is_harmless));
        }
    }
    found.sort_by(|a, b| (!a.display, &a.file).cmp(&(!b.display, &b.file)));
    found.into_iter().next()
}

/// Parses a line of `resource`: `0x0000004000000000 0x000000400007ffff 0x0000000000140204`.
fn parse_resource_line(line: &str) -> Option<[u64; 3]> {
    line.split_whitespace().map(parse_hexadecimal).collect::<Option<Vec<u64>>>()?.try_into().ok()
}

fn parse_hexadecimal(text: &str) -> Option<u64> {
    u64::from_str_radix(text.strip_prefix("0x")?, 16).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    /// Makes a device's folder as the kernel shows it: class, driver, command register, resources.
    fn device(
        devices: &Path,
        name: &str,
        class: &str,
        driver: Option<&str>,
        command: u8,
        resources: &[&str],
    ) -> PathBuf {
        let folder = devices.join(name);
        fs::create_dir(&folder).unwrap();
        fs::write(folder.join("class"), format!("{class}\n")).unwrap();
        fs::write(folder.join("config"), [0x86, 0x80, 0, 0, command, 0]).unwrap();
        fs::write(folder.join("resource"), resources.join("\n")).unwrap();
        for number in 0..resources.len() {
            fs::write(folder.join(format!("resource{number}")), vec![7; 4096]).unwrap();
        }
        if let Some(driver) = driver {
            symlink(format!("../../../bus/pci/drivers/{driver}"), folder.join("driver")).unwrap();
        }
        folder
    }

    const REGISTERS: &str = "0x00000000f0000000 0x00000000f0000fff 0x0000000000040200";
    const FRAMES: &str = "0x00000000e0000000 0x00000000e0000fff 0x0000000000042208";
    const PORTS: &str = "0x000000000000c000 0x000000000000c01f 0x0000000000040101";
    const NONE: &str = "0x0000000000000000 0x0000000000000000 0x0000000000000000";

    #[test]
    fn only_resources_that_can_be_read_without_harm_are_chosen() {
        let folder = tempfile::tempdir().unwrap();
        device(folder.path(), "0000:00:01.0", "0x020000", Some("e1000e"), 7, &[REGISTERS, FRAMES]);
        device(folder.path(), "0000:00:02.0", "0xff0000", None, 7, &[REGISTERS, PORTS, NONE]);
        device(folder.path(), "0000:00:03.0", "0x030000", Some("i915"), 7, &[REGISTERS]);
        device(folder.path(), "0000:00:04.0", "0x058000", None, 0, &[FRAMES]);
        assert_eq!(find_harmless_resource(folder.path()), None);
        let free = device(folder.path(), "0000:00:05.0", "0x058000", None, 2, &[REGISTERS, FRAMES]);
        assert_eq!(find_harmless_resource(folder.path()).unwrap().file, free.join("resource1"));
        let display = device(folder.path(), "0000:00:06.0", "0x030000", Some("bochs"), 7, &[FRAMES]);
        assert_eq!(find_harmless_resource(folder.path()).unwrap().file, display.join("resource0"));
        assert_eq!(find_harmless_resource(&folder.path().join("nowhere")), None);
    }

    #[test]
    fn a_resource_is_described_by_its_line() {
        let folder = tempfile::tempdir().unwrap();
        let of =
            device(folder.path(), "0000:00:01.0", "0x020000", Some("e1000e"), 2, &[FRAMES, PORTS, NONE, "nonsense"]);
        let memory = Resource::from_file_path(&of.join("resource0")).unwrap();
        assert_eq!((memory.begins, memory.len, memory.driver.as_deref()), (0xe000_0000, 4096, Some("e1000e")));
        assert_eq!((memory.kind_description(), memory.disabled), ("prefetchable memory", false));
        assert_eq!(memory.map_into_process().unwrap().read_byte(4095), 7);
        let ports = Resource::from_file_path(&of.join("resource1")).unwrap();
        assert!(ports.port && ports.disabled);
        assert!(ports.map_into_process().unwrap_err().to_string().contains("I/O ports"));
        assert_eq!(ports.open_kernel_access().unwrap().begins, 0);
        for number in [2, 3] {
            assert!(
                Resource::from_file_path(&of.join(format!("resource{number}")))
                    .is_err_and(|error| error.is_usage_error())
            );
        }
    }
}
