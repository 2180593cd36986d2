//! Reads a run while it is being written.

use crate::event::Event;
use crate::files::{Files, RunFiles};
use crate::list::builder_directories;
use crate::{RunInfo, StoreError};
use rustix::event::{PollFd, PollFlags, Timespec, epoll};
use rustix::fs::inotify;
use rustix::io::Errno;
use rustix::time::{Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, timerfd_create, timerfd_settime};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

mod part;

use part::FollowPart;

/// The events of a run, each as soon as the block that closes it is on disk, in the order in which they were closed.
/// With several builders, each closes its own events in order; available events of any of them are returned.
///
/// Its file descriptor ([`AsFd`]) is readable when something changed in the run's directories, and twice a second:
/// nothing else shows that a writer died, or that a server has more data.
#[derive(Debug)]
pub struct Follow {
    path: PathBuf,
    /// Combined contents of `run.json` of all parts.
    info: RunInfo,
    parts: Vec<FollowPart>,
    /// Ends of the parts, as far as they have ended.
    ends: Vec<Option<End>>,
    /// Index of the part whose turn it is.
    turn: usize,
    wakes: WakeSources,
    /// True if something may have changed since the last look.
    due: bool,
}

/// Result of waiting for the next event of a run.
#[derive(Debug)]
pub enum Followed {
    /// A closed event.
    Event(Event),
    /// No event came within the timeout.
    Quiet,
    /// Every event was delivered, and none will follow.
    End(End),
}

/// End of a run that was followed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum End {
    /// The writer finished the run.
    Finished,
    /// The writer of the run, or of one of its parts, died, and left the run open.
    WriterGone,
}

impl Follow {
    /// Follows the run in this directory, or the one that contains `path`, from its first event on; or the data of all
    /// its builders, if `path` names them as for [`Run::open`](crate::Run::open). A builder whose directory is created
    /// later is followed from then on.
    ///
    /// # Errors
    /// If there is no run, its `run.json` cannot be read, or the kernel cannot watch the directory.
    pub fn open(path: impl AsRef<Path>) -> Result<Self, StoreError> {
        let path = path.as_ref();
        let parts: Vec<Files> = builder_directories(path).iter().map(|part| Files::in_directory(part)).collect();
        if parts.is_empty() {
            let files = Files::in_directory(path);
            return Self::from_files(files.run_path(), vec![files.clone()]);
        }
        Self::from_files(path, parts)
    }

    /// Follows a run whose files are elsewhere.
    ///
    /// # Errors
    /// As [`open`](Self::open).
    pub fn open_remote(files: Arc<dyn RunFiles>) -> Result<Self, StoreError> {
        let path = files.display_path().to_owned();
        Self::from_files(&path, vec![Files::Elsewhere(files)])
    }

    pub(crate) fn from_files(path: &Path, parts: Vec<Files>) -> Result<Self, StoreError> {
        let wakes = WakeSources::new().map_err(StoreError::errno_error("watching", path))?;
        let parts = parts.into_iter().map(|files| wakes.open_part(files)).collect::<Result<Vec<_>, _>>()?;
        let Some(info) = combined_info(path, &parts) else { return Err(StoreError::NotARun(path.to_owned())) };
        let ends = vec![None; parts.len()];
        Ok(Self { path: path.to_owned(), info, parts, ends, turn: 0, wakes, due: true })
    }

    /// Returns the contents of `run.json` when it was last read; for several builders, their combined contents.
    pub fn run_info(&self) -> &RunInfo {
        &self.info
    }

    /// Returns the next event. Waits for it no longer than `timeout`; with a zero timeout, looks and returns at once.
    ///
    /// # Errors
    /// If an event cannot be read, or a block of a run that has ended is damaged or missing: the next call continues
    /// after it. If a file cannot be read: the next call tries again.
    pub fn next_event(&mut self, timeout: Duration) -> Result<Followed, StoreError> {
        let deadline = Instant::now().checked_add(timeout);
        loop {
            // Before looking, so that a change after the look wakes us.
            self.due |= self.wakes.clear_wakeups();
            if self.due {
                self.add_new_parts()?;
            }
            if let Some(event) = self.next_available_event()? {
                return Ok(Followed::Event(event));
            }
            if let Some(end) = self.run_end() {
                return Ok(Followed::End(end));
            }
            // Looking at a directory is cheap; a server is not asked again before it is due.
            self.due = self.parts.iter().any(|part| matches!(part.run_files(), Files::Here(_)));
            if !self.sleep_until(deadline)? {
                return Ok(Followed::Quiet);
            }
        }
    }

    /// Skips the events that are closed already, without reading them: [`next_event`](Self::next_event) returns those that are
    /// closed from now on.
    ///
    /// # Errors
    /// As [`next_event`](Self::next_event), for blocks. Another call continues.
    pub fn skip_to_now(&mut self) -> Result<(), StoreError> {
        self.parts.iter_mut().try_for_each(FollowPart::skip_to_now)
    }

