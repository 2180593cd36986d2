//! TCP congestion controls that are requested.

use crate::{Finding, Needs, read};
use socket2::{Domain, Socket, Type};
use std::collections::BTreeSet;

const DIRECTORY: &str = "/proc/sys/net/ipv4";
/// Congestion control that a source requests if it names none.
const DEFAULT: &str = "cubic";

/// Returns one finding for each congestion control that is requested.
pub(super) fn probe_congestion_controls(needs: &Needs) -> Vec<Finding> {
    let tcp = needs.nodes.iter().filter(|node| node.connect.iter().any(|address| address.link_kind().congestion));
    let mut named: BTreeSet<&str> = tcp.filter_map(|node| node.congestion.as_deref()).collect();
    named.remove("system");
    let [available, allowed, system] =
        ["tcp_available_congestion_control", "tcp_allowed_congestion_control", "tcp_congestion_control"]
            .map(|name| read::text_or_unknown(read::read_text(format!("{DIRECTORY}/{name}"))));
    let settings = format!("available: {available}; allowed to all: {allowed}; default: {system}");
    let default = (!named.contains(DEFAULT)).then_some((DEFAULT, false));
    let wanted = default.into_iter().chain(named.iter().map(|name| (*name, true)));
    wanted
        .map(|(name, required)| {
            judge_congestion_control(name, required, try_congestion_control(name), &available, &allowed, &settings)
        })
        .collect()
}

/// Tries a congestion control on a socket that is never connected.
fn try_congestion_control(name: &str) -> std::io::Result<()> {
    Socket::new(Domain::IPV4, Type::STREAM.cloexec(), None)?.set_tcp_congestion(name.as_bytes())
}

fn judge_congestion_control(
    name: &str,
    required: bool,
    tried: std::io::Result<()>,
    available: &str,
    allowed: &str,
    settings: &str,
) -> Finding {
    let title = format!("congestion control {name}");
    let Err(error) = tried else { return Finding::new(title, format!("can be selected; {settings}")) };
    let finding = Finding::new(title, format!("cannot be selected: {error}; {settings}"));
    let finding = match required {
        true => finding.with_missing_level("a source that selects it ends with an error: choose an available one"),
        false => finding.with_degraded_level("links use the system's default instead, which may pace, as bbr does"),
    };
    match available.split(' ').any(|there| there == name) {
        // Without CAP_NET_ADMIN only allowed congestion controls can be selected.
        true => finding.with_remedy(format!("sysctl -w net.ipv4.tcp_allowed_congestion_control=\"{allowed} {name}\"")),
        false => finding.with_remedy(format!("modprobe tcp_{name}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Level, NodeNeeds};
    use std::io::ErrorKind;

    #[test]
    fn what_is_named_must_be_there_and_the_default_may_be_replaced() {
        let refused = || Err(ErrorKind::PermissionDenied.into());
        let cubic = judge_congestion_control("cubic", false, refused(), "reno bbr cubic", "reno bbr", "");
        let allow = "sysctl -w net.ipv4.tcp_allowed_congestion_control=\"reno bbr cubic\"";
        assert_eq!((cubic.level, cubic.remedy.as_deref()), (Level::Degraded, Some(allow)));
        let vegas = judge_congestion_control("vegas", true, refused(), "reno bbr cubic", "reno bbr", "");
        assert_eq!((vegas.level, vegas.remedy.as_deref()), (Level::Missing, Some("modprobe tcp_vegas")));
    }

    #[test]
    fn only_what_is_asked_for_is_tried() {
        let node = |name: &str| NodeNeeds {
            connect: vec!["tcp:127.0.0.1:1".parse().unwrap()],
            congestion: Some(name.to_owned()),
            ..NodeNeeds::default()
        };
        let nodes = vec![node("no-such-control"), node("system"), node("no-such-control")];
        let found = probe_congestion_controls(&Needs { nodes, ..Needs::default() });
        let names: Vec<_> = found.iter().map(|one| (one.name.as_str(), one.level)).collect();
        assert_eq!(names[1..], [("congestion control no-such-control", Level::Missing)]);
        assert_eq!(names[0].0, "congestion control cubic");
    }
}
