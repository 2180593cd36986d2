//! The RNIC itself: its tables, the commands that fill them, and the turns in which it carries out requests.
//!
//! It has no thread and no clock of its own: [`Engine::make_progress`] does what can be done now. Nothing in it waits for a
//! program, and no input of a program can make it fail.

use crate::attributes::{Access, AsyncEvent, Limits, QueueAttributes, QueueState};
use crate::command::{Command, CommandError, Reply};
use crate::completion::CompletionQueue;
use crate::connection::{Listener, Request};
use crate::descriptor::{receive_ring_cells, send_ring_cells};
use crate::efe::EfePort;
use crate::events::EventSocket;
use crate::handshake::{EndedListener, Handshake, Sockets};
use crate::queue_pair::{Path, QueuePair, ReceiveRing, SendRing, SharedQueue};
use crate::slots::Slots;
use crate::stag::{RegionRequest, StagTable};
use crate::stream::Ending;
use crate::tcp::LingeringSocket;
use std::collections::HashMap;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};
use thalweg_arena::{Ring, RingReceiver, SharedMemory};

/// Requests that a queue pair may complete before the next has its turn.
const TURN_REQUESTS: usize = 32;

/// Bytes that a queue pair may move before the next has its turn.
const TURN_BYTES: u64 = 1 << 20;

/// Time after which events are sent again to programs that had no room for them.
const UNREAD_INTERVAL: Duration = Duration::from_millis(5);

/// Longest time that a queue pair waits for its peer at once.
const MAX_PEER_WAIT: Duration = Duration::from_secs(3600);

/// Time, as the RNIC's caller has it; asked for only where a queue pair waits.
pub type Clock<'a> = &'a dyn Fn() -> Instant;

/// A software RNIC.
#[derive(Debug)]
pub struct Engine {
    /// RNIC registers.
    pub(crate) limits: Limits,
    pub(crate) clients: Slots<Client>,
    pub(crate) domains: Slots<Domain>,
    pub(crate) channels: Slots<Channel>,
    /// STag management table, with the table of page lists.
    pub(crate) stags: StagTable,
    /// Completion management table.
    pub(crate) completions: Slots<CompletionQueue>,
    pub(crate) shared_queues: Slots<SharedQueue>,
    /// Queue pair registers.
    pub(crate) queues: Slots<QueuePair>,
    pub(crate) listeners: Slots<Listener>,
    pub(crate) requests: Slots<Request>,
    /// TCP connections that are being set up, and sockets whose streams have ended.
    pub(crate) handshakes: Slots<Handshake>,
    pub(crate) lingering: Vec<LingeringSocket>,
    pub(crate) ended_listeners: Vec<EndedListener>,
    /// Ports of EFE, each of which is taken out while it is served.
    pub(crate) efe_ports: Slots<Box<EfePort>>,
    pub(crate) sockets: Sockets,
    /// Queue pairs by their numbers, and those that are to call their peers again.
    pub(crate) numbers: HashMap<u32, u32>,
    pub(crate) due_calls: Vec<u32>,
    /// Buffer of the turns over TCP: bytes received.
    pub(crate) incoming: Vec<u8>,
    /// Completion queues with entries that are not published.
    pub(crate) unpublished: Vec<u32>,
    /// Completion queues that have overrun, whose queue pairs are to enter the error state.
    pub(crate) overrun: Vec<u32>,
    /// Completion queues whose program does not know of their overrun.
    pub(crate) notices: Vec<u32>,
    /// Whether events wait for programs that do not read them.
    pub(crate) events_wait: bool,
}

/// A program.
#[derive(Debug)]
pub(crate) struct Client {
    pub(crate) events: Option<EventSocket>,
}

/// A protection domain.
#[derive(Debug)]
pub(crate) struct Domain {
    pub(crate) client: u32,
}

/// A completion channel.
#[derive(Debug)]
pub(crate) struct Channel {
    pub(crate) client: u32,
    pub(crate) events: EventSocket,
}

/// Handle of a program at its RNIC.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ClientId(pub(crate) u32);

