//! Tests that every kind of device passes, for crates that add one: [`device_conformance!`](crate::device_conformance).

use crate::{
    Acquired, Acquisition, Buffer, Description, Device, DeviceConfig, DeviceKind, DeviceOptions, HeaderValues,
    MAX_PAYLOAD_BYTES, OpenDevice,
};
use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};
use thalweg_arena::SlotPool;
use thalweg_wire::{EventId, TaiNanos};

/// Number of fragments that are taken from a device.
const FRAGMENT_COUNT: u64 = 64;
/// Time after which an acquisition that gives nothing fails.
const FRAME_TIMEOUT: Duration = Duration::from_secs(10);
/// Number of slots that an acquisition is given.
const SLOT_COUNT: u32 = 8;

/// Defines a module with the tests that a kind of device passes: the type of its options, some tables of its options
/// without the `kind`, and, if a device can be opened where the tests run, the table of that one.
///
/// ```text
/// thalweg_device::device_conformance!(MyDigitizer, ["channels = 4\nsamples = 1000"], opens: "channels = 2\nsamples = 10");
/// ```
#[macro_export]
macro_rules! device_conformance {
    ($options:ty, [$($table:expr),+ $(,)?] $(, opens: $opens:expr)?) => {
        mod device_conformance {
            use super::*;

            #[test]
            fn options_that_were_written_are_those_that_were_read() {
                $($crate::conformance::options_are_written_as_read::<$options>($table);)+
            }

            #[test]
            fn an_unknown_option_is_named() {
                $($crate::conformance::an_unknown_option_is_named::<$options>($table);)+
            }

            $(#[test]
            fn a_device_keeps_its_promises() {
                $crate::conformance::a_device_keeps_its_promises::<$options>($opens);
            })?
        }
    };
}

fn parse_config<T: DeviceKind>(table: &str) -> Result<DeviceConfig, String> {
    crate::register_kind::<T>();
    toml::from_str(&format!("kind = {:?}\n{table}", T::NAME)).map_err(|error| error.to_string())
}

/// Checks that options that are written as TOML or JSON are read again as the same.
///
/// # Panics
/// They are not, or the table is refused.
pub fn options_are_written_as_read<T: DeviceKind>(table: &str) {
    let read = parse_config::<T>(table).unwrap_or_else(|error| panic!("{table}: {error}"));
    assert!(read.kind_name() == T::NAME && read.is_registered() && read.options_as::<T>().is_some());
    let text = toml::to_string(&read).unwrap();
    assert_eq!(toml::from_str::<DeviceConfig>(&text).unwrap(), read, "{text}");
    let text = serde_json::to_string(&read).unwrap();
    assert_eq!(serde_json::from_str::<DeviceConfig>(&text).unwrap(), read, "{text}");
}

/// Checks that a table with an option that the kind does not have is refused, with the option's name.
///
/// # Panics
/// It is not.
pub fn an_unknown_option_is_named<T: DeviceKind>(table: &str) {
    let error = parse_config::<T>(&format!("{table}\nno_such_option = 1")).unwrap_err();
    assert!(error.contains("no_such_option"), "{error}");
}

/// Checks a device that is opened: what it gives fits what it and its options promise.
///
/// # Panics
/// It does not.
pub fn a_device_keeps_its_promises<T: DeviceKind>(table: &str) {
    let options = parse_config::<T>(table).unwrap_or_else(|error| panic!("{table}: {error}"));
    options.check_options().unwrap();
    let max_payload = match open_device(&options) {
        OpenDevice::Device(mut device) => {
            assert!(!options.is_acquisition());
            let OpenDevice::Device(mut other) = open_device(&options) else { panic!("two sorts of device") };
            fill_and_skip(&mut *device, &mut *other);
            device.max_payload_bytes()
        }
        OpenDevice::Acquisition(mut device) => {
            assert!(options.is_acquisition());
            acquire_frames(&mut *device, &*options);
            device.max_payload_bytes()
        }
    };
    if let Some(longest) = options.longest_payload_bytes() {
        assert_eq!(longest, max_payload as u64, "longest");
    }
}

fn open_device(options: &DeviceConfig) -> OpenDevice {
    options.open_device(None).unwrap_or_else(|error| panic!("{options:?}: {error}"))
}

fn check_description(description: &Description) {
    assert!(!description.kind.is_empty() && !description.payload_type.is_empty(), "{description:?}");
}

