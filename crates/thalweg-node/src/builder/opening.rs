//! Opening of a builder before the sources connect: memory, addresses, the directory.

use super::assembly::Assembly;
use super::assigning::Assigning;
use super::next::HeldMessages;
use super::origin::Origin;
use super::peers::Peers;
use super::reporting::Reporting;
use super::run_state::RunState;
use super::setup::{FIRST_EVENT, Setup};
use super::shifts::ShiftSearch;
use super::time_use::TimeMeter;
use super::trigger::Trigger;
use super::{BuilderNode, PROGRAM_TOKEN};
use crate::{Assignment, BuilderNodeConfig, CheckConfig, Environment, NodeError, Topology, calibration};
use rustix::process::{Resource, getrlimit};
use std::time::SystemTime;
use thalweg_arena::{BlockPool, HugePagesLock};
use thalweg_core::build::{Builder, BuilderConfig, Check, CreditState, Hold, Window};
use thalweg_core::control::{AssignConfig, Config as ControlConfig, RunControl};
use thalweg_link::{Address, BuilderEndpoint, Eager, Endpoints, Interest};
use thalweg_wire::{EventId, RunNumber};

/// Maximum number of connections without a hello, beside one for each expected source that is not connected.
const MAX_UNIDENTIFIED: usize = 64;
/// Maximum number of events open on a builder: the limit of `open_events` in a topology.
const MAX_OPEN_EVENTS: u32 = 1 << 24;
/// Files that each connection without a hello has open.
const FILES_PER_UNIDENTIFIED: u64 = 2;
/// Size of a receive buffer in windows: data after a gap stay in it until the gap is filled, a round trip later, or two
/// if the data are lost once more, and meanwhile as much again is requested.
const RECEIVE_BUFFER_WINDOWS: u64 = 4;

impl BuilderNode {
    /// Opens everything that can be opened before the sources connect: memory, addresses, the directory. The run begins
    /// as soon as all sources are connected.
    ///
    /// # Errors
    /// The configuration cannot work, or the system refuses memory, an address or the directory.
    pub fn new(topology: &Topology, name: &str) -> Result<Self, NodeError> {
        Self::with_environment(topology, name, false, Environment::system())
    }

    /// Does the same as [`new`](Self::new), for a node that stays: its run begins on command, and sources are waited
    /// for without limit.
    ///
    /// # Errors
    /// Those of [`new`](Self::new).
    pub fn new_waiting(topology: &Topology, name: &str) -> Result<Self, NodeError> {
        Self::with_environment(topology, name, true, Environment::system())
    }

    /// Does the same as [`new`](Self::new) or, with `stays`, as [`new_waiting`](Self::new_waiting), in a given
    /// environment.
    ///
    /// # Errors
    /// Those of [`new`](Self::new).
    pub fn with_environment(
        topology: &Topology,
        name: &str,
        stays: bool,
        environment: Environment,
    ) -> Result<Self, NodeError> {
        let (now, cpu_before) = (environment.clock.now(), environment.clock.processor_time());
        let (setup, window) = builder_setup(topology, name, stays, &environment)?;
        topology.check_run_number()?;
        let (mut endpoints, addresses, held) = open_endpoints(&setup.config, setup.eager, window)?;
        if setup.run.record {
            check_directory(&setup.run.directory)?;
        }
        let pool = allocate_blocks(&setup.config, &window)?;
        endpoints.register_memory(pool.arena())?;
        let control_config = control_config(topology, setup.index, stays);
        let by_room = setup.run.assignment == Assignment::ByRoom;
        let assigning = Assigning::new(by_room, assign_config(&setup, &control_config).as_ref());
        let mut control = RunControl::new(control_config);
        control.handle_configured();
        let builder = Builder::new(BuilderConfig { held, ..builder_config(&setup, window) });
        let trigger = open_trigger(&setup, builder.config().builders, &environment, &endpoints)?;
        if let Some(CreditState { window, piece, .. }) = builder.credit_state() {
            tracing::info!(builder = name, window, piece, eager = ?setup.eager, "requests by credit");
        }
        let sources = setup.ids.len();
        Ok(Self {
            peers: Peers::new(endpoints, addresses, sources, max_unidentified(topology), setup.config.wait),
            assembly: Assembly::new(&setup, pool, builder.config().builders, trigger),
            run: RunState::new(control.run_state(), sources, now),
            reporting: Reporting::new(sources, cpu_before),
            clock: environment.clock,
            looked_at: now,
            turn_began: now,
            setup,
            builder,
            next_run: None,
            held_messages: vec![HeldMessages::default(); sources],
            closing_run: None,
            control,
            assigning,
            origin: Origin::default(),
            shifts: ShiftSearch::switched_off(),
            time_meter: TimeMeter::default(),
            ending: None,
        })
    }
}

