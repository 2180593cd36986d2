//! RDMA devices, and whether the kernel could make one of an Ethernet interface.

use crate::kernel::{self, Config};
use crate::{Finding, read};
use std::path::Path;

const DIRECTORY: &str = "/sys/class/infiniband";

pub(super) fn probe_rdma_devices() -> Finding {
    let devices = read::read_names(DIRECTORY);
    let states: Vec<String> = devices
        .iter()
        .map(|name| {
            let state = read::read_text(Path::new(DIRECTORY).join(name).join("ports/1/state"));
            format!("{name}: {}", read::text_or_unknown(state))
        })
        .collect();
    let evidence = if states.is_empty() { format!("none here ({DIRECTORY})") } else { states.join(", ") };
    Finding::new("RDMA devices", evidence)
}

/// Reports software RDMA: `siw` speaks iWARP over TCP, `rdma_rxe` RoCE over UDP.
pub(super) fn probe_software_rdma() -> Finding {
    let modules = read::read_text(format!("/lib/modules/{}/modules.dep", kernel::kernel_release()));
    let config = Config::read_running_config();
    let drivers = [("siw", "CONFIG_RDMA_SIW"), ("rdma_rxe", "CONFIG_RDMA_RXE")].map(|(name, option)| {
        let state = match (Path::new("/sys/module").join(name).exists(), &modules) {
            (true, _) => "loaded",
            (false, Some(text)) if text.contains(&format!("/{name}.ko")) => "can be loaded",
            (false, _) => "not there",
        };
        format!("{name} {state}, {}", config.setting_text(option))
    });
    Finding::new("RDMA in software", drivers.join("; "))
}
