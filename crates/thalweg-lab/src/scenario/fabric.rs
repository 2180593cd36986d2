//! Networks of more than one switch and equal hosts: hosts that differ, uplinks that several senders share, trees of
//! switches; and, from all that, every link with its rate and the part of an event that passes it.

use super::{InvalidValue, Network, RECORD_HEADER_BYTES, Scenario, WIRE_OVERHEAD_BYTES, check_sizes, invalid_value};
use crate::report::LinkKind;
use serde::{Deserialize, Serialize};
use std::time::Duration;
use thalweg_text::{BitRate, ByteSize, duration};

/// `[[network.sender]]`: a sender that differs from the others.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Unlike {
    /// Number of the sender, counted from 0.
    pub number: u32,
    /// Rate of its link.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rate: Option<BitRate>,
    /// Number of payload bytes of each of its fragments.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub size: Option<ByteSize>,
    /// Smallest and largest payload, instead of `size`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sizes: Option<[ByteSize; 2]>,
}

/// `[[network.receiver]]`: a receiver that differs from the others.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct UnlikeReceiver {
    /// Number of the receiver, counted from 0.
    pub number: u32,
    /// Rate of its port.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rate: Option<BitRate>,
    /// Time in which its builder does nothing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stall: Option<Stall>,
    /// Time at which its builder is killed, counted from the beginning of the measured time.
    #[serde(default, skip_serializing_if = "Option::is_none", with = "duration::option")]
    pub dies: Option<Duration>,
}

/// A pause of a builder: `stall = { at = "50ms", length = "20ms" }`
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Stall {
    /// Time at which it begins, counted from the beginning of the measured time.
    #[serde(with = "duration")]
    pub at: Duration,
    /// Duration of the pause.
    #[serde(with = "duration")]
    pub length: Duration,
}

/// `[network.shared]`: neighbouring senders behind one uplink, as those of a rack are.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Shared {
    /// Number of senders that share one uplink: the first ones, then as many of the next, and so on.
    pub senders: u32,
    /// Rate of each uplink; absent: the network's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rate: Option<BitRate>,
    /// Size of the buffer of its port, in bytes; absent: the network's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub buffer: Option<ByteSize>,
}

/// `[network.tree]`: leaf switches around a core switch. Sender *n* and receiver *n* are on leaf *n* mod `leaves`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Tree {
    /// Number of leaf switches.
    pub leaves: u32,
    /// Ratio of the rate at which a leaf's hosts can send (or receive) to the rate of its trunk up (or down).
    #[serde(default = "even", skip_serializing_if = "is_even")]
    pub oversubscription: f64,
    /// Size of the buffer of the port at each end of a trunk, in bytes; absent: the network's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub buffer: Option<ByteSize>,
}

fn even() -> f64 {
    1.0
}

#[expect(
    clippy::trivially_copy_pass_by_ref,
    clippy::float_cmp,
    reason = "the signature that serde requires; compared with the default"
)]
fn is_even(ratio: &f64) -> bool {
    *ratio == 1.0
}

/// One direction of a cable, and the queue before it.
#[derive(Debug, Clone, PartialEq)]
pub struct Link {
    /// Name: `sender-0`, `rack-0`, `leaf-0 up`, `leaf-0 down`, `receiver-0`.
    pub name: String,
    /// Place in the network.
    pub kind: LinkKind,
    /// Rate on the wire.
    pub rate: BitRate,
    /// Size of the buffer of its switch port, in bytes; `None` for a sender's own card, which drops nothing.
    pub buffer: Option<u64>,
    /// Number of bytes on the wire that pass it for an event, in the mean over events.
    pub event_bytes: f64,
}

impl Link {
    /// Returns the number of events per second that it can carry.
    pub(crate) fn events_per_second(&self) -> f64 {
        self.rate.bytes_per_second() / self.event_bytes
    }
}

impl Scenario {
    /// Returns the payload bytes of the smallest and the largest fragment of a sender.
    pub fn payload_range_of(&self, sender: u32) -> (u64, u64) {
        let unlike = self.network.unlike.iter().find(|unlike| unlike.number == sender);
        match unlike.map(|unlike| (unlike.size, unlike.sizes)) {
            Some((_, Some([from, to]))) => (from.0, to.0),
            Some((Some(ByteSize(size)), None)) => (size, size),
            Some((None, None)) | None => self.payload_range(),
        }
    }

