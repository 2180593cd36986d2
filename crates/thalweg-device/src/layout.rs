//! Layout of a device's records, where it has to be configured: a number of bytes, or an array.

use crate::{DeviceError, MAX_AXES, MAX_PAYLOAD, StoredType};
use std::path::Path;
use thalweg_text::ByteSize;
use thalweg_wire::PayloadType;

/// Layout of records of one size.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Layout {
    /// Length of each record, in bytes.
    pub bytes: usize,
    /// Type of the payload.
    pub payload_type: PayloadType,
    /// Lengths of the axes, if records are arrays: the last one without gaps.
    pub shape: Option<Vec<u64>>,
    stored: Option<StoredType>,
}

impl Layout {
    /// Creates the layout of records of `record` bytes, or of elements of a type with these axes, or with one axis.
    ///
    /// # Errors
    /// The options are incomplete or contradictory, or the records would be longer than 1 GiB.
    pub fn new(
        record: Option<ByteSize>,
        stored: Option<StoredType>,
        shape: Option<&[u64]>,
    ) -> Result<Self, DeviceError> {
        let (bytes, shape) = record_layout(record.map(|record| record.0), stored, shape)?;
        let bytes = usize::try_from(bytes)
            .ok()
            .filter(|bytes| (1..=MAX_PAYLOAD).contains(bytes))
            .ok_or(DeviceError::Setting { option: "record", value: bytes, expected: "from 1 byte to 1 GiB" })?;
        let array = stored.zip(shape).map(|(stored, shape)| stored.payload_layout(shape));
        let (payload_type, shape) = array.map_or((PayloadType::RAW, None), |(kind, shape)| (kind, Some(shape)));
        Ok(Self { bytes, payload_type, shape, stored })
    }

    /// Converts a record to the byte order of fragments, little-endian.
    pub fn to_little_endian(&self, record: &mut [u8]) {
        if let Some(stored) = self.stored {
            stored.to_little_endian(record);
        }
    }

    /// Returns a note for the user on records from that file, if there is anything to know.
    pub fn byte_order_note(&self, from: &Path) -> Option<String> {
        self.stored.and_then(|stored| stored.byte_order_note(from))
    }
}

/// Returns the number of bytes in a record, and its axes if it is an array.
fn record_layout(
    record: Option<u64>,
    stored: Option<StoredType>,
    shape: Option<&[u64]>,
) -> Result<(u64, Option<Vec<u64>>), DeviceError> {
    match (stored, shape, record) {
        (None, None, Some(record)) => Ok((record, None)),
        (_, None, None) => {
            let problem = "missing: write the size of a record in bytes, such as record = 4096, or its contents, such \
                as type = \"i16\", shape = [1024, 2]";
            Err(option_error("record", problem))
        }
        (None, Some(_), _) => {
            Err(option_error("shape", "the type of the elements is missing: add it, such as type = \"i16\""))
        }
        (Some(StoredType { element, .. }), None, Some(record)) => {
            match record.is_multiple_of(element.element_bytes() as u64) {
                true => Ok((record, Some(vec![record / element.element_bytes() as u64]))),
                false => Err(option_error("record", format!("{record} bytes are not a whole number of {element}"))),
            }
        }
        (Some(StoredType { element, .. }), Some(shape), record) => {
            if shape.is_empty() || shape.len() > MAX_AXES || shape.contains(&0) {
                let problem = format!("{shape:?}: it must have 1 to {MAX_AXES} lengths, each at least 1");
                return Err(option_error("shape", problem));
            }
            match (element.array_bytes(shape), record) {
                (Some(bytes), None) => Ok((bytes, Some(shape.to_vec()))),
                (Some(bytes), Some(record)) if bytes == record => Ok((bytes, Some(shape.to_vec()))),
                (Some(bytes), Some(record)) => Err(option_error(
                    "shape",
                    format!("{shape:?} of {element} takes {bytes} bytes, but record is {record}"),
                )),
                (None, _) => Err(option_error(
                    "shape",
                    format!("{shape:?} of {element} takes more bytes than 64 bits can count"),
                )),
            }
        }
    }
}

fn option_error(option: &'static str, problem: impl Into<String>) -> DeviceError {
    DeviceError::Option { option, problem: problem.into() }
}
