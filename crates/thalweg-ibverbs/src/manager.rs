//! Connections by librdmacm: ids, and events of an event channel.

use crate::abi::{IbvQpAttr, RDMA_PS_TCP, RdmaCmEvent, RdmaCmId, RdmaConnParam, RdmaEventChannel, attr_mask, qp_state};
use crate::context::{Context, name_of, report_leak};
use crate::library::{
    IbverbsError, Library, check_result, first_error, is_empty, last_error, loaded_library, set_nonblocking,
};
use crate::queue_pair::QueuePair;
use libc::{c_int, sockaddr, sockaddr_in, sockaddr_in6, sockaddr_storage};
use rustix::io::Errno;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::os::fd::BorrowedFd;
use std::ptr::NonNull;
use std::sync::Arc;
use std::time::Duration;

/// Status of a connection over InfiniBand or RoCE that the peer's program has rejected (IBA 12.6.7.2: consumer reject).
pub const REJECTED_BY_CONSUMER: i32 = 28;

/// Returns the name of the RDMA device whose port has an address of this machine; `None` if none has it.
///
/// # Errors
/// The libraries are not installed, or the kernel has no connection manager.
pub fn device_of_address(address: IpAddr) -> Result<Option<String>, IbverbsError> {
    let id = Id::create(&EventChannel::create()?)?;
    match id.bind_address(SocketAddr::new(address, 0)) {
        Ok(()) => Ok(id.device_name()),
        Err(IbverbsError::Call { error: Errno::NODEV | Errno::ADDRNOTAVAIL, .. }) => Ok(None),
        Err(error) => Err(error),
    }
}

/// Returns the name of the RDMA device by which an address is reached, and the address of this machine towards it, by the
/// kernel's routes. Nothing is sent.
///
/// # Errors
/// As [`device_of_address`]; there is no route.
pub fn device_towards(to: SocketAddr) -> Result<(Option<String>, IpAddr), IbverbsError> {
    let any: IpAddr = if to.is_ipv4() { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() };
    let own = UdpSocket::bind((any, 0)).and_then(|socket| {
        socket.connect(to)?;
        socket.local_addr()
    });
    let own = own.map_err(|error| IbverbsError::Call {
        call: "looking for the route",
        error: Errno::from_io_error(&error).unwrap_or(Errno::NETUNREACH),
    })?;
    Ok((device_of_address(own.ip())?, own.ip()))
}

/// A channel of events of connections (`struct rdma_event_channel`).
#[derive(Debug)]
pub struct EventChannel {
    pointer: NonNull<RdmaEventChannel>,
    library: &'static Library,
}

// SAFETY: see the crate's documentation.
unsafe impl Send for EventChannel {}
// SAFETY: as above.
unsafe impl Sync for EventChannel {}

/// Kinds of events that are acted upon (`enum rdma_cm_event_type`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs, reason = "names are those of the header")]
pub enum EventKind {
    AddressResolved,
    AddressError,
    RouteResolved,
    RouteError,
    ConnectRequest,
    ConnectError,
    Unreachable,
    Rejected,
    Established,
    Disconnected,
    DeviceRemoval,
    /// Others: of multicast, of time waits.
    Other,
}

impl EventKind {
    fn from_number(number: c_int) -> Self {
        match number {
            0 => Self::AddressResolved,
            1 => Self::AddressError,
            2 => Self::RouteResolved,
            3 => Self::RouteError,
            4 => Self::ConnectRequest,
            6 => Self::ConnectError,
            7 => Self::Unreachable,
            8 => Self::Rejected,
            9 => Self::Established,
            10 => Self::Disconnected,
            11 => Self::DeviceRemoval,
            _ => Self::Other,
        }
    }
}

/// Parameters of a connection (`struct rdma_conn_param`).
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ConnectParameters {
    /// Data for the peer's program, up to 255 bytes. InfiniBand and RoCE append zeros.
    pub private_data: Vec<u8>,
    /// Reads and atomics that this side serves at a time.
    pub responder_resources: u8,
    /// Reads and atomics outstanding at the peer.
    pub initiator_depth: u8,
    /// Number of times that a message is sent again which found no receive; 7: without end.
    pub receiver_retries: u8,
}

