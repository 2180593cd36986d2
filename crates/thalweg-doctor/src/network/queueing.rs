//! Queueing between a socket and an interface.

use crate::{Finding, read};

pub(super) fn probe_queueing() -> Finding {
    let [qdisc, poll, read] = ["default_qdisc", "busy_poll", "busy_read"]
        .map(|name| read::text_or_unknown(read::read_text(format!("/proc/sys/net/core/{name}"))));
    let evidence = format!("default_qdisc {qdisc}, busy_poll {poll} us, busy_read {read} us (/proc/sys/net/core)");
    Finding::new("queueing", evidence)
}
