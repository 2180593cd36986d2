//! An RDMA device of the kernel in place of the RNIC in software: the same commands, rings and events, carried out by
//! libibverbs and librdmacm.
//!
//! Requests come by the rings of the program's queues, as to the RNIC in software, and are posted to the device in the calls
//! that post them; completions are taken from the device in the calls that poll. There is no thread: the descriptors of the
//! device's events are in one poller, which the program waits for.

mod connections;
mod queues;

use crate::device::VerbsError;
use crate::memory::MemoryRange;
use connections::Connections;
use queues::{Completions, Pair, SharedReceives};
use rustix::event::epoll;
use rustix::io::Errno;
use std::collections::HashMap;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::Instant;
use thalweg_arena::{ArenaError, Ring, RingReceiver, SharedMemory};
use thalweg_ibverbs::{
    CompletionChannel, Context, DeviceLimits, Domain, EventChannel, QueuePairSetup, Region, SharedQueue,
};
use thalweg_rnic::{
    Access, AsyncEvent, Command, CommandError, EventSocket, Limits, MAX_INLINE_BYTES, MAX_SGES, Operation,
    QueueLengths, QueueState, Reply, Sge, Transport, receive_ring_cells, send_ring_cells,
};

/// Turns between looks at the device's events, of a program that polls and does not sleep.
const TURNS_PER_LOOK: u32 = 64;

/// Events of a kind that are processed at once: peers may send any number.
const EVENTS_PER_LOOK: usize = 64;

/// Longest message in bytes: that of InfiniBand is twice as long (IBA 9.7.6), but lengths of reports are 32 bits.
const MAX_MESSAGE_BYTES: u32 = 1 << 30;

/// An RDMA device, with all objects that the program has made of it, by their handles.
#[derive(Debug)]
pub(crate) struct Adapter {
    connections: Connections,
    pairs: HashMap<u32, Pair>,
    shared_queues: HashMap<u32, SharedReceives>,
    completions: HashMap<u32, Completions>,
    channels: HashMap<u32, EventSocket>,
    regions: HashMap<u32, RegisteredRegion>,
    domains: HashMap<u32, Arc<Domain>>,
    events: Option<EventSocket>,
    next_handle: u32,
    wakeups: Arc<CompletionChannel>,
    manager: Arc<EventChannel>,
    context: Arc<Context>,
    device_limits: DeviceLimits,
    poller: Arc<OwnedFd>,
    turns: u32,
    /// True if there may be requests that the device has not got, and that have not completed.
    has_refusals: bool,
    /// True if the program may have slept since the device's events were looked at.
    has_slept: bool,
}

/// Properties of a device that do not change.
#[derive(Debug)]
pub(crate) struct DeviceFacts {
    pub(crate) name: String,
    has_atomics: bool,
}

impl DeviceFacts {
    /// Returns why the device has no such operation; `None` if it may have.
    pub(crate) fn lacks_operation(&self, operation: Operation) -> Option<&'static str> {
        match operation {
            Operation::BindWindow | Operation::LocalInvalidate => Some("memory windows are not supported on devices"),
            Operation::FetchAdd | Operation::CompareSwap if !self.has_atomics => Some("the device has no atomics"),
            _ => None,
        }
    }
}

/// A memory region: the range that the program names, and what the device calls it.
#[derive(Debug)]
pub(crate) struct RegisteredRegion {
    region: Region,
    range: MemoryRange,
}

/// Names of a registered region.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Registered {
    /// STag by which this program and peers name the memory.
    pub(crate) stag: u32,
    /// Address by which peers name the first byte.
    pub(crate) peer_base: u64,
}

