//! The connection manager of the kernel, as librdmacm uses it: ids, their addresses, and events of connections that the RNIC
//! makes.
//!
//! A descriptor of the manager is a channel of events. librdmacm opens one as `/dev/infiniband/rdma_cm`; the preloaded library
//! brings what is written there to [`write_manager`]. In place of the file there is an eventfd that counts events, so that
//! programs can wait for them.

use crate::context::node_guid;
use crate::manager_abi::{Command, Event, EventKind, Parameters, Request, Route, initial_attributes};
use crate::queue_pair::Pair;
use crate::rnic::{Rnic, process_rnic};
use crate::{error_number, set_errno};
use libc::{c_int, c_void};
use parking_lot::Mutex;
use rustix::event::{EventfdFlags, eventfd};
use std::collections::{HashMap, VecDeque};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::time::Duration;
use thalweg_rdma::{
    Access, ConnectionEvent, ConnectionParameters, ConnectionRequest, Listener, PendingConnection, QueuePair, Transport,
};

/// Most ids of a process, and most events that wait in a channel.
const MAX_IDS: usize = 1 << 16;
const MAX_EVENTS: usize = 1 << 16;

/// Connections that may wait for a listener's answer, at least.
const LEAST_BACKLOG: u32 = 16;

/// The connection manager.
#[derive(Debug, Default)]
pub(crate) struct Manager {
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    channels: HashMap<c_int, Channel>,
    ids: HashMap<u32, Id>,
    next_id: u32,
}

/// A channel of events: what waits, and the counter that the program waits for.
#[derive(Debug)]
struct Channel {
    counter: OwnedFd,
    events: VecDeque<Event>,
}

/// An id (`struct rdma_cm_id`).
#[derive(Debug)]
struct Id {
    uid: u64,
    channel: c_int,
    source: Option<SocketAddr>,
    destination: Option<SocketAddr>,
    role: Role,
    /// Number of the queue pair that was connected.
    queue_number: u32,
    /// Events that the program has taken.
    events_reported: u32,
}

#[derive(Debug)]
enum Role {
    Idle,
    Listening(Listener),
    Requested(ConnectionRequest),
    Connecting(PendingConnection),
}

impl Id {
    fn new(uid: u64, channel: c_int) -> Self {
        let role = Role::Idle;
        Self { uid, channel, source: None, destination: None, role, queue_number: 0, events_reported: 0 }
    }
}

/// Carries out a command: called by the preloaded library in place of `write`.
pub(crate) unsafe extern "C" fn write_manager(fd: c_int, bytes: *const c_void, length: usize) -> isize {
    // SAFETY: the program has `length` bytes there.
    let bytes = unsafe { std::slice::from_raw_parts(bytes.cast::<u8>(), length) };
    let done = process_rnic().map_err(|reason| {
        eprintln!("thalweg: {reason}");
        libc::ENODEV
    });
    match done.and_then(|rnic| rnic.manager.run_command(&rnic, fd, bytes)) {
        Ok(answer) => {
            let Answer { at, bytes } = answer;
            // SAFETY: the program has room for as many bytes there, as the command says.
            unsafe {
                let place = std::ptr::with_exposed_provenance_mut::<u8>(at as usize);
                std::ptr::copy_nonoverlapping(bytes.as_ptr(), place, bytes.len());
            }
            isize::try_from(length).unwrap_or(isize::MAX)
        }
        Err(error) => {
            set_errno(error);
            -1
        }
    }
}

/// Prepares a descriptor of the manager for waiting: called by the preloaded library once librdmacm has opened it.
pub(crate) unsafe extern "C" fn open_manager(fd: c_int) {
    if let Ok(rnic) = process_rnic() {
        // One that is not prepared now is when it is first used.
        let _ = rnic.manager.state.lock().channel(fd);
    }
}

/// Takes note that a descriptor of the manager is about to be closed.
pub(crate) unsafe extern "C" fn close_manager(fd: c_int) {
    if let Ok(rnic) = process_rnic() {
        let mut state = rnic.manager.state.lock();
        state.channels.remove(&fd);
        let ended: Vec<u32> = state.ids.iter().filter(|(_, id)| id.channel == fd).map(|(id, _)| *id).collect();
        let ended: Vec<Option<Id>> = ended.into_iter().map(|id| state.ids.remove(&id)).collect();
        drop(state);
        // What they have is given back without the lock.
        drop(ended);
    }
}