/// An event.
#[derive(Debug)]
pub struct ManagerEvent {
    /// Kind of the event.
    pub kind: EventKind,
    /// Token of the id that it belongs to; for a request, that of the listener.
    pub token: usize,
    /// Status: an error number below 0, or a reason of the transport.
    pub status: i32,
    /// Parameters of the peer.
    pub parameters: ConnectParameters,
    /// Id of a connection that a peer wants.
    pub request: Option<Id>,
}

impl EventChannel {
    /// Creates a channel (`rdma_create_event_channel`).
    ///
    /// # Errors
    /// The libraries are not installed, or the kernel has no connection manager (module `rdma_ucm`).
    pub fn create() -> Result<Arc<Self>, IbverbsError> {
        let library = loaded_library()?;
        // SAFETY: see the crate's documentation.
        let channel = unsafe { (library.manager.rdma_create_event_channel)() };
        let Some(pointer) = NonNull::new(channel) else { return Err(first_error("rdma_create_event_channel")) };
        let channel = Self { pointer, library };
        set_nonblocking(channel.descriptor())?;
        Ok(Arc::new(channel))
    }

    /// Returns the descriptor that is readable when there is an event.
    pub fn descriptor(&self) -> BorrowedFd<'_> {
        // SAFETY: the descriptor is open as long as the channel.
        unsafe { BorrowedFd::borrow_raw(self.pointer.as_ref().fd) }
    }

    /// Takes the next event (`rdma_get_cm_event`); `None` if there is none now.
    ///
    /// # Errors
    /// The kernel refuses.
    pub fn take_event(self: &Arc<Self>) -> Result<Option<ManagerEvent>, IbverbsError> {
        let mut event: *mut RdmaCmEvent = std::ptr::null_mut();
        // SAFETY: see the crate's documentation.
        if unsafe { (self.library.manager.rdma_get_cm_event)(self.pointer.as_ptr(), &raw mut event) } != 0 {
            let error = last_error("rdma_get_cm_event");
            return if is_empty(&error) { Ok(None) } else { Err(error) };
        }
        // SAFETY: the library has returned the event, which is there until it is acknowledged.
        let found = unsafe { &*event };
        let kind = EventKind::from_number(found.event);
        let is_request = kind == EventKind::ConnectRequest;
        let taken = ManagerEvent {
            kind,
            token: if is_request { found.listen_id.addr() } else { found.id.addr() },
            status: found.status,
            // SAFETY: as above; the data of an event are in it.
            parameters: unsafe { read_parameters(&found.conn) },
            request: NonNull::new(found.id).filter(|_| is_request).map(|pointer| Id {
                pointer,
                channel: Arc::clone(self),
                queue: None,
            }),
        };
        // SAFETY: the event was taken, and is not used any more.
        unsafe { (self.library.manager.rdma_ack_cm_event)(event) };
        Ok(Some(taken))
    }
}

/// Copies parameters.
///
/// # Safety
/// There are as many private data as their length.
unsafe fn read_parameters(all: &RdmaConnParam) -> ConnectParameters {
    let private_data = if all.private_data.is_null() {
        Vec::new()
    } else {
        // SAFETY: as the caller's.
        unsafe { std::slice::from_raw_parts(all.private_data.cast(), usize::from(all.private_data_len)) }.to_vec()
    };
    ConnectParameters {
        private_data,
        responder_resources: all.responder_resources,
        initiator_depth: all.initiator_depth,
        receiver_retries: all.rnr_retry_count,
    }
}

impl Drop for EventChannel {
    fn drop(&mut self) {
        // SAFETY: see the crate's documentation.
        unsafe { (self.library.manager.rdma_destroy_event_channel)(self.pointer.as_ptr()) };
    }
}

