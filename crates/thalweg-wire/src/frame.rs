//! The head of a frame: what stands in front of everything that a link of datagrams carries.
//!
//! A frame is *words*, a *piece* of a slot, or says that a connection is *over*. Whatever it is, its head says also what
//! the sender has heard, so that nothing has to be said for that alone while both ends have something to say.
//!
//! Words are [cells](crate::MESSAGE_LEN) of 64 bytes: a message, or a part of the text behind one. They are numbered,
//! and sent again until they are heard. Pieces are not: who misses one asks for it again.

use crate::Crc32c;
use thiserror::Error;

/// Bytes of a head.
pub const HEAD_LEN: usize = 64;
/// The first four bytes of a frame, `TWFR`.
pub const FRAME_MAGIC: u32 = u32::from_le_bytes(*b"TWFR");
/// The version of the head.
pub const FRAME_VERSION: u8 = 2;

/// The head of a frame. Numbers count modulo 2³².
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Head {
    /// What is behind it.
    pub content: Content,
    /// Bytes of that. What follows is padding.
    pub length: u16,
    /// Which connection: the source has drawn it at random.
    pub connection: u64,
    /// The sender wants to be answered at once.
    pub answer: bool,
    /// All words below this number were heard.
    pub heard: u32,
    /// Bit *i*: the word with number `heard + 1 + i` was heard, too.
    pub also: u64,
    /// How many fetches the sender has answered in full, with this frame.
    pub served: u32,
    /// The sender's clock, in microseconds.
    pub stamp: u32,
    /// The latest stamp that the sender has heard, and as much later as that is ago.
    pub echo: Option<u32>,
}

/// What is in a frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Content {
    /// Words, any number of them: the first has this number.
    Words {
        /// Its number.
        first: u32,
    },
    /// Bytes of a slot.
    Piece {
        /// Which.
        ticket: u64,
        /// Where in it they begin.
        offset: u32,
    },
    /// Nothing: the connection is over, or there is none.
    Over,
}

/// What is wrong with a head.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum FrameError {
    /// Shorter than a head.
    #[error("a frame of {0} bytes is shorter than its head of {HEAD_LEN}")]
    Short(usize),
    /// Something else.
    #[error("magic {0:#010x}: not a frame of Thalweg's")]
    Magic(u32),
    /// Of another version.
    #[error("version {0} of frames is not known here: this is version {FRAME_VERSION}")]
    Version(u8),
    /// Damaged on its way.
    #[error("the CRC32C of its head and words is {found:#010x} and should be {computed:#010x}")]
    Crc {
        /// As it says.
        found: u32,
        /// As it is.
        computed: u32,
    },
    /// Not one of those there are.
    #[error("kind {0} of frames does not exist")]
    Kind(u8),
    /// More content than the datagram has.
    #[error("the head tells of {told} bytes, and {there} are there")]
    Length {
        /// As it says.
        told: u16,
        /// As it is.
        there: usize,
    },
    /// Words are whole cells.
    #[error("{0} bytes of words are no cells of 64")]
    Words(u16),
}

const WORDS: u8 = 1;
const PIECE: u8 = 2;
const OVER: u8 = 3;

const ANSWER: u8 = 1;
const ECHO: u8 = 2;

impl Head {
    /// As it is sent in front of `words`, which are none where the content is something else. Its checksum covers both.
    pub fn encode(&self, words: &[u8]) -> [u8; HEAD_LEN] {
        let (kind, number, ticket) = match self.content {
            Content::Words { first } => (WORDS, first, 0),
            Content::Piece { ticket, offset } => (PIECE, offset, ticket),
            Content::Over => (OVER, 0, 0),
        };
        let flags = if self.answer { ANSWER } else { 0 } | if self.echo.is_some() { ECHO } else { 0 };
        let mut bytes = [0; HEAD_LEN];
        let mut put = |at: usize, field: &[u8]| bytes[at..at + field.len()].copy_from_slice(field);
        put(0, &FRAME_MAGIC.to_le_bytes());
        put(4, &[FRAME_VERSION, kind, flags]);
        put(8, &self.connection.to_le_bytes());
        put(16, &self.length.to_le_bytes());
        put(20, &number.to_le_bytes());
        put(24, &ticket.to_le_bytes());
        put(32, &self.heard.to_le_bytes());
        put(36, &self.served.to_le_bytes());
        put(40, &self.also.to_le_bytes());
        put(48, &self.stamp.to_le_bytes());
        put(52, &self.echo.unwrap_or(0).to_le_bytes());
        let crc = checksum(&bytes, words);
        bytes[60..].copy_from_slice(&crc.to_le_bytes());
        bytes
    }

