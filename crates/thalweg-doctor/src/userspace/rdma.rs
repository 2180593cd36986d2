//! RDMA devices, and whether the kernel could make one of an Ethernet interface.

use crate::kernel::{self, Config};
use crate::{Finding, read};
use std::path::Path;

const DIRECTORY: &str = "/sys/class/infiniband";

pub(super) fn probe() -> Finding {
    let devices = read::names(DIRECTORY);
    let states: Vec<String> = devices
        .iter()
        .map(|name| {
            let state = read::text(Path::new(DIRECTORY).join(name).join("ports/1/state"));
            format!("{name}: {}", read::or_unknown(state))
        })
        .collect();
    let evidence = if states.is_empty() { format!("none here ({DIRECTORY})") } else { states.join(", ") };
    Finding::new("RDMA devices", evidence)
}

/// Reports software RDMA: `siw` speaks iWARP over TCP, `rdma_rxe` RoCE over UDP.
pub(super) fn software() -> Finding {
    let modules = read::text(format!("/lib/modules/{}/modules.dep", kernel::release()));
    let config = Config::read();
    let drivers = [("siw", "CONFIG_RDMA_SIW"), ("rdma_rxe", "CONFIG_RDMA_RXE")].map(|(name, option)| {
        let state = match (Path::new("/sys/module").join(name).exists(), &modules) {
            (true, _) => "loaded",
            (false, Some(text)) if text.contains(&format!("/{name}.ko")) => "can be loaded",
            (false, _) => "not there",
        };
        format!("{name} {state}, {}", config.says(option))
    });
    Finding::new("RDMA in software", drivers.join("; "))
}
