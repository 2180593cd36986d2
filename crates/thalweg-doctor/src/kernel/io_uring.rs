//! io_uring: whether it is available, and which of its operations.

use crate::{Finding, read};
use io_uring::{IoUring, Probe, opcode};
use std::io;

const DISABLED: &str = "/proc/sys/kernel/io_uring_disabled";

/// Operations with their numbers. The recorder needs the first four; the others are for links.
const OPERATIONS: [(&str, u8); 9] = [
    ("write", opcode::Write::CODE),
    ("write_fixed", opcode::WriteFixed::CODE),
    ("fallocate", opcode::Fallocate::CODE),
    ("fsync", opcode::Fsync::CODE),
    ("read_fixed", opcode::ReadFixed::CODE),
    ("recv", opcode::Recv::CODE),
    ("send_zc", opcode::SendZc::CODE),
    ("sendmsg_zc", opcode::SendMsgZc::CODE),
    ("recv_zc", opcode::RecvZc::CODE),
];
const RECORDER_OPERATION_COUNT: usize = 4;

pub(super) fn probe_io_uring(ring: &io::Result<IoUring>) -> Finding {
    let setting = read::read_text(DISABLED);
    let reason = format!("{DISABLED} is {}", setting.as_deref().unwrap_or("not there"));
    match ring {
        Ok(_) => Finding::new("io_uring", format!("a ring can be created; {reason}")),
        Err(error) => {
            let finding = Finding::new("io_uring", format!("no ring can be created: {error}; {reason}"))
                .with_degraded_level(
                    "blocks are written by threads that wait for the disk instead of by the kernel's queue",
                );
            // Otherwise the reason is a container's seccomp profile, or the kernel's configuration.
            match setting.as_deref() {
                Some("1" | "2") => finding.with_remedy("sysctl -w kernel.io_uring_disabled=0"),
                _ => finding,
            }
        }
    }
}

pub(super) fn probe_operations(ring: &io::Result<IoUring>) -> Finding {
    const NAME: &str = "io_uring operations";
    let mut probe = Probe::new();
    let Ok(ring) = ring else { return Finding::new(NAME, "none: no ring can be created") };
    if let Err(error) = ring.submitter().register_probe(&mut probe) {
        return Finding::new(NAME, format!("unknown: the ring does not report them: {error}"));
    }
    let (mut there, mut not): (Vec<_>, Vec<_>) = OPERATIONS.iter().partition(|(_, code)| probe.is_supported(*code));
    // These are no operations of their own: multishot receive came together with zero-copy send (Linux 6.0), and
    // registering buffers is tried with an empty table.
    if probe.is_supported(opcode::SendZc::CODE) { &mut there } else { &mut not }.push(&("multishot recv", 0));
    let registers = ring.submitter().register_buffers_sparse(1).is_ok();
    if registers { &mut there } else { &mut not }.push(&("register_buffers", 0));
    let [there, not] = [there, not].map(|list| list.iter().map(|(name, _)| *name).collect::<Vec<_>>().join(", "));
    let evidence = match not.is_empty() {
        true => format!("{there} (IORING_REGISTER_PROBE)"),
        false => format!("{there}; not: {not} (IORING_REGISTER_PROBE)"),
    };
    let finding = Finding::new(NAME, evidence);
    if OPERATIONS[..RECORDER_OPERATION_COUNT].iter().all(|(_, code)| probe.is_supported(*code)) {
        return finding;
    }
    finding.with_degraded_level("the recorder needs write, write_fixed, fallocate and fsync")
}
