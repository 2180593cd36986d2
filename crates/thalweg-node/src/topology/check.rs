//! Checks of a topology, as far as they are possible without touching anything.

use super::{
    BESIDE_SLOT, BuilderNodeConfig, ByteSize, Decision, LevelConfig, LinkConfig, Policy, SourceNodeConfig, Topology,
};
use crate::{NodeError, Wait};
use std::collections::HashSet;
use std::net::Ipv4Addr;
use std::path::Path;
use std::time::Duration;
use thalweg_core::filter::Condition;
use thalweg_device::Beat;
use thalweg_link::{Adapter, Address, OwnAddress};
use thalweg_wire::{HEADER_LEN, SourceId};

/// Name of the field, and description of the problem.
type Problem = (String, String);

/// Returns the field and `problem`, unless the condition holds.
fn require(holds: bool, field: impl Into<String>, problem: impl Into<String>) -> Result<(), Problem> {
    if holds { Ok(()) } else { Err((field.into(), problem.into())) }
}

impl Topology {
    /// Checks everything that can be checked without touching anything.
    ///
    /// # Errors
    /// Name of the field, and description of the problem.
    pub fn check_values(&self) -> Result<(), (String, String)> {
        let (builders, sources) = (&self.builders, &self.sources);
        require(!builders.is_empty(), "builder", "missing: add a [[builder]] with `name` and `listen`")?;
        require(!sources.is_empty(), "source", "missing: add a [[source]] with `name`, `id` and `device`")?;
        self.check_names()?;
        let run = &self.run;
        require(run.events != Some(0), "run.events", "it must be at least 1; remove it to run until stopped")?;
        require(
            !run.timeout.is_zero(),
            "run.timeout",
            "it must be above 0, since nodes wait for each other that \
            long: write 10s",
        )?;
        check_path(&run.directory).map_err(|problem| ("run.directory".to_owned(), problem))?;
        let mut listened_on = HashSet::new();
        for builder in builders {
            self.check_builder(builder, &mut listened_on)
                .map_err(|(field, problem)| (format!("builder '{}': {field}", builder.name), problem))?;
        }
        self.check_own_addresses()?;
        let mut ids = HashSet::new();
        for source in sources {
            self.check_source(source, &mut ids)
                .map_err(|(field, problem)| (format!("source '{}': {field}", source.name), problem))?;
        }
        Ok(())
    }

    /// Checks that several builders that are started one by one have a run number: they cannot choose one together.
    ///
    /// # Errors
    /// The topology has no run number.
    pub fn check_run_number(&self) -> Result<(), NodeError> {
        if self.builders.len() > 1 && self.run.record && self.run.number.is_none() {
            return Err(NodeError::Config(
                "run.number: several builders record one run, so that they need a common number: set it".into(),
            ));
        }
        Ok(())
    }

    fn check_names(&self) -> Result<(), Problem> {
        let mut names = HashSet::new();
        for name in self.node_names() {
            require(!name.is_empty(), "name", "it is empty: every node needs a name")?;
            require(names.insert(name), "name", format!("'{name}' is used twice: every node needs a name of its own"))?;
            let printable = !name.contains(char::is_control);
            require(printable, "name", format!("{name:?}: a name has no control characters"))?;
        }
        Ok(())
    }

    /// Checks that adapters driven by nodes have addresses of their own.
    fn check_own_addresses(&self) -> Result<(), Problem> {
        let mut known: HashSet<Ipv4Addr> = HashSet::new();
        let builders = self.builders.iter().flat_map(|builder| {
            let listen = builder.listen.iter().filter(|address| address.link_kind().adapter).filter_map(listening_ip);
            listen.map(move |ip| (format!("builder '{}': listen", builder.name), ip))
        });
        let sources = self.sources.iter().filter_map(|source| {
            let ip = source.adapter.as_ref()?.address?.ip;
            Some((format!("source '{}': adapter.address", source.name), ip))
        });
        builders.chain(sources).try_for_each(|(field, ip)| {
            require(known.insert(ip), field, format!("{ip} is also the address of another node"))
        })
    }