    /// Returns the next event of any of the parts.
    fn next_available_event(&mut self) -> Result<Option<Event>, StoreError> {
        for _ in 0..self.parts.len() {
            let turn = self.turn;
            if self.ends[turn].is_none() && (self.due || self.parts[turn].has_closed_events()) {
                match self.parts[turn].next_event()? {
                    Followed::Event(event) => return Ok(Some(event)),
                    Followed::End(end) => {
                        self.ends[turn] = Some(end);
                        self.update_info();
                    }
                    Followed::Quiet => {}
                }
            }
            self.turn = (turn + 1) % self.parts.len();
        }
        Ok(None)
    }

    /// Returns how the run ended, once all of its parts have ended.
    fn run_end(&self) -> Option<End> {
        let ends: Vec<End> = self.ends.iter().copied().collect::<Option<_>>()?;
        let is_gone = ends.contains(&End::WriterGone);
        Some(if is_gone { End::WriterGone } else { End::Finished })
    }

    /// Adds the directories of builders that did not exist before.
    fn add_new_parts(&mut self) -> Result<(), StoreError> {
        let builders = self.parts.first().map_or(1, |part| part.run_info().builders);
        let is_named = self.parts.first().is_some_and(|part| part.run_files().run_path() == self.path);
        if is_named || self.parts.len() as u64 >= u64::from(builders) {
            return Ok(());
        }
        for path in builder_directories(&self.path) {
            if !self.parts.iter().any(|part| part.run_files().run_path() == path) {
                self.parts.push(self.wakes.open_part(Files::in_directory(&path))?);
                self.ends.push(None);
                self.update_info();
            }
        }
        Ok(())
    }

    fn update_info(&mut self) {
        self.info = combined_info(&self.path, &self.parts).unwrap_or_else(|| self.info.clone());
    }

    /// Waits until something happens; returns false if the deadline comes first.
    fn sleep_until(&self, deadline: Option<Instant>) -> Result<bool, StoreError> {
        loop {
            let left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
            let timeout = left.and_then(|left| Timespec::try_from(left).ok());
            let mut fds = [PollFd::new(&self.wakes.any, PollFlags::IN)];
            match rustix::event::poll(&mut fds, timeout.as_ref()) {
                Ok(0) => return Ok(false),
                Ok(_) => return Ok(true),
                Err(Errno::INTR) => {}
                Err(error) => return Err(StoreError::errno_error("watching", &self.path)(error)),
            }
        }
    }
}

fn combined_info(path: &Path, parts: &[FollowPart]) -> Option<RunInfo> {
    match parts {
        [part] if part.run_files().run_path() == path => Some(part.run_info().clone()),
        parts => RunInfo::combine_parts(&parts.iter().map(FollowPart::run_info).collect::<Vec<_>>()),
    }
}

impl AsFd for Follow {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.wakes.any.as_fd()
    }
}

/// File descriptors that become readable when it is time to look again.
#[derive(Debug)]
struct WakeSources {
    /// Readable when one of the others is.
    any: OwnedFd,
    directories: OwnedFd,
    timer: OwnedFd,
}

impl WakeSources {
    fn new() -> Result<Self, Errno> {
        let directories = inotify::init(inotify::CreateFlags::CLOEXEC | inotify::CreateFlags::NONBLOCK)?;
        let timer = timerfd_create(TimerfdClockId::Monotonic, TimerfdFlags::CLOEXEC | TimerfdFlags::NONBLOCK)?;
        let interval = Timespec { tv_sec: 0, tv_nsec: CHECK_INTERVAL.subsec_nanos().into() };
        let every = Itimerspec { it_interval: interval, it_value: interval };
        timerfd_settime(&timer, TimerfdTimerFlags::empty(), &every)?;
        let any = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        for fd in [&directories, &timer] {
            epoll::add(&any, fd, epoll::EventData::new_u64(0), epoll::EventFlags::IN)?;
        }
        Ok(Self { any, directories, timer })
    }

    /// Watches the part that one builder writes.
    fn open_part(&self, files: Files) -> Result<FollowPart, StoreError> {
        if let Files::Here(directory) = &files {
            self.watch_directory(directory).map_err(|error| match error {
                Errno::NOENT | Errno::NOTDIR => StoreError::NotARun(directory.to_path_buf()),
                error => StoreError::errno_error("watching", directory)(error),
            })?;
        }
        FollowPart::open_files(files)
    }

    fn watch_directory(&self, directory: &Path) -> Result<(), Errno> {
        let events = inotify::WatchFlags::MODIFY
            | inotify::WatchFlags::CREATE
            | inotify::WatchFlags::MOVED_TO
            | inotify::WatchFlags::CLOSE_WRITE
            | inotify::WatchFlags::DELETE_SELF;
        inotify::add_watch(&self.directories, directory, events).map(drop)
    }

    /// Clears the wake-ups; returns whether there were any.
    fn clear_wakeups(&self) -> bool {
        let mut buffer = [0; 4096];
        let mut anything = false;
        for fd in [&self.directories, &self.timer] {
            while rustix::io::read(fd, &mut buffer).is_ok_and(|read| read > 0) {
                anything = true;
            }
        }
        anything
    }
}

/// Interval at which the writer's life, and files elsewhere, are checked.
const CHECK_INTERVAL: Duration = Duration::from_millis(500);