impl Engine {
    /// Makes an RNIC without programs.
    pub fn new(limits: Limits) -> Self {
        Self {
            limits,
            clients: Slots::default(),
            domains: Slots::default(),
            channels: Slots::default(),
            stags: StagTable::default(),
            completions: Slots::default(),
            shared_queues: Slots::default(),
            queues: Slots::default(),
            listeners: Slots::default(),
            requests: Slots::default(),
            handshakes: Slots::default(),
            lingering: Vec::new(),
            ended_listeners: Vec::new(),
            efe_ports: Slots::default(),
            sockets: Sockets::default(),
            numbers: HashMap::new(),
            due_calls: Vec::new(),
            incoming: Vec::new(),
            unpublished: Vec::new(),
            overrun: Vec::new(),
            notices: Vec::new(),
            events_wait: false,
        }
    }

    /// Adds a program.
    ///
    /// # Errors
    /// There are as many as the limit allows.
    pub fn add_client(&mut self) -> Result<ClientId, CommandError> {
        let limit = self.limits.max_clients;
        check_limit("programs", limit, self.clients.iter().count())?;
        let added = self.clients.insert_object(Client { events: None });
        added.map(ClientId).ok_or(CommandError::Limit {
            what: "programs".into(),
            limit: u64::from(limit),
            requested: 0,
        })
    }

    /// Removes a program with all that it has: its peers' queue pairs enter the error state.
    pub fn remove_client(&mut self, client: ClientId) {
        let ClientId(client) = client;
        self.clients.remove(client);
        let queues: Vec<u32> =
            self.queues.iter().filter(|(_, queue)| queue.client == client).map(|(at, _)| at).collect();
        for queue in queues {
            if let Some(path) = self.queues.get_mut(queue).and_then(|pair| pair.stream.as_mut()) {
                path.ending = Ending::ProgramGone;
            }
            self.remove_queue(queue, "the peer's program has ended");
        }
        let listeners: Vec<u32> =
            self.listeners.iter().filter(|(_, listener)| listener.client == client).map(|(at, _)| at).collect();
        listeners.into_iter().for_each(|listener| self.remove_listener(listener));
        self.close_ended_listeners(client);
        remove_of_client(&mut self.shared_queues, client, |queue| queue.client);
        remove_of_client(&mut self.completions, client, |queue| queue.client);
        remove_of_client(&mut self.channels, client, |channel| channel.client);
        remove_of_client(&mut self.domains, client, |domain| domain.client);
        self.stags.remove_client(client);
        self.publish_completions();
    }

