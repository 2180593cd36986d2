//! Setup, from the system's package archive to a kernel, its initramfs and packages ready to be mounted.

use crate::pc::qemu::QEMU;
use crate::pc::{initramfs, modules};
use crate::steps::{StepError, clear_environment, free_bytes};
use std::fs::{self, File};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use thalweg_bench::find_program;
use thiserror::Error;

/// Debian packages that setting up and running need.
pub const PACKAGES: &str = "qemu-system-x86 build-essential xz-utils util-linux";

/// Stage of a setup.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Progress {
    /// Waiting for another process that is setting up.
    Waiting,
    /// Packages are being downloaded.
    Downloading,
    /// Packages are being unpacked.
    Unpacking,
    /// Kernel modules are being compiled.
    Compiling,
}

/// Reason why a machine cannot be set up.
#[derive(Debug, Error)]
pub enum PrepareError {
    /// The host is not an x86-64 PC.
    #[error("the machine is an x86-64 PC with this host's programs: it only runs on x86-64")]
    Architecture,
    /// Programs that are needed are missing.
    #[error("{} not found: as root, `apt-get install {PACKAGES}`", .0.join(", "))]
    NoTools(Vec<&'static str>),
    /// The archive's lists are missing, or this is another archive.
    #[error("apt has no package {0}: as root, `apt-get update`; the machine uses Debian's packages")]
    NoPackage(String),
    /// The archive has another Linux than the one whose source files are listed for the modules.
    #[error("the machine needs Debian 12 and its Linux 6.1; apt offers {0}")]
    Kernel(String),
    /// The packages lack a program that the machine promises.
    #[error("{program} is neither in Debian's package {package} nor on this host: it moved to another package")]
    NoProgram {
        /// Name of the missing program.
        program: &'static str,
        /// The package that had it.
        package: &'static str,
    },
    /// The kernel is not as expected.
    #[error("{}: not a kernel image with an xz archive in it", .0.display())]
    Image(PathBuf),
    /// The file system has too little space.
    #[error(
        "setting up the machine needs {} MB in {}, which has {} MB",
        REQUIRED_SPACE_BYTES >> 20, path.display(), free >> 20
    )]
    Space {
        /// Directory of the setup.
        path: PathBuf,
        /// Free space, in bytes.
        free: u64,
    },
    /// A step failed.
    #[error(transparent)]
    Step(#[from] StepError),
}

pub(crate) const VMLINUX: &str = "vmlinux";
pub(crate) const INITRAMFS: &str = "initramfs";
/// The packages, laid out as a root.
pub(crate) const LAID_OUT: &str = "packages";

/// Programs of the host that a setup needs; `gcc` stands for all of build-essential.
const TOOLS: &[&str] = &["apt-get", "apt-cache", "dpkg-deb", "tar", "xz", "make", "gcc", "strip", "setpriv", QEMU];
/// Kernel series that the list of modules' source files is for.
const KERNEL_SERIES: &str = "6.1.";
/// Package that depends on the newest kernel.
const KERNEL: &str = "linux-image-amd64";
/// Packages of the machine, whose dependencies are added where the host lacks them, each with the programs it is there
/// for. Debian moves programs between packages in updates (`dpdk-testpmd` in 22.11.11), so each program is checked for.
const WANTED: &[(&str, &[&str])] = &[
    ("busybox-static", &["busybox"]),
    ("kmod", &["kmod"]),
    ("pciutils", &["lspci", "setpci"]),
    ("iproute2", &["ip"]),
    ("dpdk", &["dpdk-devbind.py"]),
    ("dpdk-dev", &["dpdk-testpmd"]),
    ("libdpdk-dev", &[]),
    ("perftest", &["ib_write_lat"]),
    ("python3-pyverbs", &[]),
    ("rdma-core", &[]),
    ("ibverbs-utils", &["ibv_devinfo"]),
    ("ibverbs-providers", &[]),
    ("rdmacm-utils", &["rping"]),
    ("ucx-utils", &["ucx_perftest"]),
    ("v4l-utils", &["v4l2-ctl"]),
    ("libiio-utils", &["iio_info"]),
];
/// Packages that the setup itself uses, unpacked whether the host has them or not.
const ALWAYS_UNPACKED: &[&str] = &["busybox-static", "kmod"];
/// Space that a setup needs, in bytes: archives, unpacked packages, and the headers and sources of the modules take
/// 1.1 GB; the rest is reserve.
const REQUIRED_SPACE_BYTES: u64 = 3 << 29;
/// Options of apt-get that let an ordinary user run it, and while another apt is at work.
const APT: &[&str] = &["-qq", "-o", "Debug::NoLocking=1", "-o", "APT::Sandbox::User=root"];
/// Commands that this crate adds to the machine: name and text.
const PROGRAMS: &[(&str, &str)] = &[
    ("guest", include_str!("../../pc/guest")),
    ("bindto", include_str!("../../pc/bindto")),
    ("huge", include_str!("../../pc/huge")),
];

