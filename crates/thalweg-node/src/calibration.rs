//! Measured capacity of links, kept for later runs.
//!
//! There is one file for each host name or address that a builder listens on, in `$XDG_STATE_HOME/thalweg/links`
//! (`~/.local/state/thalweg/links`). It has the form of a topology's `link` table, and a table `measured` with the date
//! and the circumstances; files of earlier versions lack that table and are called undated. A loopback has no link, so
//! a file for one is not used.

use crate::NodeError;
use crate::topology::{LinkConfig, Topology};
use serde::{Deserialize, Serialize};
use std::net::{IpAddr, ToSocketAddrs};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};
use thalweg_core::build::LinkCapacity;
use thalweg_link::{Address, LinkKind};
use thalweg_text::{BitRate, ByteSize};

/// Age at which a kept measurement is in doubt.
const MAX_CERTAIN_AGE: Duration = Duration::from_secs(30 * 24 * 3600);
/// Part by which a rate must exceed the kept one to contradict it.
const MAX_RATE_EXCESS: f64 = 0.05;
/// Part of the larger value by which two measurements of a link may differ.
const MAX_DIFFERENCE: f64 = 0.25;
/// Part of the time for which the builder's thread may wait for a processor in a calibration.
const MAX_PROCESSOR_WAIT: f64 = 0.05;

/// Kept measurement of a link.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct KeptLink {
    /// Host name or address that the builder listens on, as in the name of the file.
    pub address: String,
    /// File that holds it.
    pub file: PathBuf,
    /// Measured link.
    pub link: LinkConfig,
    /// Date and circumstances; `None` in files of earlier versions.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub measured: Option<Measured>,
}

/// Date and circumstances of a measurement.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Measured {
    /// Date, UTC (RFC 3339).
    pub date: String,
    /// Names of the sources that sent.
    pub sources: Vec<String>,
    /// Interface of the address, if it is one of this host's.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub interface: Option<String>,
    /// MTU of the interface, in bytes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub interface_mtu: Option<u32>,
    /// Kernel release of this host.
    pub kernel: String,
    /// Conditions during the measurement that make it less certain.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub warnings: Vec<String>,
}

impl KeptLink {
    /// Returns whether the address is a loopback, which has no link: the measurement is then not used.
    pub fn is_loopback(&self) -> bool {
        is_loopback_host(&self.address)
    }

    /// Returns the date of the measurement; `undated` if it is unknown.
    pub fn date_text(&self) -> String {
        let date = self.measured.as_ref().map(|measured| measured.date.replace('T', " ").replace('Z', " UTC"));
        date.filter(|date| !date.is_empty()).unwrap_or_else(|| "undated".to_owned())
    }

    /// Returns the reasons why the measurement may no longer hold.
    pub fn doubts(&self, now: SystemTime) -> Vec<String> {
        let again = "run `thalweg calibrate` again";
        let Some(measured) = &self.measured else {
            return vec![format!("the measurement of {} is undated: {again}", self.address)];
        };
        let mut doubts = measured.warnings.clone();
        match humantime::parse_rfc3339(&measured.date) {
            Ok(date) => {
                let age = now.duration_since(date).unwrap_or_default();
                if age > MAX_CERTAIN_AGE {
                    let days = age.as_secs() / (24 * 3600);
                    doubts.push(format!("the measurement of {} is {days} days old: {again}", self.address));
                }
            }
            Err(_) => doubts.push(format!("the measurement of {} is undated: {again}", self.address)),
        }
        if let (Some(interface), Some(then)) = (&measured.interface, measured.interface_mtu)
            && let Some(mtu) = interface_mtu(interface).filter(|mtu| *mtu != then)
        {
            doubts.push(format!("the MTU of {interface} is {mtu}, and was {then} at the measurement: {again}"));
        }
        doubts
    }

    /// Returns a sentence if another measurement of the same link differs from this one.
    pub(crate) fn change_warning(&self, now: &LinkConfig) -> Option<String> {
        let before = &self.link;
        (is_different(before.rate.0, now.rate.0) || is_different(before.buffer.0, now.buffer.0)).then(|| {
            format!(
                "the measurement before ({}) was {}, buffer {}: if the link is the same, run `thalweg calibrate` again on \
                 quiet hosts",
                self.date_text(),
                before.rate,
                before.buffer
            )
        })
    }

    /// Returns a sentence if this number of payload bytes per second shows that the link carries more than was measured.
    pub fn contradiction(&self, bytes_per_second: f64, kind: LinkKind) -> Option<String> {
        let most = self.link.payload_bytes_per_second(kind);
        (bytes_per_second > most * (1.0 + MAX_RATE_EXCESS)).then(|| {
            format!(
                "this run carried {} of payload, more than the {} that were measured for {} ({}): run `thalweg calibrate` \
                 again",
                thalweg_text::format_rate(bytes_per_second),
                thalweg_text::format_rate(most),
                self.address,
                self.date_text()
            )
        })
    }
}

