//! TCP's counters of a network namespace: proc_net(5), `/proc/net/snmp` and `/proc/net/netstat`.

use crate::LabError;
use crate::network::Namespace;
use std::fs::File;
use std::io::{Read, Seek};

/// Values of a host's TCP counters.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Counts {
    /// Number of retransmitted segments, for any reason.
    pub(crate) retransmissions: u64,
    /// Number of retransmission timeouts.
    pub(crate) timeouts: u64,
    /// Number of tail loss probes, which may be retransmissions and counted there, too.
    pub(crate) tail_loss_probes: u64,
    /// Number of segments retransmitted after acknowledgements that showed a gap.
    pub(crate) fast: u64,
    /// Number of segments retransmitted after the one that timed out.
    pub(crate) after_timeout: u64,
    /// Number of segments that the receiver reported (DSACK, RFC 2883) as already received.
    pub(crate) needless: u64,
}

impl Counts {
    /// Returns the increase since `before`.
    pub(crate) fn increase_since(self, before: Self) -> Self {
        Self {
            retransmissions: self.retransmissions.saturating_sub(before.retransmissions),
            timeouts: self.timeouts.saturating_sub(before.timeouts),
            tail_loss_probes: self.tail_loss_probes.saturating_sub(before.tail_loss_probes),
            fast: self.fast.saturating_sub(before.fast),
            after_timeout: self.after_timeout.saturating_sub(before.after_timeout),
            needless: self.needless.saturating_sub(before.needless),
        }
    }
}

/// Files with a namespace's counters, which can be read from any other namespace.
#[derive(Debug)]
pub(crate) struct Counters {
    snmp: File,
    netstat: File,
}

impl Counters {
    /// Opens the files of a namespace. An open file belongs to the namespace it was opened in.
    pub(crate) fn open(space: &Namespace) -> Result<Self, LabError> {
        space.run_inside(|| Ok(Self { snmp: open_counter_file("snmp")?, netstat: open_counter_file("netstat")? }))?
    }

    /// Reads the counters.
    pub(crate) fn read(&mut self) -> Result<Counts, LabError> {
        let (snmp, netstat) = (read_from_start(&mut self.snmp)?, read_from_start(&mut self.netstat)?);
        Ok(Counts {
            retransmissions: counter_value(&snmp, "Tcp:", "RetransSegs"),
            timeouts: counter_value(&netstat, "TcpExt:", "TCPTimeouts"),
            tail_loss_probes: counter_value(&netstat, "TcpExt:", "TCPLossProbes"),
            fast: counter_value(&netstat, "TcpExt:", "TCPFastRetrans"),
            // tcp_xmit_retransmit_queue in net/ipv4/tcp_output.c; the first segment is counted as a timeout only.
            after_timeout: counter_value(&netstat, "TcpExt:", "TCPSlowStartRetrans"),
            // Kernels before 5.10 count reports only, each of which may be of several segments.
            needless: counter_value(&netstat, "TcpExt:", "TCPDSACKRecvSegs").max(counter_value(
                &netstat,
                "TcpExt:",
                "TCPDSACKRecv",
            )),
        })
    }
}

/// Opens a file of counters of the calling thread's namespace.
fn open_counter_file(name: &str) -> Result<File, LabError> {
    let path = format!("/proc/thread-self/net/{name}");
    File::open(&path).map_err(LabError::file_error(path))
}

fn read_from_start(file: &mut File) -> Result<String, LabError> {
    let mut text = String::new();
    file.rewind()
        .and_then(|()| file.read_to_string(&mut text))
        .map_err(LabError::system_error("reading TCP's counters"))?;
    Ok(text)
}

/// Returns a counter by its name: a line of names is followed by a line of values, both with the same first word.
fn counter_value(text: &str, group: &str, name: &str) -> u64 {
    let mut lines = text.lines().filter_map(|line| line.strip_prefix(group));
    let (Some(names), Some(values)) = (lines.next(), lines.next()) else { return 0 };
    let mut pairs = names.split_whitespace().zip(values.split_whitespace());
    pairs.find(|(found, _)| *found == name).and_then(|(_, value)| value.parse().ok()).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::counter_value;

    #[test]
    fn counters_are_found_by_name() {
        let text = "Ip: Forwarding\nIp: 2\nTcp: ActiveOpens RetransSegs MaxConn\nTcp: 5 17 -1\n";
        assert_eq!(counter_value(text, "Tcp:", "RetransSegs"), 17);
        assert_eq!(counter_value(text, "Tcp:", "MaxConn"), 0);
        assert_eq!(counter_value(text, "Tcp:", "InSegs"), 0);
        assert_eq!(counter_value("", "Tcp:", "InSegs"), 0);
    }
}
