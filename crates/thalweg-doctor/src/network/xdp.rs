//! AF_XDP: whether this process may use it, and what the driver supports.

use super::Interface;
use super::netlink::{Family, encode_attribute, find_attribute};
use crate::Finding;
use rustix::net::{AddressFamily, SocketFlags, SocketType, socket_with};

const DEV_GET: u8 = 1;
const DEV_IFINDEX: u16 = 1;
const DEV_XDP_FEATURES: u16 = 3;
/// Flags of `enum netdev_xdp_act` (linux/netdev.h).
const XDP_BASIC: u64 = 1;
const XDP_REDIRECT: u64 = 2;
const ZERO_COPY: u64 = 8;

/// Checks whether a socket can be created.
pub(super) fn probe_xdp_socket() -> Finding {
    let evidence = match socket_with(AddressFamily::XDP, SocketType::RAW, SocketFlags::CLOEXEC, None) {
        Ok(_) => "a socket can be created".to_owned(),
        Err(error) => format!("none can be created: {error} (needs CAP_NET_RAW and CONFIG_XDP_SOCKETS)"),
    };
    Finding::new("AF_XDP sockets", evidence)
}

/// Reports what the driver of an interface supports.
pub(super) fn probe_xdp_driver(netdev: &mut Result<Family, String>, interface: &Interface) -> Finding {
    let answer = match netdev {
        Ok(family) => family.send_request(DEV_GET, &encode_attribute(DEV_IFINDEX, &interface.index.to_ne_bytes())),
        Err(error) => Err(error.clone()),
    };
    let evidence = match &answer {
        Ok(answer) => {
            match find_attribute(answer, DEV_XDP_FEATURES)
                .and_then(|value| Some(u64::from_ne_bytes(value.try_into().ok()?)))
            {
                Some(features) => {
                    format!("{} (netdev over netlink: xdp-features {features:#x})", describe_xdp_mode(features))
                }
                None => "unknown: the reply lists no features".to_owned(),
            }
        }
        Err(error) => format!("unknown: {error}"),
    };
    Finding::new(format!("{} AF_XDP", interface.name), evidence)
}

fn describe_xdp_mode(features: u64) -> &'static str {
    match features {
        some if some & ZERO_COPY != 0 => "zero-copy: the device writes into the program's memory",
        some if some & (XDP_BASIC | XDP_REDIRECT) == XDP_BASIC | XDP_REDIRECT => "native: one copy, before the stack",
        _ => "generic: one copy, after the stack has built a packet",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_best_mode_is_named() {
        assert!(describe_xdp_mode(0).starts_with("generic"));
        assert!(describe_xdp_mode(0x23).starts_with("native"));
        assert!(describe_xdp_mode(0x7f).starts_with("zero-copy"));
    }
}