/// Bytes to write into the program's memory.
struct Answer {
    at: u64,
    bytes: Vec<u8>,
}

impl State {
    /// Returns the channel of a descriptor, which is made of it if there is none.
    fn channel(&mut self, fd: c_int) -> Result<&mut Channel, c_int> {
        match self.channels.entry(fd) {
            std::collections::hash_map::Entry::Occupied(found) => Ok(found.into_mut()),
            std::collections::hash_map::Entry::Vacant(place) => {
                let counter = eventfd(0, EventfdFlags::SEMAPHORE | EventfdFlags::CLOEXEC);
                let counter = counter.map_err(|error| error.raw_os_error())?;
                // SAFETY: the descriptor is the program's, and stays so; the flags are those it was opened with.
                if unsafe { libc::dup3(counter.as_raw_fd(), fd, libc::O_CLOEXEC) } < 0 {
                    return Err(libc::EBADF);
                }
                Ok(place.insert(Channel { counter, events: VecDeque::new() }))
            }
        }
    }

    fn id(&mut self, id: u32) -> Result<&mut Id, c_int> {
        self.ids.get_mut(&id).ok_or(libc::ENOENT)
    }

    fn add_id(&mut self, id: Id) -> Result<u32, c_int> {
        if self.ids.len() >= MAX_IDS {
            return Err(libc::ENOMEM);
        }
        // librdmacm keeps ids in a table of 2¹⁶.
        loop {
            let number = self.next_id;
            self.next_id = (self.next_id + 1) % MAX_IDS as u32;
            if let std::collections::hash_map::Entry::Vacant(place) = self.ids.entry(number) {
                place.insert(id);
                return Ok(number);
            }
        }
    }

    /// Puts an event into the channel of an id.
    fn send_event(&mut self, number: u32, kind: EventKind, status: c_int, parameters: Parameters) {
        let Some(id) = self.ids.get(&number) else { return };
        let event = Event { uid: id.uid, id: number, kind, status, parameters };
        self.put_event(id.channel, event);
    }

    fn put_event(&mut self, channel: c_int, event: Event) {
        let Some(channel) = self.channels.get_mut(&channel).filter(|channel| channel.events.len() < MAX_EVENTS) else {
            return;
        };
        channel.events.push_back(event);
        // A count below the limit always fits.
        let _ = rustix::io::write(&channel.counter, &1u64.to_ne_bytes());
    }

    /// Takes back the events of an id, and returns them.
    fn withdraw_events(&mut self, number: u32) -> Vec<Event> {
        let Some(channel) = self.ids.get(&number).and_then(|id| self.channels.get_mut(&id.channel)) else {
            return Vec::new();
        };
        let (withdrawn, kept): (Vec<Event>, Vec<Event>) =
            channel.events.drain(..).partition(|event| event.is_of(number));
        channel.events = kept.into();
        // The counter stays: a thread may have taken of it already, and one that finds no event goes on waiting.
        withdrawn
    }
}

impl Event {
    fn is_of(&self, number: u32) -> bool {
        self.id == number
    }
}

impl Manager {
    fn run_command(&self, rnic: &Rnic, fd: c_int, bytes: &[u8]) -> Result<Answer, c_int> {
        let Request { command, answer, room } = Request::parse(bytes)?;
        let bytes = match command {
            Command::GetEvent => self.next_event(fd)?,
            command => self.run_on_id(rnic, fd, command)?,
        };
        let bytes = if answer == 0 { Vec::new() } else { bytes };
        Ok(Answer { at: answer, bytes: bytes.into_iter().take(room).collect() })
    }

    /// Waits for the next event of a channel, unless its descriptor is set not to wait.
    fn next_event(&self, fd: c_int) -> Result<Vec<u8>, c_int> {
        self.state.lock().channel(fd)?;
        loop {
            let mut count = [0u8; 8];
            // SAFETY: there is room for eight bytes. Without the lock: it may wait.
            if unsafe { libc::read(fd, count.as_mut_ptr().cast(), count.len()) } != 8 {
                return Err(std::io::Error::last_os_error().raw_os_error().unwrap_or(libc::EIO));
            }
            let mut state = self.state.lock();
            let Some(event) = state.channel(fd)?.events.pop_front() else { continue };
            let reported = match event.kind {
                // It is the listener's until the program has it.
                EventKind::ConnectRequest => state.ids.values_mut().find(|id| id.uid == event.uid),
                _ => state.ids.get_mut(&event.id),
            };
            if let Some(id) = reported {
                id.events_reported += 1;
            }
            return Ok(event.to_bytes().to_vec());
        }
    }

