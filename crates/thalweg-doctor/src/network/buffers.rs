//! Limits of the data that TCP keeps on its way.

use super::{Interface, link};
use crate::{Finding, Needs, read};

const RECEIVE: &str = "/proc/sys/net/ipv4/tcp_rmem";
const SEND: &str = "/proc/sys/net/ipv4/tcp_wmem";
/// Default window of a builder, if no topology states another, in bytes.
const DEFAULT_WINDOW: u64 = 4 << 20;
/// Assumed round trip through a laboratory's switches with full queues, in seconds: longer than most are.
const ROUND_TRIP: f64 = 1e-3;

pub(super) fn probe_socket_buffers(needs: &Needs, interfaces: &[Interface]) -> Finding {
    let [receive, send] = [RECEIVE, SEND].map(|path| read::read_text(path).and_then(|text| parse_triple(&text)));
    let [receive_max, send_max] = ["rmem_max", "wmem_max"]
        .map(|name| read::text_or_unknown(read::read_text(format!("/proc/sys/net/core/{name}"))));
    let tcp = needs
        .nodes
        .iter()
        .filter(|node| node.listen.iter().chain(&node.connect).any(|address| address.link_kind().congestion));
    let window = tcp.map(|node| node.window).max().unwrap_or(DEFAULT_WINDOW);
    let fastest = interfaces.iter().filter(|one| one.up).filter_map(|one| one.speed).max_by(f64::total_cmp);
    judge_socket_buffers(receive, send, window, fastest, &format!("rmem_max {receive_max}, wmem_max {send_max}"))
}

/// Without a known `link`, Thalweg leaves the sizes of its sockets to the kernel, which lets them grow to the third
/// value of each triple. `window` is what a builder requests from one source at a time, in bytes, `fastest` an
/// interface's speed in bits per second.
fn judge_socket_buffers(
    receive: Option<[u64; 3]>,
    send: Option<[u64; 3]>,
    window: u64,
    fastest: Option<f64>,
    other: &str,
) -> Finding {
    const NAME: &str = "socket buffers";
    let (Some(receive), Some(send)) = (receive, send) else {
        return Finding::new(NAME, format!("unknown: {RECEIVE} and {SEND} cannot be read; {other}"));
    };
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "speeds are positive and casts saturate"
    )]
    let product = fastest.map(|speed| (speed / 8.0 * ROUND_TRIP) as u64);
    let in_flight = fastest.zip(product).map_or_else(
        || "no interface reports its speed".to_owned(),
        |(speed, product)| {
            format!("{} for 1 ms at {}", thalweg_text::format_volume(product), link::format_speed(speed))
        },
    );
    let evidence = format!(
        "tcp_rmem up to {}, tcp_wmem up to {}; a builder's window is {}; {in_flight}; {other} (for sockets that ask)",
        thalweg_text::format_volume(receive[2]),
        thalweg_text::format_volume(send[2]),
        thalweg_text::format_volume(window)
    );
    let finding = Finding::new(NAME, evidence);
    // No more than the window is ever on its way, whatever the line could hold.
    let wanted = product.map_or(window, |product| product.min(window));
    // Half of it on its way keeps a line busy while the other half is read.
    let enough = wanted / 2;
    match (receive[2] < enough, send[2] < enough) {
        (false, false) => finding,
        (true, _) => finding
            .with_degraded_level("a builder receives less than its window before the source has to wait")
            .with_remedy(raise_command("tcp_rmem", receive, wanted)),
        (_, true) => finding
            .with_degraded_level("a source keeps less data in flight than the builder requested")
            .with_remedy(raise_command("tcp_wmem", send, wanted)),
    }
}

/// Returns the command that raises the largest of three limits to `wanted` bytes or more.
fn raise_command(name: &str, [least, initial, _]: [u64; 3], wanted: u64) -> String {
    let most = wanted.checked_next_power_of_two().unwrap_or(wanted);
    format!("sysctl -w net.ipv4.{name}=\"{least} {initial} {most}\"")
}

fn parse_triple(text: &str) -> Option<[u64; 3]> {
    let numbers: Vec<u64> = text.split_whitespace().map_while(|number| number.parse().ok()).collect();
    numbers.try_into().ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Level;

    #[test]
    fn buffers_hold_the_smaller_of_window_and_line() {
        let small = Some([4096, 16384, 1 << 20]);
        let large = parse_triple("4096\t131072\t33554432");
        assert_eq!(judge_socket_buffers(large, large, DEFAULT_WINDOW, None, "").level, Level::Ok);
        assert_eq!(
            judge_socket_buffers(large, small, DEFAULT_WINDOW, Some(1e9), "").level,
            Level::Ok,
            "125 kB fill 1 Gbit/s"
        );
        let slow = judge_socket_buffers(large, small, DEFAULT_WINDOW, Some(1e11), "");
        assert_eq!(
            (slow.level, slow.remedy.as_deref()),
            (Level::Degraded, Some("sysctl -w net.ipv4.tcp_wmem=\"4096 16384 4194304\""))
        );
        assert_eq!(judge_socket_buffers(None, large, DEFAULT_WINDOW, None, "").level, Level::Ok);
        assert_eq!(parse_triple("1 2"), None);
        assert_eq!(parse_triple("1 2 x"), None);
    }
}
