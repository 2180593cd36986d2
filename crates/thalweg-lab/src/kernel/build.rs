//! Build of a kernel, from the distribution's source package to a file in the user's cache.

use super::recipe::{self, RecipeError};
use crate::steps::{self, StepError, clear_environment, free_bytes, remove_directory};
use std::env;
use std::fs::{self, File};
use std::io::{self, BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread;
use thalweg_bench::find_program;
use thiserror::Error;

/// Packages of Debian and Ubuntu that a build needs.
pub const PACKAGES: &str = "linux-source build-essential flex bison bc xz-utils";

/// Stage of a build.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Progress {
    /// Waiting for another process that builds a kernel.
    Waiting,
    /// The source is being unpacked: ten to twenty seconds.
    Unpacking,
    /// Files are being compiled.
    Compiling {
        /// Number of files that have been compiled.
        done: u32,
        /// Number of all files, about.
        of: u32,
    },
}

/// Reason why there is no kernel.
#[derive(Debug, Error)]
pub enum KernelError {
    /// There is no source package.
    #[error("no Linux source in /usr/src (linux-source-*.tar.*): as root, `apt-get install {PACKAGES}`")]
    NoSource,
    /// Programs that a build needs are missing.
    #[error("{} not found: as root, `apt-get install {PACKAGES}`", .0.join(", "))]
    NoTools(Vec<&'static str>),
    /// The host is not an x86-64 machine, which User-Mode Linux is limited to.
    #[error("User-Mode Linux only runs on x86-64")]
    Machine,
    /// The file system has too little space.
    #[error("building a kernel needs {} MB in {}, which has {} MB", needed >> 20, path.display(), free >> 20)]
    Space {
        /// Directory of the build.
        path: PathBuf,
        /// Space that is needed, in bytes.
        needed: u64,
        /// Free space, in bytes.
        free: u64,
    },
    /// The source is not as expected.
    #[error("{}: {error}", package.display())]
    Source {
        /// Path of the source package.
        package: PathBuf,
        /// The problem with it.
        error: RecipeError,
    },
    /// The source does not accept these lines of the configuration.
    #[error("this version of Linux does not support {}", .0.join(", "))]
    Config(Vec<&'static str>),
    /// A step failed.
    #[error(transparent)]
    Step(#[from] StepError),
}

/// Programs that a build needs. `gcc` stands for all of build-essential.
const TOOLS: &[&str] = &["tar", "xz", "make", "gcc", "ld", "flex", "bison", "bc"];
/// Space that a build needs, in bytes: source and objects without [`UNNEEDED`] were 0.7 GB and 0.1 GB.
const REQUIRED_SPACE_BYTES: u64 = 1 << 30;
/// Number of files to compile, about.
const EXPECTED_OBJECT_COUNT: u32 = 670;
/// Kernel versions the laboratory was tested with, best first.
const TRIED: &[&str] = &["6.1", "6.12"];
/// Patterns of files that are not unpacked: they would be half of the time and the space. Every Kconfig and Makefile is
/// needed.
const UNNEEDED: &[&str] = &[
    "*.rst",
    "*.dts",
    "*.dtsi",
    "*/Documentation/devicetree/*",
    "*/drivers/gpu/*.[ch]",
    "*/drivers/net/*/*.[ch]",
    "*/drivers/media/*.[ch]",
    "*/sound/*.[ch]",
    "*/tools/perf/*",
    "*/tools/testing/*",
];

/// Implements [`super::Kernel::find_cached`].
pub(super) fn cached_kernel_path() -> Option<PathBuf> {
    let shelf = kernel_directory();
    if let Some(source) = Source::find_installed() {
        return Some(shelf.join(source.kernel_name())).filter(|path| path.is_file());
    }
    let mut names: Vec<_> = fs::read_dir(&shelf).ok()?.flatten().map(|entry| entry.path()).collect();
    names.sort();
    names.into_iter().find(|path| path.to_string_lossy().ends_with(&kernel_name_suffix()))
}

/// Implements [`super::Kernel::build_or_cached`].
pub(super) fn build_cached_kernel(progress: &mut dyn FnMut(Progress)) -> Result<PathBuf, KernelError> {
    if let Some(kernel) = cached_kernel_path() {
        return Ok(kernel);
    }
    if !cfg!(target_arch = "x86_64") {
        return Err(KernelError::Machine);
    }
    let source = Source::find_installed().ok_or(KernelError::NoSource)?;
    let absent: Vec<_> = TOOLS.iter().copied().filter(|tool| find_program(tool).is_none()).collect();
    if !absent.is_empty() {
        return Err(KernelError::NoTools(absent));
    }

    let shelf = kernel_directory();
    let _lock = steps::lock_directory(&shelf, || progress(Progress::Waiting))?;
    let kernel = shelf.join(source.kernel_name());
    if kernel.is_file() {
        return Ok(kernel);
    }

    // Removes what a killed build left: no other process works in it, since this one holds the lock.
    let room = shelf.join("build");
    remove_directory(&room)?;
    fs::create_dir(&room).map_err(StepError::file_error(&room))?;
    let built = Build { source: &source, room: &room, log: shelf.join("build.log") }.compile_kernel(progress);
    let published = built.and_then(|linux| Ok(fs::rename(linux, &kernel).map_err(StepError::file_error(&kernel))?));
    remove_directory(&room)?;
    published.map(|()| kernel)
}

/// Implements [`super::Kernel::install_packages`].
pub(super) fn install_packages() -> Result<(), KernelError> {
    let mut command = Command::new("apt-get");
    command.args(["install", "-y", "--no-install-recommends"]).args(PACKAGES.split(' ')).stdin(Stdio::null());
    let output =
        command.env("DEBIAN_FRONTEND", "noninteractive").output().map_err(StepError::start_error("apt-get"))?;
    if output.status.success() {
        return Ok(());
    }
    let log = env::temp_dir().join("thalweg-lab-install.log");
    fs::write(&log, [output.stdout, output.stderr].concat()).map_err(StepError::file_error(&log))?;
    Err(StepError::failed_step("apt-get install", output.status, &log).into())
}

/// Returns the directory of kernels: `$XDG_CACHE_HOME/thalweg/lab`, or below `~/.cache`.
pub(super) fn kernel_directory() -> PathBuf {
    thalweg_bench::cache_directory("lab")
}

/// Returns the end of the file names of this recipe's kernels.
fn kernel_name_suffix() -> String {
    format!("-{:016x}.linux", recipe::recipe_hash())
}

/// A source package of Linux.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Source {
    pub(super) path: PathBuf,
    pub(super) version: String,
    /// Length of the file, in bytes: security updates keep the version's first two numbers, and so the file's name.
    pub(super) length: u64,
}

impl Source {
    /// Returns the source package to build from.
    fn find_installed() -> Option<Self> {
        Self::find_best_in(Path::new("/usr/src"))
    }

    /// Returns the best package in a directory: one that was tested, or else the newest. Ubuntu's is one directory
    /// deeper.
    pub(super) fn find_best_in(directory: &Path) -> Option<Self> {
        let paths = directory_entries(directory);
        let sources = paths.iter().filter(|path| path.is_dir() && is_source_name(path));
        let deeper: Vec<PathBuf> = sources.flat_map(|path| directory_entries(path)).collect();
        let sources = paths.into_iter().chain(deeper).filter_map(Self::from_package_path);
        sources.max_by_key(|source| {
            let tried = TRIED.iter().rev().position(|tried| *tried == source.version);
            let numbers: Vec<u32> = source.version.split('.').map_while(|number| number.parse().ok()).collect();
            (tried, numbers)
        })
    }

    fn from_package_path(path: PathBuf) -> Option<Self> {
        let name = path.file_name()?.to_str()?;
        let (version, _) = name.strip_prefix("linux-source-")?.split_once(".tar")?;
        let length = path.metadata().ok().filter(fs::Metadata::is_file)?.len();
        Some(Self { version: version.to_owned(), length, path })
    }

    pub(super) fn kernel_name(&self) -> String {
        format!("{}-{:x}{}", self.version, self.length, kernel_name_suffix())
    }
}

fn directory_entries(directory: &Path) -> Vec<PathBuf> {
    fs::read_dir(directory).into_iter().flatten().flatten().map(|entry| entry.path()).collect()
}

fn is_source_name(path: &Path) -> bool {
    path.file_name().is_some_and(|name| name.as_encoded_bytes().starts_with(b"linux-source-"))
}

/// A build, in a directory of its own.
pub(super) struct Build<'a> {
    pub(super) source: &'a Source,
    pub(super) room: &'a Path,
    pub(super) log: PathBuf,
}

impl Build<'_> {
    /// Builds the kernel, and returns its path in the build's directory.
    fn compile_kernel(&self, progress: &mut dyn FnMut(Progress)) -> Result<PathBuf, KernelError> {
        let free = free_bytes(self.room)?;
        if free < REQUIRED_SPACE_BYTES {
            return Err(KernelError::Space { path: self.room.to_owned(), needed: REQUIRED_SPACE_BYTES, free });
        }
        remove_file(&self.log)?;

        progress(Progress::Unpacking);
        let mut tar = self.build_command("tar");
        tar.arg("-xf").arg(&self.source.path).arg("--strip-components=1");
        self.run_step(
            "unpacking",
            "tar",
            tar.args(UNNEEDED.iter().map(|pattern| format!("--exclude={pattern}"))),
            |_| (),
        )?;
        recipe::apply_changes(self.room)
            .map_err(|error| KernelError::Source { package: self.source.path.clone(), error })?;

        let wanted = self.room.join("thalweg.config");
        fs::write(&wanted, recipe::CONFIG).map_err(StepError::file_error(&wanted))?;
        let mut configure = self.build_command("make");
        configure.args(["ARCH=um", "allnoconfig"]).env("KCONFIG_ALLCONFIG", &wanted);
        self.run_step("configuring", "make", &mut configure, |_| ())?;
        let config = self.room.join(".config");
        let config = fs::read_to_string(&config).map_err(StepError::file_error(&config))?;
        let lost = recipe::rejected_config_lines(recipe::CONFIG, &config);
        if !lost.is_empty() {
            return Err(KernelError::Config(lost));
        }

        let cores = thread::available_parallelism().map_or(1, usize::from);
        let mut done = 0;
        progress(Progress::Compiling { done, of: EXPECTED_OBJECT_COUNT });
        let mut make = self.build_command("make");
        make.args(["ARCH=um", "linux"]).arg(format!("-j{cores}"));
        self.run_step("compiling", "make", &mut make, |line| {
            if line.starts_with(b"  CC ") {
                done += 1;
                progress(Progress::Compiling { done, of: EXPECTED_OBJECT_COUNT.max(done) });
            }
        })?;
        Ok(self.room.join("linux"))
    }