    fn run_on_id(&self, rnic: &Rnic, fd: c_int, command: Command) -> Result<Vec<u8>, c_int> {
        let mut state = self.state.lock();
        state.channel(fd)?;
        match command {
            Command::CreateId { uid } => return state.add_id(Id::new(uid, fd)).map(|id| id.to_ne_bytes().to_vec()),
            Command::DestroyId { id } => {
                drop(state);
                return self.destroy_id(id).map(|events| events.to_ne_bytes().to_vec());
            }
            Command::Bind { id, address } => {
                check_own_address(address)?;
                state.id(id)?.source = Some(address);
            }
            Command::ResolveAddress { id, source, destination } => {
                let found = state.id(id)?;
                found.destination = Some(destination);
                match source.filter(|source| !source.ip().is_unspecified()).map_or_else(|| source_for(destination), Ok)
                {
                    Ok(source) => {
                        found.source = Some(source);
                        state.send_event(id, EventKind::AddressResolved, 0, Parameters::default());
                    }
                    Err(error) => state.send_event(id, EventKind::AddressError, -error, Parameters::default()),
                }
            }
            Command::ResolveRoute { id } => {
                state.id(id)?;
                state.send_event(id, EventKind::RouteResolved, 0, Parameters::default());
            }
            Command::QueryRoute { id } => return Ok(route_of(rnic, state.id(id)?).to_bytes().to_vec()),
            Command::Listen { id, backlog } => listen(rnic, state.id(id)?, backlog)?,
            Command::Connect { id, parameters } => connect(rnic, state.id(id)?, &parameters)?,
            Command::Accept { id, uid, parameters } => accept(rnic, state.id(id)?, uid, &parameters)?,
            Command::Reject { id, private_data } => {
                let found = state.id(id)?;
                match std::mem::replace(&mut found.role, Role::Idle) {
                    Role::Requested(request) => request.reject(private_data).map_err(|error| error_number(&error))?,
                    _ => return Err(libc::EINVAL),
                }
            }
            Command::Disconnect { id } => {
                let number = state.id(id)?.queue_number;
                drop(state);
                with_queue(rnic, number, |queue| queue.disconnect().map_err(|error| error_number(&error)))?;
                return Ok(Vec::new());
            }
            Command::InitAttributes { id, state: target } => {
                state.id(id)?;
                let access = (Access::LOCAL_WRITE | Access::REMOTE).bits();
                return Ok(initial_attributes(target, access).to_vec());
            }
            Command::Ignored { id } => _ = state.id(id)?,
            Command::Migrate { id } => {
                // Its events go with it.
                let events = state.withdraw_events(id);
                let found = state.id(id)?;
                found.channel = fd;
                let reported = found.events_reported;
                events.into_iter().for_each(|event| state.put_event(fd, event));
                return Ok(reported.to_ne_bytes().to_vec());
            }
            Command::GetEvent => {}
        }
        drop(state);
        rnic.note_sockets();
        Ok(Vec::new())
    }

    /// Destroys an id, and returns the number of events that the program has taken of it.
    fn destroy_id(&self, number: u32) -> Result<u32, c_int> {
        let mut state = self.state.lock();
        let events = state.withdraw_events(number);
        let id = state.ids.remove(&number).ok_or(libc::ENOENT)?;
        // Requests of a listener that the program has not taken.
        let requests = state.channels.values_mut().flat_map(|channel| channel.events.iter());
        let requests: Vec<u32> = requests
            .filter(|event| event.kind == EventKind::ConnectRequest && event.uid == id.uid)
            .map(|event| event.id)
            .collect();
        let mut untaken = Vec::new();
        for request in requests {
            state.withdraw_events(request);
            untaken.extend(state.ids.remove(&request));
        }
        drop(state);
        let reported = id.events_reported;
        drop((id, events, untaken));
        Ok(reported)
    }

