//! Number of packets that an interface keeps until the processor fetches them.

use super::Interface;
use super::netlink::{Family, ethtool_header, find_u32_attribute};
use crate::{Finding, read};

const RINGS_GET: u8 = 15;
const RX_MAX: u16 = 2;
const TX_MAX: u16 = 5;
const RINGS_RX: u16 = 6;
const RINGS_TX: u16 = 9;

pub(super) fn probe_ring_sizes(ethtool: &mut Result<Family, String>, interface: &Interface) -> Finding {
    let answer = match ethtool {
        Ok(family) => family.send_request(RINGS_GET, &ethtool_header(interface.index)),
        Err(error) => Err(error.clone()),
    };
    match answer {
        Ok(answer) => {
            let rx = find_u32_attribute(&answer, RINGS_RX).zip(find_u32_attribute(&answer, RX_MAX));
            let tx = find_u32_attribute(&answer, RINGS_TX).zip(find_u32_attribute(&answer, TX_MAX));
            judge_ring_sizes(&interface.name, rx, tx)
        }
        Err(error) => Finding::new(format!("{} rings", interface.name), format!("unknown: {error}")),
    }
}

/// Judges the ring sizes. Each pair is the size and the largest possible, in packets.
fn judge_ring_sizes(name: &str, rx: Option<(u32, u32)>, tx: Option<(u32, u32)>) -> Finding {
    let [rx_text, tx_text] =
        [rx, tx].map(|pair| read::text_or_unknown(pair.map(|(now, most)| format!("{now} of at most {most}"))));
    let evidence = format!("rx {rx_text}, tx {tx_text} (ethtool over netlink)");
    let finding = Finding::new(format!("{name} rings"), evidence);
    match rx {
        Some((now, most)) if now < most => finding
            .with_degraded_level("packets of a burst are dropped before the processor fetches them, and retransmitted")
            .with_remedy(format!("ethtool -G {name} rx {most}")),
        _ => finding,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Level;

    #[test]
    fn a_ring_can_be_as_large_as_the_device_allows() {
        assert_eq!(judge_ring_sizes("eth0", Some((256, 256)), Some((256, 256))).level, Level::Ok);
        let small = judge_ring_sizes("eth0", Some((512, 4096)), Some((512, 4096)));
        assert_eq!((small.level, small.remedy.as_deref()), (Level::Degraded, Some("ethtool -G eth0 rx 4096")));
        assert_eq!(judge_ring_sizes("eth0", None, None).level, Level::Ok);
    }
}
