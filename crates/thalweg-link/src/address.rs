//! Where a builder listens: `tcp:HOST:PORT` or `shm:PATH`.

use serde::{Deserialize, Serialize};
use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

/// An address of a builder.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum Address {
    /// TCP: host name or address, and port.
    Tcp(String),
    /// Shared memory on this host: the path of the Unix socket over which arenas are handed over.
    Shm(PathBuf),
}

impl FromStr for Address {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let error = || format!("'{text}' is not an address: write tcp:HOST:PORT or shm:PATH");
        let (scheme, rest) = text.split_once(':').ok_or_else(error)?;
        if text.contains('\0') {
            return Err(format!("{text:?}: no host name and no path has a NUL in it"));
        }
        match scheme {
            "tcp" => {
                let (host, port) = rest.rsplit_once(':').ok_or_else(error)?;
                port.parse::<u16>().map_err(|_| format!("'{text}': '{port}' is not a port, 0 to 65535"))?;
                if host.is_empty() { Err(error()) } else { Ok(Self::Tcp(rest.to_owned())) }
            }
            // The limit is that of sockaddr_un (unix(7)): 108 bytes with the terminating zero.
            "shm" if rest.len() > 107 => Err(format!("'{text}': a socket path has at most 107 bytes")),
            "shm" if !rest.is_empty() => Ok(Self::Shm(rest.into())),
            _ => Err(error()),
        }
    }
}

impl TryFrom<String> for Address {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        text.parse()
    }
}

impl From<Address> for String {
    fn from(address: Address) -> Self {
        address.to_string()
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp(host) => write!(f, "tcp:{host}"),
            Self::Shm(path) => write!(f, "shm:{}", path.display()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_no_kernel_would_take_is_no_address() {
        for text in ["shm:/tmp/a\0b", "tcp:a\0b:7400", "tcp:h:65536", "tcp::1", "shm:", "tcp:h", "udp:h:1", ""] {
            let error = text.parse::<Address>().unwrap_err();
            assert!(!error.contains('\0'), "{error:?}");
        }
    }
}
