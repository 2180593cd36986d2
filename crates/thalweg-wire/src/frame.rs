//! The head of a frame, which precedes everything that a link of datagrams carries.
//!
//! A frame is *words*, a *piece* of a slot, a *probe* of the path or its answer, a *challenge* to a new peer, or the
//! end of a connection (*over*). The head of each frame also acknowledges words, so that an acknowledgement needs no
//! frame of its own while both ends have something to send.
//!
//! Words are [cells](crate::MESSAGE_LEN) of 64 bytes: a message, or a part of the text that follows one. They are
//! numbered, covered by a checksum, and retransmitted until they are acknowledged. Pieces are not: the receiver fetches
//! a missing piece again, and the records in a piece have checksums of their own.

use crate::crc32c;
use crate::fields::{u16_at, u32_at, u64_at};
use thiserror::Error;

/// Length of a head in bytes.
pub const HEAD_LEN: usize = 64;
/// First four bytes of a frame: `TWFR`.
pub const FRAME_MAGIC: u32 = u32::from_le_bytes(*b"TWFR");
/// Version of the head.
pub const FRAME_VERSION: u8 = 2;

/// The head of a frame. Numbers count modulo 2³².
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Head {
    /// Content that follows the head.
    pub content: Content,
    /// Length of the content in bytes. Anything after it is padding.
    pub length: u16,
    /// Number of the connection, drawn at random by the source.
    pub connection: u64,
    /// True if the sender asks for an immediate answer.
    pub answer: bool,
    /// All words below this number were received.
    pub received: u32,
    /// Bit *i*: the word with number `received + 1 + i` was received, too.
    pub also: u64,
    /// Number of fetches that the sender has answered in full, this frame included.
    pub served: u32,
    /// Time of the sender's clock, in microseconds.
    pub stamp: u32,
    /// Latest stamp that the sender has received, plus the time since then, in microseconds.
    pub echo: Option<u32>,
}

/// Content of a frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Content {
    /// Any number of words.
    Words {
        /// Number of the first word.
        first: u32,
        /// The token of the builder's [`Challenge`](Self::Challenge), until the builder has acknowledged a word.
        token: u64,
    },
    /// Bytes of a slot.
    Piece {
        /// Ticket of the slot.
        ticket: u64,
        /// Offset of the bytes in the slot.
        offset: u32,
    },
    /// Empty: the connection is over, or there is none.
    Over,
    /// Padding only: shows whether a datagram of this length passes. Answered by [`Probed`](Self::Probed).
    Probe {
        /// Number of the probe, given by the source.
        number: u32,
    },
    /// Answer to the probe of this number, which has arrived.
    Probed {
        /// Number of the probe.
        number: u32,
    },
    /// Answer to a hello without this token from the receiver's address: the hello is to be repeated with it.
    Challenge {
        /// Token that only a receiver at that address knows.
        token: u64,
    },
}

/// Reason why a datagram is not a valid frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum FrameError {
    /// The datagram is shorter than a head.
    #[error("a frame of {0} bytes is shorter than its header of {HEAD_LEN}")]
    Short(usize),
    /// The first four bytes are not [`FRAME_MAGIC`].
    #[error("magic {0:#010x}: not a Thalweg frame")]
    Magic(u32),
    /// The frame is of another version.
    #[error("unknown frame version {0}: this program uses version {FRAME_VERSION}")]
    Version(u8),
    /// The head was damaged on its way.
    #[error("the header's CRC32C is {found:#010x} instead of {computed:#010x}")]
    Crc {
        /// Checksum stored in the head.
        found: u32,
        /// Checksum computed from its bytes.
        computed: u32,
    },
    /// The words were damaged on their way.
    #[error("the CRC32C of the messages is {found:#010x} instead of {computed:#010x}")]
    WordsCrc {
        /// Checksum stored in the head.
        found: u32,
        /// Checksum computed from the words.
        computed: u32,
    },
    /// The kind of content is not known.
    #[error("unknown kind of frame {0}")]
    Kind(u8),
    /// The head announces more content than the datagram has.
    #[error("the header announces {announced} bytes of content, but {present} follow")]
    Length {
        /// Length of the content in bytes, by the head.
        announced: u16,
        /// Number of bytes after the head.
        present: usize,
    },
    /// The length of the words is not a multiple of a cell.
    #[error("{0} bytes of messages are not a multiple of 64")]
    Words(u16),
}