    /// Carries out a command of a program.
    ///
    /// # Errors
    /// The command is refused; nothing has changed.
    pub fn execute_command(
        &mut self,
        client: ClientId,
        command: Command,
        fds: Vec<OwnedFd>,
    ) -> Result<Reply, CommandError> {
        let ClientId(client) = client;
        let mut fds = fds.into_iter();
        let done = match command {
            Command::Open => return self.open_client(client, fds.next()),
            Command::AllocateDomain => return self.allocate_domain(client),
            Command::DeallocateDomain(domain) => self.deallocate_domain(client, domain),
            Command::RegisterRegion { domain, offset, length, base, access } => {
                check_limit("memory regions", self.limits.max_regions, self.stags.count_entries(client, false))?;
                self.check_domain(client, domain)?;
                let request = RegionRequest { client, domain, file_offset: offset, length, base, access };
                let fd = fds.next().ok_or_else(missing_descriptor)?;
                return self.stags.register_region(&fd, &request, self.limits.max_file_bytes).map(Reply::Handle);
            }
            Command::Deregister(stag) => self.stags.remove_entry(client, stag),
            Command::PageList(stag) => return self.stags.page_list(client, stag).map(Reply::PageList),
            Command::AllocateWindow { domain, kind } => {
                check_limit("memory windows", self.limits.max_windows, self.stags.count_entries(client, true))?;
                self.check_domain(client, domain)?;
                return self.stags.allocate_window(client, domain, kind).map(Reply::Handle);
            }
            Command::CreateChannel => return self.create_channel(client, fds.next()),
            Command::DestroyChannel(channel) => self.destroy_channel(client, channel),
            Command::CreateCompletionQueue { entries, channel, event_number } => {
                return self.create_completion_queue(client, entries, (channel, event_number), fds.next());
            }
            Command::DestroyCompletionQueue(queue) => self.destroy_completion_queue(client, queue),
            Command::CreateSharedQueue { domain, receives, sges } => {
                return self.create_shared_queue(client, domain, (receives, sges), fds.next());
            }
            Command::SetSharedQueueLimit { queue, limit } => {
                self.shared_queue(client, queue).map(|found| found.limit = limit)
            }
            Command::DestroySharedQueue(queue) => self.destroy_shared_queue(client, queue),
            command @ Command::CreateQueuePair { .. } => {
                return self.create_queue_pair(client, command, (fds.next(), fds.next()));
            }
            Command::NumberQueuePair { queue, address } => return self.number_queue(client, queue, address),
            Command::ModifyQueuePair { queue, state, attributes } => {
                self.modify_queue_pair(client, queue, state, attributes)
            }
            Command::QueryQueuePair(queue) => return self.own_queue(client, queue).map(|queue| queue.describe_state()),
            Command::DestroyQueuePair(queue) => {
                self.own_queue(client, queue)?;
                self.remove_queue(queue, "the peer has destroyed its queue pair");
                Ok(())
            }
            Command::Listen { address, transport, backlog } => {
                return self.add_listener(client, (address, transport), backlog, fds.next());
            }
            Command::DestroyListener(listener) => self.destroy_listener(client, listener),
            Command::Connect { queue, address, transport, parameters } => {
                self.connect_queue(client, queue, (address, transport), parameters, fds.next())
            }
            Command::Accept { request, queue, parameters } => {
                self.accept_request(client, request, queue, parameters, fds.next())
            }
            Command::Reject { request, private_data } => self.reject_request(client, request, private_data),
            Command::Disconnect(queue) => self.disconnect_queue(client, queue),
        };
        self.publish_completions();
        done.map(|()| Reply::Done)
    }

    /// Registers memory of the process that the RNIC is embedded in, and returns its STag: `length` bytes from `offset` on,
    /// the first of which requests name by `base`. With the STag of a region, the memory takes its place.
    ///
    /// # Errors
    /// As for [`Command::RegisterRegion`]; the memory is not writable although it is to be written; memory windows are bound
    /// to the region.
    pub fn register_memory(
        &mut self,
        (ClientId(client), domain, stag): (ClientId, u32, Option<u32>),
        memory: Arc<SharedMemory>,
        (offset, length, base): (u64, u64, u64),
        access: Access,
    ) -> Result<u32, CommandError> {
        let others = self.stags.count_entries(client, false) - usize::from(stag.is_some());
        check_limit("memory regions", self.limits.max_regions, others)?;
        self.check_domain(client, domain)?;
        let request = RegionRequest { client, domain, file_offset: offset, length, base, access };
        self.stags.register_mapped(memory, &request, stag)
    }

    /// Returns the bytes that the peer of a connected queue pair has read by RDMA reads so far; `None` if the queue pair
    /// has no peer at another RNIC.
    pub fn bytes_read_by_peer(&self, queue: u32) -> Option<u64> {
        Some(self.queues.get(queue)?.stream.as_ref()?.stream.bytes_read_by_peer())
    }

    /// Returns whether something was sent that has not left this process, or, over EFE, was not acknowledged: also the end
    /// of a connection.
    pub fn has_unsent(&self) -> bool {
        self.efe_ports.iter().any(|(_, port)| port.has_unacknowledged())
            || self.lingering.iter().any(|socket| socket.has_unsent())
            || self.queues.iter().any(|(_, queue)| queue.stream.as_ref().is_some_and(|path| path.has_unsent()))
    }

