//! Devices, opened: each kind by the crate that drives it.

use thalweg_device::{OnTime, tap_acquisition, tap_device};
use thalweg_node::{Feed, NodeError, SourceNodeConfig, Topology};
use thalweg_wire::record_bytes;

/// Device of a source, opened.
#[derive(Debug)]
pub struct OpenSource {
    /// Origin of the fragments.
    pub feed: Feed,
    /// Size of each of the source's slots in bytes.
    pub slot_bytes: usize,
    /// Sources that fit this source's images: index in the topology and device of each. They run on the same node.
    pub fits: Vec<(usize, OpenSource)>,
}

/// Opens a source's device, with the fits of its images, and checks that its fragments fit the slots, and the slots
/// every builder's blocks. Returns `None` if another program pushes the fragments, or if the source is a fit of another
/// source's images.
///
/// # Errors
/// The device cannot be opened, or its fragments do not fit.
pub fn open_device(topology: &Topology, source: &SourceNodeConfig) -> Result<Option<OpenSource>, NodeError> {
    let Some(mut config) = source.device.clone() else { return Ok(None) };
    if config.observed_source().is_some() {
        return Ok(None);
    }
    config.set_default_source(source.source_id());
    let feed = Feed::from(config.open_device(source.adapter.as_ref())?);
    let mut feed = match (feed, source.beat) {
        (Feed::Acquisition(device), Some(beat)) => Feed::Acquisition(Box::new(OnTime::new(device, beat))),
        (feed, _) => feed,
    };
    let mut fits = Vec::new();
    for (index, other) in topology.sources.iter().enumerate() {
        let Some(config) = &other.device else { continue };
        let Some(observed) = config.observed_source().filter(|observed| observed.source == source.name) else {
            continue;
        };
        let (tapped, copies, reorders) = match feed {
            Feed::Device(device) => {
                let (tapped, copies) = tap_device(device, observed.waiting)?;
                (Feed::Device(tapped), copies, 0)
            }
            Feed::Acquisition(device) => {
                let reorders = device.reorder_depth();
                let (tapped, copies) = tap_acquisition(device, observed.waiting)?;
                (Feed::Acquisition(tapped), copies, reorders)
            }
            // Unreachable: this source has a device.
            Feed::Pushed { .. } => return Ok(None),
        };
        feed = tapped;
        let description = feed.device_description().cloned().unwrap_or_default();
        let fit = config.open_observer(&description, reorders, copies).map_err(NodeError::from);
        let fit = fit.and_then(|fit| fit_to_slots(topology, other, Feed::Acquisition(fit), Vec::new()));
        let fit = fit.map_err(|error| NodeError::Config(format!("its fit '{}': {error}", other.name)))?;
        fits.push((index, fit));
    }
    fit_to_slots(topology, source, feed, fits).map(Some)
}

/// Returns an open device after checking that every fragment fits a slot, and every slot a block.
fn fit_to_slots(
    topology: &Topology,
    source: &SourceNodeConfig,
    feed: Feed,
    fits: Vec<(usize, OpenSource)>,
) -> Result<OpenSource, NodeError> {
    let (longest, least) = (feed.max_payload(), record_bytes(feed.max_payload()));
    let slot_bytes = source.slot_bytes(longest);
    if least > slot_bytes {
        return Err(NodeError::Config(format!(
            "slot: {slot_bytes} bytes cannot hold a fragment of {longest} bytes and its header; set slot to at least {least}"
        )));
    }
    topology.check_slot(slot_bytes as u64, least).map_err(|problem| NodeError::Config(format!("slot: {problem}")))?;
    Ok(OpenSource { feed, slot_bytes, fits })
}
