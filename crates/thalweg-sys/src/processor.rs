//! Use of the processors by threads.

use std::time::Duration;

/// Returns the time for which the calling thread was ready to run and had no processor, since it began; `None` if the
/// kernel does not count it (`CONFIG_SCHED_INFO`).
pub fn thread_wait_time() -> Option<Duration> {
    parse_wait_time(&std::fs::read_to_string("/proc/thread-self/schedstat").ok()?)
}

/// Parses the time that a thread waited on a run queue, the second of three numbers of `/proc/PID/schedstat`
/// (Documentation/scheduler/sched-stats.rst).
fn parse_wait_time(text: &str) -> Option<Duration> {
    text.split_whitespace().nth(1)?.parse().ok().map(Duration::from_nanos)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_wait_is_the_second_number() {
        assert_eq!(parse_wait_time("871 12345 9\n"), Some(Duration::from_nanos(12345)));
        assert_eq!((parse_wait_time("871"), parse_wait_time("871 x 9")), (None, None));
    }
}