    /// Does what can be done `now`, a bounded amount for each queue pair. Returns whether anything was done.
    pub fn make_progress(&mut self, now: Instant, clock: Clock<'_>) -> bool {
        let mut worked = self.serve_sockets(now);
        self.repeat_due_calls();
        for index in 0..self.queues.place_count() {
            if let Some(queue) = self.queues.handle_at(index) {
                worked |= self.take_turns(queue, clock);
            }
        }
        if worked && self.efe_ports.place_count() > 0 {
            self.update_time(clock());
        }
        self.flush_efe_ports(self.last_socket_time());
        self.post_overrun_notices();
        if self.events_wait {
            self.flush_events();
        }
        worked
    }

    /// Does for one queue pair what [`make_progress`](Self::make_progress) does for all.
    pub fn progress_queue(&mut self, queue: u32, clock: Clock<'_>) -> bool {
        let worked = self.take_turns(queue, clock);
        if self.efe_ports.place_count() > 0 {
            self.update_time(clock());
            self.flush_efe_ports(self.last_socket_time());
        }
        worked
    }

    fn take_turns(&mut self, queue: u32, clock: Clock<'_>) -> bool {
        let (mut worked, mut budget) = (false, TURN_BYTES);
        for _ in 0..TURN_REQUESTS {
            if !self.take_turn(queue, clock, &mut budget) {
                break;
            }
            worked = true;
        }
        self.publish_completions();
        worked
    }

    /// Announces that the RNIC will sleep, to all programs that may have work for it, and returns until when at the
    /// latest. Returns `None` if there is work already: do not sleep. Programs wake it from now on.
    pub fn prepare_sleep(&mut self, now: Instant) -> Option<Option<Instant>> {
        if self.has_ready_handshake() || !self.arm_efe_ports() {
            return None;
        }
        // Programs that do not read their events, or do not poll, do not wake the RNIC when they begin to.
        let unread = self.events_wait || !self.notices.is_empty();
        let unread = unread.then(|| now + UNREAD_INTERVAL);
        let mut deadline = [unread, self.socket_deadline()].into_iter().flatten().min();
        let mut waited_for = Vec::new();
        for (_, queue) in self.queues.iter_mut() {
            if queue.stream.as_ref().is_some_and(|path| path.has_work()) {
                return None;
            }
            match (&queue.current, queue.state) {
                (Some(transfer), QueueState::ReadyToSend | QueueState::SendDrained) => {
                    deadline = [deadline, transfer.deadline].into_iter().flatten().min();
                    if let Path::Local(peer) = queue.path {
                        waited_for.push(peer);
                    }
                }
                (None, QueueState::ReadyToSend) if !queue.send.ring.prepare_wait() => return None,
                (_, QueueState::Error) => {
                    if !queue.send.broken && !queue.send.ring.prepare_wait() {
                        return None;
                    }
                    let receive = queue.receive.as_mut().filter(|receive| !receive.broken);
                    if receive.is_some_and(|receive| !receive.ring.prepare_wait()) {
                        return None;
                    }
                }
                _ => {}
            }
        }
        for peer in waited_for {
            let Some(ring) = self.receive_ring(peer) else { continue };
            if !ring.broken && !ring.ring.prepare_wait() {
                return None;
            }
        }
        Some(deadline)
    }

    /// Withdraws the announcement of [`prepare_sleep`](Self::prepare_sleep).
    pub fn cancel_sleep(&mut self) {
        for (_, queue) in self.queues.iter_mut() {
            queue.send.ring.cancel_wait();
            if let Some(receive) = &mut queue.receive {
                receive.ring.cancel_wait();
            }
        }
        self.shared_queues.iter_mut().for_each(|(_, queue)| queue.receive.ring.cancel_wait());
    }

    /// Returns whether a queue pair has more to do than one call did.
    pub fn has_work_left(&mut self, queue: u32) -> bool {
        let Some(pair) = self.queues.get_mut(queue) else { return false };
        let is_posted = pair.send.ring.ready_cells().is_ok_and(|cells| cells > 0);
        (pair.current.is_some() && pair.path != Path::Numbered)
            || (is_posted && pair.state == QueueState::ReadyToSend && pair.stream.is_none())
            || pair.stream.as_ref().is_some_and(|path| path.has_work())
    }

