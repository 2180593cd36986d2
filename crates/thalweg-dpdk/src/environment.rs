//! DPDK's environment (EAL), of which a process has one.

use crate::DpdkError;
use crate::shim::{Settings, Shim, loaded_shim};
use std::collections::VecDeque;
use std::ffi::{CStr, CString, c_char, c_int};
use std::fmt;
use std::path::Path;
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use thalweg_arena::HugePagesLock;

/// Version of DPDK.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Version(String);

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Returns the version of the DPDK that ports are opened with. Starts nothing.
///
/// # Errors
/// There is no DPDK on this machine, or there was none where the program was built; the text includes the remedy.
pub fn available_version() -> Result<Version, String> {
    let shim = loaded_shim().map_err(|error| error.to_string())?;
    // SAFETY: the returned pointer is that of a constant string.
    let version = unsafe { (shim.version)() };
    // SAFETY: as above.
    let version = unsafe { CStr::from_ptr(version) };
    Ok(Version(version.to_string_lossy().into_owned()))
}

/// The environment, once it is started. Only its holder opens, closes or changes ports.
pub(crate) struct Environment {
    pub(crate) shim: &'static Shim,
    _alone: MutexGuard<'static, ()>,
    /// Held until the first port has taken its buffers.
    _huge_pages: Option<HugePagesLock>,
}

/// Size of DPDK's memory in MiB without huge pages: only addresses at first, and pages as they are touched.
const SMALL_PAGE_MEMORY_MIB: &str = "1024";
/// Address of a PCI adapter that does not exist. A list of allowed adapters keeps DPDK from all others, and one that is
/// named later can still be added; `--no-pci` would forbid that, too.
const NO_ADAPTER: &str = "ffff:ff:1f.7";

impl Environment {
    /// Starts the environment, if it is not started. Its memory is in huge pages if the first port requests that, and
    /// its buffers fit into those that are free. `physical`: the first device reads memory by physical addresses.
    pub(crate) fn enter_started(huge_pages: bool, settings: &Settings, physical: bool) -> Result<Self, DpdkError> {
        static STARTED: OnceLock<Result<(), String>> = OnceLock::new();
        let shim = loaded_shim()?;
        let alone = lock_ports();
        let huge_pages_lock = (huge_pages && STARTED.get().is_none()).then(HugePagesLock::acquire_lock).flatten();
        let started = STARTED.get_or_init(|| {
            // SAFETY: the function reads the settings, and nothing else.
            let bytes = huge_pages.then(|| unsafe { (shim.port_bytes)(settings) });
            // In a thread of its own, which ends: EAL pins the thread that starts it.
            std::thread::scope(|scope| scope.spawn(|| start_environment(shim, bytes, physical)).join())
                .unwrap_or_else(|_| Err("the thread panicked".into()))
        });
        match started {
            Ok(()) => Ok(Self { shim, _alone: alone, _huge_pages: huge_pages_lock }),
            Err(why) => Err(DpdkError::Start { why: why.clone() }),
        }
    }
}

/// Acquires the lock for opening, closing or changing ports.
pub(crate) fn lock_ports() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Starts EAL. `bytes`: size of the first port's buffers, if they are to be in huge pages.
fn start_environment(shim: &Shim, bytes: Option<u64>, physical: bool) -> Result<(), String> {
    let free = bytes.map(|bytes| (bytes, free_huge_pages()));
    let huge = free.is_some_and(|(bytes, free)| free >= bytes);
    if let Some((bytes, free)) = free.filter(|_| !huge) {
        let few = format!(
            "they take up to {} MiB, but only {} MiB of huge pages are free",
            bytes.div_ceil(1 << 20),
            free >> 20
        );
        if physical {
            return Err(format!(
                "without an IOMMU its buffers must be in huge pages: {few}: sysctl vm.nr_hugepages=256"
            ));
        }
        tracing::warn!("DPDK's buffers are in 4 KiB pages: {few} (vm.nr_hugepages)");
    } else if physical && !huge {
        return Err("without an IOMMU its buffers must be in huge pages".into());
    }
    let arguments = start_arguments(huge, physical);
    tracing::debug!("starting DPDK: {}", arguments.join(" "));
    let owned: Vec<CString> =
        arguments.into_iter().map(|argument| CString::new(argument).expect("no NUL character in it")).collect();
    // EAL may change the order of its arguments, and keeps some of them: the program's name.
    let pointers: Vec<*mut c_char> = owned.into_iter().map(CString::into_raw).chain([std::ptr::null_mut()]).collect();
    let pointers: &'static mut [*mut c_char] = pointers.leak();
    let count = c_int::try_from(pointers.len() - 1).expect("a dozen");
    clear_errors();
    // SAFETY: `count` strings followed by a null pointer, all of which are leaked. No other thread starts EAL.
    match unsafe { (shim.start)(count, pointers.as_mut_ptr(), forward_log) } {
        0 => Ok(()),
        error => Err(format!("{}{}", std::io::Error::from_raw_os_error(-error), kept_errors())),
    }
}