/// Returns all kept measurements, by address. A file that cannot be read is left out and logged.
pub fn kept_links() -> Vec<KeptLink> {
    let entries = links_directory().and_then(|directory| std::fs::read_dir(directory).ok());
    let files = entries.into_iter().flatten().flatten().map(|entry| entry.path());
    let mut links: Vec<KeptLink> = files.filter_map(|file| read_link_file(&file)).collect();
    links.sort_by(|one, next| one.address.cmp(&next.address));
    links
}

/// Deletes the kept measurement of an address, or all of them, and returns the addresses.
///
/// # Errors
/// There is none for this address, or a file cannot be deleted.
pub fn forget_links(address: Option<&str>) -> Result<Vec<String>, NodeError> {
    let directory = links_directory().ok_or_else(|| NodeError::Config(NO_DIRECTORY.to_owned()))?;
    let files: Vec<PathBuf> = match address {
        Some(address) => {
            let file = directory.join(file_name(address));
            if !file.exists() {
                let why = format!("there is no measurement for '{address}': `thalweg calibrate --list` shows all");
                return Err(NodeError::Config(why));
            }
            vec![file]
        }
        None => {
            let entries = std::fs::read_dir(&directory).into_iter().flatten().flatten().map(|entry| entry.path());
            entries.filter(|file| file.extension().is_some_and(|ending| ending == "toml")).collect()
        }
    };
    let deleted = files.into_iter().map(|file| {
        std::fs::remove_file(&file)
            .map_err(|error| NodeError::Config(format!("deleting {}: {error}", file.display())))?;
        Ok(address_of_file(&file))
    });
    deleted.collect()
}

/// Returns the measured link of a builder that listens at these addresses, and the file that holds it; `None` if it was
/// never measured, is a loopback, or the file cannot be read.
pub(crate) fn read_calibration(listen: &[Address]) -> Option<KeptLink> {
    let host = listening_host(listen).filter(|host| !is_loopback_host(host))?;
    let file = links_directory()?.join(file_name(host));
    if file.exists() { read_link_file(&file) } else { None }
}

/// Returns an error if a builder listens on a loopback: no link lies between it and its sources.
pub(crate) fn refuse_loopback(topology: &Topology, builder: &str) -> Result<(), NodeError> {
    let listen = topology.builders.iter().filter(|one| one.name == builder).find_map(|one| listening_host(&one.listen));
    match listen.filter(|host| is_loopback_host(host)) {
        Some(host) => Err(NodeError::Config(format!(
            "builder '{builder}' listens on {host}, a loopback: there is no link to measure. Give the address of its \
             interface in `listen`, and run `thalweg calibrate FILE NODE` on each host at the same time"
        ))),
        None => Ok(()),
    }
}

/// Returns whether two measurements of a quantity differ by more than chance.
#[expect(clippy::cast_precision_loss, reason = "compared, not counted")]
fn is_different(one: u64, other: u64) -> bool {
    one.abs_diff(other) as f64 > MAX_DIFFERENCE * one.max(other) as f64
}

/// Returns the conditions that make a measurement less certain. `waited`: part of the time for which the builder's
/// thread waited for a processor, if that is known.
pub(crate) fn measurement_warnings(found: &LinkCapacity, waited: Option<f64>) -> Vec<String> {
    let LinkCapacity { buffer, largest_buffer, lost, .. } = *found;
    let differ = lost && is_different(buffer, largest_buffer);
    let spread = differ.then(|| {
        format!(
            "measurements of the buffer range from {} to {}, and the smallest counts: run `thalweg calibrate` again on \
             quiet hosts",
            ByteSize(buffer),
            ByteSize(largest_buffer)
        )
    });
    let busy = waited.filter(|part| *part > MAX_PROCESSOR_WAIT).map(|part| {
        format!(
            "the builder waited for a processor for {:.0} % of the time, and a busy host loses what the link would carry: \
             run `thalweg calibrate` again on quiet hosts",
            100.0 * part
        )
    });
    spread.into_iter().chain(busy).collect()
}

/// Keeps the measured link with the warnings about it, and returns the path of the file.
pub(crate) fn keep_calibration(
    listen: &[Address],
    link: &LinkConfig,
    sources: Vec<String>,
    warnings: &[String],
) -> Result<PathBuf, NodeError> {
    write_link(listen, link, sources, warnings)
        .map_err(|error| NodeError::Config(format!("the result cannot be kept: {error}")))
}

