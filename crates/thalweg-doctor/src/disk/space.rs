//! Free space on the disk: whether the run fits.

use super::place;
use crate::{Data, Finding, Needs};
use rustix::fs::statvfs;
use thalweg_text::{format_rate, format_seconds, format_volume};

pub(crate) fn probe_free_space(needs: &Needs) -> Finding {
    let place = place::nearest_existing(&needs.directory);
    match statvfs(&place) {
        Ok(at) => {
            let held = needs.nodes.iter().fold(0, |sum: u64, node| sum.saturating_add(node.blocks));
            let free = at.f_bavail.saturating_mul(at.f_frsize);
            judge_free_space(&needs.data, needs.record.then_some(held), free, &place.display().to_string())
        }
        Err(error) => Finding::new("disk space", format!("unknown: {}: {error}", place.display())),
    }
}

/// Judges the free space. `held`: the bytes that the builders hold in memory, if they record.
fn judge_free_space(data: &Data, held: Option<u64>, free: u64, place: &str) -> Finding {
    const NAME: &str = "disk space";
    let evidence = format!("{} free at {place} (statvfs)", format_volume(free));
    let Some(held) = held else { return Finding::new(NAME, evidence) };
    match (data.total_bytes(), data.bytes_per_second) {
        (Some(volume), _) => {
            let how = if data.at_most { "at most " } else { "" };
            let finding = Finding::new(NAME, format!("the run writes {how}{}; {evidence}", format_volume(volume)));
            let lasts =
                time_until_full(data.bytes_per_second, free).map(|time| format!(" after {}", format_seconds(time)));
            let full = format!("the disk is full{}", lasts.unwrap_or_default());
            match volume > free {
                false => finding,
                true if data.at_most => {
                    finding.with_degraded_level(format!("if all fragments have their maximum size, {full}"))
                }
                true => finding
                    .with_missing_level(format!("{full}, and all later data are lost: free space, or shorten the run")),
            }
        }
        (None, _) if free < held => Finding::new(NAME, evidence).with_missing_level(format!(
            "the builders alone hold {} in memory, more than is free on this disk: free space, or record elsewhere",
            format_volume(held)
        )),
        (None, Some(rate)) => {
            let full = match time_until_full(Some(rate), free) {
                Some(time) => format!("full after {} at {}", format_seconds(time), format_rate(rate)),
                None => format!("never full at {}", format_rate(rate)),
            };
            Finding::new(NAME, format!("{evidence}: {full}"))
        }
        (None, None) => Finding::new(NAME, evidence),
    }
}

/// Returns the time that the free space lasts, in seconds.
fn time_until_full(bytes_per_second: Option<f64>, free: u64) -> Option<f64> {
    #[expect(clippy::cast_precision_loss, reason = "a figure for people")]
    let seconds = free as f64 / bytes_per_second.filter(|rate| *rate > 0.0)?;
    Some(seconds).filter(|seconds| seconds.is_finite())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Level;
    use std::time::Duration;

    fn data(rate: Option<f64>, seconds: Option<u64>, bytes: Option<u64>) -> Data {
        Data { bytes_per_second: rate, duration: seconds.map(Duration::from_secs), bytes, at_most: false }
    }

    #[test]
    fn a_run_that_cannot_fit_is_refused_and_one_that_might_is_not() {
        let level = |data: &Data| judge_free_space(data, Some(1), 1_000_000_000, "/").level;
        assert_eq!(level(&data(Some(1e6), Some(999), None)), Level::Ok);
        assert_eq!(level(&data(Some(1e6), Some(1001), None)), Level::Missing);
        assert_eq!(
            level(&data(Some(1e6), Some(1001), Some(1000))),
            Level::Ok,
            "the events end it before the time does"
        );
        assert_eq!(level(&data(None, None, Some(2_000_000_000))), Level::Missing);
        assert_eq!(level(&data(None, Some(1 << 40), None)), Level::Ok, "the amount is unknown");
        assert_eq!(
            judge_free_space(&data(None, None, None), Some(1 << 25), 1 << 24, "/").level,
            Level::Missing,
            "not even a start"
        );
        let most = Data { at_most: true, ..data(None, None, Some(2_000_000_000)) };
        assert_eq!(level(&most), Level::Degraded);
        assert_eq!(judge_free_space(&most, None, 0, "/").level, Level::Ok, "nothing is recorded");
    }

    #[test]
    fn it_says_when_the_disk_is_full() {
        let evidence = judge_free_space(&data(Some(1e9), Some(3600), None), Some(1), 90_000_000_000, "/runs");
        assert_eq!(
            evidence.cost.unwrap(),
            "the disk is full after 90.0 s, and all later data are lost: free space, or shorten the run"
        );
        let evidence = judge_free_space(&data(Some(1e9), None, None), Some(1), 90_000_000_000_000, "/runs");
        assert!(evidence.evidence.ends_with("full after 1day 1h at 1.00 GB/s"), "{}", evidence.evidence);
    }

    #[test]
    fn figures_that_make_no_sense_do_no_harm() {
        for rate in [0.0, -1.0, f64::NAN, f64::INFINITY, f64::MIN_POSITIVE] {
            for seconds in [None, Some(0), Some(u64::MAX)] {
                judge_free_space(&data(Some(rate), seconds, None), Some(1), u64::MAX, "/");
            }
        }
    }
}
