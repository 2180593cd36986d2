//! Configuration of a device: the `device = { kind = "…", … }` table of the topology file.

use crate::kind::{self, Entry};
use crate::{AnyOptions, DeviceError, DeviceKind, DeviceOptions, OpenDevice};
use serde::ser::{Error as _, SerializeMap};
use serde::{Deserialize, Deserializer, Serialize, Serializer, de};
use std::any::Any;
use std::fmt;
use std::ops::Deref;
use std::path::Path;
use thalweg_frames::Adapter;
use thalweg_wire::SourceId;

/// One device. In TOML: `device = { kind = "model-adc", size = "1MiB", seed = 1 }`.
#[derive(Debug)]
pub struct DeviceConfig(Box<dyn DeviceOptions>);

impl DeviceConfig {
    /// Creates the configuration of the device at an address that needs no further options: `gige:GV01`,
    /// `v4l2:/dev/video0`, `nvme:0000:01:00.0`.
    ///
    /// # Errors
    /// The text is no such address; the error names the kinds that are possible.
    pub fn from_address(address: &str) -> Result<Self, String> {
        let Some((kind, place)) = address.split_once(':').filter(|(_, place)| !place.is_empty()) else {
            return Err(format!(
                "'{address}' is not the address of a device: write one such as gige:GV01 or \
                v4l2:/dev/video0"
            ));
        };
        let all = kind::all_entries();
        let made = all.iter().find(|entry| entry.name == kind).and_then(|entry| (entry.at)(place));
        made.map(Self).ok_or_else(|| {
            let possible: Vec<&str> = all.iter().filter_map(|entry| entry.address).collect();
            let possible = possible.join(", ");
            format!(
                "'{kind}' cannot be used here: use {possible}; other devices need further options, in a topology \
                file"
            )
        })
    }

    /// Returns the options of the device if they are of this type.
    pub fn options_as<T: DeviceKind>(&self) -> Option<&T> {
        self.0.as_any().downcast_ref()
    }

    /// Returns whether the kind is registered in this process.
    pub fn is_registered(&self) -> bool {
        !self.0.as_any().is::<Unknown>()
    }

    /// Resolves relative file names against `base`, the topology file's directory.
    pub fn resolve_paths(&mut self, base: &Path) {
        for file in self.0.input_paths_mut() {
            *file = base.join(&*file);
        }
    }

    /// Sets the source that a model plays, unless it was configured with one: the sources of one run then differ.
    pub fn set_default_source(&mut self, source: SourceId) {
        self.0.set_default_source(source);
    }
}

impl<T: DeviceKind> From<T> for DeviceConfig {
    fn from(options: T) -> Self {
        Self(Box::new(options))
    }
}

impl Deref for DeviceConfig {
    type Target = dyn DeviceOptions;

    fn deref(&self) -> &Self::Target {
        &*self.0
    }
}

impl Clone for DeviceConfig {
    fn clone(&self) -> Self {
        Self(self.0.clone_boxed())
    }
}

impl PartialEq for DeviceConfig {
    fn eq(&self, other: &Self) -> bool {
        self.0.equals_options(&*other.0)
    }
}

impl Serialize for DeviceConfig {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let table = self.0.to_table().map_err(S::Error::custom)?;
        let mut map = serializer.serialize_map(Some(1 + table.len()))?;
        map.serialize_entry("kind", self.0.kind_name())?;
        table.iter().try_for_each(|(key, value)| map.serialize_entry(key, value))?;
        map.end()
    }
}

impl<'de> Deserialize<'de> for DeviceConfig {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(Table)
    }
}

struct Table;

impl<'de> de::Visitor<'de> for Table {
    type Value = DeviceConfig;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a table, such as device = { kind = \"model-adc\", size = \"64KiB\" }")
    }

    fn visit_map<A: de::MapAccess<'de>>(self, map: A) -> Result<DeviceConfig, A::Error> {
        let mut table = toml::Table::deserialize(de::value::MapAccessDeserializer::new(map))?;
        let kind = match table.remove("kind") {
            Some(toml::Value::String(kind)) => kind,
            Some(other) => return Err(de::Error::custom(format!("kind: {} instead of a string", other.type_str()))),
            None => return Err(de::Error::missing_field("kind")),
        };
        let all = kind::all_entries();
        match all.iter().find(|entry| entry.name == kind) {
            Some(Entry { read, .. }) => {
                read(table).map(DeviceConfig).map_err(|error| de::Error::custom(error.message()))
            }
            None => Ok(DeviceConfig(Box::new(Unknown { kind, table }))),
        }
    }
}

