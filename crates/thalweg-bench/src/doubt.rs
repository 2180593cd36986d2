//! Conditions on the machine that make a figure doubtful: other processes, a hypervisor, ends that were not running, too
//! short a time, repeats that differ. Each is a [`Warning`] beside the figure.
//!
//! A [`Watch`] compares the processor time of all processes before and after a measurement. This process and its
//! descendants are the measurement, threads of the kernel may work for it; the rest are *other processes*.

use crate::cpu::{read_system_ticks, ticks_per_second};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::time::Instant;

/// Condition that makes a figure less certain.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Warning {
    /// Kind of condition.
    pub kind: WarningKind,
    /// Extent, in the unit of its kind.
    pub value: f64,
    /// Sentence about it.
    pub text: String,
}

/// Kind of a [`Warning`], with the unit of its value.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum WarningKind {
    /// Time of other processes, in percent of one processor.
    OtherProcesses,
    /// Time of processes that this one cannot see (of other containers), in percent of one processor.
    HiddenProcesses,
    /// Time that the hypervisor gave to other machines, in percent of one processor.
    Steal,
    /// Time in which an end that polls was ready to run and did not, in percent.
    Starved,
    /// Time of the measurement, in seconds.
    ShortTime,
    /// Distance from the least to the greatest repeat, in percent of the median.
    Spread,
}

impl WarningKind {
    /// Returns whether a larger value is worse.
    fn is_worse_if_larger(self) -> bool {
        self != Self::ShortTime
    }
}

/// Time of other processes above which a warning is given, in percent of one processor.
const MAX_OTHERS_PERCENT: f64 = 5.0;
/// Least time of other processes for a warning, in seconds: the kernel counts in ticks of 10 ms.
const MIN_OTHERS_SECONDS: f64 = 0.03;
/// Time of processes that this one cannot see above which a warning is given, in percent of one processor. It is a
/// difference of sampled counters, which vary by several percent.
const MAX_HIDDEN_PERCENT: f64 = 25.0;
/// Least time of processes that this one cannot see for a warning, in seconds.
const MIN_HIDDEN_SECONDS: f64 = 0.1;
/// Steal above which a warning is given, in percent of one processor.
const MAX_STEAL_PERCENT: f64 = 2.0;
/// Part of the time in which an end that polls did not run although it was ready, above which a warning is given.
const MAX_STARVED_PERCENT: f64 = 2.0;
/// Time of a measurement below which a warning is given, in seconds: processor time is counted in steps of 10 ms.
const MIN_CERTAIN_SECONDS: f64 = 0.1;
/// Spread over the repeats above which a warning is given, in percent.
const MAX_SPREAD_PERCENT: f64 = 10.0;

/// Use of the processors by others while something was measured.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Conditions {
    /// Time of the measurement, in seconds.
    pub seconds: f64,
    /// Processor time of other processes, in seconds.
    pub others: f64,
    /// Other process that used most, with its processor time in seconds.
    pub most: Option<(String, f64)>,
    /// Processor time of processes that this one cannot see, in seconds.
    pub hidden: f64,
    /// Time that the hypervisor gave to other machines, in seconds, all processors together.
    pub steal: f64,
    /// Part of the time of all processors that was used: by all processes, or by other machines.
    pub processors_busy: f64,
}

impl Conditions {
    /// Returns the time of other processes, in percent of one processor.
    pub fn others_percent(&self) -> f64 {
        self.percent(self.others)
    }

    /// Limits the time of other processes to what is left of the time of all processes, `all`, which the kernel counts
    /// apart from that of each: a process may have run between the two readings. Until here, `hidden` is the time of
    /// all visible processes.
    fn limit_to_system_time(&mut self, all: f64) {
        let visible = self.hidden;
        let rest = (all - (visible - self.others)).max(0.0);
        self.others = self.others.min(rest);
        if let Some((_, most)) = &mut self.most {
            *most = most.min(self.others);
        }
        self.hidden = (all - visible).max(0.0);
    }

    fn percent(&self, seconds: f64) -> f64 {
        if self.seconds > 0.0 { 100.0 * seconds / self.seconds } else { 0.0 }
    }