impl Adapter {
    /// Opens a device.
    pub(crate) fn open(name: &str) -> Result<Self, VerbsError> {
        let context = Context::open(name)?;
        let device_limits = context.query_limits()?;
        let (wakeups, manager) = (CompletionChannel::create(&context)?, EventChannel::create()?);
        let poller = epoll::create(epoll::CreateFlags::CLOEXEC).map_err(poller_error)?;
        for fd in [wakeups.descriptor(), manager.descriptor(), context.event_descriptor()] {
            epoll::add(&poller, fd, epoll::EventData::new_u64(0), epoll::EventFlags::IN).map_err(poller_error)?;
        }
        Ok(Self {
            connections: Connections::default(),
            pairs: HashMap::new(),
            shared_queues: HashMap::new(),
            completions: HashMap::new(),
            channels: HashMap::new(),
            regions: HashMap::new(),
            domains: HashMap::new(),
            events: None,
            next_handle: 1,
            wakeups,
            manager,
            context,
            device_limits,
            poller: Arc::new(poller),
            turns: 0,
            has_refusals: false,
            has_slept: false,
        })
    }

    fn device_name(&self) -> &str {
        self.context.device_name()
    }

    pub(crate) fn device_facts(&self) -> DeviceFacts {
        DeviceFacts { name: self.device_name().into(), has_atomics: self.device_limits.has_atomics }
    }

    fn limits(&self) -> Limits {
        let d = &self.device_limits;
        Limits {
            max_clients: 1,
            max_queue_pairs: d.max_qp,
            max_completion_queues: d.max_cq,
            max_shared_queues: d.max_srq,
            max_domains: d.max_pd,
            max_regions: d.max_mr,
            max_windows: 0,
            max_listeners: u32::MAX,
            max_work_requests: d.max_qp_wr,
            max_completions: d.max_cqe,
            max_sges: d.max_sge.min(MAX_SGES as u32),
            // A device does not report its own: it refuses queue pairs that exceed it.
            max_inline_bytes: MAX_INLINE_BYTES as u32,
            max_message_bytes: MAX_MESSAGE_BYTES,
            max_reads: d.max_qp_rd_atom.min(d.max_qp_init_rd_atom),
            max_file_bytes: u64::MAX,
        }
    }

    /// Carries out a command, as [`Engine::execute_command`](thalweg_rnic::Engine::execute_command) does.
    pub(crate) fn execute_command(&mut self, command: Command, fds: Vec<OwnedFd>) -> Result<Reply, VerbsError> {
        let mut fds = fds.into_iter();
        match command {
            Command::Open => {
                self.events = Some(EventSocket::for_program(next_fd(&mut fds)?));
                return Ok(Reply::Opened { limits: self.limits() });
            }
            Command::AllocateDomain => {
                let domain = Domain::allocate(&self.context)?;
                let handle = self.new_handle();
                self.domains.insert(handle, domain);
                return Ok(Reply::Handle(handle));
            }
            Command::DeallocateDomain(domain) => drop(self.domains.remove(&domain)),
            Command::RegisterRegion { domain, offset, length, base, access } => {
                let range = MemoryRange { offset, length, base };
                return self
                    .register_file(domain, &next_fd(&mut fds)?, range, access)
                    .map(|registered| Reply::Handle(registered.stag));
            }
            Command::Deregister(stag) => drop(self.regions.remove(&stag)),
            Command::PageList(stag) => {
                let range = self.regions.get(&stag).ok_or_else(|| no_such("memory region", stag))?.range;
                return Ok(Reply::PageList(vec![(range.offset, range.length)]));
            }
            Command::AllocateWindow { .. } => return Err(self.unsupported("memory windows")),
            Command::CreateChannel => {
                let handle = self.new_handle();
                self.channels.insert(handle, EventSocket::for_queues(next_fd(&mut fds)?));
                return Ok(Reply::Handle(handle));
            }
            Command::DestroyChannel(channel) => drop(self.channels.remove(&channel)),
            Command::CreateCompletionQueue { entries, channel, event_number } => {
                let ring = import_ring(next_fd(&mut fds)?, entries)?.into_sender();
                let handle = self.new_handle();
                let queue = thalweg_ibverbs::CompletionQueue::create(&self.wakeups, entries, handle)?;
                let number = event_number.unwrap_or(u64::from(handle));
                self.completions.insert(handle, Completions::new(queue, ring, channel, number));
                return Ok(Reply::Handle(handle));
            }
            Command::DestroyCompletionQueue(queue) => drop(self.completions.remove(&queue)),
            Command::CreateSharedQueue { domain, receives, sges } => {
                return self.create_shared_queue(domain, (receives, sges), next_fd(&mut fds)?);
            }
            Command::SetSharedQueueLimit { queue, limit } => {
                let shared =
                    self.shared_queues.get_mut(&queue).ok_or_else(|| no_such("shared receive queue", queue))?;
                shared.set_limit(limit)?;
            }
            Command::DestroySharedQueue(queue) => drop(self.shared_queues.remove(&queue)),
            command @ Command::CreateQueuePair { .. } => return self.create_queue_pair(&command, fds),
            Command::NumberQueuePair { .. } => return Err(self.unsupported(NUMBERS)),
            Command::ModifyQueuePair { queue, state, attributes } => {
                self.modify_queue_pair(queue, state, attributes)?
            }
            Command::QueryQueuePair(queue) => return Ok(self.pair(queue)?.describe_state()),
            Command::DestroyQueuePair(queue) => {
                self.connections.remove_queue(queue);
                self.pairs.remove(&queue);
            }
            command => return self.manage_connection(command, fds.next()),
        }
        Ok(Reply::Done)
    }

