//! What travels and what is stored: the fragment header, the control messages, CRC32C, and the maps that say what has
//! arrived.
//!
//! Everything here is pure data: no sockets, no clock, no allocation on the hot path. Each parser takes a byte slice
//! that a stranger may have written; it returns an error that names the field, never panics, and never trusts a length
//! before comparing it with what is there. The bytes are described for other languages in `docs/wire.md`.
#![forbid(unsafe_code)]

mod crc;
mod digest;
mod header;
mod interval;
mod message;
mod random;
mod record;
mod sequence;
mod tai;

pub use crc::{Crc32c, crc32c, crc32c_combine};
pub use digest::{ReprDigestError, parse_repr_digest, repr_digest};
pub use header::{
    EventId, FragmentHeader, HEADER_LEN, HEADER_MAGIC, HEADER_VERSION, HeaderError, PayloadType, RunNumber, SourceId,
    Status, TaiNanos,
};
pub use interval::IntervalMap;
pub use message::{
    Accounts, Announcement, Capabilities, Disposition, Hello, Losses, MESSAGE_LEN, MESSAGE_MAGIC, Message,
    MessageError, PROTOCOL_VERSION, Refusal, Welcome,
};
pub use random::{GAMMA, mix};
pub use record::{MAX_RECORDS, RECORD_ALIGN, RecordBytes, RecordError, Records, record_len};
pub use sequence::{Arrival, SequenceTracker};
pub use tai::{TAI_MINUS_UTC, tai_minus_utc};
