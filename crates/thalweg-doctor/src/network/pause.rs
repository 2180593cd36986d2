//! Pause frames: whether a full switch port stops senders instead of dropping packets.

use super::Interface;
use super::netlink::{Family, ethtool_header, find_attribute};
use crate::Finding;

const PAUSE_GET: u8 = 21;
const PAUSE_RX: u16 = 3;
const PAUSE_TX: u16 = 4;

pub(super) fn probe_pause_frames(ethtool: &mut Result<Family, String>, interface: &Interface) -> Finding {
    let answer = match ethtool {
        Ok(family) => family.send_request(PAUSE_GET, &ethtool_header(interface.index)),
        Err(error) => Err(error.clone()),
    };
    let evidence = match &answer {
        Ok(answer) => {
            let [rx, tx] = [PAUSE_RX, PAUSE_TX].map(|kind| match find_attribute(answer, kind) {
                Some([0]) => "off",
                Some([_]) => "on",
                _ => "unknown",
            });
            format!("rx {rx}, tx {tx} (ethtool over netlink)")
        }
        Err(error) => format!("unknown: {error}"),
    };
    // Neither is wrong: a builder's window keeps ports from overflowing, and a pause delays all traffic through a port.
    Finding::new(format!("{} pause frames", interface.name), evidence)
}
