//! The scenario's network, made of network namespaces: one per host and switch, a veth pair per cable.
//!
//! ```text
//!   sender-0                 switch                      receiver-0
//!  ┌────────┐ veth          ┌─────────────────────────┐ veth        ┌────────┐
//!  │ NIC    ├──────────────▶│ forwards ──▶ port:      ├────────────▶│        │
//!  │ tbf    │               │     netem ──▶ tbf       │             │        │
//!  └────────┘   ◀───────────┤     delay,    rate,     │◀────────────┤ netem  │
//!                (no queue) │     loss      buffer    │             │ delay  │
//!                           └─────────────────────────┘             └────────┘
//! ```
//!
//! Senders that share an uplink are behind a switch of their own (`rack-N`), whose port to the common switch is a
//! [`tbf`](token_bucket) of the uplink's rate and buffer. In a tree, hosts are behind leaf switches (`leaf-N`), and these
//! behind a core (`core`); each end of a trunk is such a port. Traffic back over a trunk shares it with the other
//! hosts' traffic in that direction; traffic back over a rack's uplink has no queue.
//!
//! The parts, and why each is faithful:
//!
//! - *Rates* are those of a real wire: a queue counts 14 bytes of Ethernet where a frame takes 38, so it is configured
//!   to (mtu + 14) / (mtu + 38) of the link's rate, and full frames leave as often as they do on the wire.
//! - *A sender's network card* is a `tbf` (tc-tbf(8)) with the link's rate and a bucket of one frame: at any load above
//!   single frames, frames leave one after the other at the link's rate. TCP hands it segments of up to 64 KiB, as it
//!   does to real cards; `tbf_enqueue` (net/sched/sch_tbf.c) cuts what is longer than its bucket into frames, as a
//!   card's segmentation offload does, so that the switch receives only frames of the MTU. Segments keep their owner
//!   while they wait there, so that TCP's small-queue limit works as with a real card.
//! - *The switch* forwards IP packets between its ports. It is a router and not a bridge because `ip_rcv_core`
//!   (net/ipv4/ip_input.c) takes packets off their senders' accounts: behind a bridge, TCP's small-queue limit would
//!   also count what waits in the switch, which no real sender can see. All network cards have one hardware address and
//!   `arp off`, so no address has to be resolved before the first packet.
//! - *The receiver's port* first holds each packet for the delay and loses some (`netem`, tc-netem(8), which keeps the
//!   order: a delay without jitter is a FIFO), then has a `tbf` with the port's rate, a bucket of one frame, and
//!   `limit` bytes of buffer: `bfifo_enqueue` drops what does not fit. The frame on the wire is not in the buffer. With
//!   netem outside and tbf inside, the delay comes before the queue, as with the cables of senders, so that data in
//!   flight takes no room in the buffer.
//! - *The way back* (acknowledgements, requests) has the delay and no queue: it carries a hundredth of the bytes.
//! - *For dctcp* the port's buffer is a `red` (tc-red(8)) that marks every packet that finds more than K bytes queued
//!   before it (Alizadeh and others, "Data Center TCP", SIGCOMM 2010: K of 20 frames at 1 Gbit/s and 65 at 10 Gbit/s;
//!   in between and beyond in proportion to the rate, and no less than a seventh of the bandwidth-delay product).

mod namespace;

pub(crate) use namespace::{NAMESPACES, Namespace, delete_namespaces};

use crate::LabError;
use crate::report::LinkKind;
use crate::scenario::{Link, Scenario};
use std::fmt::Write;
use std::net::Ipv4Addr;
use std::path::Path;
use std::process::{Command, Stdio};
use thalweg_text::{BitRate, format_size};

/// Handle of the `tbf` before a link: `2:`.
pub(crate) const TBF_HANDLE: u16 = 2;