    /// Returns a warning for each condition beyond its bound.
    pub fn warnings(&self) -> Vec<Warning> {
        let mut warnings = Vec::new();
        let others = self.percent(self.others);
        if others > MAX_OTHERS_PERCENT && self.others >= MIN_OTHERS_SECONDS {
            let most = self.most.as_ref().map(|(name, seconds)| format!(", {name} {:.0} %", self.percent(*seconds)));
            let text = format!("other processes used {others:.0} % of a processor{}", most.unwrap_or_default());
            warnings.push(Warning { kind: WarningKind::OtherProcesses, value: others, text });
        }
        let hidden = self.percent(self.hidden);
        if hidden > MAX_HIDDEN_PERCENT && self.hidden >= MIN_HIDDEN_SECONDS {
            let text =
                format!("processes that are not visible here (of other containers) used {hidden:.0} % of a processor");
            warnings.push(Warning { kind: WarningKind::HiddenProcesses, value: hidden, text });
        }
        warnings.extend(steal_warning(self.percent(self.steal)));
        warnings
    }
}

/// Returns the warning about steal, in percent of one processor, if it is beyond its bound.
pub(crate) fn steal_warning(percent: f64) -> Option<Warning> {
    (percent > MAX_STEAL_PERCENT).then(|| Warning {
        kind: WarningKind::Steal,
        value: percent,
        text: format!("steal: the hypervisor gave {percent:.1} % of a processor to other machines"),
    })
}

/// Returns the warning about an end that polls and did not run, in percent of the time, if it is beyond its bound.
pub(crate) fn starved_warning(percent: f64) -> Option<Warning> {
    (percent > MAX_STARVED_PERCENT).then(|| Warning {
        kind: WarningKind::Starved,
        value: percent,
        text: format!("an end that polls waited for its processor for {percent:.0} % of the time"),
    })
}

/// Returns the warning about the processes of the other host, in percent of one processor, if they are beyond the bound
/// for sampled counters.
pub(crate) fn peer_host_warning(percent: f64) -> Option<Warning> {
    (percent > MAX_HIDDEN_PERCENT).then(|| Warning {
        kind: WarningKind::OtherProcesses,
        value: percent,
        text: format!("other processes used {percent:.0} % of a processor at the other end"),
    })
}

/// Returns the warning about a short time of measurement, in seconds.
pub(crate) fn short_time_warning(seconds: f64) -> Option<Warning> {
    (seconds > 0.0 && seconds < MIN_CERTAIN_SECONDS).then(|| Warning {
        kind: WarningKind::ShortTime,
        value: seconds,
        text: format!(
            "measured for {} only: processor time is counted in steps of 10 ms",
            thalweg_text::format_seconds(seconds)
        ),
    })
}

/// Returns the warning about repeats that differ, in percent of the median.
pub(crate) fn spread_warning(percent: f64) -> Option<Warning> {
    (percent > MAX_SPREAD_PERCENT).then(|| Warning {
        kind: WarningKind::Spread,
        value: percent,
        text: format!("repeats differ by {} %", thalweg_text::format_number(percent)),
    })
}

/// Returns the worst warning of each kind, in the order of kinds.
pub fn worst_warnings(warnings: impl IntoIterator<Item = Warning>) -> Vec<Warning> {
    let mut worst: BTreeMap<WarningKind, Warning> = BTreeMap::new();
    for warning in warnings {
        let replaces = worst.get(&warning.kind).is_none_or(|known| {
            if warning.kind.is_worse_if_larger() { warning.value > known.value } else { warning.value < known.value }
        });
        if replaces {
            worst.insert(warning.kind, warning);
        }
    }
    worst.into_values().collect()
}

/// Processor time of all processes at one time.
#[derive(Debug)]
pub struct Watch {
    at: Instant,
    system: Option<(u64, u64)>,
    processes: BTreeMap<u32, Process>,
}

/// Process, as in `/proc/PID/stat`.
#[derive(Debug, Clone, PartialEq)]
struct Process {
    name: String,
    parent: u32,
    kernel_thread: bool,
    /// User and system time, its own and that of ended children, in ticks.
    ticks: u64,
    /// Time at which it started, in ticks: tells processes of one number apart.
    started: u64,
}

