//! Network interfaces of this machine.

use crate::read;
use std::path::{Path, PathBuf};

const DIRECTORY: &str = "/sys/class/net";

/// One interface, as `/sys/class/net` describes it.
#[derive(Debug, Clone)]
pub(crate) struct Interface {
    pub(crate) name: String,
    pub(crate) index: u32,
    pub(crate) up: bool,
    /// Speed in bits per second, if the driver reports it.
    pub(crate) speed: Option<f64>,
    /// Largest packet in bytes.
    pub(crate) mtu: u64,
}

impl Interface {
    /// Returns all interfaces except virtual ones that are down, which are of no use.
    pub(crate) fn list_all() -> Vec<Self> {
        let all = read::read_names(DIRECTORY).into_iter().filter_map(Self::read_from_sysfs);
        all.filter(|interface| interface.up || interface.has_device()).collect()
    }

    fn read_from_sysfs(name: String) -> Option<Self> {
        let [index, flags, state, speed, mtu] = ["ifindex", "flags", "operstate", "speed", "mtu"]
            .map(|file| read::read_text(Path::new(DIRECTORY).join(&name).join(file)));
        // Not everything in that directory is an interface (`bonding_masters`).
        let index = index?.parse().ok()?;
        let flags = u32::from_str_radix(flags?.trim_start_matches("0x"), 16).unwrap_or(0);
        Some(Self {
            index,
            // IFF_UP; whether something is at the other end is in the operational state, which loopback does not know.
            up: flags & 1 != 0 && state.as_deref() != Some("down"),
            speed: speed.and_then(|text| parse_megabits(&text)),
            mtu: mtu.and_then(|text| text.parse().ok()).unwrap_or(0),
            name,
        })
    }

    /// Returns true if the interface belongs to a device.
    pub(crate) fn has_device(&self) -> bool {
        self.sysfs_directory().join("device").exists()
    }

    /// Returns the path of a file of the device on the bus: of the device itself, or, for virtio, of the PCI device
    /// that contains it.
    pub(crate) fn device_file(&self, name: &str) -> Option<PathBuf> {
        let device = self.sysfs_directory().join("device").canonicalize().ok()?;
        let own = device.join(name);
        if own.exists() {
            return Some(own);
        }
        let outer = device.parent()?.join(name);
        // The host bridge's file does not count: it serves all devices.
        (device.starts_with("/sys/devices") && device.parent()?.join("vendor").exists() && outer.exists())
            .then_some(outer)
    }

    /// Returns the driver's name.
    pub(crate) fn driver_name(&self) -> Option<String> {
        let target = std::fs::read_link(self.sysfs_directory().join("device/driver")).ok()?;
        Some(target.file_name()?.to_string_lossy().into_owned())
    }

    fn sysfs_directory(&self) -> PathBuf {
        Path::new(DIRECTORY).join(&self.name)
    }
}

/// Parses `speed`, which is in Mbit/s, or -1 if the driver does not know; returns bits per second.
fn parse_megabits(text: &str) -> Option<f64> {
    text.parse::<u32>()
        .ok()
        .filter(|megabits| *megabits > 0 && *megabits < u32::MAX)
        .map(|megabits| f64::from(megabits) * 1e6)
}

#[cfg(test)]
mod tests {
    use super::*;
    use thalweg_testing::skip::skipped;

    #[test]
    fn a_speed_that_is_not_known_is_none() {
        assert_eq!(parse_megabits("10000"), Some(1e10));
        for text in ["-1", "0", "4294967295", "", "fast"] {
            assert_eq!(parse_megabits(text), None, "{text}");
        }
    }

    #[test]
    fn loopback_is_always_there() {
        let all = Interface::list_all();
        let Some(lo) = all.iter().find(|interface| interface.name == "lo") else {
            return skipped("loopback is down here");
        };
        assert!(lo.up && !lo.has_device() && lo.index > 0 && lo.mtu > 0);
        assert_eq!((lo.speed, lo.driver_name(), lo.device_file("numa_node")), (None, None, None));
    }
}
