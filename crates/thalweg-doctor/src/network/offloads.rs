//! Work that the interface does for the processor: segmenting and merging packets, checksums.

use super::Interface;
use super::netlink::{Family, ethtool_header, find_attribute, iter_attributes};
use crate::Finding;
use std::collections::BTreeSet;

const FEATURES_GET: u8 = 11;
/// Attributes of the answer: features that can be changed, and active features.
const FEATURES_HW: u16 = 2;
const FEATURES_ACTIVE: u16 = 4;

/// Offloads: the name in `ethtool -K`, the kernel's names (one is enough), and the cost of doing without.
const WANTED: [(&str, &[&str], &str); 6] = [
    (
        "tx",
        &["tx-checksum-ip-generic", "tx-checksum-ipv4"],
        "the processor reads every byte once more for the \
        checksum",
    ),
    ("rx", &["rx-checksum"], "the processor reads every byte once more for the checksum"),
    ("sg", &["tx-scatter-gather"], "sendfile copies every payload"),
    ("gso", &["tx-generic-segmentation"], "the network stack runs once for each packet sent"),
    ("tso", &["tx-tcp-segmentation"], "the processor splits sent data into packets"),
    ("gro", &["rx-gro"], "the network stack runs once for each packet received"),
];
const LRO: &str = "rx-lro";

pub(super) fn probe_offloads(ethtool: &mut Result<Family, String>, interface: &Interface) -> Finding {
    let name = &interface.name;
    let title = format!("{name} offloads");
    let answer = match ethtool {
        Ok(family) => family.send_request(FEATURES_GET, &ethtool_header(interface.index)),
        Err(error) => Err(error.clone()),
    };
    match answer {
        Ok(answer) => judge_offloads(
            name,
            interface.has_device(),
            &bitset_names(&answer, FEATURES_ACTIVE),
            &bitset_names(&answer, FEATURES_HW),
        ),
        Err(error) => Finding::new(title, format!("unknown: {error}")),
    }
}

/// Judges the offloads. Those of a virtual interface depend on its lower interface, or, as with veth, are a matter of
/// taste.
fn judge_offloads(name: &str, physical: bool, active: &BTreeSet<&str>, changeable: &BTreeSet<&str>) -> Finding {
    let lro: (&str, &[&str]) = ("lro", &[LRO]);
    let shown = WANTED.iter().map(|(short, names, _)| (*short, *names)).chain([lro]);
    let states: Vec<_> = shown
        .map(|(short, names)| format!("{short} {}", if contains_any(active, names) { "on" } else { "off" }))
        .collect();
    let finding = Finding::new(format!("{name} offloads"), format!("{} (ethtool over netlink)", states.join(", ")));
    let off: Vec<_> = WANTED.iter().filter(|(_, names, _)| !contains_any(active, names)).collect();
    let Some((_, _, cost)) = off.first().filter(|_| physical) else { return finding };
    let finding = finding.with_degraded_level(*cost);
    let can: Vec<_> = off.iter().filter(|(_, names, _)| contains_any(changeable, names)).collect();
    match can.is_empty() {
        true => finding,
        false => {
            let switches: Vec<_> = can.iter().map(|(short, _, _)| format!("{short} on")).collect();
            finding.with_remedy(format!("ethtool -K {name} {}", switches.join(" ")))
        }
    }
}

fn contains_any(features: &BTreeSet<&str>, names: &[&str]) -> bool {
    names.iter().any(|name| features.contains(name))
}

/// Returns the names in a bitset. It has names because the compact form was not requested
/// (Documentation/networking/ethtool-netlink.rst, "Bit sets").
fn bitset_names(answer: &[u8], which: u16) -> BTreeSet<&str> {
    const BITSET_NOMASK: u16 = 1;
    const BITSET_BITS: u16 = 3;
    const BITSET_BIT_NAME: u16 = 2;
    const BITSET_BIT_VALUE: u16 = 3;
    let Some(set) = find_attribute(answer, which) else { return BTreeSet::new() };
    let without_mask = find_attribute(set, BITSET_NOMASK).is_some();
    iter_attributes(find_attribute(set, BITSET_BITS).unwrap_or_default())
        .filter(|(_, bit)| without_mask || find_attribute(bit, BITSET_BIT_VALUE).is_some())
        .filter_map(|(_, bit)| std::str::from_utf8(find_attribute(bit, BITSET_BIT_NAME)?).ok())
        .map(|name| name.trim_end_matches('\0'))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Level;
    use crate::network::netlink::encode_attribute;
    use proptest::prelude::*;

    const GOOD: [&str; 6] = [
        "rx-checksum",
        "rx-gro",
        "tx-checksum-ip-generic",
        "tx-generic-segmentation",
        "tx-scatter-gather",
        "tx-tcp-segmentation",
    ];

    #[test]
    fn what_is_off_is_named_with_its_switch() {
        let all = BTreeSet::from(GOOD);
        assert_eq!(judge_offloads("eth0", true, &all, &all).level, Level::Ok);
        let mut less = all.clone();
        less.remove("tx-tcp-segmentation");
        let off = judge_offloads("eth0", true, &less, &all);
        assert_eq!((off.level, off.remedy.as_deref()), (Level::Degraded, Some("ethtool -K eth0 tso on")));
        assert!(off.evidence.contains("tso off, gro on, lro off"));
        assert_eq!(judge_offloads("eth0", true, &less, &BTreeSet::new()).remedy, None, "the driver cannot");
        assert_eq!(judge_offloads("veth0", false, &less, &all).level, Level::Ok);
    }

    #[test]
    fn names_are_read_from_a_bit_set() {
        let bit = |name: &str| encode_attribute(1, &encode_attribute(2, &[name.as_bytes(), &[0]].concat()));
        let bits = encode_attribute(3, &[bit("rx-gro"), bit("rx-lro")].concat());
        let answer = encode_attribute(FEATURES_ACTIVE, &[encode_attribute(1, &[]), bits].concat());
        assert_eq!(bitset_names(&answer, FEATURES_ACTIVE), BTreeSet::from(["rx-gro", "rx-lro"]));
        assert_eq!(bitset_names(&answer, FEATURES_HW), BTreeSet::new());
    }

    proptest! {
        #[test]
        fn any_answer_is_read_without_harm(bytes: Vec<u8>) {
            bitset_names(&bytes, FEATURES_ACTIVE);
            bitset_names(&encode_attribute(FEATURES_ACTIVE, &encode_attribute(3, &bytes)), FEATURES_ACTIVE);
        }
    }
}
