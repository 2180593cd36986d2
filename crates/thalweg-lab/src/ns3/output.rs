//! The program's output, and its conversion to a report.

use crate::report::{Completion, Cross, Events, Queue, Receiver, Report, Sender, Troubles};
use crate::{LabError, Scenario};
use serde::Deserialize;
use std::time::Duration;
use thalweg_core::build::COMPLETION_QUANTILES;

/// A line of JSON that the program prints.
#[derive(Debug, Deserialize)]
pub(super) struct Output {
    virtual_seconds: f64,
    senders: Vec<SenderOutput>,
    receivers: Vec<ReceiverOutput>,
    cross: CrossOutput,
}

#[derive(Debug, Deserialize)]
struct SenderOutput {
    retransmissions: Count,
    timeouts: Count,
}

#[derive(Debug, Deserialize)]
struct ReceiverOutput {
    payload_bytes: u64,
    completions_ns: Vec<u64>,
    drops: Count,
    queue: QueueOutput,
}

#[derive(Debug, Deserialize)]
struct QueueOutput {
    max_bytes: u64,
    mean_bytes: f64,
    /// Greatest length in each step of time.
    history: Vec<u64>,
}

#[derive(Debug, Deserialize)]
struct CrossOutput {
    payload_bytes: u64,
    retransmissions: Count,
}

/// A number for the whole run, and for the measured time.
#[derive(Debug, Clone, Copy, Default, Deserialize)]
struct Count {
    whole: u64,
    measured: u64,
}

impl std::iter::Sum for Count {
    fn sum<I: Iterator<Item = Self>>(all: I) -> Self {
        all.fold(Self::default(), |sum, one| Self {
            whole: sum.whole + one.whole,
            measured: sum.measured + one.measured,
        })
    }
}

impl Output {
    /// Parses the program's output for a scenario.
    pub(super) fn parse_output(text: &str, scenario: &Scenario) -> Result<Self, LabError> {
        let last = text.lines().next_back().unwrap_or_default();
        let output: Self =
            serde_json::from_str(last).map_err(|error| output_error(format!("an unreadable result ({error})")))?;
        let (senders, receivers) = (output.senders.len(), output.receivers.len());
        let network = &scenario.network;
        if senders != network.senders as usize || receivers != network.receivers as usize {
            return Err(output_error(format!(
                "a result of {senders} senders and {receivers} receivers, not {} and {}",
                network.senders, network.receivers
            )));
        }
        Ok(output)
    }

    /// Returns the report, without its notes and its wall-clock time. `step` is that of the queues' histories.
    pub(super) fn into_report(self, scenario: &Scenario, step: Duration) -> Report {
        let seconds = scenario.measured_time().as_secs_f64();
        let retransmissions: Count = self.senders.iter().map(|sender| sender.retransmissions).sum();
        let timeouts: Count = self.senders.iter().map(|sender| sender.timeouts).sum();
        let drops: Count = self.receivers.iter().map(|receiver| receiver.drops).sum();
        let senders = (0..).zip(&self.senders).map(|(number, sender)| Sender {
            name: format!("sender-{number}"),
            rate_bits_per_second: scenario.sender_rate(number).0,
            retransmissions: sender.retransmissions.measured,
            timeouts: sender.timeouts.measured,
            tail_loss_probes: 0,
            whole_run_retransmissions: sender.retransmissions.whole,
        });
        let senders = senders.collect();
        let receivers = self.receivers.into_iter().enumerate().map(|(number, receiver)| Receiver {
            name: format!("receiver-{number}"),
            goodput_bits_per_second: bits_per_second(receiver.payload_bytes, seconds),
            events: Events { complete: receiver.completions_ns.len() as u64, incomplete: 0 },
            completion: completion_percentiles(receiver.completions_ns),
            drops: receiver.drops.measured,
            killed: false,
            queue: receiver.queue.into_queue_report(scenario, step),
        });
        let receivers: Vec<Receiver> = receivers.collect();
        let goodput: f64 = receivers.iter().map(|receiver| receiver.goodput_bits_per_second).sum();
        let ceiling = scenario.ceiling_bits_per_second();
        let fullest = receivers.iter().map(|receiver| &receiver.queue).max_by_key(|queue| queue.max_bytes);
        Report {
            laboratory: "ns3".into(),
            scenario: scenario.clone(),
            goodput_bits_per_second: goodput,
            ceiling_bits_per_second: ceiling,
            share_of_ceiling: goodput / ceiling,
            retransmissions: retransmissions.measured,
            timeouts: timeouts.measured,
            drops: drops.measured,
            whole_run: Troubles {
                retransmissions: retransmissions.whole,
                timeouts: timeouts.whole,
                drops: drops.whole,
            },
            queue: fullest.cloned().unwrap_or_default(),
            events: receivers.iter().map(|one| one.events).sum(),
            completion: receivers.iter().filter_map(|one| one.completion).reduce(Completion::slower_of),
            measured_seconds: seconds,
            virtual_seconds: self.virtual_seconds,
            senders,
            receivers,
            cross: (scenario.traffic.cross > 0).then(|| Cross {
                flows: scenario.traffic.cross,
                goodput_bits_per_second: bits_per_second(self.cross.payload_bytes, seconds),
                retransmissions: self.cross.retransmissions.measured,
            }),
            ..Report::default()
        }
    }
}

fn output_error(problem: String) -> LabError {
    LabError::Node { name: "ns-3".into(), output: problem }
}

fn bits_per_second(bytes: u64, seconds: f64) -> f64 {
    bytes as f64 * 8.0 / seconds
}

impl QueueOutput {
    fn into_queue_report(self, scenario: &Scenario, step: Duration) -> Queue {
        let (step, warm_up) = (step.as_secs_f64(), scenario.warm_up_time().as_secs_f64());
        Queue {
            max_bytes: self.max_bytes,
            mean_bytes: self.mean_bytes.max(0.0) as u64,
            limit_bytes: scenario.network.buffer.0,
            sample_seconds: step,
            over_time: (1..).zip(self.history).map(|(at, bytes)| (f64::from(at) * step - warm_up, bytes)).collect(),
        }
    }
}

/// Returns percentiles by nearest rank.
fn completion_percentiles(mut nanos: Vec<u64>) -> Option<Completion> {
    nanos.sort_unstable();
    if nanos.is_empty() {
        return None;
    }
    let [p50_us, p99_us, max_us] = [0.5, 0.99, 1.0].map(|fraction| micros_at_fraction(&nanos, fraction));
    let distribution = COMPLETION_QUANTILES.map(|fraction| (fraction, micros_at_fraction(&nanos, fraction)));
    Some(Completion { p50_us, p99_us, max_us, distribution })
}

fn micros_at_fraction(sorted_nanos: &[u64], fraction: f64) -> f64 {
    let rank = (sorted_nanos.len() as f64 * fraction).ceil().max(1.0) as usize;
    sorted_nanos[rank.min(sorted_nanos.len()) - 1] as f64 / 1000.0
}
