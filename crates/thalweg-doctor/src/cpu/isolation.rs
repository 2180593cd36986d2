//! Processors that are isolated from the scheduler and its timer.

use crate::placement::join_numbers;
use crate::{Finding, Needs, read};

pub(super) fn probe_isolation(needs: &Needs) -> Finding {
    let [isolated, tickless] = ["isolated", "nohz_full"].map(|name| {
        read::parse_number_list(&read::read_text(format!("/sys/devices/system/cpu/{name}")).unwrap_or_default())
    });
    judge_isolation(&super::bound_processors(needs), &isolated, &tickless)
}

fn judge_isolation(bound: &[u32], isolated: &[u32], tickless: &[u32]) -> Finding {
    let [isolated_text, tickless_text] =
        [isolated, tickless].map(|list| if list.is_empty() { "none".to_owned() } else { join_numbers(list) });
    let finding = Finding::new(
        "isolated processors",
        format!("isolated: {isolated_text}; without timer ticks: {tickless_text} (/sys/devices/system/cpu)"),
    );
    let open: Vec<u32> = bound.iter().copied().filter(|cpu| !isolated.contains(cpu)).collect();
    match open.is_empty() || isolated.is_empty() {
        true => finding,
        false => finding.with_degraded_level(format!(
            "nodes are bound to {}, which other programs may use too, while isolated processors are idle",
            join_numbers(&open)
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Level;

    #[test]
    fn isolated_processors_are_there_to_be_used() {
        assert_eq!(judge_isolation(&[], &[2, 3], &[]).level, Level::Ok);
        assert_eq!(judge_isolation(&[0], &[], &[]).level, Level::Ok, "no processor has to be isolated");
        assert_eq!(judge_isolation(&[2, 3], &[2, 3], &[2, 3]).level, Level::Ok);
        assert_eq!(judge_isolation(&[1], &[2, 3], &[]).level, Level::Degraded);
    }
}
