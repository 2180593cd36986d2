//! Comparison of two laboratories' reports about one scenario.

use crate::report::{Completion, Report};

/// Largest difference of goodputs that agree, as a fraction of the ceiling.
const MAX_GOODPUT_DIFFERENCE: f64 = 0.02;
/// Largest ratio of times and counts that agree. Two runs of one laboratory with other random numbers differ by as
/// much.
const MAX_RATIO: f64 = 1.5;
/// Largest difference of retransmitted or dropped segments that counts as an accident.
const MAX_SEGMENT_DIFFERENCE: u64 = 20;
/// Largest difference of timeouts that counts as an accident.
const MAX_TIMEOUT_DIFFERENCE: u64 = 3;

/// Returns sentences on where two reports disagree and, if the reason is known, why. The first states whether they do.
pub fn compare_reports(one: &Report, other: &Report) -> Vec<String> {
    let (left, right) = (&one.laboratory, &other.laboratory);
    if one.scenario != other.scenario {
        return vec![format!("{left} and {right} had different scenarios: there is nothing to compare")];
    }
    let mut sentences = Vec::new();
    let [left_percent, right_percent] = [one, other].map(|report| 100.0 * report.share_of_ceiling);
    if (one.share_of_ceiling - other.share_of_ceiling).abs() > MAX_GOODPUT_DIFFERENCE {
        sentences
            .push(format!("goodput: {left_percent:.1} % of the ceiling in {left}, {right_percent:.1} % in {right}"));
    }
    for (what, a, b, few) in [
        ("timeouts", one.timeouts, other.timeouts, MAX_TIMEOUT_DIFFERENCE),
        ("segments sent again", one.retransmissions, other.retransmissions, MAX_SEGMENT_DIFFERENCE),
        ("packets dropped at the port", one.drops, other.drops, MAX_SEGMENT_DIFFERENCE),
    ] {
        if a.abs_diff(b) > few && a.max(b) as f64 > MAX_RATIO * a.min(b) as f64 {
            sentences.push(format!("{what}: {} in {left}, {} in {right}", count_text(a), count_text(b)));
        }
    }
    match (one.completion, other.completion) {
        (Some(a), Some(b)) => compare_completions(&mut sentences, (left, a), (right, b)),
        (None, None) => {}
        (a, _) => {
            let (with, without) = if a.is_some() { (left, right) } else { (right, left) };
            sentences.push(format!("not one event was completed in {without} in the measured time, but in {with}"));
        }
    }
    if sentences.is_empty() {
        let agreed = format!(
            "{left} and {right} agree: {left_percent:.1} % and {right_percent:.1} % of the ceiling, {} and {} timeouts",
            count_text(one.timeouts),
            count_text(other.timeouts)
        );
        return vec![agreed];
    }
    sentences.insert(0, format!("{left} and {right} disagree"));
    let waited = match [one, other].map(|report| report.laboratory == "ns3") {
        [true, false] => one.timeouts > other.timeouts,
        [false, true] => other.timeouts > one.timeouts,
        _ => false,
    };
    if waited && !one.scenario.traffic.classic_recovery {
        sentences.push(
            "ns-3 has neither RACK nor tail loss probes: what is lost at the end of an answer waits there for the timer; \
             with classic_recovery Linux does the same"
                .into(),
        );
    }
    sentences
}

fn compare_completions(sentences: &mut Vec<String>, (left, a): (&str, Completion), (right, b): (&str, Completion)) {
    for (what, a, b) in [
        ("half of the events", a.p50_us, b.p50_us),
        ("99 of 100 events", a.p99_us, b.p99_us),
        ("the slowest event", a.max_us, b.max_us),
    ] {
        if a.max(b) > MAX_RATIO * a.min(b) {
            sentences.push(format!(
                "{what}: within {} in {left}, {} in {right}",
                milliseconds_text(a),
                milliseconds_text(b)
            ));
        }
    }
}

fn count_text(count: u64) -> String {
    if count == 0 { "none".into() } else { count.to_string() }
}

fn milliseconds_text(micros: f64) -> String {
    format!("{:.2} ms", micros / 1000.0)
}
