//! Measured capacity of links, kept for later runs.
//!
//! There is one file for each host name or address that a builder listens on, in `$XDG_STATE_HOME/thalweg/links`
//! (`~/.local/state/thalweg/links`). It has the form of a topology's `link` table.

use crate::NodeError;
use crate::topology::LinkConfig;
use std::path::PathBuf;
use std::time::Duration;
use thalweg_core::build::LinkCapacity;
use thalweg_link::{Address, LinkKind};
use thalweg_text::{BitRate, ByteSize};

/// Returns the measured link of a builder that listens at these addresses, and the file that holds it; `None` if it was
/// never measured or the file cannot be read.
pub(crate) fn read_calibration(listen: &[Address]) -> Option<(LinkConfig, PathBuf)> {
    let path = calibration_file(listen)?;
    let text = std::fs::read_to_string(&path).ok()?;
    match toml::from_str(&text) {
        Ok(link) => Some((link, path)),
        Err(error) => {
            tracing::warn!("ignoring {}: {error}", path.display());
            None
        }
    }
}

/// Keeps the measured link, and returns the path of the file.
pub(crate) fn keep_calibration(listen: &[Address], link: &LinkConfig) -> Result<PathBuf, NodeError> {
    write_link(listen, link).map_err(|error| NodeError::Config(format!("cannot keep the result: {error}")))
}

fn write_link(listen: &[Address], link: &LinkConfig) -> Result<PathBuf, String> {
    let path = calibration_file(listen).ok_or("the builder does not listen on an IP address, or HOME is not set")?;
    let text = toml::to_string(link).map_err(|error| error.to_string())?;
    let directory = path.parent().map(PathBuf::from).unwrap_or_default();
    std::fs::create_dir_all(&directory)
        .and_then(|()| std::fs::write(&path, text))
        .map_err(|error| format!("{}: {error}", path.display()))?;
    Ok(path)
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

fn calibration_file(listen: &[Address]) -> Option<PathBuf> {
    let (host, _) = listen.iter().find_map(|address| address.host_port()?.rsplit_once(':'))?;
    let state = std::env::var_os("XDG_STATE_HOME")
        .map(PathBuf::from)
        .or_else(|| std::env::var_os("HOME").map(|home| PathBuf::from(home).join(".local/state")))?;
    Some(state.join("thalweg/links").join(host.replace(['/', ':', '[', ']'], "_") + ".toml"))
}