/// Table of a kind that is not registered in this process: of a source that another program runs.
#[derive(Debug, Clone, PartialEq)]
struct Unknown {
    kind: String,
    table: toml::Table,
}

impl Unknown {
    fn unknown_kind_error(&self) -> DeviceError {
        let known: Vec<String> = kind::kind_names().iter().map(|name| format!("`{name}`")).collect();
        DeviceError::UnknownKind { kind: self.kind.clone(), known: known.join(", ") }
    }
}

impl DeviceOptions for Unknown {
    fn open_device(&self, _adapter: Option<&Adapter>) -> Result<OpenDevice, DeviceError> {
        Err(self.unknown_kind_error())
    }

    fn check_options(&self) -> Result<(), DeviceError> {
        Err(self.unknown_kind_error())
    }
}

impl AnyOptions for Unknown {
    fn kind_name(&self) -> &str {
        &self.kind
    }

    fn as_any(&self) -> &dyn Any {
        self
    }

    fn clone_boxed(&self) -> Box<dyn DeviceOptions> {
        Box::new(self.clone())
    }

    fn equals_options(&self, other: &dyn DeviceOptions) -> bool {
        other.as_any().downcast_ref() == Some(self)
    }

    fn to_table(&self) -> Result<toml::Table, toml::ser::Error> {
        Ok(self.table.clone())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{ModelAdcConfig, PgmConfig};
    use std::path::PathBuf;
    use thalweg_text::ByteSize;

    fn device(text: &str) -> Result<DeviceConfig, String> {
        toml::from_str(text).map_err(|error| error.to_string())
    }

    #[test]
    fn a_table_names_its_device() {
        let read = device("kind = \"model-adc\"\nsize = \"1MiB\"\nseed = 7\nsource = \"1.2\"\nperiod = 32").unwrap();
        let source = Some(SourceId::new(1, 2));
        let expected = ModelAdcConfig { size: ByteSize(1 << 20), size_from: None, seed: 7, source, period: 32 };
        assert_eq!((read.kind_name(), read.options_as()), ("model-adc", Some(&expected)));
    }

    #[test]
    fn a_mistake_is_named_with_what_is_possible() {
        for (table, [place, possible]) in [
            ("kind = \"raw\"\nfile = \"x\"\nrecord = 8\nlooped = true", ["looped", "`loop`"]),
            ("kind = 7", ["kind", "string"]),
            ("file = \"x\"", ["missing field", "`kind`"]),
            ("kind = \"raw\"\nfile = \"x\"\nrecord = \"8 bits\"", ["8 bits", ""]),
            ("kind = \"npy\"\nfile = \"x\"\nrate = \"100 Hz\"", ["\"100 Hz\"", "without a unit, such as 100.0"]),
            ("kind = \"npy\"\nfile = \"x\"\nrate = 0", ["0.0", "from 1e-6"]),
            ("kind = \"npy\"\nfile = \"x\"\nrate = inf", ["inf", "from 1e-6"]),
            ("kind = \"raw\"\nfile = \"x\"\ntype = \"float32\"", ["'float32' is not a type: write one of u8", "_be"]),
        ] {
            let error = device(table).unwrap_err();
            assert!(error.contains(place) && error.contains(possible), "{table}: {error}");
        }
        let error = DeviceConfig::from_address("tape:0").unwrap_err();
        assert!(error.contains("'tape'"), "{error}");
    }

    #[test]
    fn file_names_are_relative_to_the_topology() {
        let mut config = device("kind = \"pgm\"\nfiles = [\"a.pgm\", \"/b.pgm\"]").unwrap();
        config.resolve_paths(Path::new("/lab"));
        let images: &PgmConfig = config.options_as().unwrap();
        assert_eq!(images.files, [PathBuf::from("/lab/a.pgm"), PathBuf::from("/b.pgm")]);
    }

    #[test]
    fn a_table_of_an_unknown_kind_is_kept() {
        let unknown = Unknown { kind: "tape".into(), table: toml::from_str("reels = 2").unwrap() };
        let config = DeviceConfig(Box::new(unknown));
        assert_eq!(config.clone(), config);
        assert!(!config.is_registered());
        for error in
            [config.check_options().unwrap_err(), config.open_device(None).unwrap_err()].map(|error| error.to_string())
        {
            assert!(error.starts_with("unknown kind `tape`, expected one of `model-adc`, "), "{error}");
        }
        let text = toml::to_string(&config).unwrap();
        assert!(text.contains("kind = \"tape\"") && text.contains("reels = 2"), "{text}");
    }
}