    /// Returns when the RNIC has something to do at the latest for its sockets or for a queue pair, if nothing comes before.
    pub fn next_deadline(&self, queue: u32) -> Option<Instant> {
        let waiting = self.queues.get(queue).and_then(|pair| pair.current.as_ref()?.deadline);
        waiting.into_iter().chain(self.socket_deadline()).min()
    }

    /// Returns the ring out of which messages for a queue pair take their receives.
    pub(crate) fn receive_ring(&mut self, queue: u32) -> Option<&mut ReceiveRing> {
        let queue = self.queues.get_mut(queue)?;
        match queue.shared_queue {
            None => queue.receive.as_mut(),
            Some(shared) => self.shared_queues.get_mut(shared).map(|shared| &mut shared.receive),
        }
    }

    fn open_client(&mut self, client: u32, events: Option<OwnedFd>) -> Result<Reply, CommandError> {
        let events = EventSocket::for_program(events.ok_or_else(missing_descriptor)?);
        let client =
            self.clients.get_mut(client).ok_or(CommandError::NoSuch { what: "program".into(), handle: client })?;
        if client.events.is_some() {
            return Err(CommandError::Argument("the RNIC is open already".into()));
        }
        client.events = Some(events);
        Ok(Reply::Opened { limits: self.limits.clone() })
    }

    fn allocate_domain(&mut self, client: u32) -> Result<Reply, CommandError> {
        let count = self.domains.iter().filter(|(_, domain)| domain.client == client).count();
        check_limit("protection domains", self.limits.max_domains, count)?;
        insert_object(&mut self.domains, Domain { client }, "protection domains")
    }

    fn deallocate_domain(&mut self, client: u32, domain: u32) -> Result<(), CommandError> {
        self.check_domain(client, domain)?;
        let queues = self.queues.iter().filter(|(_, queue)| queue.domain == domain).count();
        let shared = self.shared_queues.iter().filter(|(_, queue)| queue.domain == domain).count();
        let users = (queues + shared + self.stags.count_in_domain(domain)) as u32;
        if users > 0 {
            let by = "regions, windows or queues".into();
            return Err(CommandError::Busy { what: "protection domain".into(), users, by });
        }
        self.domains.remove(domain);
        Ok(())
    }

    fn create_channel(&mut self, client: u32, socket: Option<OwnedFd>) -> Result<Reply, CommandError> {
        let count = self.channels.iter().filter(|(_, channel)| channel.client == client).count();
        check_limit("completion channels", self.limits.max_listeners, count)?;
        let events = EventSocket::for_queues(socket.ok_or_else(missing_descriptor)?);
        insert_object(&mut self.channels, Channel { client, events }, "completion channels")
    }

    fn destroy_channel(&mut self, client: u32, channel: u32) -> Result<(), CommandError> {
        check_owner(&self.channels, client, channel, "completion channel", |channel| channel.client)?;
        let users = self.completions.iter().filter(|(_, queue)| queue.channel == Some(channel)).count() as u32;
        if users > 0 {
            let by = "completion queues".into();
            return Err(CommandError::Busy { what: "completion channel".into(), users, by });
        }
        self.channels.remove(channel);
        Ok(())
    }

    fn create_completion_queue(
        &mut self,
        client: u32,
        entries: u32,
        (channel, event_number): (Option<u32>, Option<u64>),
        ring: Option<OwnedFd>,
    ) -> Result<Reply, CommandError> {
        let count = self.completions.iter().filter(|(_, queue)| queue.client == client).count();
        check_limit("completion queues", self.limits.max_completion_queues, count)?;
        check_value("entries of a completion queue", self.limits.max_completions, entries)?;
        if let Some(channel) = channel {
            check_owner(&self.channels, client, channel, "completion channel", |channel| channel.client)?;
        }
        let ring = import_ring(ring, entries)?.into_sender();
        insert_object(
            &mut self.completions,
            CompletionQueue::new(client, channel, event_number, ring),
            "completion queues",
        )
    }