    /// Carries out a command of connection management.
    fn manage_connection(&mut self, command: Command, fd: Option<OwnedFd>) -> Result<Reply, VerbsError> {
        let events = fd.map(EventSocket::for_connection).ok_or_else(missing_descriptor);
        match command {
            Command::Listen { address, transport, backlog } => {
                self.check_transport(transport)?;
                let handle = self.new_handle();
                let address = self.connections.listen(&self.manager, handle, (address, backlog), events?)?;
                return Ok(Reply::Listening { listener: handle, address });
            }
            Command::DestroyListener(listener) => self.connections.remove_listener(listener),
            Command::Connect { queue, address, transport, parameters } => {
                self.check_transport(transport)?;
                let parameters = self.bounded_parameters(parameters);
                self.unconnected_pair(queue)?;
                self.connections.begin_connect(&self.manager, queue, (address, parameters), events?)?;
            }
            Command::Accept { request, queue, parameters } => {
                let parameters = self.bounded_parameters(parameters);
                self.unconnected_pair(queue)?;
                let pair = self.pairs.get_mut(&queue).ok_or_else(|| no_such("queue pair", queue))?;
                self.connections.accept(&self.context, request, (queue, pair), parameters, events?)?;
            }
            Command::Reject { request, private_data } => self.connections.reject(request, &private_data)?,
            Command::Disconnect(queue) => {
                self.connections.disconnect(queue);
                if let Some(pair) = self.pairs.get_mut(&queue) {
                    pair.enter_error();
                }
                self.post_sends(queue);
            }
            other => return Err(CommandError::Unknown(format!("{other:?}")).into()),
        }
        Ok(Reply::Done)
    }

    /// Registers a range of a file: mapped, or, if it is no memfd, as a DMA buffer.
    pub(crate) fn register_file(
        &mut self,
        domain: u32,
        fd: &OwnedFd,
        range: MemoryRange,
        access: Access,
    ) -> Result<Registered, VerbsError> {
        if rustix::fs::fcntl_get_seals(fd) == Err(Errno::INVAL) {
            let domain = self.domains.get(&domain).ok_or_else(|| no_such("protection domain", domain))?;
            let bytes = (range.offset, range.length);
            let region = Region::register_dma_buf(domain, fd.as_fd(), bytes, range.base, access.bits())?;
            return self.add_region(region, range);
        }
        // Mapped for writing where that is possible: before Linux 6.3, only such memory of a file is registered, whatever the
        // rights (ib_umem_get pinned pages for writing).
        let memory = match SharedMemory::import(fd, true) {
            Err(ArenaError::WriteSealed) if !access.intersects(Access::WRITING) => SharedMemory::import(fd, false),
            imported => imported,
        };
        let memory = memory.map_err(|error| CommandError::Memory(error.to_string()))?;
        self.register_mapped(domain, Arc::new(memory), range, access)
    }

