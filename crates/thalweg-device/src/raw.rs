//! Replay of a file of records of one size, such as a front end's packets or frames without a header.
//!
//! A header before all records is skipped. The type of a record's elements can be configured: the fragments are arrays
//! then, little-endian whatever the file's byte order is.

use crate::file::InputFile;
use crate::replay::{Clock, Recording, Replay};
use crate::{Description, DeviceError, Filled, Layout, RawConfig};
use thalweg_text::ByteSize;

/// Opens the file and checks that it holds whole records.
pub(crate) fn open_records(config: &RawConfig) -> Result<Replay<Raw>, DeviceError> {
    let layout = Layout::new(config.record, config.stored, config.shape.as_deref())?;
    let (size, record) = (layout.bytes, layout.bytes as u64);
    let (file, ByteSize(skip)) = (InputFile::open(&config.file)?, config.skip);
    let length = file.len();
    let file = length.checked_sub(skip).and_then(|left| file.into_part(skip, left)).ok_or_else(|| {
        let problem = format!("{skip} bytes, and {} has {length}", config.file.display());
        DeviceError::Option { option: "skip", problem }
    })?;
    if file.len() == 0 {
        return Err(DeviceError::Empty { file: config.file.clone() });
    }
    if !file.len().is_multiple_of(record) {
        return Err(DeviceError::Leftover { file: config.file.clone(), length: file.len(), record });
    }
    let description = Description {
        kind: "raw".to_owned(),
        payload_type: layout.payload_type.type_name().to_owned(),
        shape: layout.shape.clone(),
        fragment_rate: config.rate.map(|rate| rate.hertz()),
        record_bytes: Some(record),
        file: Some(config.file.display().to_string()),
        notes: layout.byte_order_note(&config.file).into_iter().collect(),
        ..Default::default()
    };
    let raw = Raw { file, layout, clock: Clock(config.rate) };
    Ok(Replay::new(raw, description, size, config.looped))
}

#[derive(Debug)]
pub(crate) struct Raw {
    file: InputFile,
    layout: Layout,
    clock: Clock,
}

impl Recording for Raw {
    fn record_count(&self) -> u64 {
        self.file.len() / self.layout.bytes as u64
    }

    fn payload_len(&self, _record: u64) -> usize {
        self.layout.bytes
    }

    fn header_values(&self, record: u64) -> Filled {
        self.clock.header_values(record, self.layout.payload_type)
    }

    fn read_payload(&mut self, record: u64, payload: &mut [u8]) -> Result<(), DeviceError> {
        self.file.read_at(record * self.layout.bytes as u64, payload)?;
        self.layout.to_little_endian(payload);
        Ok(())
    }

    fn pass_nanos(&self) -> u64 {
        self.clock.record_nanos(self.record_count())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Device, Rate};
    use std::path::PathBuf;
    use thalweg_wire::{EventId, PayloadType, Status, TaiNanos};

    fn recording(bytes: &[u8]) -> (tempfile::TempDir, RawConfig) {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("packets.bin");
        std::fs::write(&file, bytes).unwrap();
        (dir, of_records(file))
    }

    fn of_records(file: PathBuf) -> RawConfig {
        let record = Some(ByteSize(4));
        RawConfig { file, skip: ByteSize(0), record, stored: None, shape: None, rate: None, looped: false }
    }

    #[test]
    fn a_header_is_passed_over_and_numbers_are_turned_and_timed() {
        let (_dir, config) = recording(&[b"head".as_slice(), &[1, 2, 3, 4, 5, 6, 7, 8]].concat());
        let config = RawConfig {
            skip: ByteSize(4),
            record: None,
            stored: Some("i16_be".parse().unwrap()),
            shape: Some(vec![2, 1]),
            rate: Rate::new(2.0),
            looped: true,
            ..config
        };
        let mut device = open_records(&config).unwrap();
        let description = device.description();
        assert_eq!((description.payload_type.as_str(), &description.shape), ("samples-i16", &Some(vec![2, 1])));
        assert!(description.notes[0].contains("packets.bin: i16 is big-endian"), "{:?}", description.notes);
        let mut payload = [0; 4];
        let half = 500_000_000;
        for (event, (bytes, time)) in (0..).zip([([2, 1, 4, 3], 0), ([6, 5, 8, 7], half), ([2, 1, 4, 3], 2 * half)]) {
            let filled = device.fill_payload(EventId(event), &mut payload).unwrap();
            assert_eq!((payload, filled.timestamp), (bytes, Some(TaiNanos(time))));
            assert_eq!((filled.payload_type, filled.window), (PayloadType::SAMPLES_I16, 500_000_000));
        }
    }

