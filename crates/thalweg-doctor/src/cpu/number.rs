//! Number of processors: whether each hot thread has its own.

use crate::{Finding, Needs, read};

pub(super) fn probe_processor_count(needs: &Needs) -> Finding {
    let usable = std::thread::available_parallelism().ok().map(std::num::NonZero::get);
    let online = read::read_text("/sys/devices/system/cpu/online");
    let evidence = format!(
        "{} usable by this process; online: {}",
        read::text_or_unknown(usable.map(|count| count.to_string())),
        read::text_or_unknown(online)
    );
    let nodes = needs.nodes.len();
    let Some(usable) = usable.filter(|_| nodes > 0) else { return Finding::new("processors", evidence) };
    let finding = Finding::new("processors", format!("{nodes} nodes, each with one hot thread; {evidence}"));
    match nodes > usable {
        true => finding.with_degraded_level("hot threads share processors: each waits while another runs"),
        false => finding,
    }
}
