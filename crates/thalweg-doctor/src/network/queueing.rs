//! Queueing between a socket and an interface.

use crate::{Finding, read};

pub(super) fn probe() -> Finding {
    let file = |name: &str| read::or_unknown(read::text(format!("/proc/sys/net/core/{name}")));
    Finding::new(
        "queueing",
        format!(
            "default_qdisc {}, busy_poll {} us, busy_read {} us (/proc/sys/net/core)",
            file("default_qdisc"),
            file("busy_poll"),
            file("busy_read")
        ),
    )
}