    fn destroy_completion_queue(&mut self, client: u32, queue: u32) -> Result<(), CommandError> {
        check_owner(&self.completions, client, queue, "completion queue", |queue| queue.client)?;
        let users = self.queues.iter().filter(|(_, pair)| pair.completes_in(queue)).count() as u32;
        if users > 0 {
            return Err(CommandError::Busy { what: "completion queue".into(), users, by: "queue pairs".into() });
        }
        self.completions.remove(queue);
        Ok(())
    }

    fn create_shared_queue(
        &mut self,
        client: u32,
        domain: u32,
        (receives, sges): (u32, u32),
        ring: Option<OwnedFd>,
    ) -> Result<Reply, CommandError> {
        let count = self.shared_queues.iter().filter(|(_, queue)| queue.client == client).count();
        check_limit("shared receive queues", self.limits.max_shared_queues, count)?;
        check_value("receives of a shared receive queue", self.limits.max_work_requests, receives)?;
        check_value("scatter-gather elements", self.limits.max_sges, sges)?;
        self.check_domain(client, domain)?;
        let ring = import_ring(ring, receive_ring_cells(receives, sges))?.into_receiver();
        let receive = ReceiveRing { ring, sges, next: 0, broken: false };
        insert_object(
            &mut self.shared_queues,
            SharedQueue { client, domain, receive, limit: 0 },
            "shared receive queues",
        )
    }

    fn destroy_shared_queue(&mut self, client: u32, queue: u32) -> Result<(), CommandError> {
        self.shared_queue(client, queue)?;
        let users = self.queues.iter().filter(|(_, pair)| pair.shared_queue == Some(queue)).count() as u32;
        if users > 0 {
            return Err(CommandError::Busy { what: "shared receive queue".into(), users, by: "queue pairs".into() });
        }
        self.shared_queues.remove(queue);
        Ok(())
    }

    fn create_queue_pair(
        &mut self,
        client: u32,
        command: Command,
        (send, receive): (Option<OwnedFd>, Option<OwnedFd>),
    ) -> Result<Reply, CommandError> {
        let Command::CreateQueuePair {
            domain,
            send_completions,
            receive_completions,
            shared_queue,
            lengths,
            signal_all,
        } = command
        else {
            return Err(CommandError::Unknown("no command to create a queue pair".into()));
        };
        let limits = &self.limits;
        let count = self.queues.iter().filter(|(_, queue)| queue.client == client).count();
        check_limit("queue pairs", limits.max_queue_pairs, count)?;
        check_value("send requests of a queue pair", limits.max_work_requests, lengths.send_requests)?;
        check_value("receives of a queue pair", limits.max_work_requests, lengths.receives)?;
        check_value("scatter-gather elements", limits.max_sges, lengths.send_sges.max(lengths.receive_sges))?;
        check_value("bytes of a request's own data", limits.max_inline_bytes, lengths.inline_bytes)?;
        self.check_domain(client, domain)?;
        for queue in [send_completions, receive_completions] {
            check_owner(&self.completions, client, queue, "completion queue", |queue| queue.client)?;
        }
        if let Some(shared) = shared_queue
            && self.shared_queue(client, shared)?.domain != domain
        {
            return Err(CommandError::Argument("the shared receive queue belongs to another protection domain".into()));
        }
        let send = import_ring(send, send_ring_cells(&lengths))?.into_receiver();
        let receive = match shared_queue {
            Some(_) => None,
            None => {
                let ring = import_ring(receive, receive_ring_cells(lengths.receives, lengths.receive_sges))?;
                Some(ReceiveRing { ring: ring.into_receiver(), sges: lengths.receive_sges, next: 0, broken: false })
            }
        };
        let queue = QueuePair {
            client,
            domain,
            send_completions,
            receive_completions,
            shared_queue,
            lengths,
            signal_all,
            state: QueueState::Reset,
            attributes: QueueAttributes::default(),
            send: SendRing { ring: send, next: 0, broken: false },
            receive,
            current: None,
            path: Path::Unconnected,
            stream: None,
            connection: None,
            numbered: None,
            drain_event_due: false,
        };
        insert_object(&mut self.queues, queue, "queue pairs")
    }

