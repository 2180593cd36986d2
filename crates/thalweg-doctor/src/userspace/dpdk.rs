//! DPDK, and its requirements on a machine, one by one.

use crate::kernel::Config;
use crate::network::Interface;
use crate::{Finding, Needs, kernel, read};
use thalweg_dpdk::Version;

/// Kernel drivers of devices that DPDK has a poll-mode driver for (<https://core.dpdk.org/supported/nics/>).
const SUPPORTED: [&str; 29] = [
    "atlantic",
    "bnx2x",
    "bnxt_en",
    "cxgb4",
    "e1000",
    "e1000e",
    "ena",
    "enic",
    "fm10k",
    "gve",
    "hinic",
    "hns3",
    "i40e",
    "iavf",
    "ice",
    "igb",
    "igc",
    "ionic",
    "ixgbe",
    "ixgbevf",
    "mana",
    "mlx4_core",
    "mlx5_core",
    "nfp",
    "qede",
    "sfc",
    "txgbe",
    "virtio_net",
    "vmxnet3",
];

pub(super) fn probe_library() -> Finding {
    match thalweg_dpdk::available_version() {
        Ok(version) => loadable_finding(&version),
        Err(why) => Finding::new("DPDK", why),
    }
}

fn loadable_finding(version: &Version) -> Finding {
    Finding::new("DPDK", format!("{version} can be loaded"))
}

/// Checks whether DPDK is available to nodes that drive adapters by themselves; `None` if there are none.
pub(crate) fn probe_if_needed(needs: &Needs) -> Option<Finding> {
    let needed = needs.nodes.iter().any(|node| node.adapter);
    needed.then(|| match thalweg_dpdk::available_version() {
        Ok(version) => loadable_finding(&version),
        Err(why) => Finding::new("DPDK", why).with_missing_level("a node of the topology drives an adapter with it"),
    })
}

/// Checks the requirements in the list at the beginning of DPDK's own documents.
pub(super) fn check_requirements() -> Vec<Finding> {
    let interfaces: Vec<_> = Interface::list_all().into_iter().filter(Interface::has_device).collect();
    let config = Config::read_running_config();
    let cpus = read::parse_number_list(&read::read_text("/sys/devices/system/cpu/online").unwrap_or_default()).len();
    let info = read::read_text("/proc/cpuinfo").unwrap_or_default();
    let release = kernel::kernel_release();
    let hugetlbfs =
        read::read_text("/proc/filesystems").is_some_and(|text| text.lines().any(|line| line.ends_with("hugetlbfs")));
    let pagemap = std::path::Path::new("/proc/self/pagemap").exists();
    let glibc = glibc_version();
    vec![
        requirement_finding(
            "supported NIC",
            Some(interfaces.iter().any(|i| supported_driver(i).is_some())),
            describe_adapters(&interfaces),
        ),
        requirement_finding("multi-core CPU", Some(cpus > 1), format!("{cpus} processors online")),
        requirement_finding(
            "CPU with virtualization",
            Some(virtualization_flag(&info).is_some()),
            format!("{} (/proc/cpuinfo flags)", virtualization_flag(&info).unwrap_or("neither vmx nor svm")),
        ),
        check_pcie_slot(&interfaces),
        requirement_finding("kernel >= 2.6.34", Some(kernel_at_least(&release)), format!("Linux {release}")),
        requirement_finding(
            "CONFIG_HUGETLBFS",
            Some(hugetlbfs),
            format!(
                "hugetlbfs in /proc/filesystems: {}; {}",
                yes_or_no(hugetlbfs),
                config.setting_text("CONFIG_HUGETLBFS")
            ),
        ),
        requirement_finding(
            "CONFIG_PROC_PAGE_MONITOR",
            Some(pagemap),
            format!("/proc/self/pagemap: {}; {}", yes_or_no(pagemap), config.setting_text("CONFIG_PROC_PAGE_MONITOR")),
        ),
        requirement_finding(
            "glibc >= 2.7",
            glibc.map(|version| version >= (2, 7)),
            glibc
                .map_or_else(|| "libc.so.6 is not loaded, or has no version".into(), |(a, b)| format!("glibc {a}.{b}")),
        ),
    ]
}

fn requirement_finding(name: &str, is_met: Option<bool>, evidence: String) -> Finding {
    let verdict = match is_met {
        Some(true) => "met",
        Some(false) => "not met",
        None => "unknown",
    };
    Finding::new(format!("DPDK: {name}"), format!("{verdict}: {evidence}"))
}

fn yes_or_no(there: bool) -> &'static str {
    if there { "yes" } else { "no" }
}

