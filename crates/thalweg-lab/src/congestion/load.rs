//! Loading and unloading of a control.

use crate::congestion::kernel::{ONLY_KEY, registered_programs};
use crate::congestion::{Control, Kernel, Standing};
use libbpf_rs::{ErrorKind, MapCore, MapType, ObjectBuilder, PrintLevel};
use rustix::time::{ClockId, clock_getres};
use std::io;
use std::path::Path;
use thiserror::Error;

/// Result of loading a control.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Loaded {
    /// Loaded by this call.
    Now,
    /// Loaded before this call.
    Already,
    /// The kernel has a control of that name, which is as good: nothing was loaded.
    ByKernel,
}

/// Reason why a control is not loaded.
#[derive(Debug, Error)]
pub enum LoadError {
    /// The kernel has a module for it, which could not be loaded after this crate's program.
    #[error("{0}: this kernel has an equivalent module: modprobe tcp_{0}")]
    Module(&'static str),
    /// The kernel has no type information (BTF).
    #[error("{0}: this kernel has no type information (no {BTF}, CONFIG_DEBUG_INFO_BTF), which BPF programs need")]
    NoBtf(&'static str),
    /// The process lacks privilege.
    #[error("{0}: loading into the kernel needs root (CAP_BPF, CAP_NET_ADMIN and CAP_SYS_ADMIN)")]
    NotPermitted(&'static str),
    /// The kernel refuses the program.
    #[error(
        "{name}: the kernel rejects it: {reason}. It must be Linux 6.1 or newer with the BPF JIT on; -vv shows its \
         messages"
    )]
    Refused {
        /// Name of the control.
        name: &'static str,
        /// Error of libbpf.
        reason: String,
    },
    /// The kernel's state cannot be read.
    #[error("reading the list of congestion controls: {0}")]
    Kernel(#[from] io::Error),
}

/// Reason why a control is not unloaded.
#[derive(Debug, Error)]
pub enum UnloadError {
    /// The control is available, but was not loaded by `thalweg cc`.
    #[error("{0}: it is available, but `thalweg cc` did not load it")]
    NotOurs(&'static str),
    /// The control is not loaded.
    #[error("{0}: it is not loaded")]
    NotLoaded(&'static str),
    /// The process lacks privilege.
    #[error("{0}: unloading needs root (CAP_SYS_ADMIN)")]
    NotPermitted(&'static str),
    /// The kernel refuses to unload it.
    #[error("{name}: the kernel does not unload it: {reason}")]
    Refused {
        /// Name of the control.
        name: &'static str,
        /// Error of libbpf.
        reason: String,
    },
    /// The kernel's state cannot be read.
    #[error("reading the list of congestion controls: {0}")]
    Kernel(#[from] io::Error),
}

/// Loads a control. From then on every program on this machine can select it, in any network namespace, until it is
/// unloaded or the machine restarts.
///
/// # Errors
/// Fails if the kernel has a module of that name that is not loaded, does not describe its types, or refuses the
/// program, most likely for lack of privilege. Nothing is loaded in these cases.
pub fn load_control(control: &'static Control) -> Result<Loaded, LoadError> {
    let name = control.name;
    match Kernel::read_state()?.control_standing(name) {
        Standing::Thalweg => return Ok(Loaded::Already),
        Standing::Kernel | Standing::Module | Standing::Unknown => return Ok(Loaded::ByKernel),
        Standing::ModuleNotLoaded => return Err(LoadError::Module(name)),
        Standing::Absent => {}
    }
    if !Path::new(BTF).exists() {
        return Err(LoadError::NoBtf(name));
    }
    register_object(control.object).map_err(|error| match error.kind() {
        ErrorKind::PermissionDenied => LoadError::NotPermitted(name),
        _ => LoadError::Refused { name, reason: format!("{error:#}") },
    })?;
    Ok(Loaded::Now)
}

/// Unloads a control that was loaded by [`load_control`]. Connections that use it keep it until they end.
///
/// # Errors
/// Fails if it is not loaded, or not by [`load_control`], or the kernel refuses. Nothing is changed in these cases.
pub fn unload_control(control: &'static Control) -> Result<(), UnloadError> {
    let name = control.name;
    match Kernel::read_state()?.control_standing(name) {
        Standing::Thalweg => {}
        Standing::Unknown => return Err(UnloadError::NotPermitted(name)),
        Standing::Kernel | Standing::Module => return Err(UnloadError::NotOurs(name)),
        Standing::ModuleNotLoaded | Standing::Absent => return Err(UnloadError::NotLoaded(name)),
    }
    let (_, map) =
        registered_programs().into_iter().find(|(ours, _)| ours == name).ok_or(UnloadError::NotLoaded(name))?;
    map.delete(&ONLY_KEY).map_err(|error| match error.kind() {
        ErrorKind::PermissionDenied => UnloadError::NotPermitted(name),
        _ => UnloadError::Refused { name, reason: format!("{error:#}") },
    })
}

/// File in which a kernel describes its types.
const BTF: &str = "/sys/kernel/btf/vmlinux";

fn register_object(object: &[u8]) -> libbpf_rs::Result<()> {
    libbpf_rs::set_print(Some((PrintLevel::Debug, |_, text| tracing::debug!("{}", text.trim_end()))));
    let mut object = ObjectBuilder::default().open_memory(object)?;
    for mut map in object.maps_mut() {
        // The program's only constant, cc_hz in bpf/cc.h.
        if map.name() == ".rodata.cc" {
            map.set_initial_value(&ticks_per_second().to_ne_bytes())?;
        }
    }
    let mut object = object.load()?;
    for mut map in object.maps_mut() {
        if map.map_type() == MapType::StructOps {
            // The kernel keeps the registration, which the end of the link would take back.
            map.attach_struct_ops()?.disconnect();
        }
    }
    Ok(())
}

/// Returns the kernel's HZ: the resolution of the coarse clock is one tick.
fn ticks_per_second() -> u32 {
    let tick = clock_getres(ClockId::MonotonicCoarse);
    u32::try_from(1_000_000_000 / tick.tv_nsec.max(1)).unwrap_or(1000)
}

#[cfg(test)]
mod tests {
    use super::ticks_per_second;

    #[test]
    fn the_tick_rate_is_one_that_kernels_have() {
        assert!([100, 250, 300, 1000].contains(&ticks_per_second()), "{}", ticks_per_second());
    }
}