/// Returns the setup of the builder with this name, and its window.
fn builder_setup(
    topology: &Topology,
    name: &str,
    stays: bool,
    environment: &Environment,
) -> Result<(Setup, Window), NodeError> {
    let position = topology.builders.iter().position(|builder| builder.name == name);
    let index = position.ok_or_else(|| NodeError::Config(format!("the topology has no builder '{name}'")))?;
    let config = topology.builders[index].clone();
    let (window, eager) = window_and_eager(&config, topology);
    if topology.run.calibrate {
        calibration::refuse_loopback(topology, name)?;
    }
    let calibrated = if topology.run.calibrate { None } else { config.known_calibration() };
    for doubt in calibrated.iter().flat_map(|link| link.doubts(SystemTime::now())) {
        tracing::warn!("{doubt}");
    }
    #[expect(clippy::cast_possible_truncation, reason = "checked: builders are few")]
    let (index, count) = (index as u32, topology.builders.len() as u32);
    let setup = Setup {
        run: topology.run.clone(),
        calibrated,
        wait_at_beginning: thalweg_sys::processor::thread_wait_time(),
        topology: serde_json::to_value(topology).unwrap_or_default(),
        index,
        count,
        ids: topology.sources.iter().map(|source| (source.source_id(), source.name.clone())).collect(),
        stays,
        disk: environment.disk.clone(),
        eager,
        config,
    };
    Ok((setup, window))
}

fn control_config(topology: &Topology, index: u32, stays: bool) -> ControlConfig {
    let run = &topology.run;
    ControlConfig {
        sources: topology.sources.len(),
        builders: u32::try_from(topology.builders.len()).unwrap_or(u32::MAX),
        leads: index == 0,
        starts_alone: !stays,
        first: FIRST_EVENT,
        end: run.events.map(EventId),
        duration: run.duration,
        timeout: run.timeout,
    }
}

/// Returns the configuration of the assigner, if this builder leads.
fn assign_config(setup: &Setup, control: &ControlConfig) -> Option<AssignConfig> {
    control.leads.then_some(AssignConfig {
        sources: setup.ids.len(),
        builders: setup.count,
        first: control.first,
        end: control.end,
        silence: setup.config.deadline,
    })
}