    #[test]
    fn options_that_make_no_record_are_named() {
        let (_dir, config) = recording(b"aaaabbbbcccc");
        let refused = |change: &dyn Fn(&mut RawConfig)| {
            let mut config = config.clone();
            change(&mut config);
            open_records(&config).unwrap_err().to_string()
        };
        let typed = |name: &str| Some(name.parse().unwrap());
        for (error, expected) in [
            (refused(&|c| c.record = None), "option record: missing: write the size of a record"),
            (refused(&|c| c.shape = Some(vec![4])), "option shape: the type of the elements is missing: add it"),
            (refused(&|c| c.stored = typed("f64")), "option record: 4 bytes are not a whole number of f64"),
            (refused(&|c| c.skip = ByteSize(13)), "option skip: 13 bytes, and"),
            (refused(&|c| c.skip = ByteSize(2)), "2 records of 4 bytes and 2 bytes left over"),
            (refused(&|c| (c.stored, c.shape) = (typed("u8"), Some(vec![2, 3]))), "takes 6 bytes, but record is 4"),
            (refused(&|c| (c.stored, c.shape) = (typed("u8"), Some(vec![]))), "it must have 1 to 8 lengths"),
            (refused(&|c| (c.stored, c.shape) = (typed("u8"), Some(vec![4, 0]))), "each at least 1"),
            (
                refused(&|c| (c.stored, c.shape) = (typed("u16"), Some(vec![1 << 40, 1 << 40]))),
                "than 64 bits can count",
            ),
        ] {
            assert!(error.contains(expected), "{error}");
        }
    }

    #[test]
    fn one_pass_gives_every_record_and_ends() {
        let (_dir, config) = recording(b"aaaabbbbcccc");
        let mut device = open_records(&config).unwrap();
        let mut payload = [0; 4];
        for (event, expected) in (100..).zip([b"aaaa", b"bbbb", b"cccc"]) {
            assert_eq!(device.next_payload_len(), Some(4));
            assert_eq!(device.content_key(EventId(event)), Some(event - 100));
            assert_eq!(device.fill_payload(EventId(event), &mut payload).unwrap().status, Status::REPLAYED);
            assert_eq!(&payload, expected);
        }
        assert_eq!(device.next_payload_len(), None);
        assert_eq!(device.content_key(EventId(103)), None);
        assert!(matches!(device.fill_payload(EventId(103), &mut payload), Err(DeviceError::Event { records: 3, .. })));
        assert!(matches!(device.fill_payload(EventId(99), &mut payload), Err(DeviceError::Event { .. })));
    }

    #[test]
    fn a_loop_begins_again_and_skips_what_is_in_place() {
        let (_dir, mut config) = recording(b"aaaabbbbcccc");
        config.looped = true;
        let mut device = open_records(&config).unwrap();
        let mut payload = [0; 4];
        for event in 0..3 {
            device.fill_payload(EventId(event), &mut payload).unwrap();
        }
        assert_eq!(device.content_key(EventId(3)), Some(0));
        device.skip_fragment(EventId(3));
        device.fill_payload(EventId(4), &mut payload).unwrap();
        assert_eq!(&payload, b"bbbb");
        assert_eq!(device.next_payload_len(), Some(4));
    }

    #[test]
    fn bytes_left_over_are_counted() {
        let (_dir, mut config) = recording(b"aaaabbbbcc");
        let error = open_records(&config).unwrap_err().to_string();
        assert!(
            error.contains("packets.bin") && error.contains("2 records of 4 bytes and 2 bytes left over"),
            "{error}"
        );
        config.record = Some(ByteSize(0));
        assert!(matches!(open_records(&config), Err(DeviceError::Setting { option: "record", .. })));
        let (_dir, config) = recording(b"");
        assert!(matches!(open_records(&config), Err(DeviceError::Empty { .. })));
    }

    #[test]
    fn a_file_that_shrinks_while_it_is_played_is_an_error_and_can_be_tried_again() {
        let (_dir, config) = recording(b"aaaabbbb");
        let mut device = open_records(&config).unwrap();
        let mut payload = [0; 4];
        device.fill_payload(EventId(0), &mut payload).unwrap();
        std::fs::write(&config.file, b"aaaa").unwrap();
        let error = device.fill_payload(EventId(1), &mut payload).unwrap_err().to_string();
        assert!(error.contains("byte 4") && error.contains("packets.bin"), "{error}");
        std::fs::write(&config.file, b"aaaaBBBB").unwrap();
        device.fill_payload(EventId(1), &mut payload).unwrap();
        assert_eq!(&payload, b"BBBB");
    }

    #[test]
    fn what_is_not_a_file_is_refused_at_once() {
        let config = of_records("/dev/zero".into());
        assert!(open_records(&config).unwrap_err().to_string().contains("not a regular file"));
        let config = RawConfig { file: "/no/such/file".into(), ..config };
        assert!(open_records(&config).unwrap_err().to_string().contains("/no/such/file"));
    }
}
