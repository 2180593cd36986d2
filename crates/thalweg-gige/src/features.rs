//! A camera's features by the names that it gives them (GenICam Standard Features Naming Convention), read and written
//! through its description. Evaluating a feature (registers, formulas, other features) is left to the library
//! `viva-genapi`.

use crate::channel::Channel;
use crate::description::{self, DescriptionError};
use crate::gvcp::Refusal;
use crate::registers::{DESCRIPTION_URLS, URL_BYTES};
use crate::{FeatureValue, Features as Wanted};
use std::time::{Duration, Instant};
use viva_genapi::{GenApiError, Node, NodeMap, RegisterIo};

/// Time that a command may take until the camera reports that it is done.
const COMPLETION_TIMEOUT: Duration = Duration::from_secs(5);
/// Interval at which the state of a command is read until it is done.
const COMPLETION_POLL_INTERVAL: Duration = Duration::from_millis(10);

/// A camera's features.
#[derive(Debug)]
pub(crate) struct Features {
    map: NodeMap,
}

/// The channel as register access for the library.
struct Io<'a>(&'a Channel);

impl RegisterIo for Io<'_> {
    fn read(&self, address: u64, length: usize) -> Result<Vec<u8>, GenApiError> {
        let address = u32::try_from(address).map_err(|_| io_error(Refusal::Malformed))?;
        self.0.read_memory(address, length).map_err(io_error)
    }

    fn write(&self, address: u64, data: &[u8]) -> Result<(), GenApiError> {
        let address = u32::try_from(address).map_err(|_| io_error(Refusal::Malformed))?;
        self.0.write_memory(address, data).map_err(io_error)
    }
}

fn io_error(refusal: Refusal) -> GenApiError {
    GenApiError::Io(refusal.into())
}

/// Returns the text of an error with those of its causes.
fn error_chain_text(error: &GenApiError) -> String {
    let mut text = error.to_string();
    let mut source = std::error::Error::source(error);
    while let Some(cause) = source {
        let cause_text = cause.to_string();
        if !text.contains(&cause_text) {
            text = format!("{text}: {cause_text}");
        }
        source = cause.source();
    }
    text
}

impl Features {
    /// Reads the camera's description, from the first place that works.
    pub(crate) fn read_from_camera(channel: &Channel) -> Result<Self, DescriptionError> {
        let mut problem = None;
        for url in DESCRIPTION_URLS {
            match read_description(channel, url) {
                Ok(xml) => return Self::from_xml(&xml),
                // The first error is the one reported.
                Err(error) => drop(problem.get_or_insert(error)),
            }
        }
        Err(problem.unwrap_or(DescriptionError::malformed("there is none")))
    }

    /// Parses a description that was checked ([`description::unpack_and_check`]).
    pub(crate) fn from_xml(xml: &str) -> Result<Self, DescriptionError> {
        let model = viva_genapi_xml::parse(xml).map_err(DescriptionError::malformed)?;
        let map = NodeMap::try_from_xml(model).map_err(DescriptionError::malformed)?;
        Ok(Self { map })
    }

    /// Returns true if there is a feature of this name.
    pub(crate) fn has_feature(&self, name: &str) -> bool {
        self.map.node(name).is_some()
    }

    /// Discards values that were read: they may have changed.
    pub(crate) fn discard_cached_values(&self) {
        self.map.invalidate_all();
    }

    /// Returns the value of an integer feature; `None` if there is none or it cannot be read.
    pub(crate) fn integer_value(&self, channel: &Channel, name: &str) -> Option<i64> {
        self.has_feature(name).then(|| self.map.get_integer(name, &Io(channel)).ok()).flatten()
    }

    /// Returns the value of a floating-point feature; `None` if there is none or it cannot be read.
    pub(crate) fn float_value(&self, channel: &Channel, name: &str) -> Option<f64> {
        self.has_feature(name).then(|| self.map.get_float(name, &Io(channel)).ok()).flatten()
    }

    /// Returns the value of a feature as text; `None` if there is none or it cannot be read.
    pub(crate) fn text_value(&self, channel: &Channel, name: &str) -> Option<String> {
        self.has_feature(name).then(|| self.map.get_text(name, &Io(channel)).ok()).flatten()
    }

