//! Processor use during a measurement, by three stated definitions.

use crate::point::median_by_figure;
use rustix::time::{ClockId, clock_gettime};
use serde::{Deserialize, Serialize};
use std::fs;
use std::time::{Duration, Instant};

/// Processor use while a point was measured.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct Cpu {
    /// User and system time of the measuring processes, all their threads, in percent of one processor. The kernel
    /// charges time in softirqs to the process that happens to run. If a server is measured, only its processes count.
    pub process_percent: f64,
    /// Time of the asking host's processors that was not idle (softirqs, steal, and whatever else ran), in percent of
    /// one processor: a host with two can reach 200. Source: `/proc/stat`, which counts in ticks of 10 ms. With two
    /// hosts, both of them together.
    pub system_percent: f64,
    /// The processes' time for 10⁹ payload bytes that arrived, in seconds; `None` if no payload is carried.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub seconds_per_gigabyte: Option<f64>,
    /// As `process_percent`, of the sending end; `None` if the ends are not distinguished.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub sender_percent: Option<f64>,
    /// As `process_percent`, of the receiving end.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub receiver_percent: Option<f64>,
}

impl Cpu {
    /// Returns the median of each figure; `None` if there are no repeats.
    pub(crate) fn median_figures(repeats: &[Self]) -> Option<Self> {
        Some(Self {
            process_percent: median_by_figure(repeats, |one| Some(one.process_percent))?,
            system_percent: median_by_figure(repeats, |one| Some(one.system_percent))?,
            seconds_per_gigabyte: median_by_figure(repeats, |one| one.seconds_per_gigabyte),
            sender_percent: median_by_figure(repeats, |one| one.sender_percent),
            receiver_percent: median_by_figure(repeats, |one| one.receiver_percent),
        })
    }
}

/// Reading of all counters at one time.
#[derive(Debug, Clone, Copy)]
pub struct Usage {
    at: Instant,
    process: Duration,
    stat: Option<Stat>,
    waited: Option<Duration>,
}

/// Time used between two readings.
#[derive(Debug, Clone, Copy, Default, Serialize, Deserialize)]
pub struct Used {
    /// Time between the readings, in seconds.
    pub wall: f64,
    /// User and system time of this process, in seconds.
    pub process: f64,
    /// Time of all processors that was not idle, in seconds.
    pub system: f64,
    /// Part of `system` that the hypervisor gave to others, in seconds.
    pub steal: f64,
    /// Time in which the reading thread was ready to run and did not, in seconds; 0 if the kernel does not count it.
    #[serde(default)]
    pub waited: f64,
}

impl Usage {
    /// Reads the counters: two system calls and two files of `/proc`. A difference is to be taken on the same thread.
    pub fn read_counters() -> Self {
        let cpu = clock_gettime(ClockId::ProcessCPUTime);
        #[expect(clippy::cast_sign_loss, clippy::cast_possible_truncation, reason = "a time since the process began")]
        let process = Duration::new(cpu.tv_sec as u64, cpu.tv_nsec as u32);
        Self {
            at: Instant::now(),
            process,
            stat: fs::read_to_string("/proc/stat").ok().and_then(|text| parse_proc_stat(&text)),
            waited: thalweg_sys::processor::thread_wait_time(),
        }
    }

    /// Returns the time used since this reading.
    pub fn used_since(&self) -> Used {
        let now = Self::read_counters();
        let mut used = Used {
            wall: (now.at - self.at).as_secs_f64(),
            process: now.process.saturating_sub(self.process).as_secs_f64(),
            ..Used::default()
        };
        if let (Some(before), Some(after)) = (self.stat, now.stat) {
            used.system = after.busy.saturating_sub(before.busy) as f64 / ticks_per_second();
            used.steal = after.steal.saturating_sub(before.steal) as f64 / ticks_per_second();
        }
        if let (Some(before), Some(after)) = (self.waited, now.waited) {
            used.waited = after.saturating_sub(before).as_secs_f64();
        }
        used
    }
}

/// Sum of two consecutive measurements.
impl std::ops::Add for Used {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self {
            wall: self.wall + other.wall,
            process: self.process + other.process,
            system: self.system + other.system,
            steal: self.steal + other.steal,
            waited: self.waited + other.waited,
        }
    }
}

impl Used {
    /// Combines two ends that measured at the same time: processor time adds up, wall time does not. If both ran on one
    /// host, its `/proc/stat` has already counted both.
    #[must_use]
    pub fn combined_with(self, other: Self, same_host: bool) -> Self {
        let theirs = if same_host { Self::default() } else { other };
        Self {
            wall: self.wall,
            process: self.process + other.process,
            system: self.system + theirs.system,
            steal: self.steal + theirs.steal,
            waited: self.waited + other.waited,
        }
    }

    /// Returns the time that the hypervisor gave to others, in percent of one processor.
    pub fn steal_percent(&self) -> f64 {
        self.percent_of_wall(self.steal)
    }

    pub(crate) fn percent_of_wall(&self, seconds: f64) -> f64 {
        if self.wall > 0.0 { 100.0 * seconds / self.wall } else { 0.0 }
    }

    /// Returns the process, system and per-byte figures, for `bytes` payload bytes.
    pub fn processor_figures(&self, bytes: u64) -> Cpu {
        Cpu {
            process_percent: self.percent_of_wall(self.process),
            system_percent: self.percent_of_wall(self.system),
            seconds_per_gigabyte: (bytes > 0).then(|| self.process * 1e9 / bytes as f64),
            ..Cpu::default()
        }
    }
}

