//! Congestion controls in BPF (`bpf/`): whether this kernel accepts them, and whether this process may load them.

use super::{Config, privileges};
use crate::{Finding, read};
use rustix::thread::CapabilitySet;

const BTF: &str = "/sys/kernel/btf/vmlinux";
/// Type that the kernel generates for a `struct_ops` of `tcp_congestion_ops` (kernel/bpf/bpf_struct_ops.c).
const TYPE: &[u8] = b"bpf_struct_ops_tcp_congestion_ops\0";

pub(super) fn probe_struct_ops() -> Finding {
    let types = read::read_first_bytes(BTF, 64 << 20);
    let has = types.as_deref().is_some_and(|types| contains_pattern(types, TYPE));
    let may = privileges::has_capability(CapabilitySet::BPF) || privileges::has_capability(CapabilitySet::SYS_ADMIN);
    let support = match (&types, has) {
        (None, _) => format!("{BTF} cannot be read"),
        (Some(_), true) => format!("{BTF} has the type"),
        (Some(_), false) => format!("{BTF} lacks the type"),
    };
    let config = Config::read_running_config();
    let loaded = if may { "this process may load them" } else { "this process may not load them (CAP_BPF)" };
    let evidence = format!(
        "{support}; {loaded}; {}, {}",
        config.setting_text("CONFIG_BPF_JIT"),
        config.setting_text("CONFIG_DEBUG_INFO_BTF")
    );
    Finding::new("BPF congestion controls", evidence)
}

fn contains_pattern(bytes: &[u8], pattern: &[u8]) -> bool {
    let Some((first, rest)) = pattern.split_first() else { return true };
    let mut left = bytes;
    while let Some(at) = left.iter().position(|byte| byte == first) {
        left = &left[at + 1..];
        if left.starts_with(rest) {
            return true;
        }
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn a_pattern_is_found_where_it_is(before: Vec<u8>, after: Vec<u8>) {
            prop_assert!(contains_pattern(&[&before[..], TYPE, &after].concat(), TYPE));
            prop_assert!(!contains_pattern(&before, TYPE) || before.len() >= TYPE.len());
        }
    }
}