impl Watch {
    /// Reads the processor time of all processes: a file of `/proc` for each.
    ///
    /// Children have higher numbers than those who wait for them, mostly. They are read first here and last at the end,
    /// so that one that ends meanwhile is not counted twice; and the system's counters are read between the two.
    pub fn begin() -> Self {
        let at = Instant::now();
        let processes = read_processes(process_numbers().into_iter().rev());
        Self { at, processes, system: read_system_ticks() }
    }

    /// Returns how others used the processors since the beginning. Processes `outside` belong to the measurement
    /// although this one did not start them.
    pub fn end(&self, outside: &[u32]) -> Conditions {
        let system = read_system_ticks();
        let now = read_processes(process_numbers().into_iter());
        let mut conditions = share_out(&self.processes, &now, std::process::id(), outside);
        conditions.seconds = self.at.elapsed().as_secs_f64();
        if let (Some((tasks, stolen)), Some((tasks_now, stolen_now))) = (self.system, system) {
            let all = tasks_now.saturating_sub(tasks) as f64 / ticks_per_second();
            conditions.limit_to_system_time(all);
            conditions.steal = stolen_now.saturating_sub(stolen) as f64 / ticks_per_second();
            let processors = std::thread::available_parallelism().map_or(1.0, |count| count.get() as f64);
            conditions.processors_busy = (all + conditions.steal) / (conditions.seconds * processors).max(1e-9);
        }
        conditions
    }
}

/// Returns the time of other processes between two readings, and as `hidden` that of all visible ones, kernel threads
/// included.
fn share_out(before: &BTreeMap<u32, Process>, now: &BTreeMap<u32, Process>, this: u32, outside: &[u32]) -> Conditions {
    let mut own = descendants(before, this, outside);
    own.extend(descendants(now, this, outside));
    let mut used: BTreeMap<u32, i64> =
        now.iter().map(|(pid, process)| (*pid, process.ticks as i64 - ticks_before(before, *pid, process))).collect();
    // Whoever waits for a child that ends gets its whole time, also that before the first reading, and that of the
    // children it waited for itself.
    for (pid, ended) in before.iter().filter(|(pid, old)| !is_same_process(now, **pid, old)) {
        if let Some(heir) = surviving_ancestor(before, now, *pid) {
            used.entry(heir).and_modify(|ticks| *ticks -= ended.ticks as i64);
        }
    }
    let mut conditions = Conditions::default();
    for (pid, ticks) in used {
        let (seconds, process) = (ticks.max(0) as f64 / ticks_per_second(), &now[&pid]);
        conditions.hidden += seconds;
        if process.kernel_thread || own.contains(&pid) {
            continue;
        }
        conditions.others += seconds;
        if seconds > conditions.most.as_ref().map_or(0.0, |(_, most)| *most) {
            conditions.most = Some((format!("{} (process {pid})", process.name), seconds));
        }
    }
    conditions
}

/// Returns the nearest ancestor, by the first reading, that is in the second; `None` without one.
fn surviving_ancestor(before: &BTreeMap<u32, Process>, now: &BTreeMap<u32, Process>, pid: u32) -> Option<u32> {
    let mut ancestor = before.get(&pid)?.parent;
    // Numbers may be taken anew while they are read: the parents need not form a tree.
    for _ in 0..before.len() {
        let process = before.get(&ancestor)?;
        if is_same_process(now, ancestor, process) {
            return Some(ancestor);
        }
        ancestor = process.parent;
    }
    None
}

/// Returns whether a reading has this process, and not another one of its number.
fn is_same_process(reading: &BTreeMap<u32, Process>, pid: u32, process: &Process) -> bool {
    reading.get(&pid).is_some_and(|known| known.started == process.started)
}

/// Returns the ticks that a process had at the first reading; 0 if it was not there.
fn ticks_before(before: &BTreeMap<u32, Process>, pid: u32, process: &Process) -> i64 {
    before.get(&pid).filter(|known| known.started == process.started).map_or(0, |known| known.ticks as i64)
}