/// An id: a listener, or one end of a connection (`struct rdma_cm_id`). Dropping it ends the connection.
#[derive(Debug)]
pub struct Id {
    pointer: NonNull<RdmaCmId>,
    channel: Arc<EventChannel>,
    queue: Option<Arc<QueuePair>>,
}

// SAFETY: see the crate's documentation.
unsafe impl Send for Id {}
// SAFETY: as above.
unsafe impl Sync for Id {}

impl Id {
    /// Creates an id (`rdma_create_id`).
    ///
    /// # Errors
    /// The kernel refuses.
    pub fn create(channel: &Arc<EventChannel>) -> Result<Self, IbverbsError> {
        let mut id = std::ptr::null_mut();
        let create = channel.library.manager.rdma_create_id;
        // SAFETY: see the crate's documentation.
        let result = unsafe { create(channel.pointer.as_ptr(), &raw mut id, std::ptr::null_mut(), RDMA_PS_TCP) };
        check_result("rdma_create_id", result)?;
        let pointer = NonNull::new(id).ok_or_else(|| last_error("rdma_create_id"))?;
        Ok(Self { pointer, channel: Arc::clone(channel), queue: None })
    }

    /// Returns the value by which events name the id.
    pub fn token(&self) -> usize {
        self.pointer.addr().get()
    }

    /// Returns whether the id was brought to this device, by the address that it is bound to or connected with. A listener at
    /// an unspecified address belongs to none.
    pub fn is_of_device(&self, context: &Context) -> bool {
        self.device_name().is_some_and(|name| name == context.device_name())
    }

    fn device_name(&self) -> Option<String> {
        // SAFETY: see the crate's documentation; the contexts of librdmacm stay open.
        let context = NonNull::new(unsafe { self.pointer.as_ref().verbs })?;
        // SAFETY: as above.
        Some(name_of(unsafe { context.as_ref().device }.cast()))
    }

    fn bind_address(&self, at: SocketAddr) -> Result<(), IbverbsError> {
        let mut address = Address::from(at);
        let bind = self.channel.library.manager.rdma_bind_addr;
        // SAFETY: see the crate's documentation.
        check_result("rdma_bind_addr", unsafe { bind(self.pointer.as_ptr(), address.as_mut_ptr()) })
    }

    /// Binds the id to an address and listens there (`rdma_bind_addr`, `rdma_listen`). Returns the address with its port.
    ///
    /// # Errors
    /// The address is taken, or no RDMA device has it.
    pub fn listen(&self, at: SocketAddr, backlog: u32) -> Result<SocketAddr, IbverbsError> {
        self.bind_address(at)?;
        let manager = &self.channel.library.manager;
        let backlog = c_int::try_from(backlog).unwrap_or(c_int::MAX);
        // SAFETY: see the crate's documentation.
        check_result("rdma_listen", unsafe { (manager.rdma_listen)(self.pointer.as_ptr(), backlog) })?;
        // SAFETY: as above.
        let port = u16::from_be(unsafe { (manager.rdma_get_src_port)(self.pointer.as_ptr()) });
        Ok(SocketAddr::new(at.ip(), port))
    }

    /// Begins to look for the device by which an address is reached (`rdma_resolve_addr`).
    ///
    /// # Errors
    /// The kernel refuses.
    pub fn resolve_address(&self, to: SocketAddr, timeout: Duration) -> Result<(), IbverbsError> {
        let mut address = Address::from(to);
        let resolve = self.channel.library.manager.rdma_resolve_addr;
        // SAFETY: see the crate's documentation.
        let result = unsafe {
            resolve(self.pointer.as_ptr(), std::ptr::null_mut(), address.as_mut_ptr(), milliseconds(timeout))
        };
        check_result("rdma_resolve_addr", result)
    }

