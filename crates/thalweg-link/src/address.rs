//! The address at which a builder listens: the name of a kind of link, and a place.

use crate::LinkKind;
use crate::kind::Locator;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::io;
use std::net::{SocketAddr, ToSocketAddrs};
use std::path::Path;
use std::str::FromStr;

/// An address of a builder: `tcp:HOST:PORT`, `shm:PATH`.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Address {
    kind: LinkKind,
    place: String,
}

impl Address {
    /// Maximum length of the path of a Unix socket, in bytes (`sockaddr_un`, unix(7)): 108 with the terminating zero.
    pub const LONGEST_PATH: usize = 107;

    /// Creates the address of a place, for links of this kind.
    ///
    /// # Errors
    /// The text is not such a place; the error describes the form of one.
    pub fn new(kind: LinkKind, place: &str) -> Result<Self, String> {
        let address = Self { kind, place: place.to_owned() };
        if place.contains('\0') {
            return Err(format!("{:?}: host names and paths cannot contain NUL", address.to_string()));
        }
        match kind.locator {
            Locator::HostPort => {
                let (host, port) = place.rsplit_once(':').ok_or_else(|| not_an_address(&address.to_string()))?;
                port.parse::<u16>().map_err(|_| format!("'{address}': '{port}' is not a port, 0 to 65535"))?;
                // A URL's two slashes are refused as well.
                if host.is_empty() || host.contains('/') {
                    return Err(not_an_address(&address.to_string()));
                }
            }
            Locator::Path if place.is_empty() => return Err(not_an_address(&address.to_string())),
            Locator::Path if place.len() > Self::LONGEST_PATH => {
                return Err(format!("'{address}': a socket path has at most {} bytes", Self::LONGEST_PATH));
            }
            Locator::Path => {}
        }
        Ok(address)
    }

    /// Returns an address on this host for the caller's own use: a port that the system chooses, or the socket `name`
    /// in `directory`.
    ///
    /// # Errors
    /// The directory's path is too long for a socket in it.
    pub fn on_this_host(kind: LinkKind, directory: &Path, name: &str) -> Result<Self, String> {
        match kind.locator {
            Locator::HostPort => Self::new(kind, "127.0.0.1:0"),
            Locator::Path => Self::new(kind, &directory.join(name).display().to_string()),
        }
    }

    /// Returns the kind of link.
    pub fn link_kind(&self) -> LinkKind {
        self.kind
    }

    /// Returns the part that follows the kind.
    pub fn place(&self) -> &str {
        &self.place
    }

    /// Returns `HOST:PORT`, or `None` if the address is not on an IP network.
    pub fn host_port(&self) -> Option<&str> {
        (self.kind.locator == Locator::HostPort).then_some(&*self.place)
    }

    /// Returns the addresses that its host name stands for, in the resolver's order: those that its kind of link can
    /// use. Takes as long as the resolver does.
    ///
    /// # Errors
    /// The name has no such address.
    pub fn resolve_addresses(&self) -> io::Result<Vec<SocketAddr>> {
        let mut found: Vec<SocketAddr> = self.place.to_socket_addrs()?.collect();
        if self.kind.interface {
            found.retain(SocketAddr::is_ipv4);
        }
        if found.is_empty() {
            let version = if self.kind.interface { "IPv4 " } else { "" };
            return Err(io::Error::new(io::ErrorKind::NotFound, format!("the name has no {version}address")));
        }
        Ok(found)
    }

    /// Returns the path of a socket, or `None` if the address is on an IP network.
    pub fn socket_path(&self) -> Option<&Path> {
        (self.kind.locator == Locator::Path).then_some(Path::new(&self.place))
    }
}

impl FromStr for Address {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (name, place) = text.split_once(':').ok_or_else(|| not_an_address(text))?;
        Self::new(name.parse().map_err(|_| not_an_address(text))?, place)
    }
}

fn not_an_address(text: &str) -> String {
    let forms: Vec<&str> = LinkKind::all_kinds().iter().map(|kind| kind.transport().abilities().form).collect();
    format!("'{}' is not an address: write {}", text.replace('\0', "\\0"), forms.join(" or "))
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
        write!(f, "{}:{}", self.kind.name, self.place)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn invalid_places_are_refused() {
        for text in
            ["shm:/tmp/a\0b", "tcp:a\0b:7400", "tcp:h:65536", "tcp::1", "shm:", "tcp:h", "tcp://h:1", "ib:h:1", ""]
        {
            let error = text.parse::<Address>().unwrap_err();
            assert!(!error.contains('\0'), "{error:?}");
        }
    }
}
