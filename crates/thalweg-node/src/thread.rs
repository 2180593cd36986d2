//! Thread of a node: woken in time, and bound to a processor if one is named.

use crate::{NodeError, log_context};
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

/// Does the work of the node of this name on this thread. The thread is woken at the time that it waits for, not up to 50 µs late as by
/// default (`timer_slack_ns`, prctl(2)): pace and rate are made of such times. If `cpu` is given, the thread is
/// bound to that processor; if the processor disappears meanwhile (it is taken offline, or out of the cpuset), a
/// warning is logged.
///
/// # Errors
/// Those of `work`; or the process may not run on the processor.
pub(crate) fn run_as_node<T>(
    name: &str,
    cpu: Option<u32>,
    work: impl FnOnce() -> Result<T, NodeError>,
) -> Result<T, NodeError> {
    log_context::with_node(name, || run_on_processor(cpu, work))
}

fn run_on_processor<T>(cpu: Option<u32>, work: impl FnOnce() -> Result<T, NodeError>) -> Result<T, NodeError> {
    // A kernel that does not support this is late, no more.
    let _ = rustix::thread::set_current_timer_slack(std::num::NonZeroU64::new(1));
    if let Some(cpu) = cpu {
        bind_to_processor(cpu).map_err(NodeError::Config)?;
    }
    let result = work();
    if let Some(moved) = cpu.and_then(lost_processor) {
        tracing::warn!("{moved}");
    }
    result
}

/// Binds this thread to a processor, one of those that `taskset` or a cpuset allows it.
fn bind_to_processor(cpu: u32) -> Result<(), String> {
    let allowed = sched_getaffinity(None).map_err(|error| format!("cpu = {cpu}: {error}"))?;
    let mut set = CpuSet::new();
    if is_in_set(&allowed, cpu) {
        set.set(cpu as usize);
        if sched_setaffinity(None, &set).is_ok() {
            return Ok(());
        }
    }
    Err(format!("cpu = {cpu}: this process may only run on {}", list_processors(&allowed)))
}

/// Returns a message if this thread is no longer bound to the processor.
fn lost_processor(cpu: u32) -> Option<String> {
    let now = sched_getaffinity(None).ok()?;
    let is_bound = is_in_set(&now, cpu) && now.count() == 1;
    (!is_bound).then(|| {
        format!("cpu = {cpu}: it went offline during the run; the node continued on {}", list_processors(&now))
    })
}

fn is_in_set(set: &CpuSet, cpu: u32) -> bool {
    (cpu as usize) < CpuSet::MAX_CPU && set.is_set(cpu as usize)
}

fn list_processors(set: &CpuSet) -> String {
    let cpus: Vec<_> = (0..CpuSet::MAX_CPU).filter(|cpu| set.is_set(*cpu)).map(|cpu| cpu.to_string()).collect();
    let word = if cpus.len() == 1 { "processor" } else { "processors" };
    format!("{word} {}", cpus.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_is_bound_to_what_it_may_run_on_and_to_nothing_else() {
        let all = sched_getaffinity(None).unwrap();
        let mut own = (0..CpuSet::MAX_CPU as u32).filter(|cpu| is_in_set(&all, *cpu));
        let (first, other) = (own.next().unwrap(), own.next());
        run_as_node("adc", Some(first), || {
            assert_eq!(lost_processor(first), None);
            // It stays bound for the next run.
            bind_to_processor(first).unwrap();
            for cpu in [other.unwrap_or(first + 1), u32::MAX] {
                let expected = format!("cpu = {cpu}: this process may only run on processor {first}");
                assert_eq!(bind_to_processor(cpu), Err(expected));
            }
            sched_setaffinity(None, &all).unwrap();
            let expected = format!(
                "cpu = {first}: it went offline during the run; the node continued on {}",
                list_processors(&all)
            );
            assert_eq!(lost_processor(first).is_none(), other.is_none());
            assert!(lost_processor(first).is_none_or(|moved| moved == expected));
            Ok(())
        })
        .unwrap();
    }
}