    /// Returns the rate of a sender's link.
    pub fn sender_rate(&self, number: u32) -> BitRate {
        let unlike = self.network.unlike.iter().find(|sender| sender.number == number);
        unlike.and_then(|sender| sender.rate).unwrap_or(self.network.rate)
    }

    /// Returns the rate of a receiver's port.
    pub fn receiver_rate(&self, number: u32) -> BitRate {
        self.unlike_receiver(number).and_then(|receiver| receiver.rate).unwrap_or(self.network.rate)
    }

    /// Returns the rate of the fastest receiver's port.
    pub fn fastest_port(&self) -> BitRate {
        (0..self.network.receivers).map(|number| self.receiver_rate(number)).max().unwrap_or(self.network.rate)
    }

    /// Returns the entry of a receiver that differs from the others.
    pub fn unlike_receiver(&self, number: u32) -> Option<&UnlikeReceiver> {
        self.network.unlike_receivers.iter().find(|receiver| receiver.number == number)
    }

    /// Returns the number of the uplink that a sender shares with its neighbours, or `None` without shared uplinks.
    pub fn rack_of_sender(&self, sender: u32) -> Option<u32> {
        self.network.shared.as_ref().map(|shared| sender / shared.senders)
    }

    /// Returns the leaf switch of the sender or receiver of this number, or `None` without leaf switches.
    pub fn leaf_of_host(&self, number: u32) -> Option<u32> {
        self.network.tree.as_ref().map(|tree| number % tree.leaves)
    }

    /// Returns the payload bytes of a mean event.
    pub fn event_payload_bytes(&self) -> f64 {
        let means = (0..self.network.senders).map(|sender| {
            let (from, to) = self.payload_range_of(sender);
            (from + to) as f64 / 2.0
        });
        means.sum()
    }

    /// Returns the sum of the buffers of all ports on the way from a sender to a receiver, in bytes.
    pub fn buffer_bytes_on_path(&self) -> u64 {
        let Network { buffer, shared, tree, .. } = &self.network;
        let shared = shared.as_ref().map_or(0, |shared| shared.buffer.unwrap_or(*buffer).0);
        let tree = tree.as_ref().map_or(0, |tree| 2 * tree.buffer.unwrap_or(*buffer).0);
        buffer.0 + shared + tree
    }

    /// Returns every link on the way from senders to receivers: the senders' links, shared uplinks, trunks (of each
    /// leaf up, then down), the receivers' links. Traffic in the other direction (requests, acknowledgements) is not
    /// included in [`Link::event_bytes`].
    pub fn all_links(&self) -> Vec<Link> {
        let Network { senders, receivers, rate, buffer, shared, tree, .. } = &self.network;
        let wire: Vec<f64> = (0..*senders).map(|sender| self.wire_bytes_per_fragment(sender)).collect();
        let all: f64 = wire.iter().sum();
        // Builders take events in turn.
        let share = 1.0 / f64::from(*receivers);
        let mut links: Vec<Link> = (0..*senders)
            .zip(&wire)
            .map(|(number, bytes)| Link {
                name: format!("sender-{number}"),
                kind: LinkKind::Up,
                rate: self.sender_rate(number),
                buffer: None,
                event_bytes: *bytes,
            })
            .collect();
        if let Some(shared) = shared {
            let racks = wire.chunks(shared.senders as usize).enumerate();
            links.extend(racks.map(|(number, wire)| Link {
                name: format!("rack-{number}"),
                kind: LinkKind::Shared,
                rate: shared.rate.unwrap_or(*rate),
                buffer: Some(shared.buffer.unwrap_or(*buffer).0),
                event_bytes: wire.iter().sum(),
            }));
        }
        if let Some(tree) = tree {
            links.extend((0..tree.leaves).flat_map(|leaf| self.trunk_links(tree, leaf, &wire)));
        }
        links.extend((0..*receivers).map(|number| Link {
            name: format!("receiver-{number}"),
            kind: LinkKind::Down,
            rate: self.receiver_rate(number),
            buffer: Some(buffer.0),
            event_bytes: all * share,
        }));
        links
    }

