//! Permissions: bearer tokens (RFC 6750) for directories.

use serde::Deserialize;
use sha2::{Digest, Sha256};
use std::path::{Path, PathBuf};

/// Permissions of the holders of tokens.
#[derive(Debug, Clone, Default)]
pub struct Tokens {
    grants: Vec<Grant>,
}

#[derive(Debug, Clone)]
struct Grant {
    sha256: [u8; 32],
    path: PathBuf,
    write: bool,
}

/// Reason why a token file cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum TokenError {
    /// The file is not TOML of the expected form.
    #[error("{0}")]
    Toml(#[from] toml::de::Error),
    /// A token's hash is malformed.
    #[error("token {number}: sha256 is not 64 hexadecimal digits")]
    Hash {
        /// Number of the token, counted from 1.
        number: usize,
    },
    /// A token's path is malformed.
    #[error("token {number}: path {path} does not begin with a slash, or contains ..")]
    Path {
        /// Number of the token, counted from 1.
        number: usize,
        /// Path as it is written in the file.
        path: String,
    },
    /// The file has no token, so that no one could do anything.
    #[error("it contains no [[token]]")]
    Empty,
}

/// Result of a permission check.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// The request is permitted.
    Allowed,
    /// The token is missing or unknown: 401.
    Unknown,
    /// The token is known and does not permit this: 403.
    Forbidden,
}

impl Tokens {
    /// Reads a token file.
    ///
    /// # Errors
    /// Fails if the text is not a token file, has no token, or a token's hash or path is malformed.
    pub fn parse(text: &str) -> Result<Self, TokenError> {
        #[derive(Deserialize)]
        #[serde(deny_unknown_fields)]
        struct File {
            #[serde(default)]
            token: Vec<Entry>,
        }
        #[derive(Deserialize)]
        #[serde(deny_unknown_fields)]
        struct Entry {
            sha256: String,
            path: String,
            #[serde(default)]
            write: bool,
        }
        let file: File = toml::from_str(text)?;
        let mut grants = Vec::new();
        for (place, Entry { sha256, path, write }) in file.token.into_iter().enumerate() {
            let number = place + 1;
            let sha256 = parse_sha256(&sha256).ok_or(TokenError::Hash { number })?;
            let relative = path.strip_prefix('/').filter(|path| !path.split('/').any(|part| part == ".."));
            let Some(relative) = relative.map(PathBuf::from) else { return Err(TokenError::Path { number, path }) };
            grants.push(Grant { sha256, path: relative, write });
        }
        if grants.is_empty() { Err(TokenError::Empty) } else { Ok(Self { grants }) }
    }

    /// Returns whether the sender of this `Authorization` field may read, or write, the entry at `path`.
    pub fn check_permission(&self, authorization: Option<&str>, path: &Path, write: bool) -> Verdict {
        let Some((scheme, token)) = authorization.and_then(|field| field.split_once(' ')) else {
            return Verdict::Unknown;
        };
        if !scheme.eq_ignore_ascii_case("bearer") {
            return Verdict::Unknown;
        }
        // A hash of the sent token is compared: the time that takes reveals nothing about the token.
        let sent: [u8; 32] = Sha256::digest(token.trim().as_bytes()).into();
        let mut theirs = self.grants.iter().filter(|grant| grant.sha256 == sent).peekable();
        if theirs.peek().is_none() {
            return Verdict::Unknown;
        }
        let allowed = theirs.any(|grant| path.starts_with(&grant.path) && (grant.write || !write));
        if allowed { Verdict::Allowed } else { Verdict::Forbidden }
    }
}

fn parse_sha256(hex: &str) -> Option<[u8; 32]> {
    let digits = hex.as_bytes();
    let mut bytes = [0; 32];
    if digits.len() != 64 || !digits.iter().all(u8::is_ascii_hexdigit) {
        return None;
    }
    for (byte, pair) in bytes.iter_mut().zip(hex.as_bytes().chunks(2)) {
        *byte = u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok()?;
    }
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Tokens `reader` (everything), `writer` (beneath /2026).
    const FILE: &str = r#"
        [[token]]
        sha256 = "3d0941964aa3ebdcb00ccef58b1bb399f9f898465e9886d5aec7f31090a0fb30"
        path = "/"
        [[token]]
        sha256 = "b93006774cbdd4b299389a03ac3d88c3a76b460d538795bc12718011a909fba5"
        path = "/2026"
        write = true
    "#;

    #[test]
    fn a_token_opens_what_it_is_for() {
        let tokens = Tokens::parse(FILE).unwrap();
        for (authorization, path, write, verdict) in [
            (None, "2026/a", false, Verdict::Unknown),
            (Some("Bearer stranger"), "2026/a", false, Verdict::Unknown),
            (Some("Basic reader"), "2026/a", false, Verdict::Unknown),
            (Some("Bearer"), "2026/a", false, Verdict::Unknown),
            (Some("Bearer reader"), "2026/a", false, Verdict::Allowed),
            (Some("bearer reader"), "", false, Verdict::Allowed),
            (Some("Bearer reader"), "2026/a", true, Verdict::Forbidden),
            (Some("Bearer writer"), "2026/a", true, Verdict::Allowed),
            (Some("Bearer writer"), "2026", true, Verdict::Allowed),
            (Some("Bearer writer"), "2026-old/a", true, Verdict::Forbidden),
            (Some("Bearer writer"), "", false, Verdict::Forbidden),
        ] {
            assert_eq!(
                tokens.check_permission(authorization, Path::new(path), write),
                verdict,
                "{authorization:?} {path} {write}"
            );
        }
    }

    #[test]
    fn a_file_that_says_nothing_clear_is_refused() {
        let hash = "0".repeat(64);
        for (text, says) in [
            (String::new(), "no [[token]]"),
            (format!("[[token]]\nsha256 = \"{hash}\"\npath = \"a\""), "begin with a slash"),
            (format!("[[token]]\nsha256 = \"{hash}\"\npath = \"/../a\""), "leads out"),
            ("[[token]]\nsha256 = \"secret\"\npath = \"/\"".to_owned(), "token 1"),
            (format!("[[token]]\nsha256 = \"{hash}\"\npath = \"/\"\nwirte = true"), "wirte"),
        ] {
            let error = Tokens::parse(&text).unwrap_err().to_string();
            assert!(error.contains(says), "{error}");
        }
    }
}