    /// Of a datagram: the head, and the content behind it.
    ///
    /// # Errors
    /// It is no frame, or a damaged one. Such a datagram says nothing, not even that somebody is there.
    pub fn decode(datagram: &[u8]) -> Result<(Self, &[u8]), FrameError> {
        let (bytes, content) = datagram.split_first_chunk::<HEAD_LEN>().ok_or(FrameError::Short(datagram.len()))?;
        let [magic, found] = [u32_at(bytes, 0), u32_at(bytes, 60)];
        if magic != FRAME_MAGIC {
            return Err(FrameError::Magic(magic));
        }
        if bytes[4] != FRAME_VERSION {
            return Err(FrameError::Version(bytes[4]));
        }
        let length = u16::from_le_bytes([bytes[16], bytes[17]]);
        let there = content.len();
        let content = content.get(..usize::from(length)).ok_or(FrameError::Length { told: length, there })?;
        let computed = checksum(bytes, if bytes[5] == WORDS { content } else { &[] });
        if found != computed {
            return Err(FrameError::Crc { found, computed });
        }
        let number = u32_at(bytes, 20);
        let kind = match bytes[5] {
            WORDS if !usize::from(length).is_multiple_of(crate::MESSAGE_LEN) => return Err(FrameError::Words(length)),
            WORDS => Content::Words { first: number },
            PIECE => Content::Piece { ticket: u64_at(bytes, 24), offset: number },
            OVER => Content::Over,
            other => return Err(FrameError::Kind(other)),
        };
        let head = Self {
            content: kind,
            length,
            connection: u64_at(bytes, 8),
            answer: bytes[6] & ANSWER != 0,
            heard: u32_at(bytes, 32),
            also: u64_at(bytes, 40),
            served: u32_at(bytes, 36),
            stamp: u32_at(bytes, 48),
            echo: (bytes[6] & ECHO != 0).then(|| u32_at(bytes, 52)),
        };
        Ok((head, content))
    }
}

/// Of a head, and of the words behind it.
fn checksum(head: &[u8; HEAD_LEN], words: &[u8]) -> u32 {
    let mut crc = Crc32c::new();
    crc.update(&head[..60]);
    crc.update(words);
    crc.value()
}

fn u32_at(bytes: &[u8; HEAD_LEN], at: usize) -> u32 {
    bytes[at..].first_chunk().map_or(0, |field| u32::from_le_bytes(*field))
}

fn u64_at(bytes: &[u8; HEAD_LEN], at: usize) -> u64 {
    bytes[at..].first_chunk().map_or(0, |field| u64::from_le_bytes(*field))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn content() -> impl Strategy<Value = Content> {
        prop_oneof![
            any::<u32>().prop_map(|first| Content::Words { first }),
            any::<(u64, u32)>().prop_map(|(ticket, offset)| Content::Piece { ticket, offset }),
            Just(Content::Over),
        ]
    }

    proptest! {
        #[test]
        fn what_is_encoded_is_decoded(
            content in content(),
            cells in 0u16..20,
            (connection, also) in any::<(u64, u64)>(),
            (heard, served, stamp, echo) in any::<(u32, u32, u32, Option<u32>)>(),
            answer: bool,
            padding in 0usize..100,
        ) {
            let head = Head { content, length: cells * 64, connection, answer, heard, also, served, stamp, echo };
            let behind = vec![7; usize::from(head.length)];
            let words = if matches!(content, Content::Words { .. }) { &behind[..] } else { &[] };
            let mut datagram = [&head.encode(words), &behind[..]].concat();
            datagram.resize(datagram.len() + padding, 7);
            let (decoded, behind) = Head::decode(&datagram).unwrap();
            prop_assert_eq!((decoded, behind.len()), (head, usize::from(head.length)));
        }

        #[test]
        fn what_is_damaged_is_no_frame(content in content(), at in 0..3 * HEAD_LEN, bit in 0u8..8) {
            let words = if matches!(content, Content::Words { .. }) { &[3; 2 * HEAD_LEN][..] } else { &[] };
            let length = words.len() as u16;
            let head = Head { content, length, connection: 7, answer: false, heard: 1, also: 0, served: 0, stamp: 0, echo: None };
            let mut bytes = [&head.encode(words), words].concat();
            let at = at % bytes.len();
            bytes[at] ^= 1 << bit;
            prop_assert!(Head::decode(&bytes).is_err());
        }

        #[test]
        fn any_bytes_are_decoded_or_refused(mut bytes in proptest::collection::vec(any::<u8>(), 0..200), mend: bool) {
            if mend && bytes.len() >= HEAD_LEN {
                bytes[..5].copy_from_slice(&[b'T', b'W', b'F', b'R', FRAME_VERSION]);
                bytes[5] = PIECE;
                let crc = crate::crc32c(&bytes[..60]).to_le_bytes();
                bytes[60..64].copy_from_slice(&crc);
            }
            if let Ok((head, content)) = Head::decode(&bytes) {
                prop_assert_eq!(usize::from(head.length), content.len());
            }
        }
    }
}