    fn modify_queue_pair(
        &mut self,
        client: u32,
        queue: u32,
        state: QueueState,
        attributes: Option<QueueAttributes>,
    ) -> Result<(), CommandError> {
        let max_reads = self.limits.max_reads;
        let pair = self.own_queue(client, queue)?;
        if !pair.state.may_become(state) {
            return Err(CommandError::State { from: pair.state, to: state });
        }
        if let Some(attributes) = &attributes {
            check_reads("reads outstanding", max_reads, attributes.inbound_reads.max(attributes.outbound_reads))?;
        }
        match state {
            QueueState::Error => {
                self.fail_queue(queue, "the peer's program has brought its queue pair into the error state");
                // From RESET, there is nothing to flush.
                self.own_queue(client, queue)?.state = QueueState::Error;
                return Ok(());
            }
            QueueState::Reset => {
                self.reset_queue(queue);
                return Ok(());
            }
            _ => {}
        }
        let pair = self.own_queue(client, queue)?;
        if let Some(mut attributes) = attributes {
            // A program may ask for any time; added to an instant, it must not exceed what the clock can hold.
            attributes.peer_timeout = attributes.peer_timeout.min(MAX_PEER_WAIT);
            attributes.receiver_retry_interval = attributes.receiver_retry_interval.min(MAX_PEER_WAIT);
            match (attributes.peer_queue, attributes.peer_address) {
                (Some(peer), None) => pair.path = Path::Local(peer),
                (Some(peer), Some(address)) if state == QueueState::ReadyToReceive => {
                    pair.attributes = attributes;
                    self.seek_peer(queue, address, peer)?;
                    self.own_queue(client, queue)?.state = state;
                    return Ok(());
                }
                _ => {}
            }
            pair.attributes = attributes;
        }
        if state == QueueState::ReadyToReceive && pair.path == Path::Unconnected {
            return Err(CommandError::Argument(
                "RTR needs the number of the peer's queue pair (peer_queue), or a connection".into(),
            ));
        }
        pair.drain_event_due = state == QueueState::SendDrained;
        pair.state = state;
        Ok(())
    }

    /// Empties a queue pair: its requests vanish without completions, as rdma-core's users expect of RESET.
    fn reset_queue(&mut self, queue: u32) {
        self.fail_queue(queue, "the peer has reset its queue pair");
        self.stags.unbind_queue(queue);
        let Some(pair) = self.queues.get_mut(queue) else { return };
        discard_cells(&mut pair.send.ring);
        (pair.send.next, pair.send.broken) = (0, false);
        if let Some(receive) = &mut pair.receive {
            discard_cells(&mut receive.ring);
            (receive.next, receive.broken) = (0, false);
        }
        pair.state = QueueState::Reset;
        (pair.path, pair.stream, pair.connection) = (Path::Unconnected, None, None);
        self.end_meeting(queue);
        let Some(pair) = self.queues.get_mut(queue) else { return };
        pair.attributes = QueueAttributes::default();
    }

    fn remove_queue(&mut self, queue: u32, cause: &str) {
        self.fail_queue(queue, cause);
        self.abandon_requests_of(queue);
        self.release_number(queue);
        self.stags.unbind_queue(queue);
        self.queues.remove(queue);
    }

    pub(crate) fn own_queue(&mut self, client: u32, queue: u32) -> Result<&mut QueuePair, CommandError> {
        let found = self.queues.get_mut(queue).filter(|found| found.client == client);
        found.ok_or(CommandError::NoSuch { what: "queue pair".into(), handle: queue })
    }

    fn shared_queue(&mut self, client: u32, queue: u32) -> Result<&mut SharedQueue, CommandError> {
        let found = self.shared_queues.get_mut(queue).filter(|found| found.client == client);
        found.ok_or(CommandError::NoSuch { what: "shared receive queue".into(), handle: queue })
    }

    fn check_domain(&self, client: u32, domain: u32) -> Result<(), CommandError> {
        check_owner(&self.domains, client, domain, "protection domain", |domain| domain.client)
    }

