//! Kinds of devices: the options, checks and constructor of each, registered under a name.
//!
//! A kind is a type of options that implements [`DeviceOptions`] and [`DeviceKind`], and one call of [`register_kind`].
//! The rest of the program asks the options and knows no kind by name.

use crate::{Acquisition, Copies, Description, Device, DeviceError};
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::any::Any;
use std::fmt::Debug;
use std::path::PathBuf;
use std::sync::{PoisonError, RwLock};
use thalweg_frames::Adapter;
use thalweg_wire::SourceId;

/// Options of one device, as its `device = { kind = "…", … }` table states them.
///
/// Most methods have defaults, those of a device that is asked for its fragments and reads no file.
pub trait DeviceOptions: AnyOptions {
    /// Opens the device, by this adapter if it drives [one](Self::driven_port_address).
    ///
    /// # Errors
    /// An option makes no sense, or the device cannot be opened.
    fn open_device(&self, adapter: Option<&Adapter>) -> Result<OpenDevice, DeviceError>;

    /// Checks what can be checked without opening the device.
    ///
    /// # Errors
    /// An option makes no sense.
    fn check_options(&self) -> Result<(), DeviceError> {
        Ok(())
    }

    /// Returns whether the device is an [`Acquisition`], which has a pace of its own.
    fn is_acquisition(&self) -> bool {
        false
    }

    /// Returns whether the device gives its frames time stamps.
    fn has_timestamps(&self) -> bool {
        true
    }

    /// Returns the length of the longest payload in bytes, or `None` if it is not known before the device is opened.
    fn longest_payload_bytes(&self) -> Option<u64> {
        None
    }

    /// Returns whether every payload is as long as the longest, and there is always another one.
    fn is_steady_stream(&self) -> bool {
        false
    }

    /// Returns the files that the device reads. [`device_paths!`](crate::device_paths) implements this and
    /// [`input_paths_mut`](Self::input_paths_mut).
    fn input_paths(&self) -> &[PathBuf] {
        &[]
    }

    /// Returns the [files](Self::input_paths), to resolve relative names.
    fn input_paths_mut(&mut self) -> &mut [PathBuf] {
        &mut []
    }

    /// Returns the part after the kind in the device's address: `GV01` of `gige:GV01`.
    fn address_place(&self) -> String {
        self.input_paths().iter().map(|path| path.display().to_string()).collect::<Vec<_>>().join(", ")
    }

    /// Returns whether a search of this host and its networks finds such a device where it is there.
    fn is_found_by_search(&self) -> bool {
        false
    }

    /// Returns the address of the port if the device is received through an adapter that the node drives itself.
    fn driven_port_address(&self) -> Option<&str> {
        None
    }

    /// Returns the number of files that are open for each slot.
    fn files_per_slot(&self) -> u64 {
        0
    }

    /// Sets the source that a model plays, unless it was configured with one: the sources of one run then differ.
    fn set_default_source(&mut self, _source: SourceId) {}

    /// Returns the source whose payloads the device takes copies of, if it does.
    fn observed_source(&self) -> Option<Observed<'_>> {
        None
    }

    /// Opens a device that takes copies of another source's payloads, which come out of order by at most `reorders`.
    ///
    /// # Errors
    /// The device observes no other, or cannot use such payloads.
    fn open_observer(
        &self,
        _observed: &Description,
        _reorders: u32,
        _copies: Copies,
    ) -> Result<Box<dyn Acquisition>, DeviceError> {
        let problem = "this device does not use copies of another device's payloads".to_owned();
        Err(DeviceError::Option { option: "kind", problem })
    }

    /// Returns the names of the numbers in each fragment, by which conditions refer to them, if it is a row of numbers.
    fn feature_names(&self) -> Option<Vec<String>> {
        None
    }
}

/// Methods [`input_paths`](DeviceOptions::input_paths) and [`input_paths_mut`](DeviceOptions::input_paths_mut) of
/// options with a field
/// `file: PathBuf`, or `files: Vec<PathBuf>`: `device_paths!(file);` in the implementation of [`DeviceOptions`].
#[macro_export]
macro_rules! device_paths {
    (file) => {
        $crate::device_paths!(file, std::slice::from_ref, std::slice::from_mut);
    };
    (files) => {
        $crate::device_paths!(files, Vec::as_slice, Vec::as_mut_slice);
    };
    ($field:ident, $paths:path, $paths_mut:path) => {
        fn input_paths(&self) -> &[std::path::PathBuf] {
            $paths(&self.$field)
        }

        fn input_paths_mut(&mut self) -> &mut [std::path::PathBuf] {
            $paths_mut(&mut self.$field)
        }
    };
}

