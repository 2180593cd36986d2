//! Offset of TAI from UTC in the kernel.

use crate::Finding;
use rustix::time::{ClockId, DynamicClockId, clock_gettime, clock_gettime_dynamic};
use thalweg_wire::TAI_MINUS_UTC;

pub(super) fn probe_tai_offset() -> Finding {
    let realtime = clock_gettime(ClockId::Realtime);
    match clock_gettime_dynamic(DynamicClockId::Tai) {
        // Read one after the other, the two may lie on both sides of a full second.
        Ok(tai) => judge_tai_offset(tai.tv_sec.saturating_sub(realtime.tv_sec)),
        Err(error) => Finding::new("TAI", format!("CLOCK_TAI cannot be read: {error}"))
            .with_degraded_level(cost_of_wrong_offset()),
    }
}

fn cost_of_wrong_offset() -> String {
    format!("timestamps use TAI - UTC = {TAI_MINUS_UTC} s, which is right until the next leap second")
}

fn judge_tai_offset(offset: i64) -> Finding {
    let finding = Finding::new("TAI", format!("{offset} s ahead of UTC (CLOCK_TAI minus CLOCK_REALTIME)"));
    match offset > 1 {
        true => finding,
        // chrony sets it in the kernel, with the `leapsectz right/UTC` of Debian's configuration.
        false => finding
            .with_degraded_level(cost_of_wrong_offset())
            .with_remedy("apt-get install chrony && systemctl enable --now chrony"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Level;

    #[test]
    fn an_offset_of_zero_was_never_set() {
        assert_eq!(judge_tai_offset(37).level, Level::Ok);
        assert_eq!(judge_tai_offset(0).level, Level::Degraded);
        assert_eq!(judge_tai_offset(1).level, Level::Degraded, "the second passed between two readings");
    }
}