    /// Sends an asynchronous event to a program.
    pub(crate) fn send_async_event(&mut self, client: u32, event: &AsyncEvent) {
        if let Some(events) = self.clients.get_mut(client).and_then(|client| client.events.as_mut()) {
            self.events_wait |= events.send_event(encode_event(event));
        }
    }

    /// Sends the events that wait for programs.
    fn flush_events(&mut self) {
        let clients = self.clients.iter_mut().filter_map(|(_, client)| client.events.as_mut());
        let channels = self.channels.iter_mut().map(|(_, channel)| &mut channel.events);
        let listeners = self.listeners.iter_mut().map(|(_, listener)| &mut listener.events);
        let connections = self.queues.iter_mut().filter_map(|(_, queue)| queue.connection.as_mut());
        let connections = connections.map(|connection| &mut connection.events);
        let sockets = clients.chain(channels).chain(listeners).chain(connections);
        self.events_wait = sockets.fold(false, |waits, socket| socket.flush_backlog() | waits);
    }
}

/// Returns the message of an event. (Serializing these types cannot fail: no maps, no foreign types.)
pub(crate) fn encode_event<T: serde::Serialize>(event: &T) -> Vec<u8> {
    serde_json::to_vec(event).unwrap_or_default()
}

pub(crate) fn missing_descriptor() -> CommandError {
    CommandError::Unknown("a file descriptor is missing".into())
}

/// Takes all cells out of a ring that are in it now.
fn discard_cells(ring: &mut RingReceiver) {
    for _ in 0..ring.cells() {
        if !matches!(ring.pop(), Ok(Some(_))) {
            break;
        }
    }
}

fn import_ring(fd: Option<OwnedFd>, cells: u32) -> Result<Ring, CommandError> {
    let ring =
        Ring::import(fd.ok_or_else(missing_descriptor)?).map_err(|error| CommandError::Memory(error.to_string()))?;
    if ring.cells() != cells {
        let message = format!("the ring has {} cells, the queue needs {cells}", ring.cells());
        return Err(CommandError::Memory(message));
    }
    Ok(ring)
}

pub(crate) fn insert_object<T>(slots: &mut Slots<T>, object: T, what: &str) -> Result<Reply, CommandError> {
    let full =
        CommandError::Limit { what: format!("{what} of all programs"), limit: 1 << 16, requested: (1 << 16) + 1 };
    slots.insert_object(object).map(Reply::Handle).ok_or(full)
}

/// Checks that one more may be made.
pub(crate) fn check_limit(what: &str, limit: u32, count: usize) -> Result<(), CommandError> {
    if count < limit as usize {
        return Ok(());
    }
    Err(CommandError::Limit { what: what.into(), limit: u64::from(limit), requested: count as u64 + 1 })
}

/// Checks a requested length.
fn check_value(what: &str, limit: u32, requested: u32) -> Result<(), CommandError> {
    check_reads(what, limit, requested)
}

/// Checks a requested number.
pub(crate) fn check_reads(what: &str, limit: u32, requested: u32) -> Result<(), CommandError> {
    if requested <= limit {
        return Ok(());
    }
    Err(CommandError::Limit { what: what.into(), limit: u64::from(limit), requested: u64::from(requested) })
}

pub(crate) fn check_owner<T>(
    slots: &Slots<T>,
    client: u32,
    handle: u32,
    what: &str,
    owner: impl Fn(&T) -> u32,
) -> Result<(), CommandError> {
    let found = slots.get(handle).filter(|object| owner(object) == client);
    found.map(|_| ()).ok_or_else(|| CommandError::NoSuch { what: what.into(), handle })
}

fn remove_of_client<T>(slots: &mut Slots<T>, client: u32, owner: impl Fn(&T) -> u32) {
    let handles: Vec<u32> =
        slots.iter().filter(|(_, object)| owner(object) == client).map(|(handle, _)| handle).collect();
    handles.into_iter().for_each(|handle| drop(slots.remove(handle)));
}