/// Returns all texts that a setup is made of, apart from the contents of the packages.
pub(crate) fn recipe_texts() -> impl Iterator<Item = &'static str> {
    wanted_packages().chain(PROGRAMS.iter().flat_map(|&(name, text)| [name, text]))
}

/// Returns the names of [`WANTED`]'s packages.
fn wanted_packages() -> impl Iterator<Item = &'static str> {
    WANTED.iter().map(|&(package, _)| package)
}

pub(crate) fn check_tools() -> Result<(), PrepareError> {
    if !cfg!(target_arch = "x86_64") {
        return Err(PrepareError::Architecture);
    }
    let absent: Vec<_> = TOOLS.iter().copied().filter(|tool| find_program(tool).is_none()).collect();
    if absent.is_empty() { Ok(()) } else { Err(PrepareError::NoTools(absent)) }
}

/// Result of [`set_up_machine`].
#[derive(Debug)]
pub(crate) struct Ready {
    pub(crate) version: String,
    pub(crate) directory: PathBuf,
}

/// Sets everything up in an empty directory. The caller holds the lock.
pub(crate) fn set_up_machine(
    room: &Path,
    log: &Path,
    lock: &File,
    progress: &mut dyn FnMut(Progress),
) -> Result<Ready, PrepareError> {
    let free = free_bytes(room)?;
    if free < REQUIRED_SPACE_BYTES {
        return Err(PrepareError::Space { path: room.to_owned(), free });
    }
    File::create(log).map_err(StepError::file_error(log))?;
    let setup = Setup { log, lock };

    progress(Progress::Downloading);
    let kernel = setup.package_dependencies(KERNEL)?.swap_remove(0);
    let version = kernel.strip_prefix("linux-image-").filter(|version| version.starts_with(KERNEL_SERIES));
    let version = version.ok_or_else(|| PrepareError::Kernel(kernel.clone()))?.to_owned();
    let archives = Archives::new(room.join("archives"))?;
    setup.download_with_dependencies(&archives, wanted_packages())?;
    setup.download_packages(&archives.path, ALWAYS_UNPACKED.iter().copied().chain([kernel.as_str()]))?;
    let for_modules = Archives::new(room.join("archives-for-modules"))?;
    let packages = modules::required_packages(&setup, &version)?;
    setup.download_packages(&for_modules.path, packages.iter().map(String::as_str))?;

    progress(Progress::Unpacking);
    let ready = room.join("ready");
    let laid_out = ready.join(LAID_OUT);
    setup.unpack_packages(archives, &laid_out)?;
    check_programs(&laid_out)?;
    let unpacked = room.join("for-modules");
    setup.unpack_packages(for_modules, &unpacked)?;
    setup.extract_kernel(&laid_out.join("boot").join(format!("vmlinuz-{version}")), &ready.join(VMLINUX))?;
    let boot = laid_out.join("boot");
    fs::remove_dir_all(&boot).map_err(StepError::file_error(&boot))?;
    setup.write_module_dependencies(&laid_out, &version)?;
    let initramfs = ready.join(INITRAMFS);
    fs::write(&initramfs, initramfs::build_archive(&setup, &laid_out, &version)?)
        .map_err(StepError::file_error(&initramfs))?;

    progress(Progress::Compiling);
    let own = laid_out.join("usr/lib/thalweg-machine");
    fs::create_dir_all(&own).map_err(StepError::file_error(&own))?;
    for (name, text) in PROGRAMS {
        let path = own.join(name);
        fs::write(&path, text).map_err(StepError::file_error(&path))?;
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).map_err(StepError::file_error(&path))?;
    }
    modules::compile_modules(&setup, &unpacked, &version, &own)?;
    Ok(Ready { version, directory: ready })
}

/// Directory for apt to download into.
struct Archives {
    path: PathBuf,
}

impl Archives {
    fn new(path: PathBuf) -> Result<Self, StepError> {
        let partial = path.join("partial");
        fs::create_dir_all(&partial).map_err(StepError::file_error(&partial))?;
        Ok(Self { path })
    }
}

/// Runs the steps of a setup, whose output goes to one log.
#[derive(Debug)]
pub(crate) struct Setup<'a> {
    log: &'a Path,
    /// An empty file, used as every program's standard input: if this process is killed, the lock is held (flock(2))
    /// until the last program that it had started has ended, too.
    lock: &'a File,
}