    /// Registers a range of memory that the program has mapped.
    pub(crate) fn register_mapped(
        &mut self,
        domain: u32,
        memory: Arc<SharedMemory>,
        range: MemoryRange,
        access: Access,
    ) -> Result<Registered, VerbsError> {
        let domain = self.domains.get(&domain).ok_or_else(|| no_such("protection domain", domain))?;
        let region = Region::register(domain, memory, (range.offset, range.length), access.bits())?;
        self.add_region(region, range)
    }

    fn add_region(&mut self, region: Region, range: MemoryRange) -> Result<Registered, VerbsError> {
        let stag = if region.remote_key() == 0 { region.local_key() } else { region.remote_key() };
        let peer_base = region.device_base();
        if self.regions.contains_key(&stag) {
            let reason = format!("{}: two memory regions have the key {stag:#x}", self.device_name());
            return Err(CommandError::Memory(reason).into());
        }
        self.regions.insert(stag, RegisteredRegion { region, range });
        Ok(Registered { stag, peer_base })
    }

    fn create_shared_queue(
        &mut self,
        domain: u32,
        (receives, sges): (u32, u32),
        fd: OwnedFd,
    ) -> Result<Reply, VerbsError> {
        let domain = self.domains.get(&domain).ok_or_else(|| no_such("protection domain", domain))?;
        let ring = import_ring(fd, receive_ring_cells(receives, sges))?.into_receiver();
        let queue = SharedQueue::create(domain, receives, sges)?;
        let handle = self.new_handle();
        self.shared_queues.insert(handle, SharedReceives::new(queue, ring, sges));
        Ok(Reply::Handle(handle))
    }

    fn create_queue_pair(
        &mut self,
        command: &Command,
        mut fds: impl Iterator<Item = OwnedFd>,
    ) -> Result<Reply, VerbsError> {
        let Command::CreateQueuePair {
            domain,
            send_completions,
            receive_completions,
            shared_queue,
            lengths,
            signal_all,
        } = command
        else {
            return Err(CommandError::Unknown(format!("{command:?}")).into());
        };
        let send = import_ring(next_fd(&mut fds)?, send_ring_cells(lengths))?.into_receiver();
        let receive: Option<RingReceiver> = match shared_queue {
            Some(_) => None,
            None => {
                let cells = receive_ring_cells(lengths.receives, lengths.receive_sges);
                Some(import_ring(next_fd(&mut fds)?, cells)?.into_receiver())
            }
        };
        let shared = shared_queue
            .map(|shared| self.shared_queues.get(&shared).ok_or_else(|| no_such("shared receive queue", shared)))
            .transpose()?;
        let setup = QueuePairSetup {
            send_completions: self.completion_queue(*send_completions)?.device_queue(),
            receive_completions: self.completion_queue(*receive_completions)?.device_queue(),
            shared_queue: shared.map(SharedReceives::device_queue),
            lengths: device_lengths(lengths, shared.is_some()),
            signal_all: *signal_all,
        };
        let domain = self.domains.get(domain).ok_or_else(|| no_such("protection domain", *domain))?;
        let queue = thalweg_ibverbs::QueuePair::create(domain, &setup)?;
        let number = queue.queue_number();
        let pair =
            Pair::new(queue, (send, receive), *lengths, ([*send_completions, *receive_completions], *shared_queue));
        self.pairs.insert(number, pair);
        Ok(Reply::Handle(number))
    }

    fn modify_queue_pair(
        &mut self,
        queue: u32,
        state: QueueState,
        attributes: Option<thalweg_rnic::QueueAttributes>,
    ) -> Result<(), VerbsError> {
        let unsupported = self.unsupported(NUMBERS);
        let pair = self.pairs.get_mut(&queue).ok_or_else(|| no_such("queue pair", queue))?;
        match state {
            QueueState::ReadyToReceive => return Err(unsupported),
            QueueState::ReadyToSend if pair.state() != QueueState::SendDrained => return Err(unsupported),
            QueueState::Reset => self.connections.remove_queue(queue),
            _ => {}
        }
        pair.modify_state(state, attributes)?;
        // In the error state, what waits in the rings is flushed.
        self.post_sends(queue);
        self.post_receives(queue);
        Ok(())
    }