    fn check_builder<'a>(
        &self,
        builder: &'a BuilderNodeConfig,
        listened_on: &mut HashSet<&'a Address>,
    ) -> Result<(), Problem> {
        require(
            !builder.listen.is_empty(),
            "listen",
            "it needs at least one address, tcp:HOST:PORT, udp:HOST:PORT or shm:PATH",
        )?;
        for address in &builder.listen {
            let chosen_by_the_system = address.host_port().is_some_and(|host| host.ends_with(":0"));
            let is_new = listened_on.insert(address) || chosen_by_the_system;
            require(is_new, "listen", format!("{address} is listened on twice: each needs its own"))?;
        }
        check_listening(builder)?;
        let (block, blocks) = (builder.block.0, builder.blocks);
        let possible = (256 << 10..=1 << 30).contains(&block);
        require(possible, "block", format!("{block} bytes: it must be 256 KiB to 1 GiB"))?;
        require((2..=4096).contains(&blocks), "blocks", format!("{blocks}: it must be 2 to 4096"))?;
        let fits = block.saturating_mul(blocks.into()) <= 64 << 30;
        require(fits, "blocks", "blocks times block size is more than 64 GiB")?;
        require((1..=1 << 24).contains(&builder.open_events), "open_events", "it must be 1 to 16777216")?;
        require(builder.window != Some(ByteSize(0)), "window", "a window of 0 bytes would never request anything")?;
        let one = builder.window.is_none() || builder.link.is_none();
        require(one, "window", "it follows from `link`: set only one of the two")?;
        builder.link.map_or(Ok(()), check_link)?;
        let eager = builder.eager_credit.0 <= 64 << 20 && builder.eager_limit.0 <= builder.eager_credit.0;
        require(eager, "eager_limit", "it must be eager_limit <= eager_credit <= 64MiB")?;
        require(builder.segment.0 >= block, "segment", "it must be at least the size of one block")?;
        self.check_trigger(builder)?;
        require(!builder.deadline.is_zero(), "deadline", "with a deadline of 0 every event is incomplete")
    }

    fn check_trigger(&self, builder: &BuilderNodeConfig) -> Result<(), Problem> {
        let all: Vec<&str> = self.sources.iter().map(|source| &source.name[..]).collect();
        if let Some(level2) = &builder.level2 {
            let asked: Vec<&str> = level2.sources.iter().map(String::as_str).collect();
            check_level(level2, 1, &asked, builder.deadline).map_err(|(key, problem)| {
                let among = if key == "accept" && problem.contains("source") { " among level2.sources" } else { "" };
                (format!("level2.{key}"), format!("{problem}{among}"))
            })?;
            require(!asked.is_empty(), "level2.sources", "it decides on the data of these sources: name at least one")?;
            for (at, name) in asked.iter().enumerate() {
                require(all.contains(name), "level2.sources", format!("the topology has no source '{name}'"))?;
                require(!asked[..at].contains(name), "level2.sources", format!("'{name}' is named twice"))?;
            }
        }
        let Some(filter) = &builder.filter else { return Ok(()) };
        require(filter.sources.is_empty(), "filter.sources", "it sees the whole event: `sources` belongs to level2")?;
        check_level(filter, 2, &all, builder.deadline).map_err(|(key, problem)| (format!("filter.{key}"), problem))
    }

    fn check_source(&self, source: &SourceNodeConfig, ids: &mut HashSet<SourceId>) -> Result<(), Problem> {
        let id: SourceId = source.id.parse().map_err(|problem| ("id".to_owned(), problem))?;
        require(ids.insert(id), "id", format!("{id} is used by another source"))?;
        let slots = source.slots;
        require((1..=65_536).contains(&slots), "slots", format!("{slots}: it must be 1 to 65536"))?;
        if let Some(ByteSize(slot)) = source.slot {
            self.check_slot(slot, HEADER_LEN).map_err(|problem| ("slot".to_owned(), problem))?;
            let possible = (HEADER_LEN as u64..=1 << 30).contains(&slot);
            require(possible, "slot", format!("{slot} bytes: it must be 64 bytes to 1 GiB"))?;
        }
        check_adapter(source)?;
        self.check_device(source)?;
        if let Some(beat) = &source.beat {
            self.check_beat(source, beat)?;
        }
        for path in source.device.iter().flat_map(|device| device.input_paths()) {
            check_path(path).map_err(|problem| ("device".to_owned(), problem))?;
        }
        if source.device.is_none() {
            // The program that pushes also chooses the address it connects to.
            return pushing_program_key(source).map_or(Ok(()), |name| {
                require(
                    false,
                    name,
                    "a source without a `device` is pushed by another program, which decides on this: remove it, or \
                     add a `device`",
                )
            });
        }
        check_rate(source)?;
        let unreached = self.builders.iter().find(|builder| self.builder_address(builder, source.link).is_none());
        unreached.map_or(Ok(()), |builder| {
            let problem = format!("builder '{}' listens on no {:?} address", builder.name, source.link);
            require(false, "link", problem.to_lowercase())
        })
    }

    /// Checks the device of a source, as far as its kind is known. The options of other kinds are known to the program
    /// that opens the device.
    fn check_device(&self, source: &SourceNodeConfig) -> Result<(), Problem> {
        let Some(device) = source.device.as_ref().filter(|device| device.is_registered()) else { return Ok(()) };
        device.check_options().map_err(|error| ("device".to_owned(), error.to_string()))?;
        if device.is_acquisition() {
            require(source.rate.is_none(), "rate", "this device sets its own pace: remove it")?;
            let drops = "this device sets its own pace and loses data when no slot is free: remove it";
            require(source.policy == Policy::Block, "policy", drops)?;
            require(source.burst == 1, "burst", "this device sets its own pace: remove it")?;
        }
        device.observed_source().map_or(Ok(()), |observed| self.check_observer(source, observed.source))
    }

    /// Checks the beat by which a source numbers its frames, which all sources have in common.
    fn check_beat(&self, source: &SourceNodeConfig, beat: &Beat) -> Result<(), Problem> {
        let by_itself = match &source.device {
            Some(device) => !device.is_registered() || device.is_acquisition(),
            None => false,
        };
        require(
            by_itself,
            "beat",
            "it numbers the frames of a device that acquires by itself, which this one does \
            not",
        )?;
        let has_times = source.device.as_ref().is_some_and(|device| device.has_timestamps());
        require(has_times, "beat", "it needs timestamps, which the frames of this device do not have")?;
        beat.check_values().map_err(|(key, problem)| (format!("beat.{key}"), problem))?;
        let others = self.sources.iter().filter(|other| other.name != source.name);
        for (name, other) in others.filter_map(|other| Some((&other.name, other.beat?))) {
            let period = humantime::format_duration(other.period);
            let problem = format!("source '{name}' has {period}: all sources need the same beat");
            require(other.period == beat.period, "beat.period", problem)?;
            let has = if beat.phase.is_some() { "none" } else { "one" };
            let problem = format!("source '{name}' has {has}: set it for all sources, or for none");
            require(other.phase.is_some() == beat.phase.is_some(), "beat.phase", problem)?;
        }
        Ok(())
    }

    /// Checks that a device which takes copies of another source's payloads can have them.
    fn check_observer(&self, source: &SourceNodeConfig, observed: &str) -> Result<(), Problem> {
        let Some(of) = self.sources.iter().find(|other| other.name == observed) else {
            return require(false, "device", format!("of: the topology has no source '{observed}'"));
        };
        let (field, problem) = match &of.device {
            None => (
                "device",
                "of: another program pushes that source's images, so that only that program can fit \
                them",
            ),
            Some(device) if device.observed_source().is_some() => ("device", "of: that source is a fit itself"),
            Some(_) if source.beat.is_some() => ("beat", "it follows the images that it fits: remove it"),
            Some(_) if source.adapter.is_some() || of.link.adapter || source.link.adapter => {
                ("link", "a fit and its images cannot share an adapter that a node drives by itself: use another link")
            }
            Some(_) => return Ok(()),
        };
        require(false, field, problem)
    }

    /// Checks that every builder's block has room for a slot of `slot` bytes; a slot of the source has at least
    /// `least`.
    ///
    /// # Errors
    /// A block is too small; the text describes what to do.
    pub fn check_slot(&self, slot: u64, least: usize) -> Result<(), String> {
        let Some(builder) = self.builders.iter().find(|builder| slot > u64::from(builder.largest_slot())) else {
            return Ok(());
        };
        let (name, largest) = (&builder.name, builder.largest_slot());
        let block = ByteSize((slot + BESIDE_SLOT).next_multiple_of(1 << 18));
        let smaller = match least as u64 <= u64::from(largest) {
            true => format!(", or the source a `slot` of {least} to {largest} bytes"),
            false => String::new(),
        };
        Err(format!(
            "{slot} bytes do not fit a block of builder '{name}', which takes {largest}: give the builder a `block` of at \
             least \"{block}\"{smaller}"
        ))
    }
}