/// Returns the numbers of these processes and of all that they started, directly or not.
fn descendants(processes: &BTreeMap<u32, Process>, this: u32, others: &[u32]) -> BTreeSet<u32> {
    let mut found: BTreeSet<u32> = others.iter().copied().chain([this]).collect();
    loop {
        let more: Vec<u32> = processes
            .iter()
            .filter(|(pid, process)| !found.contains(pid) && found.contains(&process.parent))
            .map(|(pid, _)| *pid)
            .collect();
        if more.is_empty() {
            return found;
        }
        found.extend(more);
    }
}

/// Returns the numbers of all processes, in ascending order.
fn process_numbers() -> BTreeSet<u32> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect()
}

fn read_processes(numbers: impl Iterator<Item = u32>) -> BTreeMap<u32, Process> {
    numbers.filter_map(|pid| Some((pid, read_process(pid)?))).collect()
}

/// Reads a process; `None` if it has ended. Its name may be any bytes.
fn read_process(pid: u32) -> Option<Process> {
    parse_process_stat(&String::from_utf8_lossy(&fs::read(format!("/proc/{pid}/stat")).ok()?))
}

/// Parses `/proc/PID/stat` (proc_pid_stat(5)): the name is in parentheses and may contain any character.
fn parse_process_stat(text: &str) -> Option<Process> {
    /// Flag of threads of the kernel (`PF_KTHREAD`, include/linux/sched.h).
    const KERNEL_THREAD: u64 = 0x0020_0000;
    let (head, rest) = text.rsplit_once(')')?;
    let name = thalweg_text::replace_controls(head.split_once('(')?.1).into_owned();
    let fields: Vec<&str> = rest.split_whitespace().collect();
    Some(Process {
        name,
        parent: fields.get(1)?.parse().ok()?,
        kernel_thread: number_field(&fields, 6)? & KERNEL_THREAD != 0,
        ticks: [11, 12, 13, 14].into_iter().map(|at| number_field(&fields, at)).sum::<Option<u64>>()?,
        started: number_field(&fields, 19)?,
    })
}

