//! The scenario's network, made of network namespaces: every host and the switch one, a veth pair between each host and
//! the switch.
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
//! Each piece, and why it is faithful:
//!
//! - *Rates* are those of a real wire: a queue counts 14 bytes of Ethernet where a frame takes 38, so that it is given
//!   (mtu + 14) / (mtu + 38) of the link's rate, and full frames leave as often as they do on the wire.
//! - *A sender's network card* is a `tbf` (tc-tbf(8)) with the link's rate and a bucket of one frame: at any load above
//!   single frames, frames leave one after the other at the link's rate. TCP hands it segments of up to 64 KiB, as it
//!   does to real cards; `tbf_enqueue` (net/sched/sch_tbf.c) cuts what is longer than its bucket into frames, as a
//!   card's segmentation offload does, so that the switch sees nothing but frames of the MTU. Segments keep their owner
//!   while they wait there, so that TCP's small-queue limit works as with a real card.
//! - *The switch* forwards IP packets between its ports. It is a router and not a bridge because `ip_rcv_core`
//!   (net/ipv4/ip_input.c) takes packets off their senders' accounts: behind a bridge, TCP's small-queue limit would
//!   also count what waits in the switch, which no real sender can see. All network cards have one hardware address and
//!   `arp off`, so nobody needs to be found before the first packet.
//! - *The receiver's port* first holds each packet for the delay and loses some (`netem`, tc-netem(8), whose order is
//!   kept: a delay without jitter is a FIFO), then has a `tbf` with the port's rate, a bucket of one frame, and `limit`
//!   bytes of buffer: `bfifo_enqueue` drops what does not fit. The frame on the wire is not in the buffer. That netem
//!   is outside and tbf inside puts the delay in front of the queue, as cables of senders do, so that what is in flight
//!   takes no room in the buffer.
//! - *The way back* (acknowledgements, requests) has the delay and no queue: it carries a hundredth of the bytes.
//! - *For dctcp* the port's buffer is a `red` (tc-red(8)) that marks every packet that finds more than K bytes in front
//!   of it (Alizadeh and others, "Data Center TCP", SIGCOMM 2010: K of 20 frames at 1 Gbit/s and 65 at 10 Gbit/s; in
//!   between and beyond in proportion to the rate, and no less than a seventh of the bandwidth-delay product).

mod namespace;

pub(crate) use namespace::{NAMESPACES, Namespace, take_down};

use crate::LabError;
use crate::scenario::{BitRate, Scenario};
use std::fmt::Write;
use std::net::Ipv4Addr;
use std::path::Path;
use std::process::{Command, Stdio};
use thalweg_page::text::size;

/// Handle of the `tbf` that is a receiver's port: `2:`.
pub(crate) const PORT: u16 = 2;

/// A network. Its namespaces are taken down when it is dropped.
#[derive(Debug)]
pub(crate) struct Network {
    pub(crate) switch: Namespace,
    pub(crate) senders: Vec<Host>,
    pub(crate) receivers: Vec<Host>,
    pub(crate) cross: Option<Host>,
}

/// A host.
#[derive(Debug)]
pub(crate) struct Host {
    pub(crate) name: String,
    pub(crate) address: Ipv4Addr,
    /// Its port's name in the switch.
    pub(crate) port: String,
    pub(crate) space: Namespace,
}

/// What differs between a machine where processors take no time and a real one.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Timing {
    /// How late timers are. A token bucket may send as much more at once as it would otherwise lose by that.
    pub(crate) slack: std::time::Duration,
}

impl Network {
    /// Makes it. `prefix` is in front of the namespaces' names.
    pub(crate) fn new(scenario: &Scenario, prefix: &str, timing: Timing) -> Result<Self, LabError> {
        let host = |kind: u8, number: u32, name: String| {
            let [_, _, high, low] = (number + 1).to_be_bytes();
            let port = name.replace("ender-", "").replace("eceiver-", "");
            let space = Namespace::named(format!("{prefix}{name}"));
            Host { name, address: Ipv4Addr::new(10, kind, high, low), port, space }
        };
        let network = Self {
            switch: Namespace::named(format!("{prefix}switch")),
            senders: (0..scenario.network.senders).map(|n| host(1, n, format!("sender-{n}"))).collect(),
            receivers: (0..scenario.network.receivers).map(|n| host(2, n, format!("receiver-{n}"))).collect(),
            cross: (scenario.traffic.cross > 0).then(|| host(3, 0, "cross".to_owned())),
        };
        network.make(scenario, timing)?;
        Ok(network)
    }