fn builder_config(setup: &Setup, window: Window) -> BuilderConfig {
    let Setup { config, ids, index, count, .. } = setup;
    // If nothing is copied, a slot is needed until its event is handed over.
    let mut mapped = config.listen.iter().map(|address| address.link_kind().maps);
    let in_place = match config.has_trigger() {
        true => mapped.any(|maps| maps),
        false => mapped.all(|maps| maps) && !setup.run.record,
    };
    // If events are assigned, their numbers do not determine a builder's share, which is the events that it receives
    // offers for. Those in between belong to others, and take a place among the open ones.
    let (builder, builders, open_events) = match setup.run.assignment {
        Assignment::Modulo => (*index, *count, config.open_events),
        Assignment::ByRoom => {
            (0, Assigning::EVENT_STRIDE, config.open_events.saturating_mul(*count).min(MAX_OPEN_EVENTS))
        }
    };
    let level2_sources = config.level2.as_ref().map_or(&[][..], |level2| &level2.sources);
    BuilderConfig {
        level2: (0..ids.len()).filter(|source| level2_sources.contains(&ids[*source].1)).collect(),
        run: RunNumber(0),
        builder,
        builders,
        rank: (*index, *count),
        sources: ids.clone(),
        first: FIRST_EVENT,
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

/// Creates the trigger levels of a builder, and watches the programs that decide; `None` if there are none.
fn open_trigger(
    setup: &Setup,
    stride: u32,
    environment: &Environment,
    endpoints: &BuilderEndpoints,
) -> Result<Option<Trigger>, NodeError> {
    if !setup.config.has_trigger() {
        return Ok(None);
    }
    let trigger = Trigger::new(&setup.config, stride, setup.run.record, environment)?;
    let poller = endpoints.poller();
    trigger
        .program_descriptors()
        .try_for_each(|program| poller.add_descriptor(program, PROGRAM_TOKEN, Interest::READ))?;
    Ok(Some(trigger))
}

/// Returns the window of a builder, and what its sources may send eagerly.
#[expect(clippy::cast_possible_truncation, reason = "checked: eager credit is at most 64 MiB")]
fn window_and_eager(config: &BuilderNodeConfig, topology: &Topology) -> (Window, Eager) {
    let (window, eager) = match topology.run.calibrate {
        true => (config.calibration_window(), 0),
        false => config.window_and_eager_bytes(topology.sources.len()),
    };
    (window, Eager { credit: eager as u32, limit: config.eager_limit.0.min(eager) as u32 })
}

/// Endpoints through which a builder communicates with its sources.
type BuilderEndpoints = Endpoints<dyn BuilderEndpoint>;

/// Listens at all its addresses. Returns the endpoints, the addresses at which others find it, and the bytes that links
/// hold on their way here.
fn open_endpoints(
    config: &BuilderNodeConfig,
    eager: Eager,
    window: Window,
) -> Result<(BuilderEndpoints, Vec<Address>, u64), NodeError> {
    let mut endpoints = BuilderEndpoints::new()?.with_adapter(config.adapter.clone());
    let addresses =
        config.listen.iter().map(|address| endpoints.add_listener(address, eager)).collect::<Result<_, _>>()?;
    let wanted = match window {
        Window::Constant(bytes) | Window::Search { most: bytes, .. } => bytes,
        Window::Credit(path) => path.widest_window_bytes(),
    };
    let held = endpoints.limit_in_flight_bytes(wanted);
    if held < wanted {
        let why = match &config.adapter {
            Some(adapter) => format!("{} has no more descriptors: set a smaller `window`", adapter.device),
            None if config.listen.iter().any(|address| address.link_kind().interface) => {
                "its interface holds no more: set a smaller `window`".to_owned()
            }
            None => {
                let room = wanted.saturating_mul(2);
                format!("its sockets hold no more: set net.core.rmem_max to at least {room}")
            }
        };
        tracing::warn!(builder = config.name, "requests at most {held} bytes at a time instead of {wanted}: {why}");
    }
    if let Window::Credit(path) = window {
        let expected = endpoints.prepare_credit(RECEIVE_BUFFER_WINDOWS * path.widest_window_bytes());
        let _ = expected.map_err(|what| tracing::info!(builder = config.name, "{what}"));
    }
    Ok((endpoints, addresses, if held < wanted { held } else { u64::MAX }))
}

fn allocate_blocks(config: &BuilderNodeConfig, window: &Window) -> Result<BlockPool, NodeError> {
    let (blocks, block_bytes) = (config.block_count_for(window), usize::try_from(config.block.0).unwrap_or(usize::MAX));
    // DPDK in another process of this host may be taking huge pages that it has counted.
    let taking = HugePagesLock::acquire_lock();
    let pool = BlockPool::new(&config.name, blocks, block_bytes)?;
    drop(taking);
    tracing::info!(builder = config.name, blocks, block_bytes, "blocks made of {}", pool.arena());
    Ok(pool)
}

/// Returns how many connections without a hello leave the run all the files that it may need.
fn max_unidentified(topology: &Topology) -> usize {
    let Some(files) = getrlimit(Resource::Nofile).current else { return MAX_UNIDENTIFIED };
    let left = files.saturating_sub(topology.builder_open_files()) / FILES_PER_UNIDENTIFIED;
    MAX_UNIDENTIFIED.min(usize::try_from(left).unwrap_or(usize::MAX))
}

/// Checks that runs can be written to a directory, before any source is kept waiting.
fn check_directory(directory: &std::path::Path) -> Result<(), NodeError> {
    let created = std::fs::create_dir_all(directory);
    let access = rustix::fs::Access::WRITE_OK | rustix::fs::Access::EXEC_OK;
    created.and_then(|()| Ok(rustix::fs::access(directory, access)?)).map_err(|error| {
        NodeError::Config(format!(
            "run.directory: cannot write runs to {}: {error}; choose another",
            directory.display()
        ))
    })
}
