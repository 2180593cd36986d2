//! Tasks of the service for processes that systemd and Slurm start: orders to them, and a look at those whose nodes are
//! not connected. Both take their time, and are done beside the service's lock.

use super::{Service, unix_seconds};
use crate::processes::{ManagedProcess, Observation, Order, list_jobs};
use std::sync::Arc;
use std::time::Duration;
use thalweg_node::service::Severity;
use tokio::task::JoinSet;
use tokio::time::MissedTickBehavior;

/// Time from one look at the processes of nodes that are not connected to the next.
const OBSERVE_INTERVAL: Duration = Duration::from_secs(3);

impl Service {
    /// Works without end: gives orders to systemd and Slurm, and observes what they have started.
    pub async fn manage_processes(self: &Arc<Self>) {
        tokio::join!(self.carry_out_orders(), self.observe_processes());
    }

    /// Returns the last lines of the log of a node's process.
    ///
    /// # Errors
    /// There is no log of it, or its host does not answer.
    pub async fn process_log(&self, node: &str, lines: usize) -> Result<Vec<String>, String> {
        let log = {
            let inner = self.inner.lock();
            inner.processes.log_of(node, inner.config.node_process(node))
        };
        log.read_tail(lines).await
    }

    async fn carry_out_orders(self: &Arc<Self>) {
        let Some(mut orders) = self.inner.lock().processes.take_orders() else { return };
        while let Some(order) = orders.recv().await {
            let service = Arc::clone(self);
            // A host that does not answer holds up no other one.
            tokio::spawn(async move { service.carry_out_order(&order).await });
        }
    }

    async fn carry_out_order(&self, order: &Order) {
        if let Err(problem) = order.carry_out().await {
            self.inner.lock().add_message(unix_seconds(), Severity::Error, Some(&order.node), problem);
        }
    }

    async fn observe_processes(&self) {
        let mut ticks = tokio::time::interval(OBSERVE_INTERVAL);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            ticks.tick().await;
            let (mut units, mut jobs) = (JoinSet::new(), Vec::new());
            for (node, process) in self.missing_processes() {
                match process {
                    ManagedProcess::Unit(unit) => {
                        units.spawn(async move { (node, unit.observe_unit().await) });
                    }
                    ManagedProcess::Job(job) => jobs.push((node, job)),
                }
            }
            if !jobs.is_empty() {
                let listed = list_jobs().await;
                for (node, job) in jobs {
                    self.note_observation(
                        &node,
                        listed.as_deref().map(|listed| job.observe(listed)).map_err(Clone::clone),
                    );
                }
            }
            while let Some(observed) = units.join_next().await {
                if let Ok((node, observation)) = observed {
                    self.note_observation(&node, observation);
                }
            }
        }
    }

    /// Returns the processes that systemd and Slurm start whose nodes are not connected.
    fn missing_processes(&self) -> Vec<(String, ManagedProcess)> {
        let inner = self.inner.lock();
        let url = inner.config.node_urls();
        let missing = inner.experiment.expected_nodes().filter(|node| !inner.links.contains_key(*node));
        missing
            .filter_map(|node| {
                let process = inner.processes.managed_process(node, inner.config.node_process(node), &url)?;
                Some((node.to_owned(), process))
            })
            .collect()
    }

    /// Keeps what was observed, or the reason why nothing was, and makes a message of it if it is news.
    fn note_observation(&self, node: &str, observed: Result<Observation, String>) {
        let mut inner = self.inner.lock();
        if inner.links.contains_key(node) {
            return;
        }
        let observation = observed.unwrap_or_else(|text| Observation { state: "failed", text });
        if inner.processes.keep_observation(node, observation.clone()) {
            let severity = if observation.state == "failed" { Severity::Error } else { Severity::Info };
            inner.add_message(unix_seconds(), severity, Some(node), observation.text);
        }
    }
}