/// Kind of device: the type of its options.
pub trait DeviceKind: DeviceOptions + Clone + PartialEq + Serialize + DeserializeOwned {
    /// Name of the kind, as written in a topology file.
    const NAME: &'static str;

    /// Form of addresses that need no further options, such as `gige:NAME`; `None` if every device needs some.
    const ADDRESS: Option<&'static str> = None;

    /// Creates the options of the device at a place, the part after the kind in an [`ADDRESS`](Self::ADDRESS).
    fn from_address_place(_place: &str) -> Option<Self> {
        None
    }
}

/// Open device, of either sort.
#[derive(Debug)]
pub enum OpenDevice {
    /// A device that is asked for each fragment.
    Device(Box<dyn Device>),
    /// A device that fills buffers at a pace of its own.
    Acquisition(Box<dyn Acquisition>),
}

/// Source whose payloads a device takes copies of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Observed<'a> {
    /// Name of the source.
    pub source: &'a str,
    /// Number of copies that can wait for the device.
    pub waiting: usize,
}

/// Operations on options of any type, for every type of options.
pub trait AnyOptions: Any + Debug + Send + Sync {
    /// Returns the name of the kind.
    fn kind_name(&self) -> &str;

    /// Returns the options as those of their type.
    fn as_any(&self) -> &dyn Any;

    /// Returns a copy.
    fn clone_boxed(&self) -> Box<dyn DeviceOptions>;

    /// Returns whether the options are of the same kind, and equal.
    fn equals_options(&self, other: &dyn DeviceOptions) -> bool;

    /// Returns the options as a table of a topology file, without the kind.
    ///
    /// # Errors
    /// A value has no representation in TOML.
    fn to_table(&self) -> Result<toml::Table, toml::ser::Error>;
}

impl<T: DeviceKind> AnyOptions for T {
    fn kind_name(&self) -> &str {
        T::NAME
    }

    fn as_any(&self) -> &dyn Any {
        self
    }

    fn clone_boxed(&self) -> Box<dyn DeviceOptions> {
        Box::new(self.clone())
    }

    fn equals_options(&self, other: &dyn DeviceOptions) -> bool {
        other.as_any().downcast_ref::<T>() == Some(self)
    }

    fn to_table(&self) -> Result<toml::Table, toml::ser::Error> {
        toml::Table::try_from(self)
    }
}

/// Entry of a kind in the list of all kinds.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Entry {
    pub(crate) name: &'static str,
    pub(crate) address: Option<&'static str>,
    pub(crate) read: fn(toml::Table) -> Result<Box<dyn DeviceOptions>, toml::de::Error>,
    pub(crate) at: fn(&str) -> Option<Box<dyn DeviceOptions>>,
}

impl Entry {
    pub(crate) const fn for_kind<T: DeviceKind>() -> Self {
        Self {
            name: T::NAME,
            address: T::ADDRESS,
            read: |table| Ok(Box::new(table.try_into::<T>()?)),
            at: |place| T::from_address_place(place).map(|options| Box::new(options) as Box<dyn DeviceOptions>),
        }
    }
}

static REGISTERED: RwLock<Vec<Entry>> = RwLock::new(Vec::new());

/// Registers a kind of device in this process: from now on topology files may name it. A kind of this name that was
/// registered before stays.
pub fn register_kind<T: DeviceKind>() {
    if !all_entries().iter().any(|entry| entry.name == T::NAME) {
        REGISTERED.write().unwrap_or_else(PoisonError::into_inner).push(Entry::for_kind::<T>());
    }
}

/// Returns the names of all kinds, those that are built in first.
pub fn kind_names() -> Vec<&'static str> {
    all_entries().iter().map(|entry| entry.name).collect()
}

/// Returns all kinds.
pub(crate) fn all_entries() -> Vec<Entry> {
    let registered = REGISTERED.read().unwrap_or_else(PoisonError::into_inner);
    crate::recordings::KINDS.iter().chain(registered.iter()).copied().collect()
}