fn number_field(fields: &[&str], at: usize) -> Option<u64> {
    fields.get(at)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn process(name: &str, parent: u32, ticks: u64) -> Process {
        Process { name: name.into(), parent, kernel_thread: name.starts_with('k'), ticks, started: 7 }
    }

    /// A machine on which process 10 measures and has the child 11.
    fn machine() -> BTreeMap<u32, Process> {
        BTreeMap::from([
            (1, process("init", 0, 50)),
            (2, process("kworker", 0, 1000)),
            (10, process("thalweg", 1, 10)),
            (11, process("listen", 10, 10)),
            (20, process("make", 1, 300)),
            (21, process("cc", 20, 2000)),
        ])
    }

    #[test]
    fn time_is_shared_out_between_the_measurement_the_kernel_and_others() {
        let (before, mut now) = (machine(), machine());
        for (pid, ticks) in [(2, 40), (10, 90), (11, 80), (20, 1), (21, 60)] {
            now.get_mut(&pid).unwrap().ticks += ticks;
        }
        now.insert(30, process("new", 1, 5));
        let conditions = share_out(&before, &now, 10, &[]);
        let tick = 1.0 / ticks_per_second();
        assert!((conditions.others - 66.0 * tick).abs() < 1e-9, "{conditions:?}");
        assert!((conditions.hidden - 276.0 * tick).abs() < 1e-9, "{conditions:?}");
        assert_eq!(conditions.most.as_ref().unwrap().0, "cc (process 21)");
        let conditions = share_out(&before, &now, 10, &[20]);
        assert!((conditions.others - 5.0 * tick).abs() < 1e-9, "make and cc belong to it: {conditions:?}");
    }

    #[test]
    fn a_child_that_ends_is_counted_from_the_first_reading_on() {
        let (before, mut now) = (machine(), machine());
        let cc = now.remove(&21).unwrap();
        now.get_mut(&20).unwrap().ticks += cc.ticks + 30;
        let conditions = share_out(&before, &now, 10, &[]);
        assert!((conditions.others - 30.0 / ticks_per_second()).abs() < 1e-9, "{conditions:?}");
        // The same through a parent that ends, too.
        let make = now.remove(&20).unwrap();
        now.get_mut(&1).unwrap().ticks += make.ticks;
        let conditions = share_out(&before, &now, 10, &[]);
        assert!((conditions.others - 30.0 / ticks_per_second()).abs() < 1e-9, "{conditions:?}");
    }

    #[test]
    fn lines_of_processes_are_parsed_whatever_their_names() {
        let line = "42 (a) b (c)) S 7 42 42 0 -1 2097216 1 0 0 0 11 22 33 44 20 0 1 0 555 0 0";
        let parsed = parse_process_stat(line).unwrap();
        assert_eq!((parsed.name.as_str(), parsed.parent, parsed.kernel_thread), ("a) b (c)", 7, true));
        assert_eq!((parsed.ticks, parsed.started), (110, 555));
        for line in ["", "42", "42 (x", "42 (x) S", "42 (x) S a b"] {
            assert_eq!(parse_process_stat(line), None, "{line}");
        }
    }

    #[test]
    fn conditions_beyond_their_bounds_are_warned_of() {
        let calm = Conditions { seconds: 1.0, others: 0.02, hidden: 0.1, steal: 0.01, ..Conditions::default() };
        assert_eq!(calm.warnings(), []);
        let most = Some(("cc (process 21)".to_owned(), 0.9));
        let busy = Conditions { seconds: 1.0, others: 0.97, hidden: 0.5, steal: 0.1, most, ..Conditions::default() };
        let texts: Vec<String> = busy.warnings().into_iter().map(|warning| warning.text).collect();
        assert_eq!(
            texts,
            [
                "other processes used 97 % of a processor, cc (process 21) 90 %",
                "processes that are not visible here (of other containers) used 50 % of a processor",
                "steal: the hypervisor gave 10.0 % of a processor to other machines",
            ]
        );
        assert_eq!((short_time_warning(0.0), short_time_warning(1.0), spread_warning(3.0)), (None, None, None));
        let worst = worst_warnings([short_time_warning(0.05), short_time_warning(0.01)].into_iter().flatten());
        assert_eq!(worst.len(), 1);
        assert!((worst[0].value - 0.01).abs() < 1e-9);
        let json = serde_json::to_value(&worst[0]).unwrap();
        assert_eq!(json["kind"], "short-time");
    }

    #[test]
    fn others_use_no_more_than_the_system_less_this_measurement() {
        // Own processes 19 ticks of 100, others 214, and 202 of all in /proc/stat.
        let most = Some(("cc (process 21)".to_owned(), 2.14));
        let mut conditions = Conditions { seconds: 1.0, others: 2.14, hidden: 2.33, most, ..Conditions::default() };
        conditions.limit_to_system_time(2.02);
        assert!((conditions.others - 1.83).abs() < 1e-9 && conditions.hidden.abs() < 1e-9, "{conditions:?}");
        assert!(conditions.most.unwrap().1 <= 1.84);
        let mut calm = Conditions { seconds: 1.0, others: 0.1, hidden: 0.5, ..Conditions::default() };
        calm.limit_to_system_time(0.9);
        assert!((calm.others - 0.1).abs() < 1e-9 && (calm.hidden - 0.4).abs() < 1e-9, "{calm:?}");
    }

    #[test]
    fn a_neighbour_that_computes_is_seen() {
        let watch = Watch::begin();
        // Not a descendant: its parent, the shell, ends at once.
        let script = "(while :; do :; done) >/dev/null 2>&1 & echo $!";
        let started = std::process::Command::new("sh").args(["-c", script]).output().unwrap();
        let neighbour: i32 = String::from_utf8_lossy(&started.stdout).trim().parse().unwrap();
        let neighbour = rustix::process::Pid::from_raw(neighbour).unwrap();
        let mut conditions = watch.end(&[]);
        while conditions.others < 0.2 {
            std::thread::yield_now();
            conditions = watch.end(&[]);
        }
        rustix::process::kill_process(neighbour, rustix::process::Signal::KILL).unwrap();
        assert!(conditions.most.is_some(), "{conditions:?}");
    }
}
