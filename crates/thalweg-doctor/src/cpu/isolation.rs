//! Processors that are isolated from the scheduler and its timer.

use crate::{Finding, Needs, read};

pub(super) fn probe(needs: &Needs) -> Finding {
    let read = |name: &str| {
        let text = read::text(format!("/sys/devices/system/cpu/{name}"));
        read::list(&text.unwrap_or_default())
    };
    judge(&super::bound(needs), &read("isolated"), &read("nohz_full"))
}

fn judge(bound: &[u32], isolated: &[u32], tickless: &[u32]) -> Finding {
    let told = |list: &[u32]| match list {
        [] => "none".to_owned(),
        list => list.iter().map(u32::to_string).collect::<Vec<_>>().join(","),
    };
    let finding = Finding::new(
        "isolated processors",
        format!("isolated: {}; without timer ticks: {} (/sys/devices/system/cpu)", told(isolated), told(tickless)),
    );
    let open: Vec<u32> = bound.iter().copied().filter(|cpu| !isolated.contains(cpu)).collect();
    match open.is_empty() || isolated.is_empty() {
        true => finding,
        false => finding.degraded(format!(
            "nodes are bound to {}, which others may use too, while isolated processors stand idle",
            told(&open)
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Level;

    #[test]
    fn isolated_processors_are_there_to_be_used() {
        assert_eq!(judge(&[], &[2, 3], &[]).level, Level::Ok);
        assert_eq!(judge(&[0], &[], &[]).level, Level::Ok, "nobody has to isolate any");
        assert_eq!(judge(&[2, 3], &[2, 3], &[2, 3]).level, Level::Ok);
        assert_eq!(judge(&[1], &[2, 3], &[]).level, Level::Degraded);
    }
}