const NO_DIRECTORY: &str = "there is no directory for measured links: HOME and XDG_STATE_HOME are not set";

fn write_link(
    listen: &[Address],
    link: &LinkConfig,
    sources: Vec<String>,
    warnings: &[String],
) -> Result<PathBuf, String> {
    let host = listening_host(listen).ok_or("the builder listens on no address of an IP network")?;
    let directory = links_directory().ok_or(NO_DIRECTORY)?;
    let interface = interface_with_address(host);
    let measured = Measured {
        date: humantime::format_rfc3339_seconds(SystemTime::now()).to_string(),
        sources,
        interface_mtu: interface.as_deref().and_then(interface_mtu),
        interface,
        kernel: rustix::system::uname().release().to_string_lossy().into_owned(),
        warnings: warnings.to_vec(),
    };
    let path = directory.join(file_name(host));
    let mut table = toml::Table::try_from(link).map_err(|error| error.to_string())?;
    table.insert("measured".to_owned(), toml::Value::try_from(measured).map_err(|error| error.to_string())?);
    let text = toml::to_string(&table).map_err(|error| error.to_string())?;
    std::fs::create_dir_all(&directory)
        .and_then(|()| std::fs::write(&path, text))
        .map_err(|error| format!("{}: {error}", path.display()))?;
    Ok(path)
}

fn read_link_file(file: &Path) -> Option<KeptLink> {
    if file.extension().is_none_or(|ending| ending != "toml") {
        return None;
    }
    let parsed = std::fs::read_to_string(file).map_err(|error| error.to_string()).and_then(|text| parse_link(&text));
    match parsed {
        Ok((link, measured)) => {
            Some(KeptLink { address: address_of_file(file), file: file.to_owned(), link, measured })
        }
        Err(error) => {
            tracing::warn!("the measured link in {} cannot be read: {error}", file.display());
            None
        }
    }
}

fn parse_link(text: &str) -> Result<(LinkConfig, Option<Measured>), String> {
    let mut table: toml::Table = text.parse().map_err(|error: toml::de::Error| error.to_string())?;
    let measured =
        table.remove("measured").map(toml::Value::try_into).transpose().map_err(|error| error.to_string())?;
    let link = toml::Value::Table(table).try_into().map_err(|error| error.to_string())?;
    Ok((link, measured))
}

/// Converts a measurement to the form of a topology's `link` table.
pub(crate) fn link_from_measurement(found: &LinkCapacity, mtu: u32, kind: LinkKind) -> LinkConfig {
    let unit = LinkConfig { rate: BitRate(8_000_000), round_trip: Duration::ZERO, buffer: ByteSize(0), mtu };
    // Bytes on the line for each payload byte.
    let line = 1e6 / unit.payload_bytes_per_second(kind);
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a rate of bits per second")]
    let rate = BitRate((found.rate * line * 8.0 / 1e5).round() as u64 * 100_000);
    LinkConfig { rate, round_trip: found.round_trip, buffer: ByteSize(found.buffer), mtu }
}

/// Returns the host name or address of the first address of an IP network.
fn listening_host(listen: &[Address]) -> Option<&str> {
    let (host, _) = listen.iter().find_map(|address| address.host_port()?.rsplit_once(':'))?;
    Some(host.trim_start_matches('[').trim_end_matches(']'))
}

/// Returns whether an address is a loopback, or a host name stands for one. Takes as long as the resolver does.
fn is_loopback_host(host: &str) -> bool {
    match host.parse::<IpAddr>() {
        Ok(address) => address.is_loopback(),
        Err(_) => (host, 0).to_socket_addrs().is_ok_and(|mut found| found.all(|address| address.ip().is_loopback())),
    }
}

fn links_directory() -> Option<PathBuf> {
    let state = std::env::var_os("XDG_STATE_HOME")
        .map(PathBuf::from)
        .or_else(|| std::env::var_os("HOME").map(|home| PathBuf::from(home).join(".local/state")))?;
    Some(state.join("thalweg/links"))
}

fn file_name(host: &str) -> String {
    host.replace(['/', ':', '[', ']'], "_") + ".toml"
}

/// Returns the address that a file is for; the colons of IPv6 are not in its name.
fn address_of_file(file: &Path) -> String {
    let stem = file.file_stem().unwrap_or_default().to_string_lossy();
    let version_6 = stem.trim_matches('_').replace('_', ":");
    let with_ends = stem.replace('_', ":");
    match [version_6, with_ends].into_iter().find(|text| text.parse::<std::net::Ipv6Addr>().is_ok()) {
        Some(address) => address,
        None => stem.into_owned(),
    }
}