    fn completion_queue(&self, queue: u32) -> Result<&Completions, VerbsError> {
        self.completions.get(&queue).ok_or_else(|| no_such("completion queue", queue))
    }

    fn pair(&self, queue: u32) -> Result<&Pair, VerbsError> {
        self.pairs.get(&queue).ok_or_else(|| no_such("queue pair", queue))
    }

    fn unconnected_pair(&self, queue: u32) -> Result<(), VerbsError> {
        let is = self.pair(queue)?.state();
        if is != QueueState::Init || self.connections.has_queue(queue) {
            return Err(CommandError::WrongState { is, needs: QueueState::Init }.into());
        }
        Ok(())
    }

    fn new_handle(&mut self) -> u32 {
        let handle = self.next_handle;
        self.next_handle = self.next_handle.wrapping_add(1);
        handle
    }

    fn check_transport(&self, transport: Transport) -> Result<(), VerbsError> {
        match transport {
            Transport::Tcp => Ok(()),
            Transport::Efe | Transport::EfeXdp | Transport::EfeEthernet => {
                Err(self.unsupported("EFE, which only the RNIC in software speaks,"))
            }
        }
    }

    pub(crate) fn unsupported(&self, what: &str) -> VerbsError {
        CommandError::Argument(format!("{what}: not available on the RDMA device {}", self.device_name())).into()
    }

    /// Returns parameters with as many reads as the device allows.
    fn bounded_parameters(&self, mut all: thalweg_rnic::ConnectionParameters) -> thalweg_rnic::ConnectionParameters {
        all.inbound_reads = all.inbound_reads.min(self.device_limits.max_qp_rd_atom).min(u32::from(u8::MAX));
        all.outbound_reads = all.outbound_reads.min(self.device_limits.max_qp_init_rd_atom).min(u32::from(u8::MAX));
        all
    }

    /// Posts to the device what a queue pair's send ring has.
    pub(crate) fn post_sends(&mut self, queue: u32) {
        let Some(pair) = self.pairs.get_mut(&queue) else { return };
        pair.post_sends(&self.regions);
        if pair.has_refused() {
            self.has_refusals = true;
            self.report_refused(queue);
        }
    }

    /// Posts to the device what a queue pair's receive ring has.
    pub(crate) fn post_receives(&mut self, queue: u32) {
        let Some(pair) = self.pairs.get_mut(&queue) else { return };
        pair.post_receives(&self.regions);
        if pair.has_refused() {
            self.has_refusals = true;
            self.report_refused(queue);
        }
    }

    pub(crate) fn post_shared_receives(&mut self, queue: u32) {
        if let Some(shared) = self.shared_queues.get_mut(&queue) {
            shared.post_receives(&self.regions);
        }
    }

    /// Completes requests that the device has not got, once those before them have completed.
    fn report_refused(&mut self, queue: u32) {
        let Some(pair) = self.pairs.get_mut(&queue) else { return };
        let [sends, receives] = pair.completion_queues();
        if let Some(completions) = self.completions.get_mut(&sends) {
            completions.push_failures(|| pair.next_refused_send(queue));
            completions.publish(&mut self.channels);
        }
        if let Some(completions) = self.completions.get_mut(&receives) {
            completions.push_failures(|| pair.next_refused_receive(queue));
            completions.publish(&mut self.channels);
        }
    }

    /// Takes completions and events from the device. Returns whether there were any.
    pub(crate) fn make_progress(&mut self, now: Instant) -> bool {
        self.turns = self.turns.wrapping_add(1);
        let looks = self.has_slept || self.connections.is_busy() || self.turns.is_multiple_of(TURNS_PER_LOOK);
        let worked = looks && self.process_events(now);
        self.collect_completions() || worked
    }

