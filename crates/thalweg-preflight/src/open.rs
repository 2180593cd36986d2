//! Devices, opened: each kind by the crate that drives it.

use thalweg_dev::{Card, Sampler, Stream, Video};
use thalweg_device::{DeviceConfig, DeviceError, OnTime, tap_acquisition, tap_device};
use thalweg_features::Fit;
use thalweg_link::Adapter;
use thalweg_node::{Feed, NodeError, SourceNodeConfig, Topology};
use thalweg_pci::{Edu, Nvme};
use thalweg_wire::record_len;

/// A source's device, ready to be asked.
#[derive(Debug)]
pub struct OpenDevice {
    /// Where fragments come from.
    pub feed: Feed,
    /// Bytes in each of the source's slots.
    pub slot_bytes: usize,
    /// The sources that fit its images, by their places in the topology, with what they are fed by: they run where it
    /// does.
    pub fits: Vec<(usize, OpenDevice)>,
}

/// Opens a source's device, with the fits of its images, and checks that its fragments fit the slots, and the slots every
/// builder's blocks. Nothing where another program pushes, and where it is a fit of another source's images.
///
/// # Errors
/// The device cannot be opened, or its fragments do not fit.
pub fn open_device(topology: &Topology, source: &SourceNodeConfig) -> Result<Option<OpenDevice>, NodeError> {
    let Some(mut config) = source.device.clone() else { return Ok(None) };
    if matches!(config, DeviceConfig::Fit(_)) {
        return Ok(None);
    }
    config.set_source(source.source_id());
    let feed = open_feed(&config, source.adapter.as_ref())?;
    let mut feed = match (feed, source.beat) {
        (Feed::Acquisition(device), Some(beat)) => Feed::Acquisition(Box::new(OnTime::new(device, beat))),
        (feed, _) => feed,
    };
    let mut fits = Vec::new();
    for (index, other) in topology.sources.iter().enumerate() {
        let Some(DeviceConfig::Fit(config)) = &other.device else { continue };
        if config.of != source.name {
            continue;
        }
        let (tapped, copies, reorders) = match feed {
            Feed::Device(device) => {
                let (tapped, copies) = tap_device(device, config.waiting as usize)?;
                (Feed::Device(tapped), copies, 0)
            }
            Feed::Acquisition(device) => {
                let reorders = device.reorders();
                let (tapped, copies) = tap_acquisition(device, config.waiting as usize)?;
                (Feed::Acquisition(tapped), copies, reorders)
            }
            // It has a device.
            Feed::Pushed { .. } => return Ok(None),
        };
        feed = tapped;
        let description = feed.description().cloned().unwrap_or_default();
        let of = |error: NodeError| NodeError::Config(format!("its fit '{}': {error}", other.name));
        let fit = Fit::new(config, &description, reorders, copies).map_err(|error| of(error.into()))?;
        fits.push((index, fitting(topology, other, Feed::Acquisition(Box::new(fit)), Vec::new()).map_err(of)?));
    }
    fitting(topology, source, feed, fits).map(Some)
}

/// A device of which every fragment fits a slot, and every slot a block.
fn fitting(
    topology: &Topology,
    source: &SourceNodeConfig,
    feed: Feed,
    fits: Vec<(usize, OpenDevice)>,
) -> Result<OpenDevice, NodeError> {
    let (longest, least) = (feed.max_payload(), record_len(feed.max_payload()));
    let slot_bytes = source.slot_bytes(longest);
    if least > slot_bytes {
        return Err(NodeError::Config(format!(
            "slot: {slot_bytes} bytes cannot hold a fragment of {longest} bytes and its header; set slot to at least {least}"
        )));
    }
    topology.check_slot(slot_bytes as u64, least).map_err(|problem| NodeError::Config(format!("slot: {problem}")))?;
    Ok(OpenDevice { feed, slot_bytes, fits })
}

/// Opens what a device's table says.
///
/// # Errors
/// It cannot be opened.
pub fn open_feed(config: &DeviceConfig, adapter: Option<&Adapter>) -> Result<Feed, DeviceError> {
    Ok(match config {
        DeviceConfig::Udp(udp) => Feed::Acquisition(thalweg_instrument::open(udp, adapter)?),
        DeviceConfig::Gige(gige) => Feed::Acquisition(thalweg_gige::open(gige)?),
        DeviceConfig::Edu(edu) => Feed::Acquisition(Box::new(Edu::new(edu)?)),
        DeviceConfig::Nvme(nvme) => Feed::Acquisition(Box::new(Nvme::new(nvme)?)),
        DeviceConfig::Stream(stream) => Feed::Acquisition(Box::new(Stream::open(stream)?)),
        DeviceConfig::V4l2(video) => Feed::Acquisition(Box::new(Video::open(video)?)),
        DeviceConfig::Comedi(comedi) => Feed::Acquisition(Box::new(Sampler::open(comedi)?)),
        DeviceConfig::Dma(dma) => Feed::Acquisition(Box::new(Card::open(dma)?)),
        other => Feed::Device(thalweg_device::open(other)?),
    })
}
