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

pub(crate) fn examine_network(needs: &Needs) -> Vec<Finding> {
    let interfaces = Interface::list_all();
    let (mut ethtool, mut netdev) = (Family::open_by_name("ethtool"), Family::open_by_name("netdev"));
    let mut findings = Vec::new();
    for interface in &interfaces {
        findings.push(link::probe_link_state(interface));
        if interface.up {
            findings.push(offloads::probe_offloads(&mut ethtool, interface));
            findings.push(xdp::probe_xdp_driver(&mut netdev, interface));
        }
        if interface.up && interface.has_device() {
            findings.push(rings::probe_ring_sizes(&mut ethtool, interface));
            findings.push(pause::probe_pause_frames(&mut ethtool, interface));
        }
    }
    findings.push(xdp::probe_xdp_socket());
    findings.push(buffers::probe_socket_buffers(needs, &interfaces));
    findings.push(retransmission::probe_retransmission());
    findings.push(queueing::probe_queueing());
    findings.extend(probe_requested(needs));
    findings.extend(line_rate::probe_line_rates(needs, &interfaces));
    findings
}

/// Returns findings about what is requested by name: congestion controls and addresses.
pub(crate) fn probe_requested(needs: &Needs) -> Vec<Finding> {
    let mut findings = congestion::probe_congestion_controls(needs);
    findings.extend(addresses::probe_addresses(needs));
    findings
}