    fn collect_completions(&mut self) -> bool {
        let mut worked = false;
        for completions in self.completions.values_mut() {
            worked |= completions.collect(&mut self.pairs, &mut self.shared_queues);
            completions.publish(&mut self.channels);
        }
        if worked {
            let ready = self.pairs.iter().filter(|(_, pair)| pair.can_continue());
            let ready: Vec<u32> = ready.map(|(queue, _)| *queue).collect();
            ready.into_iter().for_each(|queue| self.post_sends(queue));
        }
        if self.has_refusals {
            let refusing: Vec<u32> =
                self.pairs.iter().filter(|(_, pair)| pair.has_refused()).map(|(queue, _)| *queue).collect();
            self.has_refusals = !refusing.is_empty();
            refusing.into_iter().for_each(|queue| self.report_refused(queue));
        }
        worked
    }

    /// Processes what the poller reports: events of completion queues, connections and the device.
    fn process_events(&mut self, now: Instant) -> bool {
        self.has_slept = false;
        let mut worked = false;
        for _ in 0..EVENTS_PER_LOOK {
            let Ok(Some(queue)) = self.wakeups.take_event() else { break };
            if let Some(completions) = self.completions.get_mut(&queue) {
                completions.note_event();
            }
        }
        for _ in 0..EVENTS_PER_LOOK {
            let Ok(Some(event)) = self.manager.take_event() else { break };
            worked = true;
            let (context, handle) = (Arc::clone(&self.context), self.new_handle());
            let ready = self.connections.process_event(&context, handle, event, &mut self.pairs);
            if let Some(queue) = ready {
                self.post_sends(queue);
            }
        }
        for queue in self.connections.end_overdue(now, &mut self.pairs) {
            worked = true;
            self.post_sends(queue);
        }
        for pair in self.pairs.values_mut() {
            if pair.flush_deadline().is_some_and(|deadline| deadline <= now) {
                pair.flush_requests();
                (self.has_refusals, worked) = (true, true);
            }
        }
        for _ in 0..EVENTS_PER_LOOK {
            let Ok(Some(notice)) = self.context.take_event() else { break };
            worked = true;
            self.report_notice(notice);
        }
        self.connections.flush_events();
        for channel in self.channels.values_mut().chain(&mut self.events) {
            channel.flush_backlog();
        }
        worked
    }

    /// Reports an asynchronous event of the device.
    fn report_notice(&mut self, notice: thalweg_ibverbs::AsyncNotice) {
        use thalweg_ibverbs::abi::event_type;
        let token = notice.token;
        let pair = self.pairs.iter_mut().find(|(_, pair)| pair.token() == token);
        let event = match (notice.event_type, pair) {
            (event_type::CQ_ERR, _) => {
                let found = self.completions.iter_mut().find(|(_, queue)| queue.token() == token);
                let Some((&queue, completions)) = found else { return };
                let entries = completions.note_overrun();
                completions.publish(&mut self.channels);
                AsyncEvent::CompletionOverrun { queue, entries }
            }
            (event_type::QP_FATAL, Some((&queue, pair))) => {
                pair.enter_error();
                AsyncEvent::QueueFatal { queue, cause: "the device reports a fatal error of the queue pair".into() }
            }
            (event_type::QP_ACCESS_ERR, Some((&queue, pair))) => {
                pair.enter_error();
                AsyncEvent::QueueAccessError { queue, cause: "the device refused a request of the peer".into() }
            }
            (event_type::SQ_DRAINED, Some((&queue, _))) => AsyncEvent::SendQueueDrained { queue },
            (event_type::SRQ_LIMIT_REACHED, _) => {
                let found = self.shared_queues.iter_mut().find(|(_, shared)| shared.token() == token);
                let Some((&queue, shared)) = found else { return };
                AsyncEvent::SharedQueueLimit { queue, limit: shared.take_limit() }
            }
            (event_type::SRQ_ERR, _) => {
                let found = self.shared_queues.iter().find(|(_, shared)| shared.token() == token);
                let Some((&queue, _)) = found else { return };
                AsyncEvent::SharedQueueError { queue }
            }
            (event_type::DEVICE_FATAL, _) => {
                tracing::error!(
                    "the RDMA device {} has failed: all queue pairs are in error",
                    self.context.device_name()
                );
                self.pairs.values_mut().for_each(Pair::enter_error);
                return;
            }
            (other, _) => {
                tracing::debug!("{}: event {other}", self.context.device_name());
                return;
            }
        };
        if let Some(events) = &mut self.events {
            events.send_async_event(&event);
        }
    }

