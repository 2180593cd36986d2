//! A scenario on a Linux kernel, this one or the virtual machine's. Makes the network, runs a node on each host,
//! watches the queues, and assembles the report.

mod cross;
mod nodes;
pub(crate) mod timeline;
mod watch;

use crate::LabError;
use crate::network::{Host, Network, Timing, port_notes};
use crate::report::{Completion, Events, LinkKind, Phase, Port, Queue, Receiver, Report, Sender, Timeline, Troubles};
use crate::scenario::{Scenario, Stall};
use crate::topology::topology_text;
use nodes::{BuilderReport, Nodes};
use std::path::Path;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};
use thalweg_text::format_size;
use watch::{Watch, Watched, WatchedPort};

/// Environment in which a scenario runs.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Rig<'a> {
    /// Name of the laboratory: `virtual` or `host`.
    pub(crate) laboratory: &'a str,
    /// Directory for the topology and the output of nodes.
    pub(crate) directory: &'a Path,
    /// Prefix of the namespaces' names.
    pub(crate) prefix: &'a str,
    /// Precision of this machine's timers.
    pub(crate) timing: Timing,
    /// Time after which the run is given up, by this kernel's clock.
    pub(crate) limit: Duration,
    /// Flag that ends the run early when it becomes true.
    pub(crate) stop: &'a AtomicBool,
}

impl Rig<'_> {
    /// Runs the scenario to its end.
    pub(crate) fn run_to_end(&self, scenario: &Scenario) -> Result<Report, LabError> {
        let begun = Instant::now();
        let network = Network::new(scenario, self.prefix, self.timing)?;
        let built_network = Instant::now();
        let topology = topology_text(scenario, &network.senders, &network.receivers)
            .map_err(|error| LabError::system_error("writing the topology")(std::io::Error::other(error)))?;
        let path = self.directory.join("topology.toml");
        std::fs::write(&path, topology).map_err(LabError::file_error(path.clone()))?;

        let watch = Watch::start_watching(scenario, &network, self.directory)?;
        let cross = cross::start_flows(scenario, &network)?;
        let built = Nodes::run_all(self, scenario, &network, &path, &watch, begun + self.limit)?;
        let elapsed = begun.elapsed();
        let mut watched = watch.finish_watching()?;
        let cross = cross.finish_flows(&watched);
        // While a builder calibrates, the measured time and its steps have no meaning.
        let timeline = match scenario.measure.calibrate {
            true => None,
            false => Some(self.build_timeline(scenario, &network, &mut watched)?),
        };
        let phases = run_phases(scenario, [begun, built_network, begun + elapsed], &watched);
        Ok(Report { timeline, phases, ..self.build_report(scenario, &network, &built, watched, cross, elapsed) })
    }

    fn build_report(
        &self,
        scenario: &Scenario,
        network: &Network,
        built: &[Option<BuilderReport>],
        watched: Watched,
        cross: Option<crate::report::Cross>,
        elapsed: Duration,
    ) -> Report {
        let Watched { ports, senders: counted, uses, .. } = watched;
        let (downlinks, between): (Vec<_>, Vec<_>) = ports.iter().partition(|port| port.link.kind == LinkKind::Down);
        let receivers = network.receivers.iter().zip(built).zip(downlinks);
        let receivers: Vec<Receiver> =
            receivers.map(|((host, built), port)| receiver_results(host, built.as_ref(), port)).collect();
        let between = between.into_iter();
        let between =
            between.map(|port| Port { name: port.link.name.clone(), drops: port.drops, queue: port.queue.clone() });
        let first_built = built.iter().flatten().next();
        let senders: Vec<Sender> = (0..)
            .zip(network.senders.iter().zip(&counted))
            .map(|(number, (host, counted))| Sender {
                name: host.name.clone(),
                rate_bits_per_second: scenario.sender_rate(number).0,
                retransmissions: counted.measured.retransmissions,
                timeouts: counted.measured.timeouts,
                tail_loss_probes: counted.measured.tail_loss_probes,
                whole_run_retransmissions: counted.whole.retransmissions,
            })
            .collect();
        let goodput: f64 = receivers.iter().map(|receiver| receiver.goodput_bits_per_second).sum();
        let ceiling = scenario.ceiling_bits_per_second();
        let fullest = ports.iter().map(|port| &port.queue).max_by(|a, b| fill_fraction(a).total_cmp(&fill_fraction(b)));
        Report {
            laboratory: self.laboratory.to_owned(),
            scenario: scenario.clone(),
            notes: self.report_notes(scenario),
            goodput_bits_per_second: goodput,
            ceiling_bits_per_second: ceiling,
            share_of_ceiling: goodput / ceiling,
            retransmissions: senders.iter().map(|sender| sender.retransmissions).sum(),
            timeouts: senders.iter().map(|sender| sender.timeouts).sum(),
            drops: ports.iter().map(|port| port.drops).sum(),
            whole_run: Troubles {
                retransmissions: counted.iter().map(|counted| counted.whole.retransmissions).sum(),
                timeouts: counted.iter().map(|counted| counted.whole.timeouts).sum(),
                drops: ports.iter().map(|port| port.whole_drops).sum(),
            },
            before: Some(Troubles {
                retransmissions: counted.iter().map(|counted| counted.before.retransmissions).sum(),
                timeouts: counted.iter().map(|counted| counted.before.timeouts).sum(),
                drops: ports.iter().map(|port| port.drops_before).sum(),
            }),
            queue: fullest.cloned().unwrap_or_else(Queue::default),
            events: receivers.iter().map(|one| one.events).sum(),
            completion: receivers.iter().filter_map(|one| one.completion).reduce(Completion::slower_of),
            found: first_built.and_then(|built| Some(built.calibration.first()?.link.clone())),
            measured_seconds: first_built.map_or(0.0, |built| built.steady.seconds),
            virtual_seconds: elapsed.as_secs_f64(),
            wall_seconds: elapsed.as_secs_f64(),
            senders,
            receivers,
            ports: between.collect(),
            cross,
            links: if scenario.measure.calibrate { Vec::new() } else { uses },
            ..Report::default()
        }
    }

    fn build_timeline(
        &self,
        scenario: &Scenario,
        network: &Network,
        watched: &mut Watched,
    ) -> Result<Timeline, LabError> {
        let (steps, (from, _)) = (watched.steps, watched.measured);
        let traced = network.receivers.iter().take(timeline::traced_builder_count(scenario));
        let credit: Result<Vec<_>, LabError> = traced
            .map(|host| steps.credit_over_time(&host.name, &nodes::trace_path(self.directory, &host.name), from))
            .filter_map(Result::transpose)
            .collect();
        Ok(Timeline {
            from_seconds: 0.0,
            step_seconds: steps.step.as_secs_f64(),
            links: std::mem::take(&mut watched.links),
            credit: credit?,
            again: timeline::sum_retransmissions(watched.senders.iter().map(|sender| sender.measured)),
        })
    }

    fn report_notes(&self, scenario: &Scenario) -> Vec<String> {
        let traffic = &scenario.traffic;
        let mut notes = vec![
            format!(
                "warm-up: the first {} do not count; retransmissions, timeouts and drops of the whole run are in whole_run",
                humantime::format_duration(scenario.warm_up_time())
            ),
            format!(
                "tcp_rmem and tcp_wmem up to {}, tcp_no_metrics_save=1",
                format_size(crate::network::tcp_buffer_bytes(scenario))
            ),
        ];
        if traffic.control.credit {
            notes.push(
                "tcp_slow_start_after_idle=0, because the builder and not TCP decides when a source sends".into(),
            );
        }
        if traffic.classic_recovery {
            notes.push("tcp_recovery=0, tcp_early_retrans=0: loss recovery without RACK and tail loss probes".into());
        }
        if !self.timing.slack.is_zero() {
            notes.push(format!(
                "links send up to {} µs worth of frames at once, because this kernel's timers are late by as much",
                self.timing.slack.as_micros()
            ));
        }
        for receiver in &scenario.network.unlike_receivers {
            let number = receiver.number;
            if let Some(Stall { at, length }) = receiver.stall {
                let [at, length] = [at, length].map(humantime::format_duration);
                notes.push(format!("receiver-{number} does nothing from {at} on, for {length} (SIGSTOP)"));
            }
            if let Some(at) = receiver.dies.map(humantime::format_duration) {
                notes.push(format!("receiver-{number} is killed at {at}: what it built before is not in the goodput"));
            }
        }
        notes.extend(port_notes(scenario));
        notes
    }
}

