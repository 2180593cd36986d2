//! The RNIC of the process: one for all contexts, so that their queue pairs reach each other; and a thread that drives it while
//! the program waits in its own memory or in the kernel.

use crate::abi::{IbvContext, event_type};
use crate::manager::Manager;
use crate::table::context_state;
use parking_lot::Mutex;
use std::collections::HashMap;
use std::net::IpAddr;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::time::Duration;
use thalweg_arena::Doorbell;
use thalweg_rdma::{AsyncEvent, Device, Limits, Transport};

/// The RNIC of this process.
#[derive(Debug)]
pub(crate) struct Rnic {
    pub(crate) device: Device,
    pub(crate) transport: Transport,
    pub(crate) address: IpAddr,
    /// Whether connections have a CRC even if the peer needs none.
    pub(crate) needs_crc: bool,
    /// Objects of the program, to which events belong.
    pub(crate) objects: Mutex<Objects>,
    pub(crate) manager: Manager,
    /// Tells the thread that the manager has more sockets.
    changed: Doorbell,
}

/// Objects of the program by their handles at the RNIC; queue pairs also by their numbers.
#[derive(Debug, Default)]
pub(crate) struct Objects {
    pub(crate) queue_pairs: HashMap<u32, Object>,
    pub(crate) completion_queues: HashMap<u32, Object>,
    pub(crate) shared_queues: HashMap<u32, Object>,
    pub(crate) numbers: HashMap<u32, usize>,
}

/// An object of the program: its address, and its context's.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Object {
    pub(crate) address: usize,
    pub(crate) context: usize,
}

impl Object {
    pub(crate) fn new<T>(object: *const T, context: *const IbvContext) -> Self {
        Self { address: object.expose_provenance(), context: context.expose_provenance() }
    }
}

static RNIC: Mutex<Option<Arc<Rnic>>> = Mutex::new(None);

/// Returns the RNIC of this process, which is opened at the first call.
pub(crate) fn process_rnic() -> Result<Arc<Rnic>, String> {
    let mut rnic = RNIC.lock();
    if let Some(rnic) = &*rnic {
        return Ok(Arc::clone(rnic));
    }
    let transport = match read_setting("THALWEG_RDMA_TRANSPORT")?.as_str() {
        "efe" => Transport::Efe,
        "iwarp" => Transport::Tcp,
        other => return Err(format!("THALWEG_RDMA_TRANSPORT is {other:?}: efe or iwarp")),
    };
    let address = read_setting("THALWEG_RDMA_ADDRESS")?;
    let address = address.parse().map_err(|_| format!("THALWEG_RDMA_ADDRESS is {address:?}: an IP address"))?;
    let needs_crc = match read_setting("THALWEG_RDMA_CRC")?.as_str() {
        "on" => true,
        "off" => false,
        other => return Err(format!("THALWEG_RDMA_CRC is {other:?}: on or off")),
    };
    let device = Device::open_embedded(Limits::default()).map_err(|error| error.to_string())?;
    let changed = Doorbell::new().map_err(|error| error.to_string())?;
    let (objects, manager) = (Mutex::default(), Manager::default());
    let new = Arc::new(Rnic { device, transport, address, needs_crc, objects, manager, changed });
    let driven = Arc::clone(&new);
    std::thread::Builder::new()
        .name("thalweg-rnic".into())
        .spawn(move || driven.drive())
        .map_err(|error| format!("starting a thread: {error}"))?;
    *rnic = Some(Arc::clone(&new));
    Ok(new)
}

fn read_setting(name: &str) -> Result<String, String> {
    std::env::var(name).map_err(|_| format!("{name} is not set: use `thalweg rdma run`"))
}

impl Rnic {
    /// Has the thread look at the manager's sockets again.
    pub(crate) fn note_sockets(&self) {
        let _ = self.changed.wake_waiter();
    }