fn kernel_at_least(release: &str) -> bool {
    crate::kernel::is_release_at_least(release, (2, 7)) || release.starts_with("2.6.3")
}

fn supported_driver(interface: &Interface) -> Option<String> {
    interface.driver_name().filter(|driver| SUPPORTED.contains(&driver.as_str()))
}

fn describe_adapters(interfaces: &[Interface]) -> String {
    let names: Vec<_> =
        interfaces.iter().map(|i| format!("{} ({})", i.name, read::text_or_unknown(i.driver_name()))).collect();
    if names.is_empty() { "no network device".to_owned() } else { names.join(", ") }
}

fn virtualization_flag(info: &str) -> Option<&'static str> {
    let flags = info.lines().find(|line| line.starts_with("flags"))?;
    ["vmx", "svm"].into_iter().find(|flag| flags.split_whitespace().any(|word| word == *flag))
}

/// Checks whether the slot of the fastest device carries its line's speed.
fn check_pcie_slot(interfaces: &[Interface]) -> Finding {
    const NAME: &str = "PCIe revision";
    let known = interfaces.iter().find_map(|interface| {
        let speed = read::read_text(interface.device_file("current_link_speed")?)?;
        let width = read::read_text(interface.device_file("current_link_width")?)?;
        Some((interface, slot_bits_per_second(&speed, &width)?))
    });
    match known {
        None => requirement_finding(NAME, None, "no network device reports its link (current_link_speed)".into()),
        Some((interface, slot)) => {
            let enough = interface.speed.map(|speed| slot >= speed);
            let speed = interface.speed.map_or("unknown".to_owned(), |speed| format!("{} Gbit/s", speed * 1e-9));
            requirement_finding(
                NAME,
                enough,
                format!("{}: {:.1} Gbit/s in its slot, {speed} on its line", interface.name, slot * 1e-9),
            )
        }
    }
}

/// Returns the bits per second of a slot, from `8.0 GT/s PCIe` and the number of lanes. Up to 5 GT/s eight bits are
/// sent as ten, from 8 GT/s on 128 as 130.
fn slot_bits_per_second(speed: &str, width: &str) -> Option<f64> {
    let transfers: f64 = speed.split(' ').next()?.parse().ok().filter(|t: &f64| t.is_finite() && *t > 0.0)?;
    let lanes: u32 = width.parse().ok()?;
    let share = if transfers < 8.0 { 0.8 } else { 128.0 / 130.0 };
    Some(transfers * 1e9 * share * f64::from(lanes))
}

/// Returns the version of the C library that this process runs with, as stated in the library's file.
fn glibc_version() -> Option<(u32, u32)> {
    let maps = read::read_text("/proc/self/maps")?;
    let path =
        maps.lines().filter_map(|line| line.split_whitespace().nth(5)).find(|path| path.ends_with("/libc.so.6"))?;
    parse_glibc_banner(&read::read_first_bytes(path, 8 << 20)?)
}

fn parse_glibc_banner(library: &[u8]) -> Option<(u32, u32)> {
    const BANNER: &[u8] = b"GNU C Library ";
    let at = library.windows(BANNER.len()).position(|window| window == BANNER)?;
    let line = library[at..].split(|byte| *byte == b'\n').next()?;
    let line = String::from_utf8_lossy(line);
    let (_, version) = line.split_once("release version ")?;
    let mut parts = version.split(|c: char| !c.is_ascii_digit());
    Some((parts.next()?.parse().ok()?, parts.next()?.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_requirement_has_its_line() {
        let names: Vec<_> = check_requirements().into_iter().map(|finding| finding.name).collect();
        assert_eq!(names.len(), 8);
        assert!(names.iter().all(|name| name.starts_with("DPDK: ")));
    }

    #[test]
    fn versions_flags_and_slots_are_read() {
        assert!(kernel_at_least("2.6.34") && kernel_at_least("6.18.44") && !kernel_at_least("2.6.18"));
        assert_eq!(virtualization_flag("flags\t\t: fpu svm_lock sse2 vmx\n"), Some("vmx"));
        assert_eq!(virtualization_flag("flags\t\t: fpu vmmcall\n"), None);
        assert_eq!(slot_bits_per_second("5.0 GT/s PCIe", "8"), Some(32e9));
        assert!(slot_bits_per_second("16.0 GT/s PCIe", "16").unwrap() > 250e9);
        assert_eq!(slot_bits_per_second("Unknown", "255"), None);
        let text = b"\x7fELF...GNU C Library (Debian GLIBC 2.36-9+deb12u13) stable release version 2.36.\nmore";
        assert_eq!(parse_glibc_banner(text), Some((2, 36)));
        assert_eq!(parse_glibc_banner(b"GNU C Library"), None);
    }
}