    /// Prepares to sleep until the [poller](Self::poll_descriptor) is readable. `None` if there is something to do now; else
    /// the time at which there is at the latest.
    pub(crate) fn prepare_sleep(&mut self, now: Instant) -> Option<Option<Instant>> {
        self.has_slept = true;
        for completions in self.completions.values_mut() {
            if !completions.arm() {
                return None;
            }
        }
        // A completion before the arming sends no event.
        if self.collect_completions() {
            return None;
        }
        let deadline = self.next_deadline();
        if deadline.is_some_and(|deadline| deadline <= now) { None } else { Some(deadline) }
    }

    pub(crate) fn next_deadline(&self) -> Option<Instant> {
        let flushes = self.pairs.values().filter_map(Pair::flush_deadline);
        flushes.chain(self.connections.next_deadline()).min()
    }

    /// Returns whether requests were posted that have not completed.
    pub(crate) fn has_unsent(&self) -> bool {
        self.pairs.values().any(Pair::has_unsent)
    }

    pub(crate) fn poll_descriptor(&self) -> Arc<OwnedFd> {
        Arc::clone(&self.poller)
    }
}

/// Connections by exchanged numbers, which need the adapter's table of GIDs.
const NUMBERS: &str = "connecting by numbers (RTR, RTS; use `connect` and `accept`)";

/// Returns an element as the device names it: another key for requests of this side, another address.
fn device_element(regions: &HashMap<u32, RegisteredRegion>, sge: &Sge) -> thalweg_ibverbs::abi::IbvSge {
    match regions.get(&sge.stag) {
        Some(RegisteredRegion { region, range }) => thalweg_ibverbs::abi::IbvSge {
            addr: sge.address.wrapping_sub(range.base).wrapping_add(region.device_base()),
            length: sge.bytes,
            lkey: region.local_key(),
        },
        // The device finds that it is no key of its own.
        None => thalweg_ibverbs::abi::IbvSge { addr: sge.address, length: sge.bytes, lkey: sge.stag },
    }
}

fn device_lengths(lengths: &QueueLengths, is_shared: bool) -> thalweg_ibverbs::abi::IbvQpCap {
    thalweg_ibverbs::abi::IbvQpCap {
        max_send_wr: lengths.send_requests.max(1),
        max_recv_wr: if is_shared { 0 } else { lengths.receives },
        max_send_sge: lengths.send_sges.max(1),
        max_recv_sge: if is_shared { 0 } else { lengths.receive_sges.max(1) },
        max_inline_data: lengths.inline_bytes,
    }
}

fn no_such(what: &str, handle: u32) -> VerbsError {
    CommandError::NoSuch { what: what.into(), handle }.into()
}

fn missing_descriptor() -> VerbsError {
    CommandError::Unknown("a file descriptor is missing".into()).into()
}

fn next_fd(fds: &mut impl Iterator<Item = OwnedFd>) -> Result<OwnedFd, VerbsError> {
    fds.next().ok_or_else(missing_descriptor)
}

fn import_ring(fd: OwnedFd, cells: u32) -> Result<Ring, VerbsError> {
    let ring = Ring::import(fd)?;
    if ring.cells() != cells {
        let message = format!("the ring has {} cells, the queue needs {cells}", ring.cells());
        return Err(CommandError::Memory(message).into());
    }
    Ok(ring)
}

fn poller_error(error: Errno) -> VerbsError {
    VerbsError::Os { doing: "making a poller for the device's events", error }
}