impl Setup<'_> {
    /// Returns the names of a package's dependencies, at least one.
    pub(crate) fn package_dependencies(&self, package: &str) -> Result<Vec<String>, PrepareError> {
        let mut command = Command::new("apt-cache");
        command.args(["depends", package]);
        let output = self.isolate_command(&mut command)?.output().map_err(StepError::start_error("apt-cache"))?;
        let output = String::from_utf8_lossy(&output.stdout);
        let names = output.lines().filter_map(|line| line.trim().strip_prefix("Depends: ")).map(str::to_owned);
        match names.collect::<Vec<_>>() {
            names if names.is_empty() => Err(PrepareError::NoPackage(package.to_owned())),
            names => Ok(names),
        }
    }

    /// Downloads packages, and those of their dependencies that this host lacks.
    fn download_with_dependencies(
        &self,
        archives: &Archives,
        packages: impl Iterator<Item = &'static str>,
    ) -> Result<(), StepError> {
        let mut apt = Command::new("apt-get");
        apt.args(APT).arg("-o").arg(format!("Dir::Cache::archives={}", archives.path.display()));
        apt.args(["install", "-y", "--download-only", "--no-install-recommends"]).args(packages);
        self.run_step("downloading packages", "apt-get", &mut apt)
    }

    /// Downloads packages without their dependencies, whether this host has them or not.
    fn download_packages<'a>(&self, into: &Path, packages: impl Iterator<Item = &'a str>) -> Result<(), StepError> {
        let mut apt = Command::new("apt-get");
        apt.args(APT).arg("download").args(packages).current_dir(into);
        self.run_step("downloading packages", "apt-get", &mut apt)
    }

    /// Unpacks packages into a directory, and removes their archives. `/bin` and the like are links into `/usr`
    /// (Debian's merged /usr), also for packages that still use the old paths: laid over the host's root, directories
    /// of these names would hide its links.
    fn unpack_packages(&self, archives: Archives, into: &Path) -> Result<(), StepError> {
        for name in ["bin", "sbin", "lib", "lib64"] {
            let merged = into.join("usr").join(name);
            fs::create_dir_all(&merged).map_err(StepError::file_error(&merged))?;
            let link = into.join(name);
            symlink(format!("usr/{name}"), &link).map_err(StepError::file_error(&link))?;
        }
        for entry in fs::read_dir(&archives.path).map_err(StepError::file_error(&archives.path))? {
            let package = entry.map_err(StepError::file_error(&archives.path))?.path();
            if package.extension().is_none_or(|end| end != "deb") {
                continue;
            }
            // `dpkg-deb --extract` would replace the links by directories.
            let mut archive = Command::new("dpkg-deb");
            archive.arg("--fsys-tarfile").arg(&package).stdout(Stdio::piped());
            let mut archive =
                self.isolate_command(&mut archive)?.spawn().map_err(StepError::start_error("dpkg-deb"))?;
            let mut tar = Command::new("tar");
            tar.args(["-x", "--keep-directory-symlink", "--no-same-owner", "-C"]).arg(into);
            if let Some(content) = archive.stdout.take() {
                tar.stdin(content);
            }
            let unpacked = self.run_step_as_is("unpacking a package", "tar", &mut tar);
            let status = archive.wait().map_err(StepError::start_error("dpkg-deb"))?;
            unpacked?;
            if !status.success() {
                let (step, last) = ("unpacking a package", package.display().to_string());
                return Err(StepError::Failed { step, status, last, log: self.log.to_owned() });
            }
        }
        fs::remove_dir_all(&archives.path).map_err(StepError::file_error(&archives.path))
    }

    /// Extracts the kernel as an ELF file, which QEMU enters directly (PVH): unpacking itself would take an emulated
    /// machine four seconds. The archive's place in an image: "The Linux/x86 Boot Protocol",
    /// Documentation/arch/x86/boot.rst.
    fn extract_kernel(&self, image: &Path, into: &Path) -> Result<(), PrepareError> {
        let bytes = fs::read(image).map_err(StepError::file_error(image))?;
        let compressed = kernel_payload(&bytes).ok_or_else(|| PrepareError::Image(image.to_owned()))?;
        let path = into.with_extension("xz");
        fs::write(&path, compressed).map_err(StepError::file_error(&path))?;
        let kernel = self.decompress_xz(&path)?;
        fs::remove_file(&path).map_err(StepError::file_error(&path))?;
        Ok(fs::write(into, kernel).map_err(StepError::file_error(into))?)
    }

    /// Writes the kernel's `modules.dep`, which no package contains.
    fn write_module_dependencies(&self, laid_out: &Path, version: &str) -> Result<(), StepError> {
        // One program has several names; the package's links to it are of no use outside a root.
        let mut depmod = Command::new(laid_out.join("usr/bin/kmod"));
        depmod.arg0("depmod").arg("-b").arg(laid_out).arg(version);
        self.run_step("listing kernel modules", "kmod", &mut depmod)
    }

    /// Returns the content of a file that xz has compressed.
    pub(crate) fn decompress_xz(&self, path: &Path) -> Result<Vec<u8>, StepError> {
        let mut xz = Command::new("xz");
        // The bytes after the stream, in a kernel's image its length, are ignored.
        xz.args(["--decompress", "--single-stream", "--stdout"]).arg(path);
        let output = self.isolate_command(&mut xz)?.output().map_err(StepError::start_error("xz"))?;
        match output.status.success() {
            true => Ok(output.stdout),
            false => {
                let last = String::from_utf8_lossy(&output.stderr).trim().to_owned();
                let (step, status) = ("decompressing", output.status);
                Err(StepError::Failed { step, status, last, log: self.log.to_owned() })
            }
        }
    }

    /// Runs a command without input, and appends its output to the log.
    pub(crate) fn run_step(
        &self,
        step: &'static str,
        program: &'static str,
        command: &mut Command,
    ) -> Result<(), StepError> {
        self.run_step_as_is(step, program, self.isolate_command(command)?)
    }

    /// Runs a command with its own input and environment, and appends its output to the log.
    fn run_step_as_is(
        &self,
        step: &'static str,
        program: &'static str,
        command: &mut Command,
    ) -> Result<(), StepError> {
        let log = File::options().append(true).open(self.log).map_err(StepError::file_error(self.log))?;
        command.stdout(log.try_clone().map_err(StepError::file_error(self.log))?).stderr(log);
        let status = command.status().map_err(StepError::start_error(program))?;
        match status.success() {
            true => Ok(()),
            false => Err(StepError::failed_step(step, status, self.log)),
        }
    }

    /// Gives a command an empty input, and an environment without variables that influence builds.
    fn isolate_command<'c>(&self, command: &'c mut Command) -> Result<&'c mut Command, StepError> {
        Ok(clear_environment(command).stdin(self.lock.try_clone().map_err(StepError::file_error(self.log))?))
    }
}