    /// Returns both directions of a leaf's trunk, up and down. `wire` has the bytes that each sender's fragment takes.
    fn trunk_links(&self, tree: &Tree, leaf: u32, wire: &[f64]) -> [Link; 2] {
        let Network { senders, receivers, rate, buffer, .. } = &self.network;
        let step = tree.leaves as usize;
        let all: f64 = wire.iter().sum();
        let from_here: f64 = wire.iter().skip(leaf as usize).step_by(step).sum();
        let to_here = 1.0 / f64::from(*receivers) * (leaf..*receivers).step_by(step).count() as f64;
        let up: u64 = (leaf..*senders).step_by(step).map(|number| self.sender_rate(number).0).sum();
        let down: u64 = (leaf..*receivers).step_by(step).map(|number| self.receiver_rate(number).0).sum();
        let directions = [("up", up, from_here * (1.0 - to_here)), ("down", down, (all - from_here) * to_here)];
        directions.map(|(direction, hosts_rate, event_bytes)| {
            // If none of its hosts sends (or receives) fragments, it carries requests and acknowledgements only.
            let hosts_rate = if hosts_rate == 0 { rate.0 } else { hosts_rate };
            Link {
                name: format!("leaf-{leaf} {direction}"),
                kind: LinkKind::Trunk,
                rate: BitRate(((hosts_rate as f64 / tree.oversubscription) as u64).max(1)),
                buffer: Some(tree.buffer.unwrap_or(*buffer).0),
                event_bytes,
            }
        })
    }

    /// Returns the rate and buffer that a builder's credit has to fit: those of its own port or, if that is narrower,
    /// its part of a shared uplink or of a trunk, where the data for all builders meets. If half of each event passes
    /// it, and there are four builders, then each may use half of its rate, and half of `SHARED_BUFFER_FACTOR` times
    /// its buffer.
    pub fn port_for_credit(&self, receiver: u32) -> (BitRate, u64) {
        let links = self.all_links();
        let all: f64 = (0..self.network.senders).map(|sender| self.wire_bytes_per_fragment(sender)).sum();
        // A single builder fills half of a buffer anyway.
        let filled = if self.network.receivers > 1 { SHARED_BUFFER_FACTOR } else { 1 };
        let between = links.iter().filter(|link| matches!(link.kind, LinkKind::Shared | LinkKind::Trunk));
        let parts = between.filter(|link| link.event_bytes > 0.0).map(|link| {
            let part = all / (link.event_bytes * f64::from(self.network.receivers));
            #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a part of either")]
            let [rate, buffer] = [link.rate.0, link.buffer.unwrap_or(u64::MAX).saturating_mul(filled)]
                .map(|whole| (part * whole as f64) as u64);
            (BitRate(rate.max(1)), buffer)
        });
        let own = (self.receiver_rate(receiver), self.network.buffer.0);
        let narrowest = parts.min_by_key(|(rate, _)| *rate).filter(|(rate, _)| *rate < own.0);
        narrowest.map_or(own, |(rate, buffer)| (rate, buffer.min(own.1)))
    }

    /// Returns the number of bytes on the wire that a sender's fragment takes, in the mean: a part of every packet is
    /// headers, a frame is 38 bytes longer on the wire, a record is the payload with its 64-byte header, padded to
    /// whole 64 bytes.
    fn wire_bytes_per_fragment(&self, sender: u32) -> f64 {
        let (from, to) = self.payload_range_of(sender);
        let [from, to] =
            [from, to].map(|payload| RECORD_HEADER_BYTES + payload.div_ceil(RECORD_HEADER_BYTES) * RECORD_HEADER_BYTES);
        // The mean of the padded lengths is close enough to the mean of the two padded ends.
        let recorded = (from + to) as f64 / 2.0;
        recorded * f64::from(self.frame_bytes() + WIRE_OVERHEAD_BYTES)
            / f64::from(self.traffic.link.payload_bytes_per_packet(self.network.mtu))
    }