/// Checks that a level can decide on what these sources send, before an event's own deadline.
fn check_level(
    level: &LevelConfig,
    usual_seed: u64,
    sources: &[&str],
    deadline: Duration,
) -> Result<(), (&'static str, String)> {
    match level.level_decision(usual_seed)? {
        Decision::Simulated(_) => {}
        Decision::Program(program) => {
            if program.deadline.is_zero() || program.deadline > deadline {
                let most = humantime::format_duration(deadline);
                return Err(("deadline", format!("it must be above 0 and at most the builder's deadline, {most}")));
            }
        }
        Decision::Condition(condition) => {
            for variable in condition.variable_names() {
                match sources.iter().filter(|source| Condition::variable_name(source) == variable).count() {
                    0 => return Err(("accept", format!("the topology has no source '{variable}'"))),
                    1 => {}
                    _ => return Err(("accept", format!("'{variable}' is the name of several sources"))),
                }
            }
        }
    }
    Ok(())
}

/// Checks the rate, the policy and the burst of a source with a device.
fn check_rate(source: &SourceNodeConfig) -> Result<(), Problem> {
    let (has_rate, burst) = (source.rate.is_some(), source.burst);
    require(
        has_rate || source.policy == Policy::Block,
        "policy",
        "a device without a `rate` waits until it is asked, so that nothing is ever dropped: set a rate, or policy = \
         \"block\"",
    )?;
    let possible = (1..=MAX_BURST).contains(&burst);
    require(possible, "burst", format!("{burst}: it must be 1 to {MAX_BURST}"))?;
    require(
        has_rate || burst == 1,
        "burst",
        "without a `rate` the device always has more data: set a rate, whose events then come together",
    )
}