const KIND_WORDS: u8 = 1;
const KIND_PIECE: u8 = 2;
const KIND_OVER: u8 = 3;
const KIND_PROBE: u8 = 4;
const KIND_PROBED: u8 = 5;
const KIND_CHALLENGE: u8 = 6;

const ANSWER_BIT: u8 = 1;
const ECHO_BIT: u8 = 2;

impl FrameError {
    /// Returns whether the frame was damaged on its way, as opposed to never having been a frame of this version.
    pub fn is_damage(&self) -> bool {
        matches!(self, Self::Crc { .. } | Self::WordsCrc { .. } | Self::Length { .. })
    }
}

impl Head {
    /// Returns the head for `words`; `words` are not used where the content is not [`Content::Words`].
    pub fn encode(&self, words: &[u8]) -> [u8; HEAD_LEN] {
        let (kind, number, ticket) = match self.content {
            Content::Words { first, token } => (KIND_WORDS, first, token),
            Content::Piece { ticket, offset } => (KIND_PIECE, offset, ticket),
            Content::Over => (KIND_OVER, 0, 0),
            Content::Probe { number } => (KIND_PROBE, number, 0),
            Content::Probed { number } => (KIND_PROBED, number, 0),
            Content::Challenge { token } => (KIND_CHALLENGE, 0, token),
        };
        let words_crc = if kind == KIND_WORDS { crc32c(words) } else { 0 };
        let flags = if self.answer { ANSWER_BIT } else { 0 } | if self.echo.is_some() { ECHO_BIT } else { 0 };
        let mut bytes = [0; HEAD_LEN];
        let fields: [(usize, &[u8]); _] = [
            (0, &FRAME_MAGIC.to_le_bytes()),
            (4, &[FRAME_VERSION, kind, flags]),
            (8, &self.connection.to_le_bytes()),
            (16, &self.length.to_le_bytes()),
            (20, &number.to_le_bytes()),
            (24, &ticket.to_le_bytes()),
            (32, &self.received.to_le_bytes()),
            (36, &self.served.to_le_bytes()),
            (40, &self.also.to_le_bytes()),
            (48, &self.stamp.to_le_bytes()),
            (52, &self.echo.unwrap_or(0).to_le_bytes()),
            (56, &words_crc.to_le_bytes()),
        ];
        for (offset, field) in fields {
            bytes[offset..offset + field.len()].copy_from_slice(field);
        }
        let crc = crc32c(&bytes[..60]);
        bytes[60..].copy_from_slice(&crc.to_le_bytes());
        bytes
    }

