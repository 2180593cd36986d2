//! What travels and what is stored: the fragment header, the control messages, CRC32C, and the maps that say what has
//! arrived.
//!
//! Everything here is pure data: no sockets, no clock, no allocation on the hot path. Each parser takes a byte slice
//! that a stranger may have written; it returns an error that names the field, never panics, and never trusts a length
//! before comparing it with what is there. The bytes are described for other languages in `docs/wire.md`.
//!
//! # Files, in the order of the data's way
//!
//! | file | what is in it |
//! | --- | --- |
//! | `header` | The 64-byte fragment header that stands directly in front of each payload, on the wire and on disk alike |
//! | `payload` | What a payload is made of: the type of its elements, and what its axes mean |
//! | `chunks` | Chunk data of a camera (GenICam): an image, and behind it what the camera says of it |
//! | `record` | Fragments laid one behind the other, each header in place in front of its payload: how a slot is filled, what a fetch moves, and how a block on disk is made |
//! | `crc` | CRC32C (Castagnoli, RFC 3720 appendix B.4), as used by iSCSI, SCTP and iWARP |
//! | `message` | Control messages: what a source and a builder say to each other, whatever carries it |
//! | `frame` | The head of a frame: what stands in front of everything that a link of datagrams carries |
//! | `interval` | A set of byte ranges: what has arrived of a fragment, and what is still missing |
//! | `sequence` | Follows a source's 32-bit sequence numbers and says which are new, repeated or missing |
//! | `shifts` | A constant shift between the numbers that two sources give the same triggers, found by their fragments' times |
//! | `digest` | A CRC32C as HTTP has it: `Repr-Digest` (RFC 9530), a dictionary of byte sequences (RFC 9651) |
//! | `range` | Ranges of events as people name them: `7`, `10..20`, `10..`, `..20` |
//! | `random` | Numbers that a seed decides, the same everywhere: SplitMix64 (Steele, Lea and Flood, *Fast splittable pseudorandom number generators*, OOPSLA 2014; constants of Vigna's `splitmix64.c`) |
//! | `tai` | How far TAI is ahead of UTC |
#![forbid(unsafe_code)]

mod chunks;
mod crc;
mod digest;
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

pub use chunks::{Chunk, chunks, image_and_chunks};
pub use crc::{Crc32c, crc32c, crc32c_combine};
pub use digest::{ReprDigestError, parse_repr_digest, repr_digest};
pub use frame::{Content, FRAME_MAGIC, FRAME_VERSION, FrameError, HEAD_LEN, Head};
pub use header::{
    EventId, FragmentHeader, HEADER_LEN, HEADER_MAGIC, HEADER_VERSION, HeaderError, RunNumber, SourceId, Status,
    TaiNanos,
};
pub use interval::IntervalMap;
pub use message::{
    Accounts, Announcement, Assign, Capabilities, Contact, Disposition, Heard, Hello, Left, Losses, MESSAGE_LEN,
    MESSAGE_MAGIC, Message, MessageError, NotTaken, PROTOCOL_VERSION, Refusal, Room, Sender, TriggerTimes, Welcome,
};
pub use payload::{Element, ElementError, Meaning, NumberKind, PayloadType};
pub use random::{GAMMA, mix};
pub use range::{EventRange, EventRangeError};
pub use record::{MAX_RECORDS, RECORD_ALIGN, RecordBytes, RecordError, Records, record_len};
pub use sequence::{Arrival, SequenceTracker};
pub use shifts::{EventTimes, MOST_SHIFT, SHIFT_WINDOW, Shift, trigger_time};
pub use tai::{TAI_MINUS_UTC, tai_minus_utc};