    /// Executes a command, and waits until it is done.
    pub(crate) fn execute_command(&mut self, channel: &Channel, name: &str) -> Result<(), String> {
        self.map.exec_command(name, &Io(channel)).map_err(|error| error_chain_text(&error))?;
        let begun = Instant::now();
        while begun.elapsed() < COMPLETION_TIMEOUT {
            // A camera that does not report whether it is done counts as done.
            if self.map.is_done(name, &Io(channel)).unwrap_or(true) {
                return Ok(());
            }
            std::thread::sleep(COMPLETION_POLL_INTERVAL);
        }
        Err(format!("{name} did not finish within {} s", COMPLETION_TIMEOUT.as_secs()))
    }

    /// Executes a command without waiting for its end.
    pub(crate) fn start_command(&mut self, channel: &Channel, name: &str) -> Result<(), String> {
        self.map.exec_command(name, &Io(channel)).map_err(|error| error_chain_text(&error))
    }

    /// Sets a feature to a value, or executes it if it is a command.
    pub(crate) fn set_feature(&mut self, channel: &Channel, name: &str, value: &FeatureValue) -> Result<(), String> {
        let is_command = match self.map.node(name) {
            None => return Err(self.unknown_feature_text(name)),
            Some(node) => matches!(node, Node::Command(_)),
        };
        match (is_command, value) {
            (true, FeatureValue::Switch(true)) => self.execute_command(channel, name),
            (true, FeatureValue::Switch(false)) => Ok(()),
            (true, _) => Err(format!("{name} is a command: it is executed where it is set to true")),
            (false, _) => self.map.set_text(name, &value.to_string(), &Io(channel)).map_err(|error| {
                let mut text = error_chain_text(&error);
                if let Ok(entries) = self.map.enum_entries(name) {
                    text = format!("{text}; it can be {}", join_first_names(entries.iter().map(String::as_str)));
                }
                text
            }),
        }
    }

    /// Sets all features. Unless they are ordered, those that cannot be set yet are tried again after the others.
    pub(crate) fn set_all_features(&mut self, channel: &Channel, wanted: &Wanted) -> Result<(), String> {
        let mut left: Vec<_> = wanted.values.iter().collect();
        loop {
            let before = left.len();
            let mut problem: Option<String> = None;
            left.retain(|(name, value)| {
                if wanted.ordered && problem.is_some() {
                    return true;
                }
                match self.set_feature(channel, name, value) {
                    Ok(()) => false,
                    Err(text) => {
                        problem.get_or_insert(format!("{name} = {value}: {text}"));
                        true
                    }
                }
            });
            match problem {
                None => return Ok(()),
                Some(problem) if wanted.ordered || left.len() == before => return Err(problem),
                Some(_) => {}
            }
        }
    }

    fn unknown_feature_text(&self, name: &str) -> String {
        let lower = name.to_lowercase();
        let alike: Vec<&str> = self.map.node_names().filter(|own| own.to_lowercase().contains(&lower)).collect();
        match alike[..] {
            [] => "the camera has no such feature".to_owned(),
            _ => format!("the camera has no such feature; it has {}", join_first_names(alike.into_iter())),
        }
    }
}

/// Reads the description whose URL is at this address of the camera's memory.
fn read_description(channel: &Channel, url: u32) -> Result<String, DescriptionError> {
    let place = description::locate_description(&channel.read_memory(url, URL_BYTES.into())?)?;
    description::unpack_and_check(channel.read_memory(place.address, place.length)?)
}

/// Returns a list of names, twelve at most.
fn join_first_names<'a>(names: impl Iterator<Item = &'a str>) -> String {
    let mut names: Vec<&str> = names.collect();
    names.sort_unstable();
    let more = names.len().saturating_sub(12);
    names.truncate(12);
    let more = if more > 0 { format!(" and {more} more") } else { String::new() };
    format!("{}{more}", names.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_description_that_makes_no_sense_has_no_features() {
        assert!(Features::from_xml("<a").is_err());
        assert!(!Features::from_xml("<RegisterDescription/>").unwrap().has_feature("Width"));
        // A formula as deep as is permitted.
        let formula = format!("{}1{}", "(".repeat(4000), ")".repeat(4000));
        let xml = format!(
            "<RegisterDescription><SwissKnife \
             Name=\"A\"><Formula>{formula}</Formula></SwissKnife></RegisterDescription>"
        );
        let deep = std::thread::Builder::new().stack_size(crate::session::CONTROL_STACK_BYTES);
        deep.spawn(move || drop(Features::from_xml(&xml))).unwrap().join().unwrap();
    }

    proptest! {
        #[test]
        fn any_text_is_a_description_or_refused(text: String) {
            let _ = Features::from_xml(&format!("<RegisterDescription>{text}</RegisterDescription>"));
        }
    }
}
