//! State, speed and packet size of an interface.

use super::Interface;
use crate::Finding;

/// Speed in bits per second from which on packets of 1500 bytes cost a core.
const FAST_LINK_BPS: f64 = 1e10;
const JUMBO_MTU: u64 = 9000;

pub(super) fn probe_link_state(interface: &Interface) -> Finding {
    let Interface { name, up, speed, mtu, .. } = interface;
    let speed_text = speed.map_or_else(|| "speed unknown".to_owned(), format_speed);
    let state = if *up { "up" } else { "down" };
    let finding =
        Finding::new(format!("{name} link"), format!("{state}, {speed_text}, MTU {mtu} (/sys/class/net/{name})"));
    match *up && interface.has_device() && speed.is_some_and(|speed| speed >= FAST_LINK_BPS) && *mtu < JUMBO_MTU {
        true => finding
            .with_degraded_level(
                "six times as many packets as with jumbo frames, each with its own cost; both ends and the switch \
                 must use the same MTU",
            )
            .with_remedy(format!("ip link set {name} mtu {JUMBO_MTU}")),
        false => finding,
    }
}

/// Returns a speed in bits per second as text.
pub(super) fn format_speed(speed: f64) -> String {
    if speed >= 1e9 { format!("{} Gbit/s", speed / 1e9) } else { format!("{} Mbit/s", speed / 1e6) }
}
