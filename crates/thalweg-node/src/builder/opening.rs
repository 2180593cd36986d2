//! Opening of a builder before the sources connect: memory, addresses, the directory.

use super::assigning::Assigning;
use super::ending::DiskAnswers;
use super::snapshot::Shown;
use super::trigger::Trigger;
use super::{BuilderNode, PROGRAM, SourceState, Tally};
use crate::blocks::Blocks;
use crate::drive::Leaving;
use crate::wait::Waiter;
use crate::{Assignment, BuilderNodeConfig, CheckConfig, Environment, NodeError, RunConfig, Topology};
use rustix::process::{Resource, getrlimit};
use std::sync::Arc;
use thalweg_arena::{BlockPool, HugePagesLock};
use thalweg_core::build::{Builder, BuilderConfig, Check, CreditState, Hold, Window};
use thalweg_core::control::{AssignConfig, Config as ControlConfig, RunControl};
use thalweg_link::{Address, BuilderEndpoint, Eager, Endpoints, Interest};
use thalweg_wire::{EventId, RunNumber, SourceId, TaiNanos};

/// Maximum number of connections without a hello, beside one for each expected source that is not connected.
const MOST_UNIDENTIFIED: usize = 64;
/// Maximum number of events open on a builder: the limit of `open_events` in a topology.
const MOST_OPEN: u32 = 1 << 24;
/// Files that each connection without a hello has open.
const UNIDENTIFIED_FILES: u64 = 2;
/// Size of a receive buffer in windows: data after a gap stay in it until the gap is filled, a round trip later, or two
/// if the data are lost once more, and meanwhile as much again is requested.
const GAPS: u64 = 4;

impl BuilderNode {
    /// Opens everything that can be opened before the sources connect: memory, addresses, the directory. The run begins
    /// as soon as all sources are connected.
    ///
    /// # Errors
    /// The configuration cannot work, or the system refuses memory, an address or the directory.
    pub fn new(topology: &Topology, name: &str) -> Result<Self, NodeError> {
        Self::within(topology, name, false, Environment::system())
    }

    /// Does the same as [`new`](Self::new), for a node that stays: its run begins on command, and sources are waited
    /// for without limit.
    ///
    /// # Errors
    /// Those of [`new`](Self::new).
    pub fn waiting(topology: &Topology, name: &str) -> Result<Self, NodeError> {
        Self::within(topology, name, true, Environment::system())
    }