    fn hosts(&self) -> impl Iterator<Item = &Host> {
        self.senders.iter().chain(&self.receivers).chain(&self.cross)
    }

    fn make(&self, scenario: &Scenario, timing: Timing) -> Result<(), LabError> {
        let mut spaces = format!("netns add {}\n", self.switch.name());
        for host in self.hosts() {
            let _ = writeln!(spaces, "netns add {}", host.space.name());
        }
        batch("ip", &spaces)?;
        self.switch.enter(|| settings(&[("ip_forward", "1")]))??;
        let mut links = String::new();
        let mut ports = String::new();
        for Host { address, port, space, .. } in self.hosts() {
            let (mtu, switch) = (scenario.network.mtu, self.switch.name());
            let end = |space: &str| format!("mtu {mtu} address {CARD} netns {space}");
            let (near, far) = (end(space.name()), end(switch));
            // Address, MTU and namespace of each end stand in front of it.
            let _ = writeln!(links, "link add eth {near} type veth peer name {port} {far}");
            let _ = writeln!(ports, "link set {port} arp off up\nroute add {address}/32 dev {port}");
        }
        batch("ip", &links)?;
        self.switch.enter(|| batch("ip", &ports))??;
        self.switch.enter(|| {
            batch("tc", &self.receivers.iter().map(|host| port(scenario, host, timing)).collect::<String>())
        })??;
        for (number, host) in (0..).zip(&self.senders) {
            let rate = scenario.sender_rate(number);
            self.host(
                host,
                scenario,
                &format!("qdisc add dev eth root {}", bucket(scenario, rate, timing, CARD_QUEUE)),
            )?;
        }
        if let Some(host) = &self.cross {
            let card = bucket(scenario, scenario.network.rate, timing, CARD_QUEUE);
            self.host(host, scenario, &format!("qdisc add dev eth root {card}"))?;
        }
        for host in &self.receivers {
            let delay = scenario.network.delay;
            let back = (!delay.is_zero()).then(|| format!("qdisc add dev eth root {}", netem(scenario, 0.0)));
            self.host(host, scenario, &back.unwrap_or_default())?;
        }
        Ok(())
    }

    fn host(&self, host: &Host, scenario: &Scenario, queue: &str) -> Result<(), LabError> {
        host.space.enter(|| {
            tcp_settings(scenario)?;
            let address = host.address;
            batch(
                "ip",
                &format!("address add {address}/32 dev eth\nlink set eth arp off up\nroute add default dev eth\n"),
            )?;
            if queue.is_empty() { Ok(()) } else { batch("tc", &format!("{queue}\n")) }
        })?
    }
}

impl Drop for Network {
    fn drop(&mut self) {
        take_down(self.hosts().map(|host| &host.space).chain([&self.switch]));
    }
}

/// The hardware address of every network card: each is alone with its port.
const CARD: &str = "02:00:00:00:00:01";
/// Bytes that may wait in a sender's network card. TCP's small-queue limit keeps them far below.
const CARD_QUEUE: u64 = 1 << 30;

/// The queue in front of a receiver.
fn port(scenario: &Scenario, host: &Host, timing: Timing) -> String {
    let Scenario { network, traffic, .. } = scenario;
    let name = &host.port;
    let bucket = bucket(scenario, network.rate, timing, network.buffer.0);
    let mut lines = match network.delay.is_zero() && network.loss == 0.0 {
        true => format!("qdisc add dev {name} root handle {PORT}: {bucket}\n"),
        false => format!(
            "qdisc add dev {name} root handle 1: {}\nqdisc add dev {name} parent 1:1 handle {PORT}: {bucket}\n",
            netem(scenario, network.loss)
        ),
    };
    if traffic.control.congestion == "dctcp" {
        let (mark, frame) = (marking(scenario), u64::from(scenario.frame()));
        // A burst of as many packets as the least threshold holds is what makes tc choose the fastest of averages, one
        // half of the present queue and one half of the past (tc_red_eval_ewma in iproute2).
        let _ = writeln!(
            lines,
            "qdisc add dev {name} parent {PORT}:1 handle 3: red limit {} min {mark} max {} avpkt {frame} burst {} probability 1 ecn bandwidth {}bit",
            network.buffer.0,
            mark + 1,
            mark.div_ceil(frame),
            network.rate.0
        );
    }
    lines
}

