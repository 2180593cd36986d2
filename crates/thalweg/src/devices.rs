//! `thalweg devices`: lists the devices that data can be taken from, here and in the network.

use crate::terminal::{Failure, Output};
use serde::Serialize;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;
use thalweg_device::DeviceConfig;
use thalweg_text::parse_duration;

#[derive(Debug, clap::Args)]
pub(crate) struct Options {
    /// A topology whose devices are also listed
    file: Option<PathBuf>,
    /// Time to wait for answers of cameras in the network
    #[arg(long, value_name = "TIME", default_value = "500ms", value_parser = parse_duration)]
    wait: Duration,
}

/// One device of the list.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
struct Device {
    /// Address in the form that `thalweg demo --device` takes, if it takes the device; otherwise the device's place.
    address: String,
    /// The `kind` in a topology that takes data from the device; `None` if there is none.
    kind: Option<String>,
    /// Name that the device gives itself.
    name: String,
    /// Driver of the device, or the way by which it is reached.
    driver: String,
    /// Number of its IOMMU group.
    #[serde(skip_serializing_if = "Option::is_none")]
    iommu_group: Option<u32>,
    /// Source of the topology that takes data from the device.
    #[serde(skip_serializing_if = "Option::is_none")]
    source: Option<String>,
    /// Other addresses of the device.
    #[serde(skip)]
    also: Vec<String>,
    /// Reason why the device cannot be used.
    #[serde(skip_serializing_if = "Option::is_none")]
    problem: Option<String>,
}

pub(crate) fn list_devices(options: &Options, json: bool) -> Result<ExitCode, Failure> {
    let mut all: Vec<Device> = device_files().collect();
    all.extend(network_cameras(options.wait));
    all.extend(pci_functions());
    if let Some(file) = &options.file {
        let topology = thalweg_node::Topology::load(file, None)?;
        for source in &topology.sources {
            if let Some(device) = &source.device {
                assign_source(&mut all, &source.name, device);
            }
        }
    }
    let mut output = Output::new();
    if json {
        output.json(&serde_json::json!({ "devices": all }))?;
    } else {
        output.text(&devices_text(&all))?;
    }
    output.flush()?;
    Ok(ExitCode::SUCCESS)
}

fn device_files() -> impl Iterator<Item = Device> {
    thalweg_drivers::local::find_devices().into_iter().map(|found| Device {
        address: format!("{}:{}", found.kind, found.file.display()),
        kind: Some(found.kind.to_owned()),
        name: found.name,
        driver: found.driver,
        iommu_group: None,
        source: None,
        also: Vec::new(),
        problem: found.problem,
    })
}

/// Returns the cameras in the network that answer. If no request can be sent, there are none.
fn network_cameras(wait: Duration) -> impl Iterator<Item = Device> {
    let found = thalweg_gige::discover_cameras(wait).unwrap_or_else(|error| {
        tracing::warn!("cameras in the network: {error}");
        Vec::new()
    });
    found.into_iter().map(|found| {
        let called = [&found.user_name, &found.serial].into_iter().find(|name| !name.is_empty()).cloned();
        Device {
            address: format!("gige:{}", called.unwrap_or_else(|| found.address.to_string())),
            kind: Some("gige".into()),
            name: format!("{} {}", found.manufacturer, found.model).trim().to_owned(),
            driver: format!("GigE Vision, {} at {}", found.address, found.interface),
            iommu_group: None,
            source: None,
            also: [found.address.to_string(), found.mac.to_string(), found.serial, found.user_name].into(),
            problem: None,
        }
    })
}

fn pci_functions() -> impl Iterator<Item = Device> {
    thalweg_pci::find_functions().into_iter().map(|found| {
        let bound = found.driver.as_deref() == Some("vfio-pci");
        let problem = (found.kind.is_some() && !bound).then(|| "not bound to vfio-pci".to_owned());
        Device {
            address: format!("{}:{}", found.kind.unwrap_or("pci"), found.location),
            kind: found.kind.map(str::to_owned),
            name: format!("{} {}", found.class, found.id),
            driver: found.driver.unwrap_or_else(|| "no driver".into()),
            iommu_group: found.group,
            source: None,
            also: Vec::new(),
            problem,
        }
    })
}

/// Records the source that takes data from a device; a device that was not found is added to the list.
fn assign_source(all: &mut Vec<Device>, source: &str, device: &DeviceConfig) {
    if device.observed_source().is_some() {
        // The device is a part of the source whose images it has.
        return;
    }
    let place = device.address_place();
    let kind = device.kind_name();
    let address = if place.is_empty() { kind.to_owned() } else { format!("{kind}:{place}") };
    let found = all.iter_mut().find(|found| {
        found.address == address || kind == "gige" && found.also.iter().any(|other| other.eq_ignore_ascii_case(&place))
    });
    if let Some(found) = found {
        found.source = Some(found.source.take().map_or(source.to_owned(), |others| format!("{others}, {source}")));
        return;
    }
    let missing = match device.input_paths() {
        [] => device.is_found_by_search(),
        paths => paths.iter().any(|path| !path.exists()),
    };
    all.push(Device {
        address,
        kind: Some(kind.to_owned()),
        name: String::new(),
        driver: String::new(),
        iommu_group: None,
        source: Some(source.to_owned()),
        also: Vec::new(),
        problem: missing.then(|| "not found here".to_owned()),
    });
}

fn devices_text(all: &[Device]) -> String {
    if all.is_empty() {
        return "no devices found: no camera in the network, no device in /dev or on the PCI bus\n".to_owned();
    }
    let widest = all.iter().map(|device| device.address.len()).max().unwrap_or(0);
    let lines = all.iter().map(|device| {
        let group = device.iommu_group.map(|group| format!("IOMMU group {group}"));
        let source = device.source.as_ref().map(|source| format!("source {source}"));
        let parts = [&device.name, &device.driver].into_iter().filter(|part| !part.is_empty()).cloned();
        let parts: Vec<String> = parts.chain(group).chain(source).chain(device.problem.clone()).collect();
        format!("{:widest$}  {}\n", device.address, parts.join(", "))
    });
    lines.collect()
}
