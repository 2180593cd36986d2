//! The addresses that a builder's name stands for: resolved before the run, and again on a separate thread, since a
//! resolver may take seconds to answer.

use crate::kind::Locator;
use crate::peer::listening_advice;
use crate::{Address, LinkError};
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::mpsc::{self, Receiver};
use std::thread;

/// A builder's address, and the resolved addresses to try in turn.
#[derive(Debug)]
pub(crate) struct Names {
    address: Address,
    found: Vec<SocketAddr>,
    next: usize,
    /// A look-up in progress.
    lookup: Option<Receiver<Vec<SocketAddr>>>,
}

impl Names {
    /// Resolves the name of an address.
    ///
    /// # Errors
    /// The name has no address.
    pub(crate) fn resolve_name(address: &Address) -> Result<Self, LinkError> {
        let found = match address.link_kind().locator {
            Locator::HostPort => address
                .resolve_addresses()
                .map_err(LinkError::from_unusable(format!("resolving '{}'", address.place())))?,
            Locator::Path => Vec::new(),
        };
        Ok(Self { address: address.clone(), found, next: 0, lookup: None })
    }

    /// Returns the address to connect to next. After the last one the name is resolved again, while the first ones are
    /// tried anew.
    pub(crate) fn next_address(&mut self) -> Address {
        if let Some(found) = self.lookup.as_ref().and_then(|lookup| lookup.try_recv().ok()) {
            (self.found, self.next, self.lookup) = (found, 0, None);
        }
        if self.next >= self.found.len() {
            self.next = 0;
            if !self.found.is_empty() {
                self.begin_new_lookup();
            }
        }
        let Some(found) = self.found.get(self.next) else { return self.address.clone() };
        self.next += 1;
        // The unspecified address stands for this host, as in connect(2).
        let ip = match found.ip() {
            IpAddr::V4(ip) if ip.is_unspecified() => Ipv4Addr::LOCALHOST.into(),
            IpAddr::V6(ip) if ip.is_unspecified() => Ipv6Addr::LOCALHOST.into(),
            ip => ip,
        };
        let mut found = *found;
        found.set_ip(ip);
        Address::new(self.address.link_kind(), &found.to_string()).unwrap_or_else(|_| self.address.clone())
    }

    /// Begins another look-up. Does nothing while an earlier one is in progress; if the look-up fails, the addresses
    /// stay as they are.
    fn begin_new_lookup(&mut self) {
        let is_busy =
            self.lookup.as_ref().is_some_and(|lookup| lookup.try_recv() != Err(mpsc::TryRecvError::Disconnected));
        if is_busy || self.address.place().parse::<SocketAddr>().is_ok() {
            return;
        }
        let (sender, receiver) = mpsc::channel();
        let address = self.address.clone();
        let thread = thread::Builder::new().name("names".into()).spawn(move || {
            // The receiver may be gone: the source has ended.
            let _ = address.resolve_addresses().map(|found| sender.send(found));
        });
        self.lookup = thread.ok().map(|_| receiver);
    }
}

/// Returns the addresses at which a builder may listen.
///
/// # Errors
/// The name has no address.
pub(crate) fn resolve_listening_addresses(at: &Address) -> Result<Vec<SocketAddr>, LinkError> {
    let advice = "correct the name in `listen`, or write a numeric address";
    at.resolve_addresses().map_err(|error| LinkError::Listening { address: at.clone(), error, advice })
}

/// Opens the first of the addresses that can be listened on.
///
/// # Errors
/// None of them can; the error is that of the last one.
pub(crate) fn listen_at_first<T>(at: &Address, open: impl Fn(SocketAddr) -> io::Result<T>) -> Result<T, LinkError> {
    let (mut found, mut outcome) = (resolve_listening_addresses(at)?.into_iter(), Err(io::ErrorKind::NotFound.into()));
    while let (Err(_), Some(address)) = (&outcome, found.next()) {
        outcome = open(address);
    }
    outcome.map_err(|error| LinkError::Listening { address: at.clone(), advice: listening_advice(error.kind()), error })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(address: &str, found: &[&str]) -> Names {
        let found = found.iter().map(|found| found.parse().unwrap()).collect();
        Names { address: address.parse().unwrap(), found, next: 0, lookup: None }
    }

    #[test]
    fn all_addresses_of_a_name_are_tried_in_turn() {
        let mut names = names("tcp:builder:7400", &["[2001:db8::1]:7400", "192.0.2.1:7400"]);
        let tried: Vec<_> = (0..3).map(|_| names.next_address().to_string()).collect();
        assert_eq!(tried, ["tcp:[2001:db8::1]:7400", "tcp:192.0.2.1:7400", "tcp:[2001:db8::1]:7400"]);
    }

    #[test]
    fn a_name_is_looked_up_again_after_all_addresses_were_tried() {
        let mut names = names("tcp:localhost:7400", &["192.0.2.1:7400"]);
        names.next_address();
        assert!(names.lookup.is_none());
        names.next_address();
        let found = names.lookup.take().unwrap().recv().unwrap();
        assert!(found.iter().all(|found| found.ip().is_loopback()), "{found:?}");
        let (sender, receiver) = mpsc::channel();
        names.lookup = Some(receiver);
        sender.send(vec!["192.0.2.7:7400".parse().unwrap()]).unwrap();
        assert_eq!(names.next_address().place(), "192.0.2.7:7400");
    }

    #[test]
    fn the_first_address_that_can_be_listened_at_is_opened() {
        let at = "tcp:127.0.0.1:7400".parse().unwrap();
        assert_eq!(listen_at_first(&at, Ok).unwrap(), "127.0.0.1:7400".parse().unwrap());
        let error = listen_at_first(&at, |_| Err::<(), _>(io::ErrorKind::AddrInUse.into())).unwrap_err();
        assert!(matches!(error, LinkError::Listening { .. }), "{error}");
    }

    #[test]
    fn numbers_and_paths_are_never_looked_up() {
        for address in ["tcp:192.0.2.1:7400", "shm:/tmp/builder"] {
            let mut names = Names::resolve_name(&address.parse().unwrap()).unwrap();
            for _ in 0..3 {
                assert_eq!(names.next_address().to_string(), address);
            }
            assert!(names.lookup.is_none());
        }
    }

    #[test]
    fn any_address_is_this_host() {
        let mut names = names("udp:0.0.0.0:7400", &["0.0.0.0:7400", "[::]:7400"]);
        assert_eq!([names.next_address().place(), names.next_address().place()], ["127.0.0.1:7400", "[::1]:7400"]);
    }
}