    /// Does the same as [`new`](Self::new) or, with `stays`, as [`waiting`](Self::waiting), in a given environment.
    ///
    /// # Errors
    /// Those of [`new`](Self::new).
    pub fn within(topology: &Topology, name: &str, stays: bool, environment: Environment) -> Result<Self, NodeError> {
        let (now, cpu_before) = (environment.clock.now(), environment.clock.cpu());
        let position = topology.builders.iter().position(|builder| builder.name == name);
        let index = position.ok_or_else(|| NodeError::Config(format!("there is no builder '{name}'")))?;
        let config = topology.builders[index].clone();
        let sources: Vec<(SourceId, String)> =
            topology.sources.iter().map(|source| (source.source_id(), source.name.clone())).collect();
        let (window, eager) = asking(&config, topology);
        #[expect(clippy::cast_possible_truncation, reason = "checked: builders are few")]
        let (index, count) = (index as u32, topology.builders.len() as u32);
        topology.check_number()?;
        let (mut endpoints, addresses, held) = listen(&config, eager, window)?;
        if topology.run.record {
            check_directory(&topology.run.directory)?;
        }
        let pool = blocks(&config, &window)?;
        let memory = Arc::clone(pool.arena());
        endpoints.register(&memory)?;
        let mut control = RunControl::new(Self::control_config(topology, index, stays));
        control.configured();
        let by_room = topology.run.assignment == Assignment::ByRoom;
        let builder = Self::builder_config(&config, &topology.run, index, count, sources.clone(), window);
        let builder = Builder::new(BuilderConfig { held, ..builder });
        let stride = builder.config().builders;
        let trigger = config.has_trigger().then(|| Trigger::new(&config, stride, topology.run.record, &environment));
        let trigger = trigger.transpose()?;
        if let Some(trigger) = &trigger {
            let poller = endpoints.poller();
            trigger.descriptors().try_for_each(|program| poller.add(program, PROGRAM, Interest::READ))?;
        }
        if let Some(CreditState { window, piece, .. }) = builder.credit() {
            tracing::info!(builder = name, window, piece, ?eager, "asks by credit");
        }
        let calibrated = if topology.run.calibrate { None } else { config.calibrated() };
        Ok(Self {
            calibrated: calibrated.map(|(_, file)| file.display().to_string()),
            blocks: Blocks::new(pool, stride, sources.len()),
            assigning: by_room.then(|| {
                let control = Self::control_config(topology, index, stays);
                Assigning::new((index == 0).then_some(&AssignConfig {
                    sources: sources.len(),
                    builders: count,
                    first: control.first,
                    end: control.end,
                    silence: config.deadline,
                }))
            }),
            trigger,
            memory,
            sources: sources.iter().map(|_| SourceState::default()).collect(),
            configuration: serde_json::to_value(topology).unwrap_or_default(),
            run_config: topology.run.clone(),
            ids: sources,
            connections: Vec::new(),
            vacant: 0,
            most_unidentified: most_unidentified(topology),
            clock: environment.clock,
            files: environment.disk,
            state: control.state(),
            control,
            over: false,
            leaving: Leaving::default(),
            left: None,
            run: RunNumber(0),
            first: EventId(0),
            began: TaiNanos(0),
            began_at: now,
            stalled: false,
            stalled_at: None,
            undecided: false,
            answers: DiskAnswers::default(),
            shown: Shown::default(),
            eager,
            cpu_before,
            waiter: Waiter::new(config.wait),
            came: false,
            config,
            index,
            count,
            builder,
            addresses,
            ready: Vec::new(),
            endpoints,
            accept_backoff: Vec::new(),
            tally: Tally::default(),
            origin: super::origin::Origin::default(),
            shifts: super::shifts::ShiftSearch::off(),
            trace: None,
            ending: None,
        })
    }

    fn control_config(topology: &Topology, index: u32, stays: bool) -> ControlConfig {
        let run = &topology.run;
        ControlConfig {
            sources: topology.sources.len(),
            builders: u32::try_from(topology.builders.len()).unwrap_or(u32::MAX),
            leads: index == 0,
            starts_alone: !stays,
            first: EventId(0),
            end: run.events.map(EventId),
            duration: run.duration,
            timeout: run.timeout,
        }
    }

    fn builder_config(
        config: &BuilderNodeConfig,
        run_config: &RunConfig,
        index: u32,
        count: u32,
        sources: Vec<(SourceId, String)>,
        window: Window,
    ) -> BuilderConfig {
        let is_mapped = |address: &Address| address.kind().maps;
        let asked_first = |name: &String| config.level2.as_ref().is_some_and(|level2| level2.sources.contains(name));
        // If nothing is copied, a slot is needed until its event is handed over.
        let in_place = match config.has_trigger() {
            true => config.listen.iter().any(is_mapped),
            false => config.listen.iter().all(is_mapped) && !run_config.record,
        };
        // If events are assigned, their numbers do not determine a builder's share, which is the events that it
        // receives offers for. Those in between belong to others, and take a place among the open ones.
        let (builder, builders, open_events) = match run_config.assignment {
            Assignment::Modulo => (index, count, config.open_events),
            Assignment::ByRoom => (0, Assigning::STRIDE, config.open_events.saturating_mul(count).min(MOST_OPEN)),
        };
        BuilderConfig {
            level2: (0..sources.len()).filter(|source| asked_first(&sources[*source].1)).collect(),
            run: RunNumber(0),
            builder,
            builders,
            rank: (index, count),
            sources,
            first: EventId(0),
            window,
            held: u64::MAX,
            deadline: config.deadline,
            open_events,
            max_payload: u32::MAX,
            check: match config.check {
                CheckConfig::Header => Check::Headers,
                CheckConfig::Payload => Check::Payloads,
            },
            hold: if in_place { Hold::UntilClosed } else { Hold::UntilArrived },
        }
    }
}

