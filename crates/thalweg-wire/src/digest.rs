//! A CRC32C in HTTP's form: `Repr-Digest` (RFC 9530), a dictionary of byte sequences (RFC 9651).

use sfv::{BareItem, DictSerializer, Dictionary, Item, KeyRef, ListEntry, Parser};
use thiserror::Error;

/// Error for a field that is not a dictionary, or whose CRC32C is not four bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[error("the Repr-Digest is not crc32c=:…: with four bytes in base64")]
pub struct ReprDigestError;

/// Returns the value of a `Repr-Digest` field with this CRC32C.
pub fn format_repr_digest(crc32c: u32) -> String {
    let mut dictionary = DictSerializer::new();
    let _ = dictionary.bare_item(CRC32C, &crc32c.to_be_bytes()[..]);
    dictionary.finish().unwrap_or_default()
}

/// Returns the CRC32C in a `Repr-Digest` field; `None` if the field has only other algorithms. A field of several lines
/// is passed as these lines joined by commas (RFC 9110, section 5.2).
///
/// # Errors
/// The field cannot be parsed. HTTP then allows the field to be ignored, or the whole message to be refused (RFC 9651,
/// section 4.2).
pub fn parse_repr_digest(field: &str) -> Result<Option<u32>, ReprDigestError> {
    let dictionary: Dictionary = Parser::new(field).parse().map_err(|_| ReprDigestError)?;
    match dictionary.get(CRC32C) {
        None => Ok(None),
        Some(ListEntry::Item(Item { bare_item: BareItem::ByteSequence(bytes), .. })) => {
            let bytes = bytes.as_slice().try_into().map_err(|_| ReprDigestError)?;
            Ok(Some(u32::from_be_bytes(bytes)))
        }
        Some(_) => Err(ReprDigestError),
    }
}

const CRC32C: &KeyRef = KeyRef::constant("crc32c");

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_field_is_read_as_it_is_written() {
        // The check value of the CRC catalogue.
        let field = format_repr_digest(crate::crc32c(b"123456789"));
        assert_eq!(field, "crc32c=:4waSgw==:");
        assert_eq!(parse_repr_digest(&field), Ok(Some(0xe306_9283)));
        for field in ["sha-256=:AAAA:, crc32c=:4waSgw==:;a=1", "a=\", crc32c=:AAAAAA==:\",crc32c=:4waSgw==:"] {
            assert_eq!(parse_repr_digest(field), Ok(Some(0xe306_9283)), "{field}");
        }
    }

    /// Examples of RFC 9530, appendices B.1 and C.2, and the one of section 2 with several algorithms.
    #[test]
    fn other_algorithms_say_nothing() {
        for field in [
            "",
            "sha-256=:RK/0qy18MlBSVnWgjwz6lZEWjP/lF5HF9bvEF8FabDg=:",
            "sha-512=:YMAam51Jz/jOATT6/zvHrLVgOYTGFy1d6GJiOHTohq4yP+pgk4vf2aCsyRZOtw8MjkM7iw7yZ/WkppmM44T3qg==:",
            "sha-256=:RK/0qy18MlBSVnWgjwz6lZEWjP/lF5HF9bvEF8FabDg=:,\
             sha-512=:YMAam51Jz/jOATT6/zvHrLVgOYTGFy1d6GJiOHTohq4yP+pgk4vf2aCsyRZOtw8MjkM7iw7yZ/WkppmM44T3qg==:",
        ] {
            assert_eq!(parse_repr_digest(field), Ok(None), "{field}");
        }
    }

    #[test]
    fn anything_else_is_an_error() {
        for field in [
            "crc32c",
            "crc32c=4waSgw==",
            "crc32c=:4waSgw==",
            "crc32c=:4waSg:",
            "crc32c=:4waSg4waSgw==:",
            "crc32c=(1)",
            ",",
        ] {
            assert_eq!(parse_repr_digest(field), Err(ReprDigestError), "{field}");
        }
    }
}
