//! Completion channels and completion queues.

use crate::abi::{IbvCompChannel, IbvContext, IbvCq, IbvCqEx, IbvCqInitAttrEx, IbvWc, WC_WITH_IMM, WC_WITH_INV};
use crate::context::{COMPLETION_VECTORS, Context, event_sockets, withdraw_messages};
use crate::rnic::Object;
use crate::table::context_state;
use crate::{error_number, extended, fail_null};
use libc::c_int;
use parking_lot::Mutex;
use std::collections::HashMap;
use std::os::fd::{IntoRawFd, OwnedFd};
use std::time::{Duration, Instant};
use thalweg_rdma::{Completion, CompletionChannel, CompletionQueue, Notify};

/// A completion queue.
#[repr(C)]
pub(crate) struct Queue {
    pub(crate) base: IbvCqEx,
    pub(crate) queue: CompletionQueue,
    /// Numbers of queue pairs by their handles at the RNIC, where they differ.
    numbers: Mutex<HashMap<u32, u32>>,
    /// Completion that the calls of `ibv_cq_ex` read.
    pub(crate) polled: Mutex<Option<Completion>>,
    empty_polls: Mutex<EmptyPolls>,
}

/// Empty polls in a row.
#[derive(Debug, Default)]
struct EmptyPolls {
    count: u32,
    since: Option<Instant>,
}

/// Time of empty polls after which other threads are let run, until a packet comes: where more programs spin than there are
/// processors, the one that is waited for is not running. Its length is about what it costs to wait.
const SPIN_TIME: Duration = Duration::from_micros(50);

/// Empty polls between looks at the time.
const POLLS_PER_LOOK: u32 = 16;

/// Longest pause.
const POLL_PAUSE: Duration = Duration::from_micros(100);

/// Channels of the process by their descriptors: the RNIC's, a copy of its end, and a copy of the program's end.
static CHANNELS: Mutex<Option<HashMap<c_int, Channel>>> = Mutex::new(None);

#[derive(Debug)]
struct Channel {
    channel: CompletionChannel,
    sender: OwnedFd,
    unread: OwnedFd,
}

/// Makes a completion channel: called by the preloaded library.
pub(crate) unsafe extern "C" fn create_comp_channel(context: *mut IbvContext) -> *mut IbvCompChannel {
    // SAFETY: see the crate's documentation.
    let state = unsafe { context_state(context) };
    match create_channel(state) {
        Ok(fd) => {
            // SAFETY: plain allocation; libibverbs frees it.
            let channel = unsafe { libc::calloc(1, size_of::<IbvCompChannel>()) }.cast::<IbvCompChannel>();
            if channel.is_null() {
                return fail_null(libc::ENOMEM);
            }
            // SAFETY: just allocated.
            unsafe { channel.write(IbvCompChannel { context, fd, refcnt: 0 }) };
            channel
        }
        Err(error) => fail_null(error),
    }
}

fn create_channel(state: &Context) -> Result<c_int, c_int> {
    let (socket, theirs) = event_sockets()?;
    let copies = (theirs.try_clone(), socket.try_clone(), socket.try_clone());
    let (Ok(sender), Ok(unread), Ok(program)) = copies else { return Err(libc::EMFILE) };
    let channel = state.rnic.device.create_channel_over(socket, theirs).map_err(|error| error_number(&error))?;
    // libibverbs closes it.
    let fd = program.into_raw_fd();
    CHANNELS.lock().get_or_insert_default().insert(fd, Channel { channel, sender, unread });
    Ok(fd)
}

/// Takes note that libibverbs has closed a channel's descriptor: called by the preloaded library.
pub(crate) unsafe extern "C" fn forget_comp_channel(fd: c_int) {
    if let Some(channels) = &mut *CHANNELS.lock() {
        channels.remove(&fd);
    }
}

pub(crate) unsafe extern "C" fn create_cq(
    context: *mut IbvContext,
    entries: c_int,
    channel: *mut IbvCompChannel,
    vector: c_int,
) -> *mut IbvCq {
    if !(0..COMPLETION_VECTORS).contains(&vector) {
        return fail_null(libc::EINVAL);
    }
    // SAFETY: see the crate's documentation.
    match unsafe { new_queue(context, entries, channel) } {
        Ok(queue) => queue.cast(),
        Err(error) => fail_null(error),
    }
}

/// Flags of `ibv_cq_init_attr_ex.comp_mask`, and of its `wc_flags`: what completions here have.
const CQ_INIT_FLAGS: u32 = 1;
const CQ_INIT_PD: u32 = 2;
const WC_STANDARD_FLAGS: u64 = 0x7f;