/// Maximum number of events in a burst. More, many times the records of a slot, are no burst, but a source that always
/// has more.
const MAX_BURST: u32 = 100_000;

/// Returns the IPv4 address at which a builder listens, if it is written as numbers.
fn listening_ip(address: &Address) -> Option<Ipv4Addr> {
    numeric_ip(address.host_port()?)
}

fn numeric_ip(place: &str) -> Option<Ipv4Addr> {
    place.rsplit_once(':')?.0.parse().ok()
}

/// Checks that there is an adapter exactly if the link needs one, and that it is usable.
fn check_adapter_need(adapter: Option<&Adapter>, link: Option<&'static str>, example: &str) -> Result<(), Problem> {
    match (adapter, link) {
        (None, Some(link)) => Err((
            "adapter".into(),
            format!("with {link} a node drives a network adapter by itself: set it, such as adapter = {{ {example} }}"),
        )),
        (Some(_), None) => {
            Err(("adapter".into(), "no link of this node drives an adapter by itself: remove it".into()))
        }
        (Some(adapter), Some(_)) => {
            adapter.check_settings().map_err(|(key, problem)| (format!("adapter.{key}"), problem))
        }
        (None, None) => Ok(()),
    }
}

fn check_adapter(source: &SourceNodeConfig) -> Result<(), Problem> {
    // A program that pushes names its own.
    let link = (source.link.adapter && source.device.is_some()).then_some(source.link.name);
    let listens = source.device.as_ref().and_then(|device| device.driven_port_address());
    if let (Some(link), Some(_)) = (link, listens) {
        let problem = format!(
            "its datagrams would arrive on the adapter that {link} uses: choose another link, or another \
                address"
        );
        return Err(("device".into(), problem));
    }
    let link = link.or(listens.map(|_| "dpdk"));
    let adapter = source.adapter.as_ref();
    check_adapter_need(adapter, link, "device = \"0000:00:11.0\", address = \"10.0.0.2/24\"")?;
    if adapter.is_some_and(|adapter| adapter.address.is_none()) {
        let problem = "the kernel has no address for it: write one of the builder's network, such as \"10.0.0.2/24\"";
        return Err(("adapter.address".into(), problem.into()));
    }
    if let (Some(place), Some(own)) = (listens, adapter.and_then(|adapter| adapter.address))
        && numeric_ip(place) != Some(own.ip)
    {
        let problem = format!("dpdk:{place}: the adapter's address is {}: listen there", own.ip);
        return Err(("device".into(), problem));
    }
    Ok(())
}

