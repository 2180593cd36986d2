//! Stated rates, compared with the speed of the lines that carry them.

use super::{Interface, link};
use crate::{Finding, Needs, read};
use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, ToSocketAddrs, UdpSocket};
use thalweg_link::Address;

/// Returns one finding for each interface that carries traffic of a stated rate.
pub(super) fn probe_line_rates(needs: &Needs, interfaces: &[Interface]) -> Vec<Finding> {
    let routes = read::read_text("/proc/net/route").unwrap_or_default();
    let (mut leaving, mut coming) = (BTreeMap::<&str, f64>::new(), BTreeMap::<&str, f64>::new());
    for node in &needs.nodes {
        let Some(rate) = node.bytes_per_second else { continue };
        let sum = if node.listen.is_empty() { &mut leaving } else { &mut coming };
        #[expect(clippy::cast_precision_loss, reason = "addresses are few")]
        let share = rate / node.listen.len().max(node.connect.len()).max(1) as f64;
        for address in node.listen.iter().chain(&node.connect) {
            if let Some(name) = interface_towards(address, &routes)
                && let Some(interface) = interfaces.iter().find(|interface| interface.name == name)
            {
                *sum.entry(interface.name.as_str()).or_default() += share;
            }
        }
    }
    let mut findings = Vec::new();
    for Interface { name, speed, .. } in interfaces {
        let rates = leaving.get(name.as_str()).into_iter().chain(coming.get(name.as_str()));
        findings.extend(rates.copied().max_by(f64::total_cmp).map(|most| judge_line_rate(name, *speed, most)));
    }
    findings
}

fn judge_line_rate(name: &str, speed: Option<f64>, bytes_per_second: f64) -> Finding {
    let title = format!("{name} rate");
    let evidence = format!("{} needed in one direction", thalweg_text::format_rate(bytes_per_second));
    let Some(speed) = speed else { return Finding::new(title, format!("{evidence}; the line's speed is unknown")) };
    let finding = Finding::new(title, format!("{evidence}; the line carries {}", link::format_speed(speed)));
    match bytes_per_second * 8.0 / speed {
        // Ethernet, IP and TCP headers take 2 % to 6 % of a line.
        share if share > 1.0 => {
            finding.with_missing_level("the line is slower than the sources: they wait or drop data")
        }
        share if share > 0.94 => finding.with_degraded_level("no reserve for headers, retransmissions and bursts"),
        _ => finding,
    }
}

/// Returns the interface that leads to an address, or that has it; `None` for this machine itself, or if it is not
/// known.
fn interface_towards(address: &Address, routes: &str) -> Option<String> {
    let target = address.host_port()?.to_socket_addrs().ok()?.next()?;
    let IpAddr::V4(target_ip) = target.ip() else { return None };
    if target_ip.is_loopback() || target_ip.is_unspecified() {
        return None;
    }
    // Connecting a datagram socket sends nothing: it only looks up the route.
    let socket = UdpSocket::bind(SocketAddr::from((Ipv4Addr::UNSPECIFIED, 0))).ok()?;
    socket.connect(target).ok()?;
    find_route(routes, target_ip).map(str::to_owned)
}

/// Returns the interface of the route to an address. Columns of `/proc/net/route`: Iface Destination Gateway Flags
/// RefCnt Use Metric Mask …, addresses in hexadecimal, in the machine's byte order. The longest mask that matches
/// counts.
fn find_route(routes: &str, target: Ipv4Addr) -> Option<&str> {
    let target = u32::from_ne_bytes(target.octets());
    let fits = routes.lines().filter_map(|line| {
        let fields: Vec<&str> = line.split_whitespace().collect();
        let [name, destination, _, _, _, _, _, mask, ..] = fields[..] else { return None };
        let destination = u32::from_str_radix(destination, 16).ok()?;
        let mask = u32::from_str_radix(mask, 16).ok()?;
        (target & mask == destination).then(|| (mask.count_ones(), name))
    });
    fits.max_by_key(|(length, _)| *length).map(|(_, name)| name)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Level;
    use proptest::prelude::*;
    use thalweg_testing::skip::skipped;

    const ROUTES: &str = "Iface\tDestination\tGateway \tFlags\tRefCnt\tUse\tMetric\tMask\t\tMTU\tWindow\tIRTT\n\
        eth0\t00000000\t010200C0\t0003\t0\t0\t0\t00000000\t0\t0\t0\n\
        daq0\t000200C0\t00000000\t0001\t0\t0\t0\t00FFFFFF\t0\t0\t0\n";

    #[test]
    fn the_longest_route_leads() {
        if cfg!(target_endian = "big") {
            return skipped("the text was captured on a little-endian machine");
        }
        assert_eq!(find_route(ROUTES, Ipv4Addr::new(192, 0, 2, 9)), Some("daq0"));
        assert_eq!(find_route(ROUTES, Ipv4Addr::new(10, 0, 0, 1)), Some("eth0"));
        assert_eq!(find_route("", Ipv4Addr::LOCALHOST), None);
    }

    #[test]
    fn a_line_carries_no_more_than_its_speed() {
        assert_eq!(judge_line_rate("eth0", Some(1e10), 1.0e9).level, Level::Ok);
        assert_eq!(judge_line_rate("eth0", Some(1e10), 1.2e9).level, Level::Degraded);
        assert_eq!(judge_line_rate("eth0", Some(1e10), 1.3e9).level, Level::Missing);
        assert_eq!(judge_line_rate("eth0", None, 1e12).level, Level::Ok);
    }

    #[test]
    fn loopback_is_no_line() {
        assert_eq!(interface_towards(&"tcp:127.0.0.1:9".parse().unwrap(), ROUTES), None);
        assert_eq!(interface_towards(&"shm:/tmp/x".parse().unwrap(), ROUTES), None);
    }

    proptest! {
        #[test]
        fn any_table_is_read_without_harm(text in "[0-9a-fA-F\\t \\n]*|\\PC*", ip: u32) {
            find_route(&text, Ipv4Addr::from(ip));
        }
    }
}