/// Numbers of times that processors were slowed down: by heat (`thermal_throttle` in sysfs, x86), or by a quota of this
/// process's control group (`cpu.stat`, Documentation/admin-guide/cgroup-v2.rst).
#[derive(Debug, Clone, Copy)]
pub(crate) struct Throttled {
    by_heat: u64,
    by_quota: u64,
}

impl Throttled {
    /// Reads the counters; 0 where there are none.
    pub(crate) fn read_counters() -> Self {
        let cpus = fs::read_dir("/sys/devices/system/cpu").into_iter().flatten().flatten();
        let counts = cpus.filter_map(|cpu| {
            let count = fs::read_to_string(cpu.path().join("thermal_throttle/core_throttle_count")).ok()?;
            count.trim().parse::<u64>().ok()
        });
        let group = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
        let group = group.lines().find_map(|line| line.strip_prefix("0::")).unwrap_or("/").trim_start_matches('/');
        let stat = fs::read_to_string(std::path::Path::new("/sys/fs/cgroup").join(group).join("cpu.stat"));
        Self { by_heat: counts.sum(), by_quota: parse_quota_throttling(&stat.unwrap_or_default()) }
    }

    /// Describes the throttling since this reading, for people.
    pub(crate) fn warnings_since(self) -> impl Iterator<Item = String> {
        let now = Self::read_counters();
        let (heat, quota) = (now.by_heat.saturating_sub(self.by_heat), now.by_quota.saturating_sub(self.by_quota));
        let heat = (heat > 0).then(|| format!("processors were throttled by heat {heat} times"));
        let quota =
            (quota > 0).then(|| format!("a quota of the control group stopped this process {quota} times (cpu.max)"));
        heat.into_iter().chain(quota)
    }
}

fn parse_quota_throttling(stat: &str) -> u64 {
    stat.lines().find_map(|line| line.strip_prefix("nr_throttled ")?.trim().parse().ok()).unwrap_or(0)
}

#[derive(Debug, Clone, Copy, PartialEq)]
struct Stat {
    busy: u64,
    /// Part of `busy` in which processes ran, threads of the kernel included.
    tasks: u64,
    steal: u64,
}

/// Returns the time of all processes and the steal since the start of the machine, in ticks.
pub(crate) fn read_system_ticks() -> Option<(u64, u64)> {
    let stat = parse_proc_stat(&fs::read_to_string("/proc/stat").ok()?)?;
    Some((stat.tasks, stat.steal))
}

/// Parses the first line of `/proc/stat`: user nice system idle iowait irq softirq steal guest guest_nice
/// (proc_stat(5)); guest time is part of user time.
fn parse_proc_stat(text: &str) -> Option<Stat> {
    let fields = text.lines().next()?.strip_prefix("cpu ")?;
    let fields: Vec<u64> = fields.split_whitespace().map(str::parse).collect::<Result<_, _>>().ok()?;
    let [user, nice, system, _idle, _iowait, irq, softirq, steal, ..] = fields[..] else { return None };
    let busy = [user, nice, system, irq, softirq, steal].into_iter().fold(0, u64::saturating_add);
    let tasks = [user, nice, system].into_iter().fold(0, u64::saturating_add);
    Some(Stat { busy, tasks, steal })
}

pub(crate) fn ticks_per_second() -> f64 {
    rustix::param::clock_ticks_per_second() as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_but_idle_and_waiting_for_disks_is_busy() {
        let text = "cpu  100 20 300 4000 500 6 70 8 90 10\ncpu0 1 2 3\n";
        assert_eq!(parse_proc_stat(text), Some(Stat { busy: 100 + 20 + 300 + 6 + 70 + 8, tasks: 420, steal: 8 }));
    }

    #[test]
    fn an_invalid_stat_is_none() {
        for text in ["", "cpu", "cpu  1 2 3", "cpu  1 2 x 4 5 6 7 8", "intr 5"] {
            assert_eq!(parse_proc_stat(text), None, "{text}");
        }
    }

    #[test]
    fn periods_that_a_quota_cut_short_are_counted() {
        assert_eq!(parse_quota_throttling("usage_usec 1\nnr_periods 9\nnr_throttled 4\nthrottled_usec 5\n"), 4);
        assert_eq!((parse_quota_throttling(""), parse_quota_throttling("nr_throttled x")), (0, 0));
        assert_eq!(Throttled { by_heat: u64::MAX, by_quota: u64::MAX }.warnings_since().count(), 0);
    }

    #[test]
    fn seconds_per_gigabyte_are_for_ten_to_the_nine() {
        let used = Used { wall: 2.0, process: 1.0, system: 3.0, ..Used::default() };
        let cpu = used.processor_figures(4_000_000_000);
        assert_eq!((cpu.process_percent, cpu.system_percent, cpu.seconds_per_gigabyte), (50.0, 150.0, Some(0.25)));
        assert_eq!(used.processor_figures(0).seconds_per_gigabyte, None);
    }

    #[test]
    fn work_is_charged_to_this_process() {
        let before = Usage::read_counters();
        let sum = (0..5_000_000u64).fold(0u64, |sum, one| std::hint::black_box(sum ^ one.wrapping_mul(31)));
        std::hint::black_box(sum);
        assert!(before.used_since().process > 0.0);
    }
}