/// Returns the archive in a kernel's image, found by its header's `setup_sects`, `payload_offset` and `payload_length`.
fn kernel_payload(image: &[u8]) -> Option<&[u8]> {
    let head = (usize::from(*image.get(0x1f1)?) + 1) * 512;
    let offset = u32::from_le_bytes(image.get(0x248..0x24c)?.try_into().ok()?) as usize;
    let length = u32::from_le_bytes(image.get(0x24c..0x250)?.try_into().ok()?) as usize;
    let payload = image.get(head + offset..)?.get(..length)?;
    (image.get(0x202..0x206)? == b"HdrS" && payload.starts_with(b"\xfd7zXZ\0")).then_some(payload)
}

/// Fails if a program that [`WANTED`] lists is neither in the machine's packages nor on the host.
fn check_programs(laid_out: &Path) -> Result<(), PrepareError> {
    let folders = ["usr/bin", "usr/sbin"].map(|folder| laid_out.join(folder));
    for &(package, programs) in WANTED {
        for &program in programs {
            // Links with an absolute target resolve in the machine only, so unresolved links count as present.
            let unpacked = folders.iter().any(|folder| folder.join(program).symlink_metadata().is_ok());
            if !unpacked && find_program(program).is_none() {
                return Err(PrepareError::NoProgram { program, package });
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kernel_is_found_in_its_image() {
        let mut image = vec![0; 2048];
        image[0x1f1] = 1;
        image[0x202..0x206].copy_from_slice(b"HdrS");
        image[0x248] = 16;
        image[0x24c] = 8;
        image[1040..1048].copy_from_slice(b"\xfd7zXZ\0ab");
        assert_eq!(kernel_payload(&image), Some(&b"\xfd7zXZ\0ab"[..]));
        image[1040] = 0;
        assert_eq!(kernel_payload(&image), None);
        assert_eq!(kernel_payload(&image[..600]), None);
    }

    #[test]
    fn a_missing_program_is_reported_with_its_package() {
        let laid_out = tempfile::tempdir().unwrap();
        let (bin, sbin) = (laid_out.path().join("usr/bin"), laid_out.path().join("usr/sbin"));
        fs::create_dir_all(&bin).unwrap();
        fs::create_dir_all(&sbin).unwrap();
        for program in WANTED.iter().flat_map(|(_, programs)| *programs) {
            symlink("/elsewhere", sbin.join(program)).unwrap();
        }
        check_programs(laid_out.path()).unwrap();
        fs::rename(sbin.join("dpdk-testpmd"), bin.join("dpdk-testpmd")).unwrap();
        check_programs(laid_out.path()).unwrap();
        fs::remove_file(bin.join("dpdk-testpmd")).unwrap();
        // A host with DPDK's tools provides its own.
        if find_program("dpdk-testpmd").is_none() {
            let refused = check_programs(laid_out.path()).unwrap_err().to_string();
            assert!(refused.starts_with("no dpdk-testpmd in Debian's package dpdk-dev"), "{refused}");
        }
    }
}
