//! A network adapter that a node drives itself, bypassing the kernel: its settings. The kernel knows neither the
//! adapter's address nor its network.

use crate::Subnet;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::net::Ipv4Addr;
use std::str::FromStr;

/// An adapter, and its settings in its network.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Adapter {
    /// Name of the device, in the form its driver takes: a PCI address, or a virtual device with its arguments.
    pub device: String,
    /// IP address of the adapter. A builder listens at this address.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub address: Option<OwnAddress>,
    /// Gateway that takes packets to other networks.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gateway: Option<Ipv4Addr>,
    /// Maximum length of an IP packet, in bytes; by default the adapter's own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mtu: Option<u16>,
}

/// An IPv4 address, and the number of leading bits that all neighbours share with it: `10.0.0.2/24`. Without a number
/// every host is a neighbour.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct OwnAddress {
    /// The IPv4 address of the adapter.
    pub ip: Ipv4Addr,
    /// Number of shared leading bits, if given.
    pub prefix: Option<u8>,
}

impl Adapter {
    /// Checks for impossible values, without touching the adapter.
    ///
    /// # Errors
    /// The key, and the problem with its value.
    pub fn check_settings(&self) -> Result<(), (&'static str, String)> {
        let named = !self.device.is_empty() && !self.device.contains(char::is_control);
        require_setting(
            named,
            "device",
            format!("{:?} is not the name of a device: write its PCI address", self.device),
        )?;
        if let Some(OwnAddress { ip, .. }) = self.address {
            require_setting(is_of_one_host(ip), "address", format!("{ip} is not the address of a host"))?;
        }
        if let Some(gateway) = self.gateway {
            let near = self.address.is_some_and(|own| own.prefix.is_some() && own.reaches_neighbour(gateway));
            let text = format!(
                "{gateway} is not on the same network: write `address` with its network, such as \
                \"10.0.0.2/24\""
            );
            require_setting(near, "gateway", text)?;
        }
        let mtu = self.mtu.unwrap_or(1500);
        require_setting(mtu >= 576, "mtu", format!("{mtu}: it must be 576 to 65535"))
    }
}

impl OwnAddress {
    /// True if `other` is the address of a neighbour.
    pub fn reaches_neighbour(self, other: Ipv4Addr) -> bool {
        let subnet = Subnet { prefix: self.prefix.unwrap_or(0), gateway: None, answers: false };
        subnet.reaches_neighbour(self.ip, other)
    }
}

/// Returns an error with the key and the problem unless the condition holds.
fn require_setting(holds: bool, key: &'static str, problem: String) -> Result<(), (&'static str, String)> {
    if holds { Ok(()) } else { Err((key, problem)) }
}

/// True if the address names one host, and not the host that uses it.
fn is_of_one_host(ip: Ipv4Addr) -> bool {
    !(ip.is_unspecified() || ip.is_loopback() || ip.is_multicast() || ip.is_broadcast())
}

impl FromStr for OwnAddress {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        parse_own_address(text)
            .ok_or_else(|| format!("'{text}' is not the address of an adapter: write one such as 10.0.0.2/24"))
    }
}

fn parse_own_address(text: &str) -> Option<OwnAddress> {
    let Some((ip, prefix)) = text.split_once('/') else {
        return Some(OwnAddress { ip: text.parse().ok()?, prefix: None });
    };
    let prefix = prefix.parse().ok().filter(|bits| *bits <= 32)?;
    Some(OwnAddress { ip: ip.parse().ok()?, prefix: Some(prefix) })
}

impl fmt::Display for OwnAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.prefix {
            Some(prefix) => write!(f, "{}/{prefix}", self.ip),
            None => self.ip.fmt(f),
        }
    }
}

impl TryFrom<String> for OwnAddress {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        text.parse()
    }
}

impl From<OwnAddress> for String {
    fn from(address: OwnAddress) -> Self {
        address.to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn adapter(address: &str) -> Adapter {
        Adapter { device: "0000:00:11.0".into(), address: address.parse().ok(), gateway: None, mtu: None }
    }

    #[test]
    fn an_address_is_written_as_it_is_read() {
        for text in ["10.0.0.2/24", "10.0.0.2", "10.0.0.2/0", "10.0.0.2/32"] {
            assert_eq!(text.parse::<OwnAddress>().unwrap().to_string(), text);
        }
        for text in ["", "10.0.0.2/33", "10.0.0.2/", "host/24", "::1/64", "10.0.0.2/24/1", "10.0.0.2/-1"] {
            assert!(text.parse::<OwnAddress>().unwrap_err().contains("10.0.0.2/24"), "{text}");
        }
    }

    #[test]
    fn neighbours_share_the_leading_bits() {
        let reaches = |own: &str, other: [u8; 4]| own.parse::<OwnAddress>().unwrap().reaches_neighbour(other.into());
        assert!(reaches("10.0.0.2/24", [10, 0, 0, 254]) && !reaches("10.0.0.2/24", [10, 0, 1, 2]));
        assert!(reaches("10.0.0.2", [192, 0, 2, 1]) && reaches("10.0.0.2/0", [192, 0, 2, 1]));
        assert!(!reaches("10.0.0.2/32", [10, 0, 0, 3]));
    }

    #[test]
    fn an_impossible_value_is_reported_with_its_key() {
        let wrong = |adapter: Adapter| adapter.check_settings().unwrap_err().0;
        assert!(adapter("10.0.0.2/24").check_settings().is_ok());
        for ip in ["0.0.0.0", "127.0.0.1", "224.0.0.1", "255.255.255.255"] {
            assert_eq!(wrong(adapter(ip)), "address");
        }
        assert_eq!(wrong(Adapter { device: String::new(), ..adapter("10.0.0.2") }), "device");
        assert_eq!(wrong(Adapter { device: "a\0b".into(), ..adapter("10.0.0.2") }), "device");
        assert_eq!(wrong(Adapter { mtu: Some(100), ..adapter("10.0.0.2") }), "mtu");
        let gateway = Some([10, 0, 0, 1].into());
        assert!(Adapter { gateway, ..adapter("10.0.0.2/24") }.check_settings().is_ok());
        assert_eq!(wrong(Adapter { gateway, ..adapter("10.0.0.2") }), "gateway");
        assert_eq!(wrong(Adapter { gateway, ..adapter("10.0.1.2/24") }), "gateway");
    }
}