pub(crate) unsafe extern "C" fn create_cq_ex(
    context: *mut IbvContext,
    attributes: *mut IbvCqInitAttrEx,
) -> *mut IbvCqEx {
    // SAFETY: see the crate's documentation.
    let attributes = unsafe { &*attributes };
    if attributes.wc_flags & !WC_STANDARD_FLAGS != 0 || attributes.comp_mask & !(CQ_INIT_FLAGS | CQ_INIT_PD) != 0 {
        return fail_null(libc::EOPNOTSUPP);
    }
    if attributes.comp_vector >= COMPLETION_VECTORS.cast_unsigned() {
        return fail_null(libc::EINVAL);
    }
    let entries = c_int::try_from(attributes.cqe).unwrap_or(-1);
    // SAFETY: as above.
    match unsafe { new_queue(context, entries, attributes.channel) } {
        Ok(queue) => {
            // SAFETY: just made.
            extended::set_completion_calls(unsafe { &mut (*queue).base });
            queue.cast()
        }
        Err(error) => fail_null(error),
    }
}

/// # Safety
/// As for all calls.
unsafe fn new_queue(
    context: *mut IbvContext,
    entries: c_int,
    channel: *mut IbvCompChannel,
) -> Result<*mut Queue, c_int> {
    let entries = u32::try_from(entries).ok().filter(|entries| *entries > 0).ok_or(libc::EINVAL)?;
    // SAFETY: as the caller's.
    let state = unsafe { context_state(context) };
    // Filled in below: its events carry its address.
    let place = Box::into_raw(Box::<Queue>::new_uninit());
    // SAFETY: as the caller's.
    let fd = (!channel.is_null()).then(|| unsafe { (*channel).fd });
    let created = {
        let channels = CHANNELS.lock();
        let found = fd.map(|fd| channels.as_ref().and_then(|channels| channels.get(&fd)).ok_or(libc::EINVAL));
        found.transpose().and_then(|channel| {
            let channel = channel.map(|found| &found.channel);
            let number = Some(place.expose_provenance() as u64);
            state.rnic.device.create_numbered_queue(entries, channel, number).map_err(|error| error_number(&error))
        })
    };
    let queue = match created {
        Ok(queue) => queue,
        Err(error) => {
            // SAFETY: just allocated, and nothing is in it.
            drop(unsafe { Box::from_raw(place) });
            return Err(error);
        }
    };
    let handle = queue.queue_handle();
    // SAFETY: all members of the structs of C may be zero; libibverbs sets them.
    let mut base = unsafe { std::mem::zeroed::<IbvCqEx>() };
    base.cq.context = context;
    base.cq.handle = handle;
    base.cq.cqe = c_int::try_from(queue.entry_count()).unwrap_or(c_int::MAX);
    let place = place.cast::<Queue>();
    // SAFETY: allocated with this layout.
    unsafe {
        place.write(Queue {
            base,
            queue,
            numbers: Mutex::default(),
            polled: Mutex::default(),
            empty_polls: Mutex::default(),
        })
    };
    state.rnic.objects.lock().completion_queues.insert(handle, Object::new(place, context));
    Ok(place)
}

pub(crate) unsafe extern "C" fn destroy_cq(cq: *mut IbvCq) -> c_int {
    // SAFETY: see the crate's documentation.
    let (queue, state) = unsafe { (&*cq.cast::<Queue>(), context_state((*cq).context)) };
    if queue.queue.user_count() > 0 {
        return libc::EBUSY;
    }
    state.rnic.objects.lock().completion_queues.remove(&queue.base.cq.handle);
    // SAFETY: as above.
    let fd = (!queue.base.cq.channel.is_null()).then(|| unsafe { (*queue.base.cq.channel).fd });
    // SAFETY: `new_queue` has made it; the program does not use it any more.
    drop(unsafe { Box::from_raw(cq.cast::<Queue>()) });
    state.withdraw_events(cq.addr());
    // Events that were not read must not lead to it.
    if let Some(channels) = &*CHANNELS.lock()
        && let Some(channel) = fd.and_then(|fd| channels.get(&fd))
    {
        withdraw_messages(&channel.unread, &channel.sender, |message| {
            message.first_chunk().is_some_and(|number| u64::from_ne_bytes(*number) != cq.addr() as u64)
        });
    }
    0
}

/// Accepts a length that the queue has already; to change it is not possible.
pub(crate) unsafe extern "C" fn resize_cq(cq: *mut IbvCq, entries: c_int) -> c_int {
    // SAFETY: see the crate's documentation.
    let has = unsafe { (*cq).cqe };
    match entries {
        ..=0 => libc::EINVAL,
        entries if entries <= has => 0,
        _ => libc::EOPNOTSUPP,
    }
}

