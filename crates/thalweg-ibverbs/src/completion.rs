//! Completion channels and queues.

use crate::abi::{IbvCompChannel, IbvCq, IbvWc, PollCq, ReqNotifyCq, op};
use crate::context::{Context, report_leak};
use crate::library::{IbverbsError, check_result, is_empty, last_error, set_nonblocking};
use libc::c_int;
use rustix::io::Errno;
use std::os::fd::BorrowedFd;
use std::ptr::NonNull;
use std::sync::Arc;

/// A channel for events of completion queues (`struct ibv_comp_channel`).
#[derive(Debug)]
pub struct CompletionChannel {
    pointer: NonNull<IbvCompChannel>,
    context: Arc<Context>,
}

// SAFETY: see the crate's documentation.
unsafe impl Send for CompletionChannel {}
// SAFETY: as above.
unsafe impl Sync for CompletionChannel {}

impl CompletionChannel {
    /// Creates a channel (`ibv_create_comp_channel`).
    ///
    /// # Errors
    /// The kernel refuses.
    pub fn create(context: &Arc<Context>) -> Result<Arc<Self>, IbverbsError> {
        // SAFETY: see the crate's documentation.
        let channel = unsafe { (context.library.verbs.ibv_create_comp_channel)(context.pointer.as_ptr()) };
        let Some(pointer) = NonNull::new(channel) else { return Err(last_error("ibv_create_comp_channel")) };
        let channel = Self { pointer, context: Arc::clone(context) };
        set_nonblocking(channel.descriptor())?;
        Ok(Arc::new(channel))
    }

    /// Returns the descriptor that is readable when there is an event.
    pub fn descriptor(&self) -> BorrowedFd<'_> {
        // SAFETY: the descriptor is open as long as the channel.
        unsafe { BorrowedFd::borrow_raw(self.pointer.as_ref().fd) }
    }

    /// Takes the next event, and returns the number of its completion queue; `None` if there is none now.
    ///
    /// # Errors
    /// The kernel refuses.
    pub fn take_event(&self) -> Result<Option<u32>, IbverbsError> {
        let (mut queue, mut number) = (std::ptr::null_mut(), std::ptr::null_mut());
        let verbs = &self.context.library.verbs;
        // SAFETY: see the crate's documentation.
        if unsafe { (verbs.ibv_get_cq_event)(self.pointer.as_ptr(), &raw mut queue, &raw mut number) } != 0 {
            let error = last_error("ibv_get_cq_event");
            return if is_empty(&error) { Ok(None) } else { Err(error) };
        }
        // SAFETY: a queue is not freed before its events are acknowledged.
        unsafe { (verbs.ibv_ack_cq_events)(queue, 1) };
        Ok(Some(number.addr() as u32))
    }
}

impl Drop for CompletionChannel {
    fn drop(&mut self) {
        // SAFETY: see the crate's documentation.
        let result = unsafe { (self.context.library.verbs.ibv_destroy_comp_channel)(self.pointer.as_ptr()) };
        report_leak("ibv_destroy_comp_channel", result);
    }
}

/// A completion queue (`struct ibv_cq`).
#[derive(Debug)]
pub struct CompletionQueue {
    pub(crate) pointer: NonNull<IbvCq>,
    channel: Arc<CompletionChannel>,
    poll: PollCq,
    request_notification: ReqNotifyCq,
}

// SAFETY: see the crate's documentation.
unsafe impl Send for CompletionQueue {}
// SAFETY: as above.
unsafe impl Sync for CompletionQueue {}

impl CompletionQueue {
    /// Creates a queue of at least `entries` entries, whose events have `number` (`ibv_create_cq`).
    ///
    /// # Errors
    /// The device refuses.
    pub fn create(channel: &Arc<CompletionChannel>, entries: u32, number: u32) -> Result<Arc<Self>, IbverbsError> {
        let context = &channel.context;
        let entries = c_int::try_from(entries).unwrap_or(c_int::MAX);
        let cookie = std::ptr::without_provenance_mut(number as usize);
        // SAFETY: see the crate's documentation. The cookie is a number.
        let queue = unsafe {
            let create = context.library.verbs.ibv_create_cq;
            create(context.pointer.as_ptr(), entries, cookie, channel.pointer.as_ptr(), 0)
        };
        let Some(pointer) = NonNull::new(queue) else { return Err(last_error("ibv_create_cq")) };
        // SAFETY: the context of a queue has the functions of these types in its table.
        let (poll, request_notification) = unsafe {
            let ops = &(*pointer.as_ref().context).ops;
            (
                std::mem::transmute::<*const libc::c_void, PollCq>(ops[op::POLL_CQ]),
                std::mem::transmute::<*const libc::c_void, ReqNotifyCq>(ops[op::REQ_NOTIFY_CQ]),
            )
        };
        Ok(Arc::new(Self { pointer, channel: Arc::clone(channel), poll, request_notification }))
    }

    /// Returns the value by which events name the queue.
    pub fn token(&self) -> usize {
        self.pointer.addr().get()
    }

    /// Takes completions out of the queue, as many as there are and have room (`ibv_poll_cq`), and returns their number.
    ///
    /// # Errors
    /// The queue has failed.
    #[inline]
    pub fn poll(&self, completions: &mut [IbvWc]) -> Result<usize, IbverbsError> {
        let room = c_int::try_from(completions.len()).unwrap_or(c_int::MAX);
        // SAFETY: see the crate's documentation; there is room for as many.
        let count = unsafe { (self.poll)(self.pointer.as_ptr(), room, completions.as_mut_ptr()) };
        usize::try_from(count).map_err(|_| IbverbsError::Call { call: "ibv_poll_cq", error: Errno::IO })
    }

    /// Asks for an event with the next completion (`ibv_req_notify_cq`): poll after this, before waiting.
    ///
    /// # Errors
    /// The device refuses.
    pub fn request_notification(&self) -> Result<(), IbverbsError> {
        // SAFETY: see the crate's documentation.
        check_result("ibv_req_notify_cq", unsafe { (self.request_notification)(self.pointer.as_ptr(), 0) })
    }
}

impl Drop for CompletionQueue {
    fn drop(&mut self) {
        // SAFETY: see the crate's documentation.
        let result = unsafe { (self.channel.context.library.verbs.ibv_destroy_cq)(self.pointer.as_ptr()) };
        report_leak("ibv_destroy_cq", result);
    }
}
