//! What is wrong with a topology, the tables of its devices included.

use std::path::Path;
use thalweg_device::{DeviceConfig, DeviceError};
use thalweg_node::{Topology, TopologyError};

/// Reads and checks a file, with the tables of its devices. Paths in it are relative to it.
///
/// # Errors
/// As [`Topology::load`]; a device's table has an option that makes no sense.
pub fn load(path: &Path) -> Result<Topology, TopologyError> {
    let topology = Topology::load(path)?;
    check_devices(&topology).map_err(|(field, problem)| TopologyError::Value {
        path: path.to_owned(),
        field,
        problem,
    })?;
    Ok(topology)
}

/// Checks what can be checked without touching anything, with the tables of its devices.
///
/// # Errors
/// The field, and what is wrong with it.
pub fn check(topology: &Topology) -> Result<(), (String, String)> {
    topology.check()?;
    check_devices(topology)
}

/// Checks the tables of those devices whose crates know more than [`Topology::check`].
fn check_devices(topology: &Topology) -> Result<(), (String, String)> {
    for source in &topology.sources {
        check_device(source.device.as_ref())
            .map_err(|problem| (format!("source '{}': device", source.name), problem.to_string()))?;
    }
    Ok(())
}

fn check_device(device: Option<&DeviceConfig>) -> Result<(), DeviceError> {
    match device {
        Some(DeviceConfig::Udp(udp)) => thalweg_instrument::check(udp),
        Some(DeviceConfig::Gige(gige)) => thalweg_gige::check(gige),
        _ => Ok(()),
    }
}