/// Returns the window of a builder, and what its sources may send eagerly.
#[expect(clippy::cast_possible_truncation, reason = "checked: eager credit is at most 64 MiB")]
fn asking(config: &BuilderNodeConfig, topology: &Topology) -> (Window, Eager) {
    let (window, eager) = match topology.run.calibrate {
        true => (config.search(), 0),
        false => config.credit(topology.sources.len()),
    };
    (window, Eager { credit: eager as u32, limit: config.eager_limit.0.min(eager) as u32 })
}

/// Endpoints through which a builder communicates with its sources.
type Doors = Endpoints<dyn BuilderEndpoint>;

/// Listens at all its addresses. Returns the endpoints, the addresses at which others find it, and the bytes that links
/// hold on their way here.
fn listen(config: &BuilderNodeConfig, eager: Eager, window: Window) -> Result<(Doors, Vec<Address>, u64), NodeError> {
    let mut endpoints = Doors::new()?.by(config.adapter.clone());
    let addresses = config.listen.iter().map(|address| endpoints.add(address, eager)).collect::<Result<_, _>>()?;
    let wanted = match window {
        Window::Constant(bytes) | Window::Search { most: bytes, .. } => bytes,
        Window::Credit(path) => path.widest(),
    };
    let held = endpoints.holds(wanted);
    if held < wanted {
        let why = match &config.adapter {
            Some(adapter) => format!("{} has no more descriptors. Ask for a smaller `window`", adapter.device),
            None if config.listen.iter().any(|address| address.kind().interface) => {
                "its interface holds no more. Ask for a smaller `window`".to_owned()
            }
            None => {
                let room = wanted.saturating_mul(2);
                format!("its sockets hold no more. Set net.core.rmem_max to {room} at least")
            }
        };
        tracing::warn!(builder = config.name, "asks for at most {held} bytes at a time, not {wanted}: {why}");
    }
    if let Window::Credit(path) = window {
        let expected = endpoints.expect(GAPS * path.widest());
        let _ = expected.map_err(|what| tracing::info!(builder = config.name, "{what}"));
    }
    Ok((endpoints, addresses, if held < wanted { held } else { u64::MAX }))
}

fn blocks(config: &BuilderNodeConfig, window: &Window) -> Result<BlockPool, NodeError> {
    let (blocks, block_bytes) = (config.blocks_for(window), usize::try_from(config.block.0).unwrap_or(usize::MAX));
    // DPDK in another process of this host may be taking huge pages that it has counted.
    let taking = HugePagesLock::acquire();
    let pool = BlockPool::new(&config.name, blocks, block_bytes)?;
    drop(taking);
    tracing::info!(builder = config.name, blocks, block_bytes, "blocks made of {}", pool.arena());
    Ok(pool)
}

/// Returns how many connections without a hello leave the run all the files that it may need.
fn most_unidentified(topology: &Topology) -> usize {
    let Some(files) = getrlimit(Resource::Nofile).current else { return MOST_UNIDENTIFIED };
    let left = files.saturating_sub(topology.builder_files()) / UNIDENTIFIED_FILES;
    MOST_UNIDENTIFIED.min(usize::try_from(left).unwrap_or(usize::MAX))
}

/// Checks that runs can be written to a directory, before any source is kept waiting.
fn check_directory(directory: &std::path::Path) -> Result<(), NodeError> {
    let wrong = |error: std::io::Error| {
        NodeError::Config(format!(
            "run.directory: runs cannot be written to {}: {error}; choose another",
            directory.display()
        ))
    };
    std::fs::create_dir_all(directory).map_err(wrong)?;
    rustix::fs::access(directory, rustix::fs::Access::WRITE_OK | rustix::fs::Access::EXEC_OK)
        .map_err(|error| wrong(error.into()))
}
