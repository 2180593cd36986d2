//! The RNIC of the process: one for all contexts, so that their queue pairs reach each other, and a thread that drives it while
//! the program waits in its own memory or in the kernel.

use crate::context::Context;
use parking_lot::Mutex;
use std::net::IpAddr;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use thalweg_arena::Doorbell;
use thalweg_rdma::{Device, Limits, Transport};

/// The RNIC of this process.
#[derive(Debug)]
pub(crate) struct Rnic {
    pub(crate) device: Device,
    pub(crate) transport: Transport,
    pub(crate) address: IpAddr,
    /// Open contexts, whose events the thread passes on, and the bell that tells it of changes.
    contexts: Mutex<Vec<Arc<Context>>>,
    changed: Doorbell,
}

static RNIC: Mutex<Option<Arc<Rnic>>> = Mutex::new(None);

/// Returns the RNIC of this process, which is opened at the first call.
pub(crate) fn process_rnic() -> Result<Arc<Rnic>, String> {
    let mut rnic = RNIC.lock();
    if let Some(rnic) = &*rnic {
        return Ok(Arc::clone(rnic));
    }
    let setting = |name: &str| std::env::var(name).map_err(|_| format!("{name} is not set: use `thalweg rdma run`"));
    let transport = match setting("THALWEG_RDMA_TRANSPORT")?.as_str() {
        "efe" => Transport::Efe,
        "iwarp" => Transport::Tcp,
        other => return Err(format!("THALWEG_RDMA_TRANSPORT is {other:?}: efe or iwarp")),
    };
    let address = setting("THALWEG_RDMA_ADDRESS")?;
    let address = address.parse().map_err(|_| format!("THALWEG_RDMA_ADDRESS is {address:?}: an IP address"))?;
    let device = Device::open_embedded(Limits::default()).map_err(|error| error.to_string())?;
    let changed = Doorbell::new().map_err(|error| error.to_string())?;
    let new = Arc::new(Rnic { device, transport, address, contexts: Mutex::new(Vec::new()), changed });
    let driven = Arc::clone(&new);
    std::thread::Builder::new()
        .name("thalweg-rnic".into())
        .spawn(move || driven.drive())
        .map_err(|error| format!("starting a thread: {error}"))?;
    *rnic = Some(Arc::clone(&new));
    Ok(new)
}

impl Rnic {
    pub(crate) fn add_context(&self, context: &Arc<Context>) {
        self.contexts.lock().push(Arc::clone(context));
        let _ = self.changed.wake_waiter();
    }

    pub(crate) fn remove_context(&self, context: &Context) {
        self.contexts.lock().retain(|other| !std::ptr::eq(&raw const **other, context));
        let _ = self.changed.wake_waiter();
    }

    /// Drives the RNIC as long as the process lives.
    fn drive(&self) {
        prepare_thread();
        loop {
            let _ = self.changed.clear_wakeups();
            let contexts = self.contexts.lock().clone();
            contexts.iter().for_each(|context| context.pass_on_events());
            let mut watched: Vec<BorrowedFd<'_>> = vec![self.changed.as_fd()];
            watched.extend(contexts.iter().map(|context| context.device.event_descriptor()));
            if let Err(error) = self.device.drive_until_readable(&watched) {
                eprintln!("thalweg: the RNIC has ended: {error}");
                return;
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

/// Leaves signals to the program's own threads, and asks the scheduler for short slices: a thread of those runs at once when it
/// is woken although the program spins (since Linux 6.12; earlier ones ignore it).
fn prepare_thread() {
    let attributes = SchedulerAttributes {
        size: size_of::<SchedulerAttributes>() as u32,
        runtime_nanos: SLICE_NANOS,
        ..SchedulerAttributes::default()
    };
    // SAFETY: the set is filled before it is used.
    unsafe {
        let mut all = std::mem::zeroed::<libc::sigset_t>();
        libc::sigfillset(&raw mut all);
        libc::pthread_sigmask(libc::SIG_BLOCK, &raw const all, std::ptr::null_mut());
    }
    // SAFETY: the structure is of the stated length.
    unsafe { libc::syscall(libc::SYS_sched_setattr, 0, &raw const attributes, 0) };
}