    /// Begins to look for the way to the address (`rdma_resolve_route`).
    ///
    /// # Errors
    /// The kernel refuses.
    pub fn resolve_route(&self, timeout: Duration) -> Result<(), IbverbsError> {
        let resolve = self.channel.library.manager.rdma_resolve_route;
        // SAFETY: see the crate's documentation.
        check_result("rdma_resolve_route", unsafe { resolve(self.pointer.as_ptr(), milliseconds(timeout)) })
    }

    /// Gives the id its queue pair, of the same device, which is brought into state INIT as the id's port needs it; what was
    /// posted stays.
    ///
    /// # Errors
    /// The device refuses.
    pub fn set_queue(&mut self, queue: &Arc<QueuePair>, access: u32) -> Result<(), IbverbsError> {
        // SAFETY: all members may be zero.
        let mut attributes = unsafe { std::mem::zeroed::<IbvQpAttr>() };
        attributes.qp_state = qp_state::INIT;
        let mut mask = 0;
        let manager = &self.channel.library.manager;
        // SAFETY: see the crate's documentation.
        let known = unsafe { (manager.rdma_init_qp_attr)(self.pointer.as_ptr(), &raw mut attributes, &raw mut mask) };
        check_result("rdma_init_qp_attr", known)?;
        attributes.qp_state = qp_state::INIT;
        attributes.qp_access_flags = access;
        queue.modify(&attributes, mask | attr_mask::STATE)?;
        // SAFETY: as above. librdmacm uses the queue pair of an id that has one as if it had made it: it brings it into the
        // states of a connection. The id holds it.
        unsafe { (*self.pointer.as_ptr()).qp = queue.pointer.as_ptr() };
        self.queue = Some(Arc::clone(queue));
        Ok(())
    }

    /// Connects the queue pair (`rdma_connect`).
    ///
    /// # Errors
    /// The kernel refuses, or, over iWARP, TCP's connection was refused.
    pub fn connect(&self, parameters: &ConnectParameters) -> Result<(), IbverbsError> {
        let mut all = connection_parameters(parameters)?;
        let connect = self.channel.library.manager.rdma_connect;
        // SAFETY: see the crate's documentation.
        check_result("rdma_connect", unsafe { connect(self.pointer.as_ptr(), &raw mut all) })
    }

    /// Accepts the connection with the queue pair (`rdma_accept`).
    ///
    /// # Errors
    /// The kernel refuses, or the peer is gone.
    pub fn accept(&self, parameters: &ConnectParameters) -> Result<(), IbverbsError> {
        let mut all = connection_parameters(parameters)?;
        let accept = self.channel.library.manager.rdma_accept;
        // SAFETY: see the crate's documentation.
        check_result("rdma_accept", unsafe { accept(self.pointer.as_ptr(), &raw mut all) })
    }

    /// Rejects the connection (`rdma_reject`).
    ///
    /// # Errors
    /// The private data are too long, or the peer is gone.
    pub fn reject(&self, private_data: &[u8]) -> Result<(), IbverbsError> {
        let length = private_length(private_data)?;
        let reject = self.channel.library.manager.rdma_reject;
        // SAFETY: see the crate's documentation.
        check_result("rdma_reject", unsafe { reject(self.pointer.as_ptr(), private_data.as_ptr().cast(), length) })
    }

    /// Ends the connection (`rdma_disconnect`): what is posted is flushed.
    ///
    /// # Errors
    /// There is none any more.
    pub fn disconnect(&self) -> Result<(), IbverbsError> {
        let disconnect = self.channel.library.manager.rdma_disconnect;
        // SAFETY: see the crate's documentation.
        check_result("rdma_disconnect", unsafe { disconnect(self.pointer.as_ptr()) })
    }

    /// Returns the address of the peer, of a connection.
    pub fn peer_address(&self) -> Option<SocketAddr> {
        // SAFETY: see the crate's documentation; the address of the peer is in the id.
        Address(unsafe { self.pointer.as_ref().destination }).to_socket_address()
    }
}