/// Returns the parts of a run and their durations. `times` are those of the command, of the complete network, and of
/// the end.
fn run_phases(scenario: &Scenario, times: [Instant; 3], watched: &Watched) -> Vec<Phase> {
    let [begun, built_network, ended] = times;
    let started = watched.started.unwrap_or(ended);
    let (from, to) = watched.measured;
    let marks = match scenario.measure.calibrate {
        true => vec![("network", built_network), ("connections", started), ("calibration", ended)],
        false => vec![
            ("network", built_network),
            ("connections", started),
            ("warm-up", from),
            ("measurement", to),
            ("end", ended),
        ],
    };
    let mut before = begun;
    let phases = marks.into_iter().map(|(name, mark)| {
        let seconds = mark.saturating_duration_since(before).as_secs_f64();
        before = before.max(mark);
        Phase { name: name.to_owned(), seconds }
    });
    phases.collect()
}

/// Returns the results of a receiver. A builder that was killed has none.
fn receiver_results(host: &Host, built: Option<&BuilderReport>, port: &WatchedPort) -> Receiver {
    Receiver {
        name: host.name.clone(),
        goodput_bits_per_second: built.map_or(0.0, BuilderReport::goodput_bits_per_second),
        events: built.map_or_else(Events::default, |built| Events {
            complete: built.steady.events.saturating_sub(built.events.incomplete),
            incomplete: built.events.incomplete,
        }),
        killed: built.is_none(),
        completion: built.and_then(BuilderReport::steady_completion),
        drops: port.drops,
        queue: port.queue.clone(),
    }
}

fn fill_fraction(queue: &Queue) -> f64 {
    queue.max_bytes as f64 / queue.limit_bytes as f64
}