    /// Returns a command without input, and without variables that influence builds.
    pub(super) fn build_command(&self, program: &str) -> Command {
        let mut command = Command::new(program);
        clear_environment(&mut command).current_dir(self.room).stdin(Stdio::null());
        command
    }

    /// Runs a command, appends its output to the log, and passes each line of it to `on_line`.
    pub(super) fn run_step(
        &self,
        step: &'static str,
        program: &'static str,
        command: &mut Command,
        mut on_line: impl FnMut(&[u8]),
    ) -> Result<(), StepError> {
        let mut log =
            File::options().create(true).append(true).open(&self.log).map_err(StepError::file_error(&self.log))?;
        let (output, writer) = io::pipe().map_err(StepError::start_error(program))?;
        command.stdout(writer.try_clone().map_err(StepError::start_error(program))?).stderr(writer);
        let mut child = command.spawn().map_err(StepError::start_error(program))?;
        // The command holds the pipe's write ends for as long as it can be started again.
        command.stdout(Stdio::null()).stderr(Stdio::null());
        let mut output = BufReader::new(output);
        let mut line = Vec::new();
        let mut logged = Ok(());
        while output.read_until(b'\n', &mut line).map_err(StepError::start_error(program))? > 0 {
            on_line(&line);
            // A full disk does not end the build here: the compiler fails too, with a better error.
            logged = logged.and(log.write_all(&line));
            line.clear();
        }
        let status = child.wait().map_err(StepError::start_error(program))?;
        if status.success() {
            return logged.map_err(StepError::file_error(&self.log));
        }
        Err(StepError::failed_step(step, status, &self.log))
    }
}

fn remove_file(path: &Path) -> Result<(), StepError> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(StepError::file_error(path)(error)),
        _ => Ok(()),
    }
}
