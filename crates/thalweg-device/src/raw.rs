//! Replay of a file of records of one size, such as a front end's packets or frames without a header.

use crate::file::InputFile;
use crate::replay::{Recording, Replay};
use crate::{Description, DeviceError, Filled, MAX_PAYLOAD, RawConfig};
use thalweg_wire::{PayloadType, Status};

/// Opens the file and checks that it holds whole records.
pub(crate) fn open(config: &RawConfig) -> Result<Replay<Raw>, DeviceError> {
    let record = config.record.0;
    let size = usize::try_from(record)
        .ok()
        .filter(|size| (1..=MAX_PAYLOAD).contains(size))
        .ok_or(DeviceError::Setting { option: "record", value: record, expected: "from 1 byte to 1 GiB" })?;
    let file = InputFile::open(&config.file)?;
    if file.len() == 0 {
        return Err(DeviceError::Empty { file: config.file.clone() });
    }
    if !file.len().is_multiple_of(record) {
        return Err(DeviceError::Leftover { file: config.file.clone(), length: file.len(), record });
    }
    let description = Description {
        kind: "raw".to_owned(),
        payload_type: PayloadType::RAW.name().to_owned(),
        record_bytes: Some(record),
        file: Some(config.file.display().to_string()),
        ..Default::default()
    };
    Ok(Replay::new(Raw { file, size }, description, size, config.looped))
}

#[derive(Debug)]
pub(crate) struct Raw {
    file: InputFile,
    size: usize,
}

impl Recording for Raw {
    fn records(&self) -> u64 {
        self.file.len() / self.size as u64
    }

    fn payload_len(&self, _record: u64) -> usize {
        self.size
    }

    fn filled(&self, _record: u64) -> Filled {
        Filled { payload_type: PayloadType::RAW, status: Status::REPLAYED, window: 0, timestamp: None }
    }

    fn read(&mut self, record: u64, payload: &mut [u8]) -> Result<(), DeviceError> {
        self.file.read_at(record * self.size as u64, payload)
    }

    fn pass_nanos(&self) -> u64 {
        0
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{ByteSize, Device};
    use thalweg_wire::EventId;

    fn recording(bytes: &[u8]) -> (tempfile::TempDir, RawConfig) {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("packets.bin");
        std::fs::write(&file, bytes).unwrap();
        (dir, RawConfig { file, record: ByteSize(4), looped: false })
    }

    #[test]
    fn one_pass_gives_every_record_and_ends() {
        let (_dir, config) = recording(b"aaaabbbbcccc");
        let mut device = open(&config).unwrap();
        let mut payload = [0; 4];
        for (event, expected) in (100..).zip([b"aaaa", b"bbbb", b"cccc"]) {
            assert_eq!(device.next_len(), Some(4));
            assert_eq!(device.content_key(EventId(event)), Some(event - 100));
            assert_eq!(device.fill(EventId(event), &mut payload).unwrap().status, Status::REPLAYED);
            assert_eq!(&payload, expected);
        }
        assert_eq!(device.next_len(), None);
        assert_eq!(device.content_key(EventId(103)), None);
        assert!(matches!(device.fill(EventId(103), &mut payload), Err(DeviceError::Event { records: 3, .. })));
        assert!(matches!(device.fill(EventId(99), &mut payload), Err(DeviceError::Event { .. })));
    }

    #[test]
    fn a_loop_begins_again_and_skips_what_is_in_place() {
        let (_dir, mut config) = recording(b"aaaabbbbcccc");
        config.looped = true;
        let mut device = open(&config).unwrap();
        let mut payload = [0; 4];
        for event in 0..3 {
            device.fill(EventId(event), &mut payload).unwrap();
        }
        assert_eq!(device.content_key(EventId(3)), Some(0));
        device.skip(EventId(3));
        device.fill(EventId(4), &mut payload).unwrap();
        assert_eq!(&payload, b"bbbb");
        assert_eq!(device.next_len(), Some(4));
    }

    #[test]
    fn bytes_left_over_are_counted() {
        let (_dir, mut config) = recording(b"aaaabbbbcc");
        let error = open(&config).unwrap_err().to_string();
        assert!(
            error.contains("packets.bin") && error.contains("2 records of 4 bytes and 2 bytes left over"),
            "{error}"
        );
        config.record = ByteSize(0);
        assert!(matches!(open(&config), Err(DeviceError::Setting { option: "record", .. })));
        let (_dir, config) = recording(b"");
        assert!(matches!(open(&config), Err(DeviceError::Empty { .. })));
    }

    #[test]
    fn a_file_that_shrinks_while_it_is_played_is_an_error_and_can_be_tried_again() {
        let (_dir, config) = recording(b"aaaabbbb");
        let mut device = open(&config).unwrap();
        let mut payload = [0; 4];
        device.fill(EventId(0), &mut payload).unwrap();
        std::fs::write(&config.file, b"aaaa").unwrap();
        let error = device.fill(EventId(1), &mut payload).unwrap_err().to_string();
        assert!(error.contains("byte 4") && error.contains("packets.bin"), "{error}");
        std::fs::write(&config.file, b"aaaaBBBB").unwrap();
        device.fill(EventId(1), &mut payload).unwrap();
        assert_eq!(&payload, b"BBBB");
    }

    #[test]
    fn what_is_not_a_file_is_refused_at_once() {
        let config = RawConfig { file: "/dev/zero".into(), record: ByteSize(4), looped: false };
        assert!(open(&config).unwrap_err().to_string().contains("not a regular file"));
        let config = RawConfig { file: "/no/such/file".into(), ..config };
        assert!(open(&config).unwrap_err().to_string().contains("/no/such/file"));
    }
}