    /// Decodes a datagram into its head and the content that follows.
    ///
    /// # Errors
    /// The datagram is not a frame, or a damaged one. It is to be treated as lost.
    pub fn decode(datagram: &[u8]) -> Result<(Self, &[u8]), FrameError> {
        let (bytes, content) = datagram.split_first_chunk::<HEAD_LEN>().ok_or(FrameError::Short(datagram.len()))?;
        let [magic, found] = [u32_at(bytes, 0), u32_at(bytes, 60)];
        if magic != FRAME_MAGIC {
            return Err(FrameError::Magic(magic));
        }
        if bytes[4] != FRAME_VERSION {
            return Err(FrameError::Version(bytes[4]));
        }
        let computed = crc32c(&bytes[..60]);
        if found != computed {
            return Err(FrameError::Crc { found, computed });
        }
        let length = u16_at(bytes, 16);
        let present = content.len();
        let content = content.get(..usize::from(length)).ok_or(FrameError::Length { announced: length, present })?;
        let number = u32_at(bytes, 20);
        let kind = match bytes[5] {
            KIND_WORDS if !usize::from(length).is_multiple_of(crate::MESSAGE_LEN) => {
                return Err(FrameError::Words(length));
            }
            KIND_WORDS => {
                let [found, computed] = [u32_at(bytes, 56), crc32c(content)];
                if found != computed {
                    return Err(FrameError::WordsCrc { found, computed });
                }
                Content::Words { first: number, token: u64_at(bytes, 24) }
            }
            KIND_PIECE => Content::Piece { ticket: u64_at(bytes, 24), offset: number },
            KIND_OVER => Content::Over,
            KIND_PROBE => Content::Probe { number },
            KIND_PROBED => Content::Probed { number },
            KIND_CHALLENGE => Content::Challenge { token: u64_at(bytes, 24) },
            other => return Err(FrameError::Kind(other)),
        };
        let head = Self {
            content: kind,
            length,
            connection: u64_at(bytes, 8),
            answer: bytes[6] & ANSWER_BIT != 0,
            received: u32_at(bytes, 32),
            also: u64_at(bytes, 40),
            served: u32_at(bytes, 36),
            stamp: u32_at(bytes, 48),
            echo: (bytes[6] & ECHO_BIT != 0).then(|| u32_at(bytes, 52)),
        };
        Ok((head, content))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn content() -> impl Strategy<Value = Content> {
        prop_oneof![
            any::<(u32, u64)>().prop_map(|(first, token)| Content::Words { first, token }),
            any::<(u64, u32)>().prop_map(|(ticket, offset)| Content::Piece { ticket, offset }),
            Just(Content::Over),
            any::<u32>().prop_map(|number| Content::Probe { number }),
            any::<u32>().prop_map(|number| Content::Probed { number }),
            any::<u64>().prop_map(|token| Content::Challenge { token }),
        ]
    }

    proptest! {
        #[test]
        fn what_is_encoded_is_decoded(
            content in content(),
            cells in 0u16..20,
            (connection, also) in any::<(u64, u64)>(),
            (received, served, stamp, echo) in any::<(u32, u32, u32, Option<u32>)>(),
            answer: bool,
            padding in 0usize..100,
        ) {
            let head = Head { content, length: cells * 64, connection, answer, received, also, served, stamp, echo };
            let content = vec![3; usize::from(head.length)];
            let mut datagram = [&head.encode(&content)[..], &content].concat();
            datagram.resize(datagram.len() + padding, 7);
            let (decoded, behind) = Head::decode(&datagram).unwrap();
            prop_assert_eq!((decoded, behind.len()), (head, usize::from(head.length)));
        }

        #[test]
        fn what_is_damaged_is_no_frame(content in content(), at in 0..HEAD_LEN, bit in 0u8..8) {
            let head = Head { content, length: 0, connection: 7, answer: false, received: 1, also: 0, served: 0, stamp: 0, echo: None };
            let mut bytes = head.encode(&[]);
            bytes[at] ^= 1 << bit;
            prop_assert!(Head::decode(&bytes).is_err());
        }

        #[test]
        fn a_bit_that_flips_in_words_damages_the_frame(cells in 1u16..20, at: prop::sample::Index, bit in 0u8..8) {
            let content = Content::Words { first: 5, token: 0 };
            let words = vec![3; usize::from(cells) * 64];
            let head = Head { content, length: cells * 64, connection: 7, answer: false, received: 1, also: 0, served: 0, stamp: 0, echo: None };
            let mut datagram = [&head.encode(&words)[..], &words].concat();
            datagram[HEAD_LEN + at.index(words.len())] ^= 1 << bit;
            prop_assert!(matches!(Head::decode(&datagram), Err(error) if error.is_damage()));
        }

        #[test]
        fn any_bytes_are_decoded_or_refused(mut bytes in proptest::collection::vec(any::<u8>(), 0..200), mend: bool) {
            if mend && bytes.len() >= HEAD_LEN {
                bytes[..5].copy_from_slice(&[b'T', b'W', b'F', b'R', FRAME_VERSION]);
                let crc = crc32c(&bytes[..60]).to_le_bytes();
                bytes[60..64].copy_from_slice(&crc);
            }
            if let Ok((head, content)) = Head::decode(&bytes) {
                prop_assert_eq!(usize::from(head.length), content.len());
            }
        }
    }

    /// Golden bytes, also shown in `docs/wire.md`.
    #[test]
    fn golden_bytes() {
        let words = crate::Message::Pause.encode();
        let content = Content::Words { first: 0x0102, token: 0x0304 };
        let head = Head {
            content,
            length: 64,
            connection: 0x1122_3344_5566_7788,
            answer: true,
            received: 5,
            also: 6,
            served: 7,
            stamp: 8,
            echo: Some(9),
        };
        let hex: String = head.encode(&words).iter().map(|byte| format!("{byte:02x}")).collect();
        let expected = "5457465202010300887766554433221140000000020100000403000000000000\
                        050000000700000006000000000000000800000009000000c74b6748f096a088";
        assert_eq!(hex, expected);
    }
}