/// Returns the interface of this host that has the address a name stands for.
fn interface_with_address(host: &str) -> Option<String> {
    let address = (host, 0).to_socket_addrs().ok()?.next()?.ip();
    let interfaces = if_addrs::get_if_addrs().ok()?;
    interfaces.into_iter().find(|interface| interface.ip() == address).map(|interface| interface.name)
}

fn interface_mtu(name: &str) -> Option<u32> {
    std::fs::read_to_string(Path::new("/sys/class/net").join(name).join("mtu")).ok()?.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    const OLD: &str = "rate = \"4 Gbit/s\"\nround_trip = \"100us\"\nbuffer = 340000\nmtu = 1500\n";

    fn kept(address: &str, text: &str) -> KeptLink {
        let (link, measured) = parse_link(text).unwrap();
        KeptLink { address: address.into(), file: PathBuf::new(), link, measured }
    }

    fn measured_on(date: &str) -> KeptLink {
        kept("10.0.0.1", &format!("{OLD}[measured]\ndate = \"{date}\"\nsources = [\"adc\"]\nkernel = \"6.1\"\n"))
    }

    #[test]
    fn files_of_earlier_versions_are_read_and_called_undated() {
        let old = kept("10.0.0.1", OLD);
        assert_eq!((old.link.rate, old.date_text().as_str()), (BitRate(4_000_000_000), "undated"));
        assert!(old.doubts(SystemTime::now())[0].contains("is undated"));
        assert!(parse_link("rate = 1").is_err() && parse_link(&format!("{OLD}unknown = 1")).is_err());
    }

    #[test]
    fn what_is_old_or_contradicted_is_in_doubt() {
        let link = measured_on("2026-10-01T00:00:00Z");
        let at = |text: &str| humantime::parse_rfc3339(text).unwrap();
        assert_eq!(link.doubts(at("2026-10-30T00:00:00Z")), [""; 0]);
        assert!(link.doubts(at("2026-11-10T00:00:00Z"))[0].contains("is 40 days old"));
        assert_eq!(link.date_text(), "2026-10-01 00:00:00 UTC");
        assert_eq!(link.contradiction(480e6, thalweg_link::LinkKind::TCP), None);
        let why = link.contradiction(1e9, thalweg_link::LinkKind::TCP).unwrap();
        assert!(why.contains("1.00 GB/s") && why.contains("2026-10-01"), "{why}");
    }

    fn found(buffer: u64, largest_buffer: u64) -> LinkCapacity {
        LinkCapacity { rate: 25e6, round_trip: Duration::from_micros(100), buffer, largest_buffer, lost: true }
    }

    #[test]
    fn a_doubtful_measurement_is_kept_with_its_warnings() {
        assert_eq!(measurement_warnings(&found(183_000, 211_000), Some(0.01)), [""; 0]);
        let warnings = measurement_warnings(&found(15_200, 211_000), Some(0.4));
        assert!(warnings[0].contains("15.2 kB") && warnings[0].contains("211 kB"), "{warnings:?}");
        assert!(warnings[1].contains("40 %"), "{warnings:?}");
        let text = format!("{OLD}[measured]\ndate = \"2026-10-01T00:00:00Z\"\nwarnings = [\"the host was busy\"]\n");
        let doubts = kept("10.0.0.1", &text).doubts(humantime::parse_rfc3339("2026-10-02T00:00:00Z").unwrap());
        assert_eq!(doubts, ["the host was busy"]);
    }

    #[test]
    fn a_measurement_that_differs_from_the_one_before_names_it() {
        let before = measured_on("2026-10-01T00:00:00Z");
        assert_eq!(before.change_warning(&LinkConfig { buffer: ByteSize(300_000), ..before.link }), None);
        let why = before.change_warning(&LinkConfig { buffer: ByteSize(15_200), ..before.link }).unwrap();
        assert!(why.contains("2026-10-01") && why.contains("340 kB"), "{why}");
        let slower = LinkConfig { rate: BitRate(200_000_000), ..before.link };
        assert!(before.change_warning(&slower).unwrap().contains("4 Gbit/s"));
    }

    #[test]
    fn loopbacks_are_known_by_name_and_address() {
        for host in ["localhost", "127.0.0.1", "127.3.2.1", "::1"] {
            assert!(is_loopback_host(host), "{host}");
        }
        for host in ["10.0.0.1", "::", "0.0.0.0", "no such host"] {
            assert!(!is_loopback_host(host), "{host}");
        }
    }

    #[test]
    fn a_file_has_the_name_of_its_address() {
        for host in ["daq_0", "10.0.0.1", "fe80::1", "::1", "2001:db8::2:1"] {
            assert_eq!(address_of_file(&Path::new("/links").join(file_name(host))), host);
        }
    }
}
