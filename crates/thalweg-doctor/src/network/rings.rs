//! Number of packets that an interface keeps until the processor fetches them.

use super::Interface;
use super::netlink::{Family, ethtool_header, find_u32};
use crate::Finding;

const RINGS_GET: u8 = 15;
const RX_MAX: u16 = 2;
const TX_MAX: u16 = 5;
const RINGS_RX: u16 = 6;
const RINGS_TX: u16 = 9;

pub(super) fn probe(ethtool: &mut Result<Family, String>, interface: &Interface) -> Finding {
    let answer = match ethtool {
        Ok(family) => family.ask(RINGS_GET, &ethtool_header(interface.index)),
        Err(error) => Err(error.clone()),
    };
    match answer {
        Ok(answer) => {
            let number = |kind| find_u32(&answer, kind);
            judge(&interface.name, number(RINGS_RX).zip(number(RX_MAX)), number(RINGS_TX).zip(number(TX_MAX)))
        }
        Err(error) => Finding::new(format!("{} rings", interface.name), format!("unknown: {error}")),
    }
}

/// Judges the ring sizes. Each pair is the size and the largest possible, in packets.
fn judge(name: &str, rx: Option<(u32, u32)>, tx: Option<(u32, u32)>) -> Finding {
    let told = |pair: Option<(u32, u32)>| match pair {
        Some((now, most)) => format!("{now} of at most {most}"),
        None => "unknown".to_owned(),
    };
    let finding =
        Finding::new(format!("{name} rings"), format!("rx {}, tx {} (ethtool over netlink)", told(rx), told(tx)));
    match rx {
        Some((now, most)) if now < most => finding
            .degraded("packets of a burst are dropped before the processor comes for them, and sent again")
            .mended_by(format!("ethtool -G {name} rx {most}")),
        _ => finding,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Level;

    #[test]
    fn a_ring_can_be_as_large_as_the_device_allows() {
        assert_eq!(judge("eth0", Some((256, 256)), Some((256, 256))).level, Level::Ok);
        let small = judge("eth0", Some((512, 4096)), Some((512, 4096)));
        assert_eq!((small.level, small.remedy.as_deref()), (Level::Degraded, Some("ethtool -G eth0 rx 4096")));
        assert_eq!(judge("eth0", None, None).level, Level::Ok);
    }
}
