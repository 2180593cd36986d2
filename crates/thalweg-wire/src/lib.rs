//! Wire and storage formats: the fragment header, the control messages, CRC32C, and the maps that track what has
//! arrived.
//!
//! Everything here is pure data: no sockets, no clock, no allocation on the hot path. Each parser takes a byte slice
//! from an untrusted writer; it returns an error that names the field, never panics, and compares each length with the
//! bytes present before it relies on it. `docs/wire.md` describes the bytes for other languages.
//!
//! # Files, in the order of the data's way
//!
//! | file | what is in it |
//! | --- | --- |
//! | `header` | The 64-byte fragment header that directly precedes each payload, on the wire and on disk alike |
//! | `payload` | The type of a payload: its elements, and the meaning of its axes |
//! | `chunks` | Chunk data of a camera (GenICam): an image followed by the camera's data about it, each part followed by its tag |
//! | `record` | Records laid out back to back, each header directly before its payload: the layout of a slot, of a fetched range and of a block on disk |
//! | `crc` | CRC32C (Castagnoli, RFC 3720 appendix B.4), as used by iSCSI, SCTP and iWARP |
//! | `message` | Control messages between a source and a builder, independent of the link that carries them |
//! | `frame` | The head of a frame, which precedes everything that a link of datagrams carries |
//! | `fields` | Little-endian numbers at fixed places in 64 bytes: the fields of a header and of a frame's head |
//! | `interval` | A set of byte ranges, for what has arrived of a fragment and what is still missing |
//! | `sequence` | A tracker for a source's 32-bit sequence numbers, which distinguishes new, repeated and missing ones |
//! | `shifts` | A constant shift between the numbers that two sources give the same triggers, found by their fragments' times |
//! | `digest` | A CRC32C in HTTP's form: `Repr-Digest` (RFC 9530), a dictionary of byte sequences (RFC 9651) |
//! | `range` | Ranges of events in the notation for users: `7`, `10..20`, `10..`, `..20`, `..` |
//! | `random` | Pseudorandom numbers from a seed, the same on every platform: SplitMix64 (Steele, Lea and Flood, *Fast splittable pseudorandom number generators*, OOPSLA 2014; constants of Vigna's `splitmix64.c`) |
//! | `tai` | The difference between TAI and UTC |
#![forbid(unsafe_code)]

mod chunks;
mod crc;
mod digest;
mod fields;
mod frame;
mod header;
mod interval;
mod message;
mod payload;
mod random;
mod range;
mod record;
mod sequence;
mod shifts;
mod tai;

pub use chunks::{Chunk, parse_chunks, split_image_and_chunks};
pub use crc::{Crc32c, crc32c, crc32c_combine};
pub use digest::{ReprDigestError, format_repr_digest, parse_repr_digest};
pub use frame::{Content, FRAME_MAGIC, FRAME_VERSION, FrameError, HEAD_LEN, Head};
pub use header::{
    EventId, FragmentHeader, HEADER_LEN, HEADER_MAGIC, HEADER_VERSION, HeaderError, RunNumber, SourceId, Status,
    TaiNanos,
};
pub use interval::IntervalMap;
pub use message::{
    Announcement, Assign, Capabilities, Contact, Disposition, FinalCounters, Hello, Left, Losses, MESSAGE_LEN,
    MESSAGE_MAGIC, Message, MessageError, NotTaken, PROTOCOL_VERSION, Refusal, Region, Room, RoomReport, RunCounters,
    Sender, TriggerTimes, Welcome,
};
pub use payload::{Element, ElementError, Meaning, NumberKind, PayloadType};
pub use random::{GOLDEN_GAMMA, mix_bits};
pub use range::{EventRange, EventRangeError};
pub use record::{MAX_RECORDS, RECORD_ALIGN, RecordBytes, RecordError, Records, record_bytes};
pub use sequence::{Arrival, SequenceTracker};
pub use shifts::{EventTimes, MOST_SHIFT, SHIFT_WINDOW, Shift, trigger_time};
pub use tai::{TAI_MINUS_UTC, tai_minus_utc};