pub(crate) unsafe extern "C" fn poll_cq(cq: *mut IbvCq, limit: c_int, completions: *mut IbvWc) -> c_int {
    // SAFETY: see the crate's documentation.
    let queue = unsafe { queue_of(cq) };
    let mut count = 0;
    while count < limit {
        // Only the first looks for work of the RNIC.
        let found = if count == 0 { queue.poll_one() } else { queue.queue.take_ready().map_err(|_| ()) };
        match found {
            Ok(Some(completion)) => {
                let wc = queue.work_completion(&completion);
                // SAFETY: the program has room for `limit`.
                unsafe { completions.add(count as usize).write(wc) };
                count += 1;
            }
            Ok(None) => break,
            Err(()) if count > 0 => break,
            Err(()) => return -libc::EIO,
        }
    }
    count
}

impl EmptyPolls {
    /// Takes note of a poll, and returns whether the program has spun for long enough.
    fn note_poll(&mut self, is_empty: bool) -> bool {
        if !is_empty {
            *self = Self::default();
            return false;
        }
        self.count += 1;
        if !self.count.is_multiple_of(POLLS_PER_LOOK) {
            return false;
        }
        let now = Instant::now();
        let must_pause = now.duration_since(*self.since.get_or_insert(now)) >= SPIN_TIME;
        if must_pause {
            *self = Self::default();
        }
        must_pause
    }
}

impl Queue {
    /// Returns the next completion. Now and then, where there are none, other threads are let run.
    pub(crate) fn poll_one(&self) -> Result<Option<Completion>, ()> {
        let found = self.queue.poll_one().map_err(|_| ())?;
        let must_pause = self.empty_polls.lock().note_poll(found.is_none());
        if must_pause {
            // SAFETY: see the crate's documentation.
            unsafe { context_state(self.base.cq.context) }.rnic.device.pause_polling(POLL_PAUSE);
        }
        Ok(found)
    }

    /// Notes the number of a queue pair that completes here; `None`: forgets it.
    pub(crate) fn set_number(&self, handle: u32, number: Option<u32>) {
        match number {
            Some(number) => _ = self.numbers.lock().insert(handle, number),
            None => _ = self.numbers.lock().remove(&handle),
        }
    }

    pub(crate) fn number_of(&self, handle: u32) -> u32 {
        self.numbers.lock().get(&handle).copied().unwrap_or(handle)
    }

    fn work_completion(&self, completion: &Completion) -> IbvWc {
        IbvWc {
            wr_id: completion.request_id(),
            status: c_int::from(completion.status() as u8),
            opcode: c_int::from(completion.operation() as u8),
            vendor_err: vendor_error(completion),
            byte_len: completion.transferred_bytes(),
            imm_data: immediate_word(completion),
            qp_num: self.number_of(completion.queue_number()),
            src_qp: 0,
            wc_flags: completion_flags(completion),
            pkey_index: 0,
            slid: 0,
            sl: 0,
            dlid_path_bits: 0,
        }
    }
}

/// Returns the immediate in network order, or the STag that was invalidated.
pub(crate) fn immediate_word(completion: &Completion) -> u32 {
    completion.immediate_data().map(u32::to_be).or(completion.invalidated_stag()).unwrap_or(0)
}

pub(crate) fn completion_flags(completion: &Completion) -> libc::c_uint {
    let with_immediate = if completion.immediate_data().is_some() { WC_WITH_IMM } else { 0 };
    let with_invalidate = if completion.invalidated_stag().is_some() { WC_WITH_INV } else { 0 };
    with_immediate | with_invalidate
}

/// Returns the number of the fault, and in the second byte 1 for one that the peer's side has found.
pub(crate) fn vendor_error(completion: &Completion) -> u32 {
    completion.fault().map_or(0, |fault| fault.kind as u32 | (fault.side as u32) << 8)
}

pub(crate) unsafe extern "C" fn req_notify_cq(cq: *mut IbvCq, solicited_only: c_int) -> c_int {
    // SAFETY: see the crate's documentation.
    let queue = unsafe { queue_of(cq) };
    queue.queue.request_next_event(if solicited_only == 0 { Notify::Any } else { Notify::Solicited });
    0
}

/// Returns a completion queue.
///
/// # Safety
/// `cq` was returned by this library and not given back.
pub(crate) unsafe fn queue_of<'a>(cq: *mut IbvCq) -> &'a Queue {
    // SAFETY: as the caller's.
    unsafe { &*cq.cast::<Queue>() }
}
