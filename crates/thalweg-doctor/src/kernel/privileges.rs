//! Privileges of this process.

use crate::{Finding, read};
use rustix::thread::{CapabilitySet, capabilities};

/// Capabilities, with their names and their purpose here.
const WANTED: [(CapabilitySet, &str, &str); 4] = [
    (CapabilitySet::SYS_ADMIN, "CAP_SYS_ADMIN", "page frames for DMA devices"),
    (CapabilitySet::NET_RAW, "CAP_NET_RAW", "AF_XDP and packet sockets"),
    (CapabilitySet::BPF, "CAP_BPF", "BPF congestion controls"),
    (CapabilitySet::IPC_LOCK, "CAP_IPC_LOCK", "registered memory without a limit"),
];

/// Reports capabilities. Shared memory, TCP and the recorder need none of them.
pub(super) fn probe_capabilities() -> Finding {
    let [with, without] = [true, false].map(|is_held| {
        let some = WANTED.iter().filter(|(set, _, _)| has_capability(*set) == is_held);
        let names: Vec<_> = some.map(|(_, name, what)| format!("{name} ({what})")).collect();
        if names.is_empty() { "none".to_owned() } else { names.join(", ") }
    });
    Finding::new("capabilities", format!("with {with}; without {without}"))
}

/// Reports what restricts system calls.
pub(super) fn probe_seccomp() -> Finding {
    let status = read::read_text("/proc/self/status").unwrap_or_default();
    let mode = match read::value_after_key(&status, "Seccomp") {
        Some("0") => "no filter",
        Some("1") => "strict",
        Some("2") => "a filter, such as a container's profile",
        _ => "unknown",
    };
    let gain = match read::value_after_key(&status, "NoNewPrivs") {
        Some("1") => "no_new_privs is set",
        _ => "no_new_privs is not set",
    };
    Finding::new("seccomp", format!("{mode}; {gain} (/proc/self/status)"))
}

pub(crate) fn has_capability(capability: CapabilitySet) -> bool {
    capabilities(None).is_ok_and(|sets| sets.effective.contains(capability))
}
