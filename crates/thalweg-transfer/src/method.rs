//! The methods of sending and receiving, and their names.

use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;

/// A method to send a file to a socket.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Outward {
    /// `pread` into a buffer, `send` out of it.
    Read,
    /// `sendfile`: the page cache's pages go into the socket.
    Sendfile,
    /// `splice` into a pipe and out of it: the same pages, more of them at a time.
    Splice,
    /// `sendfile`; the disk is given the next ranges in advance, and the page cache drops the ranges that were sent.
    Ahead,
    /// `splice` from a descriptor with `O_DIRECT` (Linux 6.5): pages of their own, never in the page cache.
    Direct,
    /// `preadv2` with `RWF_DONTCACHE` (Linux 6.14), `send`.
    DontCache,
    /// io_uring: `O_DIRECT` reads into registered slots, several under way, `SEND_ZC` from the same slots (Linux 6.0).
    Uring,
}

/// A method to receive a file from a socket.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Inward {
    /// `recv` into a buffer, `pwrite` out of it.
    Recv,
    /// `splice` into a pipe and out of it.
    Splice,
    /// `recv`, `pwritev2` with `RWF_DONTCACHE` (Linux 6.14).
    DontCache,
    /// `recv` into registered slots, `O_DIRECT` writes from them by io_uring, several under way.
    Uring,
}

/// Error for an unknown name of a method.
#[derive(Debug, Clone, thiserror::Error)]
#[error("there is no method '{name}': the methods are {known}")]
pub struct UnknownMethod {
    name: String,
    known: String,
}

impl Outward {
    /// All methods of sending.
    pub const ALL: [Self; 7] =
        [Self::Read, Self::Sendfile, Self::Splice, Self::Ahead, Self::Direct, Self::DontCache, Self::Uring];

    /// Returns the method's name, as it is written in settings.
    pub const fn method_name(self) -> &'static str {
        match self {
            Self::Read => "read",
            Self::Sendfile => "sendfile",
            Self::Splice => "splice",
            Self::Ahead => "ahead",
            Self::Direct => "direct",
            Self::DontCache => "dontcache",
            Self::Uring => "uring",
        }
    }

    /// Returns whether the bytes read stay out of the page cache.
    pub const fn is_uncached(self) -> bool {
        matches!(self, Self::Ahead | Self::Direct | Self::DontCache | Self::Uring)
    }
}

impl Inward {
    /// All methods of receiving.
    pub const ALL: [Self; 4] = [Self::Recv, Self::Splice, Self::DontCache, Self::Uring];

    /// Returns the method's name, as it is written in settings.
    pub const fn method_name(self) -> &'static str {
        match self {
            Self::Recv => "recv",
            Self::Splice => "splice",
            Self::DontCache => "dontcache",
            Self::Uring => "uring",
        }
    }
}

impl fmt::Display for Outward {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.method_name())
    }
}

impl fmt::Display for Inward {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.method_name())
    }
}

impl FromStr for Outward {
    type Err = UnknownMethod;

    fn from_str(name: &str) -> Result<Self, UnknownMethod> {
        let way = Self::ALL.into_iter().find(|way| way.method_name() == name);
        way.ok_or_else(|| UnknownMethod { name: name.to_owned(), known: Self::ALL.map(Self::method_name).join(", ") })
    }
}

impl FromStr for Inward {
    type Err = UnknownMethod;

    fn from_str(name: &str) -> Result<Self, UnknownMethod> {
        let way = Self::ALL.into_iter().find(|way| way.method_name() == name);
        way.ok_or_else(|| UnknownMethod { name: name.to_owned(), known: Self::ALL.map(Self::method_name).join(", ") })
    }
}