fn check_listening(builder: &BuilderNodeConfig) -> Result<(), Problem> {
    let mut driven = builder.listen.iter().filter(|address| address.link_kind().adapter);
    let first = driven.next();
    let link = first.map(|address| address.link_kind().name);
    check_adapter_need(builder.adapter.as_ref(), link, "device = \"0000:00:11.0\"")?;
    let Some(address) = first else { return Ok(()) };
    require(driven.next().is_none(), "listen", "a node drives one adapter: write one such address")?;
    let Some(ip) = listening_ip(address) else {
        return require(
            false,
            "listen",
            format!(
                "{address}: write the numeric address of the adapter, such as \
            10.0.0.1"
            ),
        );
    };
    let own = OwnAddress { ip, prefix: None };
    match &builder.adapter {
        Some(Adapter { address: Some(stated), .. }) if stated.ip != ip => {
            require(false, "adapter.address", format!("the builder listens at {ip}: write that, with its network"))
        }
        Some(adapter) => {
            let listening = Adapter { address: Some(own), gateway: None, ..adapter.clone() };
            listening.check_settings().map_err(|(_, problem)| ("listen".into(), problem))
        }
        None => Ok(()),
    }
}

fn check_link(link: LinkConfig) -> Result<(), Problem> {
    let LinkConfig { mtu, round_trip, buffer, .. } = link;
    require((576..=65_535).contains(&mtu), "link.mtu", format!("{mtu}: it must be 576 to 65535"))?;
    let possible = !round_trip.is_zero() && round_trip <= Duration::from_secs(10);
    require(possible, "link.round_trip", "it must be above 0 and at most 10s")?;
    require(buffer.0 <= 64 << 30, "link.buffer", "it must be at most 64 GiB")
}

/// Returns the first key of a source without a device that the program which pushes decides on.
fn pushing_program_key(source: &SourceNodeConfig) -> Option<&'static str> {
    let is_given = [
        ("rate", source.rate.is_some()),
        ("burst", source.burst != 1),
        ("policy", source.policy != Policy::Block),
        ("slot", source.slot.is_some()),
        ("wait", source.wait != Wait::default()),
        ("cpu", source.cpu.is_some()),
    ];
    is_given.iter().find(|(_, is_given)| *is_given).map(|(name, _)| *name)
}

/// Checks a path: nodes receive it as text, and the kernel ends it at a NUL.
fn check_path(path: &Path) -> Result<(), String> {
    match path.to_str() {
        None => Err(format!("{path:?} is not UTF-8: rename it")),
        Some(text) if text.contains('\0') => Err(format!("{path:?}: a path cannot contain NUL")),
        Some(_) => Ok(()),
    }
}
