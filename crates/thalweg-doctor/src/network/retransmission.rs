//! Time that TCP waits before it sends the last packet of a burst again.

use crate::{Finding, read};

const SETTING: &str = "/proc/sys/net/ipv4/tcp_rto_min_us";

pub(super) fn probe_retransmission() -> Finding {
    match read::read_number(SETTING) {
        // In a laboratory a round trip takes less than a millisecond; after a loss at the end of a burst TCP then idles
        // for a thousand of them. No fault: the window is there so that such losses do not happen.
        Some(micros) if micros > 20_000 => {
            Finding::new("retransmission", format!("at the earliest after {} ms ({SETTING})", micros / 1000))
                .with_remedy("sysctl -w net.ipv4.tcp_rto_min_us=5000")
        }
        Some(micros) => Finding::new("retransmission", format!("at the earliest after {micros} us ({SETTING})")),
        None => Finding::new(
            "retransmission",
            "at the earliest after 200 ms (before Linux 6.11 it can only be set per route)",
        ),
    }
}