    /// Drives the RNIC as long as the process lives.
    fn drive(&self) {
        prepare_thread();
        loop {
            let _ = self.changed.clear_wakeups();
            self.pass_on_events();
            self.manager.pass_on_events(self);
            // Copies: what they belong to may be given back meanwhile.
            let sockets = self.manager.event_sockets();
            let mut watched: Vec<BorrowedFd<'_>> = vec![self.changed.as_fd(), self.device.event_descriptor()];
            watched.extend(sockets.iter().map(AsFd::as_fd));
            if let Err(error) = self.device.drive_until_readable(&watched) {
                eprintln!("thalweg: the RNIC has ended: {error}");
                return;
            }
        }
    }

    /// Passes the RNIC's events on to the contexts of the objects that they belong to.
    fn pass_on_events(&self) {
        while let Ok(Some(event)) = self.device.wait_for_async_event(Duration::ZERO) {
            let objects = self.objects.lock();
            let (found, event_type) = match event {
                AsyncEvent::CompletionOverrun { queue, .. } => {
                    (objects.completion_queues.get(&queue), event_type::CQ_ERR)
                }
                AsyncEvent::QueueAccessError { queue, .. } => {
                    (objects.queue_pairs.get(&queue), event_type::QP_ACCESS_ERR)
                }
                AsyncEvent::QueueFatal { queue, .. } => (objects.queue_pairs.get(&queue), event_type::QP_FATAL),
                AsyncEvent::SendQueueDrained { queue } => (objects.queue_pairs.get(&queue), event_type::SQ_DRAINED),
                AsyncEvent::SharedQueueLimit { queue, .. } => {
                    (objects.shared_queues.get(&queue), event_type::SRQ_LIMIT_REACHED)
                }
                AsyncEvent::SharedQueueError { queue } => (objects.shared_queues.get(&queue), event_type::SRQ_ERR),
                AsyncEvent::EventsLost { .. } => (None, 0),
            };
            if let Some(object) = found {
                let context = std::ptr::with_exposed_provenance_mut(object.context);
                // SAFETY: the context of an object is open as long as the object is there, which the lock keeps so.
                unsafe { context_state(context) }.send_event(object.address, event_type);
            }
        }
    }
}

/// Attributes of a thread for the scheduler (`struct sched_attr`, sched_setattr(2)).
#[repr(C)]
#[derive(Default)]
struct SchedulerAttributes {
    size: u32,
    policy: u32,
    flags: u64,
    nice: i32,
    priority: u32,
    runtime_nanos: u64,
    deadline_nanos: u64,
    period_nanos: u64,
}

/// Shortest slice of processor time that the scheduler grants: 0.1 ms.
const SLICE_NANOS: u64 = 100_000;

/// Leaves signals to the program's own threads, and asks the scheduler for short slices and, where that is permitted, for the
/// highest weight: so the thread runs at once when it is woken, although the program spins (slices count since Linux 6.12).
fn prepare_thread() {
    // SAFETY: the set is filled before it is used.
    unsafe {
        let mut all = std::mem::zeroed::<libc::sigset_t>();
        libc::sigfillset(&raw mut all);
        libc::pthread_sigmask(libc::SIG_BLOCK, &raw const all, std::ptr::null_mut());
    }
    // Acknowledgements wait for microseconds, which the kernel would round up to 50.
    // SAFETY: no memory is concerned.
    unsafe { libc::prctl(libc::PR_SET_TIMERSLACK, 1) };
    for nice in [-20, 0] {
        let attributes = SchedulerAttributes {
            size: size_of::<SchedulerAttributes>() as u32,
            nice,
            runtime_nanos: SLICE_NANOS,
            ..SchedulerAttributes::default()
        };
        // SAFETY: the structure is of the stated length.
        if unsafe { libc::syscall(libc::SYS_sched_setattr, 0, &raw const attributes, 0) } == 0 {
            break;
        }
    }
}