/// Bytes in front of a packet from which on it is marked, for dctcp.
pub(crate) fn marking(scenario: &Scenario) -> u64 {
    let gigabits = scenario.network.rate.0 as f64 * 1e-9;
    let frames = if gigabits <= 1.0 { 20.0 } else { 20.0 + 5.0 * (gigabits - 1.0) };
    let paper = (frames * f64::from(scenario.frame())) as u64;
    paper.max(scenario.bandwidth_delay() / 7).min(scenario.network.buffer.0 / 2)
}

/// What a reader must know of the receivers' ports, in sentences.
pub(crate) fn port_notes(scenario: &Scenario) -> Vec<String> {
    let Scenario { network, traffic, .. } = scenario;
    let mut notes = Vec::new();
    if traffic.control.congestion == "dctcp" {
        let mark = marking(scenario);
        notes.push(format!("the port marks packets (ECN) that find more than {} in front of them", size(mark)));
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
    notes
}

fn bucket(scenario: &Scenario, rate: BitRate, timing: Timing, limit: u64) -> String {
    let rate = scenario.counted(rate);
    let slack = (rate.bytes_per_second() * timing.slack.as_secs_f64()) as u64;
    let burst = slack + u64::from(scenario.frame());
    format!("tbf rate {}bit burst {burst} limit {}", rate.0, limit.max(burst))
}

fn netem(scenario: &Scenario, loss: f64) -> String {
    let micros = scenario.network.delay.as_secs_f64() * 1e6;
    let loss = if loss > 0.0 { format!(" loss {}%", loss * 100.0) } else { String::new() };
    // The limit is in packets and is never to be met: what is on the way is not in a queue.
    format!("netem delay {micros:.3}us{loss} limit 100000000")
}

/// Settings of TCP on a host.
fn tcp_settings(scenario: &Scenario) -> Result<(), LabError> {
    let buffers = tcp_buffer(scenario);
    let (receive, send) = (format!("4096 131072 {buffers}"), format!("4096 16384 {buffers}"));
    let control = scenario.traffic.control;
    let mut values = vec![("tcp_rmem", receive.as_str()), ("tcp_wmem", send.as_str()), ("tcp_no_metrics_save", "1")];
    if control.congestion == "dctcp" {
        // The receiver's too: it echoes marks packet by packet.
        values.push(("tcp_congestion_control", "dctcp"));
    }
    if control.credit {
        values.push(("tcp_slow_start_after_idle", "0"));
    }
    if scenario.traffic.classic_recovery {
        values.extend([("tcp_recovery", "0"), ("tcp_early_retrans", "0")]);
    }
    settings(&values)
}

/// The most bytes a socket may hold: what is on the way and in the switch, four times. Half of it is bookkeeping
/// (`tcp_adv_win_scale`), and slow start overshoots by two.
pub(crate) fn tcp_buffer(scenario: &Scenario) -> u64 {
    (4 * (scenario.bandwidth_delay() + scenario.network.buffer.0)).clamp(6 << 20, i32::MAX as u64)
}

/// Writes into `/proc/sys/net/ipv4` of the namespace this thread is in.
fn settings(values: &[(&str, &str)]) -> Result<(), LabError> {
    for (name, value) in values {
        let path = Path::new("/proc/sys/net/ipv4").join(name);
        std::fs::write(&path, value).map_err(LabError::file(path))?;
    }
    Ok(())
}

/// Runs `ip` or `tc` with one command a line.
pub(crate) fn batch(program: &str, commands: &str) -> Result<(), LabError> {
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
        // A program that ends early says why on standard error.
        let _ = stdin.write_all(commands.as_bytes());
    }
    let output = child.wait_with_output().map_err(LabError::os(described.clone()))?;
    if output.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&output.stderr).trim().replace('\n', "; ");
    let line = said.rsplit("-:").next().and_then(|number| number.trim().parse::<usize>().ok());
    let line = line.and_then(|line| commands.lines().nth(line.checked_sub(1)?));
    Err(LabError::Command { command: line.map_or(described, |line| format!("{program} {line}")), said })
}