    /// Returns copies of the descriptors that are readable when there are events of connections.
    pub(crate) fn event_sockets(&self) -> Vec<OwnedFd> {
        let state = self.state.lock();
        let sockets = state.ids.values().filter_map(|id| match &id.role {
            Role::Listening(listener) => Some(listener.as_fd()),
            Role::Connecting(connecting) => Some(connecting.as_fd()),
            Role::Idle | Role::Requested(_) => None,
        });
        sockets.filter_map(|socket| socket.try_clone_to_owned().ok()).collect()
    }

    /// Makes events of what the RNIC reports of connections.
    pub(crate) fn pass_on_events(&self, rnic: &Rnic) {
        let mut state = self.state.lock();
        let numbers: Vec<u32> = state.ids.keys().copied().collect();
        for number in numbers {
            while let Some(news) = state.ids.get(&number).and_then(next_news) {
                match news {
                    News::Request(request) => state.add_request(rnic, number, request),
                    News::Event(event) => state.pass_on_event(rnic, number, event),
                }
            }
        }
    }
}

/// Report of the RNIC for an id.
enum News {
    Request(ConnectionRequest),
    Event(ConnectionEvent),
}

fn next_news(id: &Id) -> Option<News> {
    match &id.role {
        Role::Listening(listener) => listener.wait_for_request(Duration::ZERO).ok().flatten().map(News::Request),
        Role::Connecting(connecting) => connecting.next_event().ok().flatten().map(News::Event),
        Role::Idle | Role::Requested(_) => None,
    }
}

impl State {
    /// Makes an id of a connection that a peer wants.
    fn add_request(&mut self, rnic: &Rnic, listener: u32, request: ConnectionRequest) {
        let Some(found) = self.ids.get(&listener) else { return };
        let (uid, channel, at) = (found.uid, found.channel, found.source);
        let mut id = Id::new(0, channel);
        id.destination = Some(request.peer_address().unwrap_or(SocketAddr::new(rnic.address, 0)));
        // A listener at any address: the device's is that of its connections.
        id.source = at.map(|at| if at.ip().is_unspecified() { SocketAddr::new(rnic.address, at.port()) } else { at });
        let parameters = event_parameters(request.peer_parameters());
        id.role = Role::Requested(request);
        if let Ok(id) = self.add_id(id) {
            self.put_event(channel, Event { uid, id, kind: EventKind::ConnectRequest, status: 0, parameters });
        }
    }

    fn pass_on_event(&mut self, rnic: &Rnic, number: u32, event: ConnectionEvent) {
        let rejected = if rnic.transport == Transport::Efe { REJECTED_BY_CONSUMER } else { -libc::ECONNREFUSED };
        let (kind, status, parameters) = match event {
            ConnectionEvent::Established { parameters } => (EventKind::Established, 0, event_parameters(&parameters)),
            ConnectionEvent::Rejected { private_data } => {
                (EventKind::Rejected, rejected, Parameters { private_data, ..Parameters::default() })
            }
            ConnectionEvent::Failed { reason } => {
                eprintln!("thalweg: the connection failed: {reason}");
                (EventKind::Unreachable, -libc::ETIMEDOUT, Parameters::default())
            }
            ConnectionEvent::Disconnected { .. } => (EventKind::Disconnected, 0, Parameters::default()),
            ConnectionEvent::Request { .. } | ConnectionEvent::EventsLost { .. } => return,
        };
        self.send_event(number, kind, status, parameters);
    }
}

/// Status of a connection that the peer's program has rejected, over InfiniBand.
const REJECTED_BY_CONSUMER: c_int = 28;

fn event_parameters(parameters: &ConnectionParameters) -> Parameters {
    Parameters {
        queue_number: 0,
        private_data: parameters.private_data.clone(),
        responder_resources: read_depth(parameters.inbound_reads),
        initiator_depth: read_depth(parameters.outbound_reads),
        receiver_retries: parameters.receiver_retries,
        valid: true,
    }
}

fn read_depth(reads: u32) -> u8 {
    u8::try_from(reads).unwrap_or(u8::MAX)
}