/// Returns the arguments for starting the environment (EAL parameters, Getting Started Guide for Linux).
fn start_arguments(huge: bool, physical: bool) -> Vec<String> {
    let mut arguments: Vec<String> = [
        "thalweg",
        "--no-telemetry",
        // Addresses on the bus are those of the process: an arena has the same address for both. Not without an IOMMU.
        if physical { "--iova-mode=pa" } else { "--iova-mode=va" },
        "--allow",
        NO_ADAPTER,
    ]
    .map(Into::into)
    .into();
    arguments.push(format!("--file-prefix=thalweg-{}", std::process::id()));
    // One thread, which may run where this one may.
    arguments.push(format!("--lcores=0@({})", allowed_processors()));
    // No file that is shared with other processes, so nothing is left, however this one ends.
    if huge {
        arguments.push("--in-memory".into());
    } else {
        // Memory without huge pages is never a file; EAL does not accept both options.
        arguments.extend(["--no-shconf", "--no-huge", "-m", SMALL_PAGE_MEMORY_MIB].map(Into::into));
    }
    arguments
}

/// Returns the processors that the calling thread may run on, as a list with commas.
fn allowed_processors() -> String {
    let set = rustix::thread::sched_getaffinity(None).unwrap_or_default();
    let all: Vec<String> =
        (0..rustix::thread::CpuSet::MAX_CPU).filter(|at| set.is_set(*at)).map(|at| at.to_string()).collect();
    if all.is_empty() { "0".into() } else { all.join(",") }
}

/// Returns the size of the free huge pages, in bytes.
fn free_huge_pages() -> u64 {
    let sizes = Path::new("/sys/kernel/mm/hugepages").read_dir();
    sizes.into_iter().flatten().flatten().filter_map(|entry| free_bytes_of_size(&entry)).max().unwrap_or(0)
}

/// Returns the size of the free huge pages of one kind, in bytes.
fn free_bytes_of_size(entry: &std::fs::DirEntry) -> Option<u64> {
    let kib: u64 = entry.file_name().to_str()?.strip_prefix("hugepages-")?.strip_suffix("kB")?.parse().ok()?;
    let pages: u64 = std::fs::read_to_string(entry.path().join("free_hugepages")).ok()?.trim().parse().ok()?;
    Some(kib * 1024 * pages)
}

/// Number of error lines that are kept.
const MAX_KEPT_LINES: usize = 4;

fn lock_error_lines() -> MutexGuard<'static, VecDeque<String>> {
    static LINES: Mutex<VecDeque<String>> = Mutex::new(VecDeque::new());
    LINES.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Forwards DPDK's log to the program's; keeps error lines for the error that is about to be reported.
extern "C" fn forward_log(level: c_int, bytes: *const c_char, length: usize) {
    /// Log level `RTE_LOG_ERR`.
    const ERROR: c_int = 4;
    // SAFETY: the shim passes `length` bytes, which are valid during this call.
    let bytes = unsafe { std::slice::from_raw_parts(bytes.cast::<u8>(), length) };
    for line in String::from_utf8_lossy(bytes).lines().map(str::trim).filter(|line| !line.is_empty()) {
        tracing::debug!(target: "dpdk", "{line}");
        if level <= ERROR {
            let mut lines = lock_error_lines();
            lines.push_back(line.to_owned());
            if lines.len() > MAX_KEPT_LINES {
                lines.pop_front();
            }
        }
    }
}

/// Clears the kept error lines: those that follow belong to the next operation.
pub(crate) fn clear_errors() {
    lock_error_lines().clear();
}

/// Returns the kept error lines, after a colon; an empty string if there are none.
pub(crate) fn kept_errors() -> String {
    let lines = lock_error_lines();
    if lines.is_empty() { String::new() } else { format!(": {}", Vec::from_iter(lines.iter().cloned()).join("; ")) }
}

/// Registers the calling thread with DPDK, until it ends: its buffers then come from a cache of its own.
pub(crate) fn register_thread(shim: &'static Shim) {
    struct Known(Option<&'static Shim>);
    impl Known {
        fn new(shim: &'static Shim) -> Self {
            // SAFETY: the environment is started, since there is a port.
            let answer = unsafe { (shim.enter)() };
            if answer != 0 {
                let error = std::io::Error::from_raw_os_error(-answer);
                tracing::warn!("this thread uses DPDK's buffers without its own cache: {error}");
            }
            Self((answer == 0).then_some(shim))
        }
    }
    impl Drop for Known {
        fn drop(&mut self) {
            if let Some(shim) = self.0 {
                // SAFETY: this thread was registered, and does nothing more with DPDK.
                unsafe { (shim.leave)() }
            }
        }
    }
    thread_local! {
        static KNOWN: OnceLock<Known> = const { OnceLock::new() };
    }
    KNOWN.with(|known| {
        known.get_or_init(|| Known::new(shim));
    });
}
