//! Congestion controls of the running kernel.

use crate::congestion::find_control;
use libbpf_rs::query::MapInfoIter;
use libbpf_rs::{MapCore, MapFlags, MapHandle, MapType};
use rustix::thread::CapabilitySet;
use serde::Serialize;
use std::fs;
use std::io;
use std::path::Path;

/// State of the kernel's congestion controls: from `/proc`, `/lib/modules` and the kernel's list of BPF maps.
#[derive(Debug)]
pub struct Kernel {
    available: Vec<String>,
    /// Names of the registered programs of this crate.
    ours: Vec<String>,
    sees_bpf: bool,
    loaded_modules: String,
}

/// Availability and origin of a congestion control in the kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Standing {
    /// Loaded by `thalweg cc`.
    Thalweg,
    /// Built into the kernel, or loaded as BPF by another program.
    Kernel,
    /// A module of the kernel, loaded.
    Module,
    /// Available; only a process with `CAP_SYS_ADMIN` can see who loaded it.
    Unknown,
    /// Not available, but the kernel has a module for it: `modprobe tcp_NAME`.
    ModuleNotLoaded,
    /// Not available, and no module for it.
    Absent,
}

impl Standing {
    /// True if a program can select it.
    pub fn is_available(self) -> bool {
        !matches!(self, Self::ModuleNotLoaded | Self::Absent)
    }
}

impl Kernel {
    /// Reads the kernel's state.
    ///
    /// # Errors
    /// Fails if `/proc/sys/net/ipv4/tcp_available_congestion_control` cannot be read.
    pub fn read_state() -> io::Result<Self> {
        let available = fs::read_to_string("/proc/sys/net/ipv4/tcp_available_congestion_control")?;
        Ok(Self {
            available: available.split_whitespace().map(str::to_owned).collect(),
            ours: registered_programs().into_iter().map(|(name, _)| name).collect(),
            sees_bpf: rustix::thread::capabilities(None)
                .is_ok_and(|sets| sets.effective.contains(CapabilitySet::SYS_ADMIN)),
            // A kernel without modules has no such file.
            loaded_modules: fs::read_to_string("/proc/modules").unwrap_or_default(),
        })
    }

    /// Returns the names that a program can select now, in the kernel's order.
    pub fn available_names(&self) -> impl Iterator<Item = &str> {
        self.available.iter().map(String::as_str)
    }

    /// Returns the availability and origin of the control of this name.
    pub fn control_standing(&self, name: &str) -> Standing {
        let module = format!("tcp_{name}");
        if self.available_names().any(|there| there == name) {
            if self.ours.iter().any(|ours| ours == name) {
                Standing::Thalweg
            } else if self.loaded_modules.lines().any(|line| line.split(' ').next() == Some(&module)) {
                Standing::Module
            } else if self.sees_bpf || find_control(name).is_none() {
                Standing::Kernel
            } else {
                Standing::Unknown
            }
        } else if has_module_file(&module) {
            Standing::ModuleNotLoaded
        } else {
            Standing::Absent
        }
    }
}

/// Returns the registered programs of this crate, and their maps; none for a process that may not read maps.
///
/// A map outlives its registration while a socket still uses it: its value states whether it is registered.
pub(crate) fn registered_programs() -> Vec<(String, MapHandle)> {
    /// Tests the state in `struct bpf_struct_ops_common_value`, which is a reference count followed by the state; 1 is
    /// `BPF_STRUCT_OPS_STATE_INUSE`.
    fn is_in_use(value: &[u8]) -> bool {
        value.get(4..8) == Some(&1_u32.to_ne_bytes())
    }
    MapInfoIter::default()
        .filter(|map| map.ty == MapType::StructOps)
        .filter_map(|map| {
            let name = map.name.to_str()?.strip_prefix(MAP_PREFIX)?.to_owned();
            let handle = MapHandle::from_map_id(map.id).ok()?;
            let value = handle.lookup(&ONLY_KEY, MapFlags::ANY).ok()??;
            is_in_use(&value).then_some((name, handle))
        })
        .collect()
}

/// Prefix of the names of this crate's maps: `CC_OPS` in `bpf/cc.h`.
const MAP_PREFIX: &str = "tw_";

/// Key of the only value in a `struct_ops` map.
pub(crate) const ONLY_KEY: [u8; 4] = [0; 4];

/// True if the running kernel has this module, in either directory of distributions and however it is compressed.
fn has_module_file(module: &str) -> bool {
    let release = rustix::system::uname().release().to_string_lossy().into_owned();
    ["/lib/modules", "/usr/lib/modules"].iter().any(|modules| {
        let directory = Path::new(modules).join(&release);
        // modules.dep names every module that can be loaded: "kernel/net/ipv4/tcp_bic.ko.zst: ...".
        fs::read_to_string(directory.join("modules.dep")).is_ok_and(|list| lists_module(&list, module))
    })
}

fn lists_module(modules_dep: &str, module: &str) -> bool {
    modules_dep.lines().any(|line| {
        let file = line.split(':').next().unwrap_or_default();
        file.rsplit('/').next().and_then(|name| name.split_once(".ko")).is_some_and(|(name, _)| name == module)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_module_is_found_by_its_whole_name() {
        let list = "kernel/net/ipv4/tcp_bic.ko.zst:\nkernel/net/ipv4/tcp_lp.ko: kernel/net/ipv4/tcp_other.ko\n";
        assert!(lists_module(list, "tcp_bic") && lists_module(list, "tcp_lp"));
        assert!(!lists_module(list, "tcp_b") && !lists_module(list, "tcp_other") && !lists_module("", "tcp_bic"));
    }

    #[test]
    fn every_linux_has_reno() {
        let kernel = Kernel::read_state().expect("Linux with TCP");
        assert!(kernel.control_standing("reno").is_available());
        assert!(!kernel.control_standing("no_such").is_available());
    }
}
