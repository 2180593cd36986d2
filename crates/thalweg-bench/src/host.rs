//! Description of the machine on which a report was taken.

use serde::{Deserialize, Serialize};
use std::fs;
use std::net::{IpAddr, ToSocketAddrs, UdpSocket};
use std::path::Path;
use thalweg_text::plot::Provenance;

/// Known properties of a machine. A property that cannot be found out is absent.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Host {
    /// Host name.
    pub name: String,
    /// Kernel release.
    pub kernel: String,
    /// Version of Thalweg, with a note if it was built without optimisation.
    pub thalweg: String,
    /// Processor model.
    pub cpu: String,
    /// Number of processors available to this process.
    pub cpus: u32,
    /// Processors that this process may run on, as in `Cpus_allowed_list`: `0-3,8`.
    pub affinity: String,
    /// Frequency governor of the first processor, if it has one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub governor: Option<String>,
    /// Hypervisor that the machine runs under, if it is known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hypervisor: Option<String>,
    /// Clock source of the kernel.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub clock_source: Option<String>,
    /// Memory, in bytes.
    pub memory: u64,
    /// Default TCP congestion control.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub congestion_control: Option<String>,
    /// Processor vulnerabilities that the kernel mitigates, and how: mitigations cost time in every system call.
    pub mitigations: Vec<String>,
    /// Network interface of the measurement.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub interface: Option<Interface>,
}

/// A network interface.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Interface {
    /// Interface name: `lo`, `eth0`.
    pub name: String,
    /// Driver of the interface; `None` for loopback.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub driver: Option<String>,
    /// Length of the longest packet, in bytes.
    pub mtu: u32,
    /// Line rate, if the interface has one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bits_per_second: Option<f64>,
}

/// Text for a hypervisor whose name is unknown.
const UNNAMED_HYPERVISOR: &str = "unnamed";

/// Suffix of the version in builds without optimisation: figures of a test build are no figures of Thalweg.
const UNOPTIMISED: &str = if cfg!(debug_assertions) { ", not optimised" } else { "" };

impl Host {
    /// Returns the description of this machine. `peer` is the host at the other end: the interface is the one that
    /// leads there, or loopback if `peer` is `None`.
    pub fn probe_this_machine(peer: Option<&str>) -> Self {
        let uname = rustix::system::uname();
        let cpuinfo = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
        let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
        let meminfo = fs::read_to_string("/proc/meminfo").unwrap_or_default();
        let kib =
            field_value(&meminfo, "MemTotal").and_then(|text| text.split_whitespace().next()?.parse::<u64>().ok());
        Self {
            name: uname.nodename().to_string_lossy().into_owned(),
            kernel: uname.release().to_string_lossy().into_owned(),
            thalweg: format!("{}{UNOPTIMISED}", env!("CARGO_PKG_VERSION")),
            cpu: field_value(&cpuinfo, "model name").unwrap_or_else(|| uname.machine().to_string_lossy().into_owned()),
            cpus: std::thread::available_parallelism().map_or(1, |n| u32::try_from(n.get()).unwrap_or(u32::MAX)),
            affinity: field_value(&status, "Cpus_allowed_list").unwrap_or_default(),
            governor: read_trimmed_file("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor"),
            hypervisor: detect_hypervisor(&cpuinfo),
            clock_source: read_trimmed_file("/sys/devices/system/clocksource/clocksource0/current_clocksource"),
            memory: kib.unwrap_or(0) * 1024,
            congestion_control: read_trimmed_file("/proc/sys/net/ipv4/tcp_congestion_control"),
            mitigations: read_mitigations(),
            interface: interface_towards(peer),
        }
    }
}

impl Host {
    /// Returns the origin of a figure that was measured on this machine. `began` is RFC 3339.
    pub fn provenance(&self, subject: &str, began: &str, command_line: &[String]) -> Provenance {
        let virtual_machine = self.hypervisor.as_ref().map(|name| match name.as_str() {
            UNNAMED_HYPERVISOR => ", virtual machine".to_owned(),
            name => format!(", virtual machine ({name})"),
        });
        Provenance {
            subject: subject.to_owned(),
            date: began.to_owned(),
            version: self.thalweg.clone(),
            host: self.name.clone(),
            processor: format!("{} × {}{}", self.cpus, self.cpu, virtual_machine.unwrap_or_default()),
            kernel: self.kernel.clone(),
            command: command_line.join(" "),
        }
    }
}