/// A network. Its namespaces are deleted when it is dropped.
#[derive(Debug)]
pub(crate) struct Network {
    switches: Vec<Switch>,
    pub(crate) senders: Vec<Host>,
    pub(crate) receivers: Vec<Host>,
    pub(crate) cross: Option<Host>,
    /// Queue before each link, in the order of [`Scenario::all_links`].
    pub(crate) ports: Vec<Port>,
}

/// A host: a namespace with one network card.
#[derive(Debug)]
pub(crate) struct Host {
    pub(crate) name: String,
    pub(crate) address: Ipv4Addr,
    /// Name of its port in its switch.
    port: String,
    /// Index of its switch.
    at: usize,
    pub(crate) space: Namespace,
}

/// A switch: a namespace that forwards packets.
#[derive(Debug)]
struct Switch {
    space: Namespace,
    /// Cable to the common switch, which is the first: names of its device in this switch and in that one.
    up: Option<(&'static str, String)>,
}

/// The queue before a link: the one of [`TBF_HANDLE`] on a device of a namespace.
#[derive(Debug)]
pub(crate) struct Port {
    pub(crate) link: Link,
    pub(crate) space: Namespace,
    pub(crate) device: String,
}

/// Properties in which a machine whose processors take no time differs from a real one.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Timing {
    /// Lateness of timers. A token bucket may send as much more at once as it would otherwise lose by that.
    pub(crate) slack: std::time::Duration,
}

impl Network {
    /// Creates the network. The namespaces' names begin with `prefix`.
    pub(crate) fn new(scenario: &Scenario, prefix: &str, timing: Timing) -> Result<Self, LabError> {
        let Scenario { network, traffic, .. } = scenario;
        let (first, (kind, count)) = match (&network.shared, &network.tree) {
            (Some(shared), _) => ("switch", ("rack", network.senders.div_ceil(shared.senders))),
            (None, Some(tree)) => ("core", ("leaf", tree.leaves)),
            (None, None) => ("switch", ("", 0)),
        };
        let first = Switch { space: Namespace::with_name(format!("{prefix}{first}")), up: None };
        let lower = (0..count).map(|number| Switch::below_first_switch(prefix, format!("{kind}-{number}")));
        let senders = (0..network.senders).map(|number| {
            let switch = scenario.rack_of_sender(number).or(scenario.leaf_of_host(number));
            Host::new(prefix, format!("sender-{number}"), 1, number, switch)
        });
        let receivers = (0..network.receivers)
            .map(|number| Host::new(prefix, format!("receiver-{number}"), 2, number, scenario.leaf_of_host(number)));
        // Next to the first receiver, so that it meets other traffic only at that receiver's port.
        let cross = (traffic.cross > 0).then(|| Host::new(prefix, "cross".to_owned(), 3, 0, scenario.leaf_of_host(0)));
        let mut made = Self {
            switches: [first].into_iter().chain(lower).collect(),
            senders: senders.collect(),
            receivers: receivers.collect(),
            cross,
            ports: Vec::new(),
        };
        made.ports = made.link_ports(scenario);
        made.create_all(scenario, timing)?;
        Ok(made)
    }

    fn all_hosts(&self) -> impl Iterator<Item = &Host> {
        self.senders.iter().chain(&self.receivers).chain(&self.cross)
    }

    /// Returns the place at which each link of the scenario begins.
    fn link_ports(&self, scenario: &Scenario) -> Vec<Port> {
        let cards = self.senders.iter().map(|host| (host.space.clone(), "eth".to_owned()));
        let core = self.switches.first();
        let between = self.switches.iter().zip(core.into_iter().cycle()).flat_map(|(switch, core)| {
            let ends =
                switch.up.iter().flat_map(|(here, there)| [switch.port_location(here), core.port_location(there)]);
            // There is no queue down to a rack.
            ends.take(if scenario.network.tree.is_some() { 2 } else { 1 }).collect::<Vec<_>>()
        });
        let down = self.receivers.iter().map(|host| self.switches[host.at].port_location(&host.port));
        let places = cards.chain(between).chain(down);
        scenario
            .all_links()
            .into_iter()
            .zip(places)
            .map(|(link, (space, device))| Port { link, space, device })
            .collect()
    }