fn connection_parameters(rnic: &Rnic, parameters: &Parameters) -> ConnectionParameters {
    let max_reads = rnic.device.rnic_limits().max_reads;
    ConnectionParameters {
        private_data: parameters.private_data.clone(),
        inbound_reads: u32::from(parameters.responder_resources).min(max_reads),
        outbound_reads: u32::from(parameters.initiator_depth).min(max_reads),
        receiver_retries: parameters.receiver_retries & 7,
        needs_crc: rnic.needs_crc,
        ..ConnectionParameters::default()
    }
}

/// Checks that an address is one of this machine, as the kernel does.
fn check_own_address(address: SocketAddr) -> Result<(), c_int> {
    let bound = UdpSocket::bind(SocketAddr::new(address.ip(), 0));
    bound.map(drop).map_err(|error| error.raw_os_error().unwrap_or(libc::EADDRNOTAVAIL))
}

/// Returns the address from which a destination is reached, by the kernel's routes.
fn source_for(destination: SocketAddr) -> Result<SocketAddr, c_int> {
    route_source(destination).map_err(|error| error.raw_os_error().unwrap_or(libc::ENETUNREACH))
}

fn route_source(destination: SocketAddr) -> std::io::Result<SocketAddr> {
    let any: IpAddr = if destination.is_ipv4() { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() };
    let socket = UdpSocket::bind((any, 0))?;
    socket.connect(destination)?;
    Ok(SocketAddr::new(socket.local_addr()?.ip(), 0))
}

fn route_of(rnic: &Rnic, id: &Id) -> Route {
    let has_device = id.source.is_some_and(|source| !source.ip().is_unspecified());
    Route {
        source: id.source,
        destination: id.destination,
        guid: has_device.then(|| node_guid(rnic.address)),
        has_path: has_device && id.destination.is_some() && rnic.transport == Transport::Efe,
    }
}

fn listen(rnic: &Rnic, id: &mut Id, backlog: u32) -> Result<(), c_int> {
    let address = id.source.unwrap_or(SocketAddr::new(Ipv4Addr::UNSPECIFIED.into(), 0));
    let backlog = backlog.max(LEAST_BACKLOG);
    let listener = rnic.device.listen_over(rnic.transport, address, backlog).map_err(|error| error_number(&error))?;
    id.source = Some(listener.local_address());
    id.role = Role::Listening(listener);
    Ok(())
}

fn connect(rnic: &Rnic, id: &mut Id, parameters: &Parameters) -> Result<(), c_int> {
    let destination = id.destination.ok_or(libc::EINVAL)?;
    let own = connection_parameters(rnic, parameters);
    let connecting = with_queue(rnic, parameters.queue_number, |queue| {
        queue.begin_connect(rnic.transport, destination, own).map_err(|error| error_number(&error))
    })?;
    id.queue_number = parameters.queue_number;
    id.role = Role::Connecting(connecting);
    Ok(())
}

fn accept(rnic: &Rnic, id: &mut Id, uid: u64, parameters: &Parameters) -> Result<(), c_int> {
    match std::mem::replace(&mut id.role, Role::Idle) {
        Role::Requested(request) if parameters.valid => {
            let own = connection_parameters(rnic, parameters);
            let connecting = with_queue(rnic, parameters.queue_number, |queue| {
                request.begin_accept(queue, own).map_err(|error| error_number(&error))
            })?;
            (id.uid, id.queue_number, id.role) = (uid, parameters.queue_number, Role::Connecting(connecting));
            Ok(())
        }
        // The last message of a connection that this side began: the RNIC has sent it.
        role @ Role::Connecting(_) if !parameters.valid => {
            id.role = role;
            Ok(())
        }
        role => {
            id.role = role;
            Err(libc::EINVAL)
        }
    }
}

/// Calls `act` with the queue pair of a number.
fn with_queue<T>(rnic: &Rnic, number: u32, act: impl FnOnce(&QueuePair) -> Result<T, c_int>) -> Result<T, c_int> {
    let objects = rnic.objects.lock();
    let address = *objects.numbers.get(&number).ok_or(libc::EINVAL)?;
    // SAFETY: the address is that of a queue pair, which is not given back while the table is locked.
    let pair = unsafe { &*std::ptr::with_exposed_provenance::<Pair>(address) };
    act(&pair.queue)
}
