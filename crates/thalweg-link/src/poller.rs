//! Waiting: one epoll for sockets, doorbells, timers and the recorder's ring.

use crate::LinkError;
use rustix::event::epoll;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

/// The events to wait for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Interest {
    /// There is something to receive.
    pub read: bool,
    /// There is room to send.
    pub write: bool,
}

impl Interest {
    /// Waits for something to receive.
    pub const READ: Self = Self { read: true, write: false };

    fn event_flags(self) -> epoll::EventFlags {
        let mut flags = epoll::EventFlags::empty();
        flags.set(epoll::EventFlags::IN, self.read);
        flags.set(epoll::EventFlags::OUT, self.write);
        flags
    }
}

/// A level-triggered epoll. Each descriptor has a token that the caller chooses.
#[derive(Debug)]
pub struct Poller {
    epoll: OwnedFd,
}

impl Poller {
    /// Creates an empty poller.
    ///
    /// # Errors
    /// The system has no descriptor left.
    pub fn new() -> Result<Self, LinkError> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC).map_err(LinkError::from_system_call("epoll_create"))?;
        Ok(Self { epoll })
    }

    /// Begins to wait on a descriptor.
    ///
    /// # Errors
    /// The kernel accepts no more descriptors.
    pub fn add_descriptor(&self, fd: BorrowedFd<'_>, token: u64, interest: Interest) -> Result<(), LinkError> {
        epoll::add(&self.epoll, fd, epoll::EventData::new_u64(token), interest.event_flags())
            .map_err(LinkError::from_system_call("epoll_ctl"))
    }

    /// Changes the events that are waited for on a descriptor.
    ///
    /// # Errors
    /// The descriptor is not one that is waited on.
    pub fn change_interest(&self, fd: BorrowedFd<'_>, token: u64, interest: Interest) -> Result<(), LinkError> {
        epoll::modify(&self.epoll, fd, epoll::EventData::new_u64(token), interest.event_flags())
            .map_err(LinkError::from_system_call("epoll_ctl"))
    }

    /// Stops waiting on a descriptor. A descriptor that is about to be closed need not be removed.
    pub fn remove_descriptor(&self, fd: BorrowedFd<'_>) {
        let _ = epoll::delete(&self.epoll, fd);
    }

    /// Waits until a descriptor is ready, at most for `timeout` (`None`: for ever). Calls `ready` with each token.
    ///
    /// # Errors
    /// The kernel does not wait: the descriptor is not an epoll.
    pub fn wait_for_events(&self, timeout: Option<Duration>, mut ready: impl FnMut(u64)) -> Result<(), LinkError> {
        // epoll_pwait2 has nanosecond resolution: a deadline of 0.3 ms neither spins nor oversleeps by a millisecond.
        let timeout = timeout.map(|timeout| rustix::time::Timespec {
            tv_sec: i64::try_from(timeout.as_secs()).unwrap_or(i64::MAX),
            tv_nsec: timeout.subsec_nanos().into(),
        });
        let mut space = [MaybeUninit::uninit(); 64];
        match epoll::wait(&self.epoll, &mut space, timeout.as_ref()) {
            Ok((events, _)) => events.iter().for_each(|event| ready(event.data.u64())),
            Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(LinkError::Io { doing: "epoll_wait".into(), error: error.into() }),
        }
        Ok(())
    }
}

impl AsFd for Poller {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.epoll.as_fd()
    }
}

/// One endpoint's part of a [`Poller`]: its descriptors, under numbers that the endpoint chooses.
#[derive(Debug, Clone)]
pub struct Watch {
    poller: Arc<Poller>,
    endpoint: u32,
}

impl Watch {
    /// First token that does not belong to any endpoint.
    pub const FIRST_FREE_TOKEN: u64 = 1 << 63;

    /// Creates the part of endpoint number `endpoint`.
    #[expect(clippy::cast_possible_truncation, reason = "an endpoint for each address of a node")]
    pub(crate) fn new(poller: &Arc<Poller>, endpoint: usize) -> Self {
        Self { poller: Arc::clone(poller), endpoint: endpoint as u32 }
    }

    /// Returns the number that a token stands for, or `None` if the token is not of that endpoint.
    #[expect(clippy::cast_possible_truncation, reason = "its lower half is meant")]
    pub(crate) fn number_from_token(endpoint: usize, token: u64) -> Option<u32> {
        (token >> 32 == endpoint as u64).then_some(token as u32)
    }

    /// Begins to wait on a descriptor.
    ///
    /// # Errors
    /// The kernel accepts no more descriptors.
    pub fn add_descriptor(&self, fd: BorrowedFd<'_>, number: u32, interest: Interest) -> Result<(), LinkError> {
        self.poller.add_descriptor(fd, self.token_for_number(number), interest)
    }

    /// Changes the events that are waited for on a descriptor.
    ///
    /// # Errors
    /// The descriptor is not one that is waited on.
    pub fn change_interest(&self, fd: BorrowedFd<'_>, number: u32, interest: Interest) -> Result<(), LinkError> {
        self.poller.change_interest(fd, self.token_for_number(number), interest)
    }

    /// Stops waiting on a descriptor.
    pub fn remove_descriptor(&self, fd: BorrowedFd<'_>) {
        self.poller.remove_descriptor(fd);
    }

    fn token_for_number(&self, number: u32) -> u64 {
        u64::from(self.endpoint) << 32 | u64::from(number)
    }
}