    fn create_all(&self, scenario: &Scenario, timing: Timing) -> Result<(), LabError> {
        let mut spaces = String::new();
        for space in self.namespaces() {
            let _ = writeln!(spaces, "netns add {}", space.name());
        }
        run_batch("ip", &spaces)?;
        let mtu = scenario.network.mtu;
        let mut links = String::new();
        let mut settings_of: Vec<String> = vec![String::new(); self.switches.len()];
        for Host { address, port, at, space, .. } in self.all_hosts() {
            let far = cable_end_settings(mtu, &self.switches[*at].space);
            let _ = writeln!(links, "link add eth {} type veth peer name {port} {far}", cable_end_settings(mtu, space));
            let _ = writeln!(settings_of[*at], "link set {port} arp off up\nroute add {address}/32 dev {port}");
        }
        for (at, switch) in self.switches.iter().enumerate() {
            let Some((here, there)) = &switch.up else { continue };
            let [near, far] = [&switch.space, &self.switches[0].space].map(|space| cable_end_settings(mtu, space));
            let _ = writeln!(links, "link add {here} {near} type veth peer name {there} {far}");
            let _ = writeln!(settings_of[at], "link set {here} arp off up\nroute add default dev {here}");
            let _ = writeln!(settings_of[0], "link set {there} arp off up");
            for host in self.all_hosts().filter(|host| host.at == at) {
                let _ = writeln!(settings_of[0], "route add {}/32 dev {there}", host.address);
            }
        }
        run_batch("ip", &links)?;
        for (switch, commands) in self.switches.iter().zip(&settings_of) {
            switch.space.run_inside(|| {
                write_ipv4_settings(&[("ip_forward", "1")])?;
                run_batch("ip", commands)
            })??;
        }
        for host in &self.senders {
            self.configure_host(host, scenario)?;
        }
        if let Some(host) = &self.cross {
            self.configure_host(host, scenario)?;
            let card = token_bucket(scenario, scenario.network.rate, timing, CARD_QUEUE);
            host.space.run_inside(|| run_batch("tc", &format!("qdisc add dev eth root {card}\n")))??;
        }
        for host in &self.receivers {
            self.configure_host(host, scenario)?;
            if !scenario.network.delay.is_zero() {
                let back = delay_queue(scenario, 0.0);
                host.space.run_inside(|| run_batch("tc", &format!("qdisc add dev eth root {back}\n")))??;
            }
        }
        for port in &self.ports {
            port.space.run_inside(|| run_batch("tc", &port.queue_commands(scenario, timing)))??;
        }
        Ok(())
    }

    fn namespaces(&self) -> impl Iterator<Item = &Namespace> {
        self.switches.iter().map(|switch| &switch.space).chain(self.all_hosts().map(|host| &host.space))
    }

    fn configure_host(&self, host: &Host, scenario: &Scenario) -> Result<(), LabError> {
        host.space.run_inside(|| {
            apply_tcp_settings(scenario)?;
            let address = host.address;
            run_batch(
                "ip",
                &format!("address add {address}/32 dev eth\nlink set eth arp off up\nroute add default dev eth\n"),
            )
        })?
    }
}

/// Returns the settings of a cable's end, which `ip` expects before its type: MTU, address and namespace.
fn cable_end_settings(mtu: u32, space: &Namespace) -> String {
    format!("mtu {mtu} address {CARD} netns {}", space.name())
}

impl Host {
    /// Returns a host with an address of `10.SUBNET.0.0/16`. Without a lower switch, it is on the first one.
    fn new(prefix: &str, name: String, subnet: u8, number: u32, lower_switch: Option<u32>) -> Self {
        let [_, _, high, low] = (number + 1).to_be_bytes();
        Self {
            address: Ipv4Addr::new(10, subnet, high, low),
            port: name.replace("ender-", "").replace("eceiver-", ""),
            // The lower switches follow the first.
            at: lower_switch.map_or(0, |number| number as usize + 1),
            space: Namespace::with_name(format!("{prefix}{name}")),
            name,
        }
    }
}