/// Returns the rest of the first line that begins with `name` and a colon.
fn field_value(text: &str, name: &str) -> Option<String> {
    let value = text.lines().find_map(|line| line.strip_prefix(name)?.trim_start().strip_prefix(':'))?;
    Some(value.trim().to_owned())
}

fn read_trimmed_file(path: impl AsRef<Path>) -> Option<String> {
    let text = fs::read_to_string(path).ok()?;
    Some(text.trim().to_owned()).filter(|text| !text.is_empty())
}

fn detect_hypervisor(cpuinfo: &str) -> Option<String> {
    let guest = field_value(cpuinfo, "flags")?.split_whitespace().any(|flag| flag == "hypervisor");
    guest.then(|| read_trimmed_file("/sys/class/dmi/id/sys_vendor").unwrap_or_else(|| UNNAMED_HYPERVISOR.to_owned()))
}

fn read_mitigations() -> Vec<String> {
    let Ok(all) = fs::read_dir("/sys/devices/system/cpu/vulnerabilities") else { return Vec::new() };
    let mut found: Vec<String> = all
        .flatten()
        .filter_map(|entry| {
            let how = read_trimmed_file(entry.path())?;
            let how = how.strip_prefix("Mitigation: ")?;
            Some(format!("{}: {how}", entry.file_name().to_string_lossy()))
        })
        .collect();
    found.sort();
    found
}

/// Returns the interface through which packets to a host leave. The kernel reports the address it would send from, and
/// connecting a datagram socket sends nothing.
fn interface_towards(peer: Option<&str>) -> Option<Interface> {
    let Some(peer) = peer else { return describe_interface("lo") };
    let to = (peer, 9).to_socket_addrs().ok()?.next()?;
    let unspecified: IpAddr = if to.is_ipv4() { [0; 4].into() } else { [0u16; 8].into() };
    let socket = UdpSocket::bind((unspecified, 0)).ok()?;
    socket.connect(to).ok()?;
    let from = socket.local_addr().ok()?.ip();
    let here = if_addrs::get_if_addrs().ok()?;
    describe_interface(&here.into_iter().find(|one| one.ip() == from)?.name)
}

fn describe_interface(name: &str) -> Option<Interface> {
    let sys = Path::new("/sys/class/net").join(name);
    let driver = fs::read_link(sys.join("device/driver")).ok();
    // In Mbit/s; -1 or an error where the interface has no line rate.
    let speed =
        read_trimmed_file(sys.join("speed")).and_then(|text| text.parse::<i64>().ok()).filter(|speed| *speed > 0);
    Some(Interface {
        name: name.to_owned(),
        driver: driver.and_then(|path| Some(path.file_name()?.to_string_lossy().into_owned())),
        mtu: read_trimmed_file(sys.join("mtu"))?.parse().ok()?,
        bits_per_second: speed.map(|megabits| megabits as f64 * 1e6),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_machine_is_described_and_loopback_has_no_line_rate() {
        let host = Host::probe_this_machine(None);
        assert!(!host.kernel.is_empty() && host.cpus > 0 && host.memory > 0, "{host:?}");
        let loopback = host.interface.unwrap();
        assert_eq!((loopback.name.as_str(), loopback.bits_per_second, loopback.driver), ("lo", None, None));
        assert_eq!(interface_towards(Some("127.0.0.1")).unwrap().name, "lo");
        assert_eq!(interface_towards(Some("no such host.invalid")), None);
    }

    #[test]
    fn fields_are_found_by_their_whole_name() {
        let text = "model\t\t: 1\nmodel name\t: AMD EPYC\nempty:\n";
        assert_eq!(field_value(text, "model name").as_deref(), Some("AMD EPYC"));
        assert_eq!(field_value(text, "empty").as_deref(), Some(""));
        assert_eq!(field_value(text, "mod"), None);
    }
}
