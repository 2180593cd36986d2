//! Interfaces and TCP.

mod addresses;
mod buffers;
mod congestion;
mod interface;
mod line_rate;
mod link;
mod netlink;
mod offloads;
mod pause;
mod queueing;
mod retransmission;
mod rings;
mod xdp;

use crate::{Finding, Needs};
pub(crate) use interface::Interface;
use netlink::Family;

pub(crate) fn examine(needs: &Needs) -> Vec<Finding> {
    let interfaces = Interface::all();
    let (mut ethtool, mut netdev) = (Family::open("ethtool"), Family::open("netdev"));
    let mut findings = Vec::new();
    for interface in &interfaces {
        findings.push(link::probe(interface));
        if interface.up {
            findings.push(offloads::probe(&mut ethtool, interface));
            findings.push(xdp::driver(&mut netdev, interface));
        }
        if interface.up && interface.physical() {
            findings.push(rings::probe(&mut ethtool, interface));
            findings.push(pause::probe(&mut ethtool, interface));
        }
    }
    findings.push(xdp::socket());
    findings.push(buffers::probe(needs, &interfaces));
    findings.push(retransmission::probe());
    findings.push(queueing::probe());
    findings.extend(asked_for(needs));
    findings.extend(line_rate::probe(needs, &interfaces));
    findings
}

/// Returns findings about what is requested by name: congestion controls and addresses.
pub(crate) fn asked_for(needs: &Needs) -> Vec<Finding> {
    let mut findings = congestion::probe(needs);
    findings.extend(addresses::probe(needs));
    findings
}