/// Checks that a device that fills and one that skips are in the same place after each event.
fn fill_and_skip(device: &mut dyn Device, other: &mut dyn Device) {
    check_description(device.description());
    let max_payload = device.max_payload_bytes();
    assert!((1..=MAX_PAYLOAD_BYTES).contains(&max_payload));
    let mut payloads: BTreeMap<u64, Vec<u8>> = BTreeMap::new();
    for event in (0..FRAGMENT_COUNT).map(EventId) {
        let length = device.next_payload_bytes();
        assert_eq!(length, other.next_payload_bytes(), "{event:?}");
        let Some(length) = length else {
            assert_eq!(device.next_payload_bytes(), None, "the device is over, and stays so");
            break;
        };
        assert!(length <= max_payload, "{event:?}: {length} bytes of {max_payload}");
        let key = device.content_key(event);
        let mut payload = vec![0; length];
        let HeaderValues { payload_type, status, window, .. } = device.fill_payload(event, &mut payload).unwrap();
        let skipped = other.skip_fragment(event);
        assert_eq!((payload_type, status, window), (skipped.payload_type, skipped.status, skipped.window), "{event:?}");
        if let Some(before) = key.and_then(|key| payloads.insert(key, payload.clone())) {
            assert_eq!(before, payload, "{event:?}: equal keys mean equal payloads");
        }
    }
}

/// Checks that buffers come back filled, each number once, and no more of them than were posted.
fn acquire_frames(device: &mut dyn Acquisition, options: &dyn DeviceOptions) {
    check_description(device.description());
    let max_payload = device.max_payload_bytes();
    assert!((1..=MAX_PAYLOAD_BYTES).contains(&max_payload));
    let mut pool = SlotPool::new("conformance", SLOT_COUNT, thalweg_wire::record_bytes(max_payload)).unwrap();
    let mut posted = 0;
    let mut numbers = BTreeSet::new();
    let began = Instant::now();
    device.start_acquisition(TaiNanos(0)).unwrap();
    while (numbers.len() as u64) < FRAGMENT_COUNT {
        while posted < device.max_posted_buffers().min(SLOT_COUNT)
            && let Some(slot) = pool.take_slot()
        {
            device.post_buffer(Buffer::new(slot));
            posted += 1;
        }
        match device.poll_acquired(began.elapsed()).unwrap() {
            Acquired::Frame(frame) => {
                assert!(posted > 0, "a frame in no slot that was posted");
                posted -= 1;
                assert!(frame.len <= max_payload, "{} bytes of {max_payload}", frame.len);
                assert!(numbers.insert(frame.number), "number {} comes twice", frame.number);
                assert!(!options.has_timestamps() || frame.filled.timestamp.is_some(), "a frame without a time");
                pool.return_slot(frame.buffer.into_slot());
            }
            Acquired::Lost { count, .. } | Acquired::Missed { count, .. } => assert!(count > 0),
            Acquired::NotYet => {
                assert!(began.elapsed() < FRAME_TIMEOUT, "{} frames in {FRAME_TIMEOUT:?}", numbers.len());
                std::thread::yield_now();
            }
            Acquired::Over => break,
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::{ModelAdcConfig, NpyConfig, PgmConfig, RawConfig, SigmfConfig, TiffConfig, VdifConfig};

    crate::device_conformance!(
        ModelAdcConfig,
        ["size = 1000", "size = 1000\nsource = \"0.9\"", "size = 1000\nsize_from = 10", "size = 64\nseed = 7\nperiod = 32"],
        opens: "size = 100\nperiod = 8"
    );

    #[test]
    fn options_of_recordings_are_written_as_they_are_read() {
        use super::{an_unknown_option_is_named as unknown, options_are_written_as_read as same};
        same::<SigmfConfig>("file = \"x\"\nsamples_per_fragment = 10");
        same::<SigmfConfig>("file = \"x.sigmf\"\nrecording = \"y\"");
        same::<VdifConfig>("file = \"x\"\nrate = 1600\nthread = 3\nloop = true");
        same::<PgmConfig>("files = [\"a\", \"b\"]\nloop = true");
        same::<TiffConfig>("files = [\"a\"]\nrate = 12.5");
        same::<NpyConfig>("file = \"x\"");
        same::<RawConfig>("file = \"x\"\nrecord = \"2KiB\"");
        same::<RawConfig>("file = \"x\"\nskip = 512\ntype = \"ci16_be\"\nshape = [64, 2]\nrate = 1e-3");
        unknown::<NpyConfig>("file = \"x\"");
    }
}
