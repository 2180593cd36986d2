//! Table `[control]` of a topology: the service, the processes of nodes, and alarms.

use crate::etcd::EtcdConfig;
use crate::mail::MailConfig;
use crate::webhook::{PostConfig, url_or_table};
use serde::Deserialize;
use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;
use thalweg_node::Topology;

/// Table `[control]`.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ControlConfig {
    /// Name of the experiment; that of the topology's file if it is empty.
    pub experiment: String,
    /// Address on which the service listens.
    pub listen: SocketAddr,
    /// Address at which nodes of other hosts reach it: `http://HOST:PORT`; that of `listen` if it is empty.
    pub url: String,
    /// Addresses of other services of the experiment, to which the nodes that this one starts connect, too.
    pub others: Vec<String>,
    /// Processes of nodes, by the name of the node; those that are not named are children of the service on its own
    /// host.
    pub nodes: BTreeMap<String, NodeProcess>,
    /// The etcd that services of the experiment share; none if it has no endpoints.
    pub etcd: EtcdConfig,
    /// Limits of alarms.
    pub alarms: AlarmLimits,
    /// Address to which notices of alarms and runs are posted.
    #[serde(deserialize_with = "url_or_table")]
    pub webhook: Option<PostConfig>,
    /// Log book to which notices of runs are posted.
    #[serde(deserialize_with = "url_or_table")]
    pub logbook: Option<PostConfig>,
    /// E-mail.
    pub mail: Option<MailConfig>,
}

impl Default for ControlConfig {
    fn default() -> Self {
        Self {
            experiment: String::new(),
            listen: SocketAddr::from(([127, 0, 0, 1], 8400)),
            url: String::new(),
            others: Vec::new(),
            nodes: BTreeMap::new(),
            etcd: EtcdConfig::default(),
            alarms: AlarmLimits::default(),
            webhook: None,
            logbook: None,
            mail: None,
        }
    }
}

/// Way in which the process of a node is started.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "lowercase", tag = "manager")]
pub enum NodeProcess {
    /// As a child of the service.
    Child,
    /// On another host, by ssh.
    Ssh {
        /// Name of the host, as ssh knows it.
        host: String,
        /// Path of the program there.
        #[serde(default = "default_program")]
        program: String,
    },
    /// As a unit of systemd.
    Systemd {
        /// Name of the host, as ssh knows it; that of the service if it is left out.
        #[serde(default)]
        host: Option<String>,
        /// Name of the unit: `thalweg-node@NAME` if it is left out.
        #[serde(default)]
        unit: Option<String>,
    },
    /// As a job of Slurm.
    Slurm {
        /// Options of `sbatch`.
        #[serde(default)]
        options: Vec<String>,
        /// Path of the program there.
        #[serde(default = "default_program")]
        program: String,
    },
    /// Not by this service, which waits for it.
    None,
}

fn default_program() -> String {
    "thalweg".into()
}

/// Returns whether a host of a URL, or of ssh, is the one that uses the name.
fn is_own_host(host: &str) -> bool {
    let host = host.trim_start_matches('[').trim_end_matches(']');
    let address = host.parse::<IpAddr>();
    host == "localhost" || address.is_ok_and(|address| address.is_loopback() || address.is_unspecified())
}

impl NodeProcess {
    /// Returns whether another system starts and watches the process.
    pub fn is_managed(&self) -> bool {
        matches!(self, Self::Systemd { .. } | Self::Slurm { .. })
    }

    /// Returns the name of the other host on which the service starts the process with its own address, if there is one.
    fn other_host(&self) -> Option<&str> {
        match self {
            Self::Ssh { host, .. } if !is_own_host(host.rsplit('@').next().unwrap_or(host)) => Some(host),
            Self::Slurm { .. } => Some("a host that Slurm chooses"),
            _ => None,
        }
    }

    /// Returns the name as in the topology.
    pub fn manager_name(&self) -> &'static str {
        match self {
            Self::Child => "child",
            Self::Ssh { .. } => "ssh",
            Self::Systemd { .. } => "systemd",
            Self::Slurm { .. } => "slurm",
            Self::None => "none",
        }
    }
}

/// Limits from which on there is an alarm.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct AlarmLimits {
    /// Time for which the disk must have room at the present rate.
    #[serde(with = "thalweg_text::duration")]
    pub disk_time: Duration,
    /// Time for which a source may send nothing while others do.
    #[serde(with = "thalweg_text::duration")]
    pub silent_source: Duration,
    /// Share of events that may be incomplete.
    pub incomplete_share: f64,
    /// Difference between a host's clock and that of the service, beyond the way there.
    #[serde(with = "thalweg_text::duration")]
    pub clock_offset: Duration,
    /// True if there is an alarm for a host whose clock is not synchronised.
    pub unsynchronized_clock: bool,
    /// Time after which an alarm is over whose condition is not found any more.
    #[serde(with = "thalweg_text::duration")]
    pub hold: Duration,
}

impl Default for AlarmLimits {
    fn default() -> Self {
        Self {
            disk_time: Duration::from_secs(30 * 60),
            silent_source: Duration::from_secs(5),
            incomplete_share: 0.01,
            clock_offset: Duration::from_millis(500),
            unsynchronized_clock: false,
            hold: Duration::from_secs(10),
        }
    }
}