impl Drop for Id {
    fn drop(&mut self) {
        // SAFETY: see the crate's documentation. The queue pair is not librdmacm's.
        unsafe { (*self.pointer.as_ptr()).qp = std::ptr::null_mut() };
        // SAFETY: as above. All events of the id that were taken are acknowledged, so that this does not wait.
        let result = unsafe { (self.channel.library.manager.rdma_destroy_id)(self.pointer.as_ptr()) };
        report_leak("rdma_destroy_id", result);
    }
}

fn milliseconds(timeout: Duration) -> c_int {
    c_int::try_from(timeout.as_millis()).unwrap_or(c_int::MAX)
}

fn private_length(data: &[u8]) -> Result<u8, IbverbsError> {
    let too_long = IbverbsError::Call { call: "private data of more than 255 bytes", error: Errno::MSGSIZE };
    u8::try_from(data.len()).map_err(|_| too_long)
}

fn connection_parameters(parameters: &ConnectParameters) -> Result<RdmaConnParam, IbverbsError> {
    Ok(RdmaConnParam {
        private_data: parameters.private_data.as_ptr().cast(),
        private_data_len: private_length(&parameters.private_data)?,
        responder_resources: parameters.responder_resources,
        initiator_depth: parameters.initiator_depth,
        flow_control: 1,
        // The most that there are: a lost packet is sent again so many times.
        retry_count: 7,
        rnr_retry_count: parameters.receiver_retries,
        srq: 0,
        qp_num: 0,
    })
}

/// An address as C has it.
#[derive(Clone, Copy)]
struct Address(sockaddr_storage);

impl std::fmt::Debug for Address {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:?}", self.to_socket_address())
    }
}

impl From<SocketAddr> for Address {
    fn from(address: SocketAddr) -> Self {
        // SAFETY: all members may be zero.
        let mut all = unsafe { std::mem::zeroed::<sockaddr_storage>() };
        match address {
            SocketAddr::V4(address) => {
                // SAFETY: the storage has room for any address, and is aligned for it.
                let v4 = unsafe { &mut *(&raw mut all).cast::<sockaddr_in>() };
                v4.sin_family = libc::AF_INET as libc::sa_family_t;
                v4.sin_port = address.port().to_be();
                v4.sin_addr.s_addr = u32::from(*address.ip()).to_be();
            }
            SocketAddr::V6(address) => {
                // SAFETY: as above.
                let v6 = unsafe { &mut *(&raw mut all).cast::<sockaddr_in6>() };
                v6.sin6_family = libc::AF_INET6 as libc::sa_family_t;
                v6.sin6_port = address.port().to_be();
                v6.sin6_addr.s6_addr = address.ip().octets();
                v6.sin6_scope_id = address.scope_id();
            }
        }
        Self(all)
    }
}

impl Address {
    fn as_mut_ptr(&mut self) -> *mut sockaddr {
        (&raw mut self.0).cast()
    }

    /// Returns the address; `None` if it is of another family.
    fn to_socket_address(self) -> Option<SocketAddr> {
        match c_int::from(self.0.ss_family) {
            libc::AF_INET => {
                // SAFETY: the family says which address it is; the storage has room for any, and is aligned for it.
                let v4 = unsafe { &*(&raw const self.0).cast::<sockaddr_in>() };
                let ip = Ipv4Addr::from(u32::from_be(v4.sin_addr.s_addr));
                Some(SocketAddr::new(IpAddr::V4(ip), u16::from_be(v4.sin_port)))
            }
            libc::AF_INET6 => {
                // SAFETY: as above.
                let v6 = unsafe { &*(&raw const self.0).cast::<sockaddr_in6>() };
                let ip = Ipv6Addr::from(v6.sin6_addr.s6_addr);
                Some(SocketAddr::new(IpAddr::V6(ip), u16::from_be(v6.sin6_port)))
            }
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_keep_their_ports() {
        for text in ["10.0.0.7:7174", "[fd00::1]:18515", "0.0.0.0:0"] {
            let address: SocketAddr = text.parse().unwrap();
            assert_eq!(Address::from(address).to_socket_address(), Some(address));
        }
    }
}