impl Switch {
    /// Returns a switch with a cable to the first one.
    fn below_first_switch(prefix: &str, name: String) -> Self {
        Self { space: Namespace::with_name(format!("{prefix}{name}")), up: Some((UP, name)) }
    }

    fn port_location(&self, device: &str) -> (Namespace, String) {
        (self.space.clone(), device.to_owned())
    }
}

impl Drop for Network {
    fn drop(&mut self) {
        delete_namespaces(self.namespaces());
    }
}

/// Hardware address of every network card, as each has a cable of its own.
const CARD: &str = "02:00:00:00:00:01";
/// Name of a switch's port towards the first switch. (`up` is a keyword of ip.)
const UP: &str = "uplink";
/// Limit of the bytes that wait in a sender's network card. TCP's small-queue limit keeps them far below.
const CARD_QUEUE: u64 = 1 << 30;

impl Port {
    /// Returns the commands of tc that create the queue.
    fn queue_commands(&self, scenario: &Scenario, timing: Timing) -> String {
        let Scenario { network, traffic, .. } = scenario;
        let Link { kind, rate, buffer, .. } = &self.link;
        let name = &self.device;
        let bucket = token_bucket(scenario, *rate, timing, buffer.unwrap_or(CARD_QUEUE));
        // All of the way's delay and losses are before the last port.
        let last = *kind == LinkKind::Down && !(network.delay.is_zero() && network.loss == 0.0);
        let mut lines = match last {
            false => format!("qdisc add dev {name} root handle {TBF_HANDLE}: {bucket}\n"),
            true => format!(
                "qdisc add dev {name} root handle 1: {}\nqdisc add dev {name} parent 1:1 handle {TBF_HANDLE}: {bucket}\n",
                delay_queue(scenario, network.loss)
            ),
        };
        if traffic.control.congestion == "dctcp"
            && let Some(buffer) = *buffer
        {
            let (mark, frame) = (ecn_threshold_bytes(scenario, *rate, buffer), u64::from(scenario.frame_bytes()));
            // A burst of as many packets as the least threshold holds makes tc choose the fastest of averages, one half
            // of the present queue and one half of the past (tc_red_eval_ewma in iproute2).
            let _ = writeln!(
                lines,
                "qdisc add dev {name} parent {TBF_HANDLE}:1 handle 3: red limit {buffer} min {mark} max {} avpkt {frame} burst {} probability 1 ecn bandwidth {}bit",
                mark + 1,
                mark.div_ceil(frame),
                rate.0
            );
        }
        lines
    }
}

/// Returns the number of queued bytes from which on a packet is marked, for dctcp.
pub(crate) fn ecn_threshold_bytes(scenario: &Scenario, rate: BitRate, buffer: u64) -> u64 {
    let gigabits = rate.0 as f64 * 1e-9;
    let frames = if gigabits <= 1.0 { 20.0 } else { 20.0 + 5.0 * (gigabits - 1.0) };
    let paper = (frames * f64::from(scenario.frame_bytes())) as u64;
    paper.max(scenario.bandwidth_delay_bytes() / 7).min(buffer / 2)
}

/// Returns notes on the ports for the reader of a report, in sentences.
pub(crate) fn port_notes(scenario: &Scenario) -> Vec<String> {
    let Scenario { network, traffic, .. } = scenario;
    let mut notes = Vec::new();
    if traffic.control.congestion == "dctcp" {
        let mark = ecn_threshold_bytes(scenario, network.rate, network.buffer.0);
        notes
            .push(format!("the port marks packets (ECN) that find more than {} queued before them", format_size(mark)));
    }
    if traffic.cross > 0 {
        let flows = traffic.cross;
        notes.push(format!(
            "{flows} other flows (cubic) share the first receiver's port; the ceiling is that of the whole port"
        ));
    }
    if network.loss > 0.0 {
        notes.push("packets lost by the network are not counted as drops, only those that found no room".into());
    }
    if network.tree.is_some() {
        notes.push("drops are those of all switches' ports; requests and acknowledgements share the trunks".into());
    }
    notes
}

