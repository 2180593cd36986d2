//! Processes of nodes, as clients start, end and restart them.

use super::Inner;
use crate::config::NodeProcess;
use crate::experiment::Now;
use crate::processes::{OrderedAction, ProcessAction, not_started_text};
use crate::service::Service;
use crate::status::{Legality, ProcessView};
use std::collections::BTreeMap;
use std::time::Duration;
use thalweg_node::service::{Severity, ToNode};

/// Longest time until a process that is to be restarted has ended.
const END_TIME: Duration = Duration::from_secs(20);

/// Nodes whose processes are ended and then started again, with the times at which that is given up.
pub(super) type Restarts = BTreeMap<String, Duration>;

impl Service {
    /// Starts, ends or restarts the process of a node. It is under way when this returns.
    ///
    /// # Errors
    /// That is not legal now, or the process cannot be started.
    pub fn control_process(&self, node: &str, action: ProcessAction) -> Result<(), String> {
        let now = self.current_time();
        let mut inner = self.inner.lock();
        inner.experiment.advance_time(now);
        inner.check_process_action(node, action)?;
        let is_connected = inner.links.contains_key(node);
        if action == ProcessAction::Start || action == ProcessAction::Restart && !is_connected {
            return inner.start_node(node);
        }
        let (process, urls) = (inner.config.node_process(node), inner.config.node_urls());
        if !inner.processes.give_order(node, process, &urls, OrderedAction::Stop { is_connected }) {
            inner.send_to_node(node, ToNode::Quit);
        }
        if action == ProcessAction::Restart {
            inner.restarts.insert(node.to_owned(), now.monotonic + END_TIME);
        }
        Ok(())
    }
}

impl Inner {
    /// Checks whether an action on the process of a node is legal now.
    ///
    /// # Errors
    /// It is not; the sentence says why.
    fn check_process_action(&self, node: &str, action: ProcessAction) -> Result<(), String> {
        let is_connected = self.links.contains_key(node);
        let is_started_here = *self.config.node_process(node) != NodeProcess::None;
        match action {
            _ if self.restarts.contains_key(node) => {
                Err(format!("cannot {action} node '{node}': it is being restarted: wait until that is done"))
            }
            ProcessAction::Start if is_connected => Err(format!("node '{node}' is up already")),
            ProcessAction::Stop if !is_connected && !self.config.node_process(node).is_managed() => {
                Err(format!("node '{node}' is not connected to this service: there is nothing to stop"))
            }
            ProcessAction::Start | ProcessAction::Restart if !is_started_here => Err(not_started_text(node)),
            ProcessAction::Restart => self.experiment.check_restart(node),
            ProcessAction::Start | ProcessAction::Stop => Ok(()),
        }
    }

    pub(super) fn start_node(&mut self, node: &str) -> Result<(), String> {
        let urls = self.config.node_urls();
        let process = self.config.node_process(node).clone();
        self.processes.start_process(node, &process, &urls)
    }

    /// Starts the processes that have ended and are to be restarted.
    pub(super) fn continue_restarts(&mut self, now: Now) {
        for (node, until) in self.restarts.clone() {
            let process = self.config.node_process(&node);
            let has_ended = !self.links.contains_key(&node) && self.processes.has_ended(&node, process);
            let problem = if has_ended {
                self.start_node(&node).err()
            } else if now.monotonic >= until {
                Some(format!("its process has not ended within {} s: it is not restarted", END_TIME.as_secs()))
            } else {
                continue;
            };
            self.restarts.remove(&node);
            if let Some(problem) = problem {
                self.add_message(now.unix, Severity::Error, Some(&node), problem);
            }
        }
    }

    /// Returns the processes of all nodes, as they are shown.
    pub(super) fn process_views(&mut self) -> Vec<ProcessView> {
        let topology = self.experiment.topology();
        let builders: Vec<&str> = topology.builders.iter().map(|builder| builder.name.as_str()).collect();
        let nodes: Vec<(String, bool)> =
            self.experiment.expected_nodes().map(|node| (node.to_owned(), builders.contains(&node))).collect();
        nodes
            .into_iter()
            .map(|(node, is_builder)| {
                let actions = ProcessAction::ALL.into_iter().map(|action| {
                    let reason = self.check_process_action(&node, action).err();
                    (action, Legality { legal: reason.is_none(), reason: reason.unwrap_or_default() })
                });
                let actions = actions.collect();
                let member = self.experiment.find_member(&node);
                let hello = member.and_then(|member| member.hello.as_ref());
                let process = self.config.node_process(&node);
                let state = match hello {
                    Some(_) if member.is_some_and(|member| !member.status.failure.is_empty()) => "failed",
                    Some(_) => "up",
                    None if self.restarts.contains_key(&node) => "starting",
                    None => self.processes.state_of(&node, process),
                };
                let last_message = self.messages.iter().rev().find(|message| message.node.as_deref() == Some(&node));
                ProcessView {
                    kind: if is_builder { "builder" } else { "source" }.into(),
                    host: member.map(|member| member.host.clone()).unwrap_or_default(),
                    pid: hello.map(|hello| hello.pid),
                    state: state.into(),
                    since_at: member.map_or(0.0, |member| member.since),
                    manager: process.manager_name().into(),
                    last_line: last_message.map(|message| message.text.clone()).unwrap_or_default(),
                    actions,
                    node,
                }
            })
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use crate::processes::ProcessAction::{Restart, Start, Stop};
    use crate::service::tests::{hello, open_service};
    use std::net::SocketAddr;
    use thalweg_node::service::ToNode;

    #[test]
    fn a_process_of_others_is_ended_and_never_restarted() {
        let folder = tempfile::tempdir().unwrap();
        let service = open_service(folder.path());
        let not_ours = "node 'builder' is not started by this service (manager = \"none\"), which waits for it";
        assert_eq!(service.control_process("builder", Restart).unwrap_err(), not_ours);
        let address = SocketAddr::from(([127, 0, 0, 1], 1));
        let (_, mut messages) = service.connect_node(hello(), address).unwrap();
        assert_eq!(service.control_process("builder", Restart).unwrap_err(), not_ours);
        assert_eq!(service.control_process("builder", Start).unwrap_err(), "node 'builder' is up already");
        service.refresh_status();
        let shown = service.latest_status().processes[0].actions.clone();
        assert_eq!([Start, Stop, Restart].map(|action| shown[&action].legal), [false, true, false]);
        assert_eq!(shown[&Restart].reason, not_ours, "what is shown is what is answered");
        service.control_process("builder", Stop).unwrap();
        assert!(matches!(messages.blocking_recv(), Some(ToNode::Quit)));
    }
}