    pub(super) fn check_fabric(&self) -> Result<(), InvalidValue> {
        self.check_senders()?;
        self.check_receivers()?;
        let Network { shared, tree, .. } = &self.network;
        if let Some(shared) = shared {
            if !(1..=self.network.senders).contains(&shared.senders) {
                let problem =
                    format!("{}: there are only {} senders to share an uplink", shared.senders, self.network.senders);
                return invalid_value("network.shared.senders", problem);
            }
            self.check_buffer("network.shared.buffer", shared.buffer)?;
        }
        if let Some(tree) = tree {
            if shared.is_some() {
                return invalid_value("network.tree", "`shared` is set too: write only one of them".into());
            }
            if !(2..=64).contains(&tree.leaves) {
                return invalid_value("network.tree.leaves", format!("{}: it must be 2 to 64", tree.leaves));
            }
            if !(0.01..=1000.0).contains(&tree.oversubscription) {
                let problem = format!("{}: it must be 0.01 to 1000", tree.oversubscription);
                return invalid_value("network.tree.oversubscription", problem);
            }
            self.check_buffer("network.tree.buffer", tree.buffer)?;
        }
        Ok(())
    }

    fn check_senders(&self) -> Result<(), InvalidValue> {
        let network = &self.network;
        for (at, sender) in network.unlike.iter().enumerate() {
            let table = format!("network.sender.{at}");
            let number = format!("{table}.number");
            let others = network.unlike[..at].iter().map(|other| other.number);
            check_number(&number, "senders", sender.number, network.senders, others)?;
            if sender.rate.is_none() && sender.size.is_none() && sender.sizes.is_none() {
                return invalid_value(
                    &number,
                    "it does not differ from the others: set a `rate`, a `size` or `sizes`".into(),
                );
            }
            check_sizes(&table, sender.size, sender.sizes)?;
        }
        Ok(())
    }

    fn check_receivers(&self) -> Result<(), InvalidValue> {
        let Self { network, measure, .. } = self;
        let measured = self.measured_time();
        for (at, receiver) in network.unlike_receivers.iter().enumerate() {
            let [number, stall, dies] = ["number", "stall", "dies"].map(|key| format!("network.receiver.{at}.{key}"));
            let others = network.unlike_receivers[..at].iter().map(|other| other.number);
            check_number(&number, "receivers", receiver.number, network.receivers, others)?;
            if receiver.rate.is_none() && receiver.stall.is_none() && receiver.dies.is_none() {
                return invalid_value(
                    &number,
                    "it does not differ from the others: set a `rate`, a `stall` or `dies`".into(),
                );
            }
            if let Some(Stall { at, length }) = receiver.stall {
                if length.is_zero() {
                    return invalid_value(&stall, "`length` must be above 0".into());
                }
                if at.checked_add(length).is_none_or(|end| end > measured) {
                    return invalid_value(&stall, format!("it ends after the {} s that are measured", measure.seconds));
                }
            }
            if receiver.dies.is_some_and(|at| at > measured) {
                return invalid_value(&dies, format!("only {} s are measured", measure.seconds));
            }
        }
        let dead = network.unlike_receivers.iter().filter(|receiver| receiver.dies.is_some());
        if dead.count() == network.receivers as usize {
            return invalid_value("network.receiver", "all of them die: no builder is left".into());
        }
        Ok(())
    }

    pub(super) fn check_buffer(&self, key: &str, buffer: Option<ByteSize>) -> Result<(), InvalidValue> {
        let least = u64::from(self.frame_bytes());
        match buffer {
            Some(ByteSize(bytes)) if !(least..=1 << 32).contains(&bytes) => invalid_value(
                key,
                format!("{bytes} bytes: a port holds at least one frame, {least} bytes, and at most 4GiB"),
            ),
            _ => Ok(()),
        }
    }
}

/// Factor for buffers that several builders share. A builder among several fills two fifths of its own port's buffer,
/// since the data it asked for may arrive all at once. The data that many builders asked for does not, so together they
/// fill twice as much of a shared buffer.
const SHARED_BUFFER_FACTOR: u64 = 2;

fn check_number(
    key: &str,
    kind: &str,
    number: u32,
    count: u32,
    mut others: impl Iterator<Item = u32>,
) -> Result<(), InvalidValue> {
    if number >= count {
        return invalid_value(key, format!("{number}: {kind} are numbered 0 to {}", count - 1));
    }
    if others.any(|other| other == number) {
        return invalid_value(key, format!("{number} is defined twice"));
    }
    Ok(())
}
