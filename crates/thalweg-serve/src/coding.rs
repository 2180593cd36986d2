//! Compression, where a client asks for it (RFC 9110, section 12.5.3).

use crate::answer::Answer;
use flate2::Compression;
use flate2::write::GzEncoder;
use http::HeaderMap;
use http::header::{ACCEPT_ENCODING, CONTENT_ENCODING};
use std::io::{self, Write};

/// A content coding.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Coding {
    Zstd,
    Gzip,
}

impl Coding {
    /// Returns the preferred coding among those that the client names, unless it gives them a weight of 0.
    pub(crate) fn preferred_coding(fields: &HeaderMap) -> Option<Self> {
        let values = fields.get_all(ACCEPT_ENCODING).iter().filter_map(|value| value.to_str().ok());
        let mut wanted = None;
        for element in values.flat_map(|value| value.split(',')) {
            let (name, parameters) = element.split_once(';').unwrap_or((element, ""));
            let weight = parameters.trim().strip_prefix(['q', 'Q']).and_then(|weight| weight.strip_prefix('='));
            let weight = weight.map_or(Ok(1.0), str::parse::<f32>);
            if weight.is_ok_and(|weight| weight > 0.0) {
                match name.trim().to_ascii_lowercase().as_str() {
                    "zstd" => return Some(Self::Zstd),
                    "gzip" | "x-gzip" => wanted = Some(Self::Gzip),
                    _ => {}
                }
            }
        }
        wanted
    }

    /// Returns the coding's name in header fields.
    pub(crate) const fn field_name(self) -> &'static str {
        match self {
            Self::Zstd => "zstd",
            Self::Gzip => "gzip",
        }
    }

    /// Encodes the bytes that `feed` writes, and returns the writer.
    pub(crate) fn encode_stream<W: Write>(
        self,
        into: W,
        feed: impl FnOnce(&mut dyn Write) -> io::Result<()>,
    ) -> io::Result<W> {
        match self {
            Self::Zstd => {
                let mut encoder = zstd::Encoder::new(into, ZSTD_LEVEL)?;
                feed(&mut encoder)?;
                encoder.finish()
            }
            Self::Gzip => {
                let mut encoder = GzEncoder::new(into, Compression::fast());
                feed(&mut encoder)?;
                encoder.finish()
            }
        }
    }
}

/// Compresses the bytes if the client asks for it and they become shorter, and returns the answer with the coding
/// named.
pub(crate) fn compress_if_shorter(answer: Answer, bytes: Vec<u8>, fields: &HeaderMap) -> (Answer, Vec<u8>) {
    let coding = Coding::preferred_coding(fields).filter(|_| bytes.len() > MAX_PLAIN_BYTES);
    match coding
        .and_then(|coding| Some((coding, coding.encode_stream(Vec::new(), |encoder| encoder.write_all(&bytes)).ok()?)))
    {
        Some((coding, coded)) if coded.len() < bytes.len() => {
            (answer.with_field(CONTENT_ENCODING, coding.field_name()), coded)
        }
        _ => (answer, bytes),
    }
}

/// Number of bytes up to which compression saves no packet.
pub(crate) const MAX_PLAIN_BYTES: usize = 1024;
/// Level that `zstd` uses by default.
const ZSTD_LEVEL: i32 = 3;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_coding_is_used_only_where_it_is_asked_for() {
        for (field, coding) in [
            ("gzip, deflate, br, zstd", Some(Coding::Zstd)),
            ("GZIP;q=0.5", Some(Coding::Gzip)),
            ("x-gzip", Some(Coding::Gzip)),
            ("gzip;q=0, identity", None),
            ("gzip; Q=0.0", None),
            ("*", None),
            ("br", None),
        ] {
            let fields = [(ACCEPT_ENCODING, field.parse().unwrap())].into_iter().collect();
            assert_eq!(Coding::preferred_coding(&fields), coding, "{field}");
        }
        assert_eq!(Coding::preferred_coding(&HeaderMap::new()), None);
    }
}