impl ControlConfig {
    /// Returns the table of a topology, which is removed from it: nodes have no use for it.
    ///
    /// # Errors
    /// A key or a value is not right; the sentence says which.
    pub fn take_from(topology: &mut Topology) -> Result<Self, String> {
        let table = serde_json::Value::Object(std::mem::take(&mut topology.control));
        let config: Self = serde_json::from_value(table).map_err(|error| format!("[control]: {error}"))?;
        let names = topology.node_names();
        match config.nodes.keys().find(|name| !names.contains(&name.as_str())) {
            Some(name) => Err(format!("[control.nodes]: the topology has no node '{name}'")),
            None => Ok(config),
        }
    }

    /// Checks that nodes which the service starts on other hosts can reach it.
    ///
    /// # Errors
    /// Its address is one that means each host itself; the sentence says what to write.
    pub fn check_node_url(&self) -> Result<(), String> {
        let url = self.node_url();
        let host_port = url.strip_prefix("http://").unwrap_or(&url).trim_end_matches('/');
        let host =
            host_port.rsplit_once(':').filter(|(_, port)| !port.contains(']')).map_or(host_port, |(host, _)| host);
        let mut others = self.nodes.iter().filter_map(|(node, process)| Some((node, process, process.other_host()?)));
        let Some((node, process, place)) = others.next().filter(|_| is_own_host(host)) else { return Ok(()) };
        let own_name = rustix::system::uname();
        let (port, own_name) = (self.listen.port(), own_name.nodename().to_string_lossy());
        Err(format!(
            "[control]: node '{node}' (manager = \"{}\") on {place} would look for the service at {url}, which is its own \
             host: write listen = \"0.0.0.0:{port}\" and url = \"http://{own_name}:{port}\", with the name or address of \
             this host as the other one knows it",
            process.manager_name()
        ))
    }

    /// Returns how the process of a node is started.
    pub fn node_process(&self, node: &str) -> &NodeProcess {
        self.nodes.get(node).unwrap_or(&NodeProcess::Child)
    }

    /// Returns the address at which nodes reach the service.
    pub fn node_url(&self) -> String {
        match self.url.as_str() {
            "" if self.listen.ip().is_unspecified() => format!("http://127.0.0.1:{}", self.listen.port()),
            "" => format!("http://{}", self.listen),
            url => url.to_owned(),
        }
    }

    /// Returns the addresses of all services to which nodes connect, with commas between them.
    pub fn node_urls(&self) -> String {
        let own = self.node_url();
        let others = self.others.iter().map(String::as_str).filter(|other| *other != own);
        std::iter::once(own.as_str()).chain(others).collect::<Vec<_>>().join(",")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<ControlConfig, String> {
        let control = toml::from_str::<serde_json::Map<_, _>>(text).unwrap();
        ControlConfig::take_from(&mut Topology { control, ..Topology::default() })
    }

    #[test]
    fn a_table_that_is_not_there_has_the_defaults() {
        let config = parse("").unwrap();
        assert_eq!(config, ControlConfig::default());
        assert_eq!(
            (config.node_url().as_str(), config.node_process("adc")),
            ("http://127.0.0.1:8400", &NodeProcess::Child)
        );
    }

    #[test]
    fn nodes_on_other_hosts_are_refused_an_address_that_is_their_own() {
        let control = |head: &str, process: &str| {
            let control =
                toml::from_str::<serde_json::Map<_, _>>(&format!("{head}\n[nodes]\nadc = {process}")).unwrap();
            let config: ControlConfig = serde_json::from_value(control.into()).unwrap();
            config.check_node_url()
        };
        let ssh = "{ manager = \"ssh\", host = \"adc-0\" }";
        for head in ["", "listen = \"0.0.0.0:8400\"", "url = \"http://localhost:8400\"", "url = \"http://[::1]:8400/\""]
        {
            let refusal = control(head, ssh).unwrap_err();
            assert!(refusal.contains("node 'adc'") && refusal.contains("adc-0"), "{refusal}");
            assert!(refusal.contains("write listen = \"0.0.0.0:8400\" and url = \"http://"), "{refusal}");
            assert!(control(head, "{ manager = \"slurm\" }").is_err());
            for process in ["{ manager = \"systemd\", host = \"adc-0\" }", "{ manager = \"none\" }"] {
                control(head, process).unwrap();
            }
            control(head, "{ manager = \"ssh\", host = \"daq@localhost\" }").unwrap();
        }
        for head in ["listen = \"10.0.0.1:8400\"", "listen = \"[fd00::1]:8400\"", "url = \"http://daq-0\""] {
            control(head, ssh).unwrap();
        }
    }

    #[test]
    fn what_is_wrong_is_named() {
        assert!(parse("port = 1").unwrap_err().contains("port"));
        assert!(parse("[nodes.adc]\nmanager = \"child\"").unwrap_err().contains("no node 'adc'"));
        assert!(parse("[alarms]\ndisk_time = \"soon\"").unwrap_err().contains("soon"));
        assert!(parse("[logbook]\naddress = \"http://x\"").unwrap_err().contains("address"));
    }

    #[test]
    fn a_webhook_is_an_address_or_a_table() {
        let url = |text| parse(text).unwrap().webhook.map(|webhook| webhook.url);
        assert_eq!(url("webhook = \"\""), None);
        assert_eq!(url("webhook = \"http://x\"").as_deref(), Some("http://x"));
        assert_eq!(url("[webhook]\nurl = \"http://x\"").as_deref(), Some("http://x"));
    }
}