fn token_bucket(scenario: &Scenario, rate: BitRate, timing: Timing, limit: u64) -> String {
    let rate = scenario.queue_rate_for(rate);
    let slack = (rate.bytes_per_second() * timing.slack.as_secs_f64()) as u64;
    let burst = slack + u64::from(scenario.frame_bytes());
    format!("tbf rate {}bit burst {burst} limit {}", rate.0, limit.max(burst))
}

fn delay_queue(scenario: &Scenario, loss: f64) -> String {
    let micros = scenario.network.delay.as_secs_f64() * 1e6;
    let loss = if loss > 0.0 { format!(" loss {}%", loss * 100.0) } else { String::new() };
    // The limit is in packets and must never be reached: packets under way are not in a queue.
    format!("netem delay {micros:.3}us{loss} limit 100000000")
}

/// Sets TCP's parameters on a host.
fn apply_tcp_settings(scenario: &Scenario) -> Result<(), LabError> {
    let buffers = tcp_buffer_bytes(scenario);
    let (receive, send) = (format!("4096 131072 {buffers}"), format!("4096 16384 {buffers}"));
    let control = scenario.traffic.control;
    let mut values = vec![("tcp_rmem", receive.as_str()), ("tcp_wmem", send.as_str()), ("tcp_no_metrics_save", "1")];
    if control.congestion == "dctcp" {
        // At the receiver, too, which echoes marks packet by packet.
        values.push(("tcp_congestion_control", "dctcp"));
    }
    if control.credit {
        values.push(("tcp_slow_start_after_idle", "0"));
    }
    if scenario.traffic.classic_recovery {
        values.extend([("tcp_recovery", "0"), ("tcp_early_retrans", "0")]);
    }
    write_ipv4_settings(&values)
}

/// Returns the size limit of a socket's buffer, in bytes: the data under way and in the switch, four times. Half of it
/// is bookkeeping (`tcp_adv_win_scale`), and slow start overshoots by two.
pub(crate) fn tcp_buffer_bytes(scenario: &Scenario) -> u64 {
    (4 * (scenario.bandwidth_delay_bytes() + scenario.buffer_bytes_on_path())).clamp(6 << 20, i32::MAX as u64)
}

/// Writes to `/proc/sys/net/ipv4` of the calling thread's namespace.
fn write_ipv4_settings(values: &[(&str, &str)]) -> Result<(), LabError> {
    for (name, value) in values {
        let path = Path::new("/proc/sys/net/ipv4").join(name);
        std::fs::write(&path, value).map_err(LabError::file_error(path))?;
    }
    Ok(())
}

/// Runs `ip` or `tc` with one command per line.
pub(crate) fn run_batch(program: &str, commands: &str) -> Result<(), LabError> {
    use std::io::Write as _;
    let described = format!("{program} -batch");
    let spawned = Command::new(program)
        .args(["-batch", "-"])
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn();
    let mut child = spawned.map_err(|error| LabError::Unavailable {
        what: format!("the program '{program}'"),
        why: format!("{error}; on Debian: apt install iproute2"),
    })?;
    if let Some(mut stdin) = child.stdin.take() {
        // A program that ends early reports why on standard error.
        let _ = stdin.write_all(commands.as_bytes());
    }
    let output = child.wait_with_output().map_err(LabError::system_error(described.clone()))?;
    if output.status.success() {
        return Ok(());
    }
    let output = String::from_utf8_lossy(&output.stderr).trim().replace('\n', "; ");
    let line = output.rsplit("-:").next().and_then(|number| number.trim().parse::<usize>().ok());
    let line = line.and_then(|line| commands.lines().nth(line.checked_sub(1)?));
    Err(LabError::Command { command: line.map_or(described, |line| format!("{program} {line}")), output })
}
