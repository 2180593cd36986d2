//! Reads a run while it is being written.

use crate::event::{Assembler, Event, Fragment, Located};
use crate::files::{Files, RunFiles};
use crate::format::{Closing, EventStatus, FormatError};
use crate::run::{one_of_each, trusted_footer};
use crate::segment::segment_name;
use crate::walk::{Depth, Expected, Step, Walk};
use crate::{RunInfo, RunState, StoreError, WriterLife};
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::fs::inotify;
use rustix::io::Errno;
use rustix::time::{Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, timerfd_create, timerfd_settime};
use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};
use thalweg_wire::EventId;

/// The events of a run, each as soon as the block that closes it is on disk, in the order in which they were closed.
///
/// Its file descriptor ([`AsFd`]) is readable when something happened in the run's directory. Where that is elsewhere
/// nobody tells, so it is looked at twice a second.
#[derive(Debug)]
pub struct Follow {
    files: Files,
    info: RunInfo,
    watch: OwnedFd,
    /// Whether something may have come since it was last looked.
    due: bool,
    segment: u32,
    walk: Option<Walk>,
    /// The next block's number.
    block: u64,
    assembler: Assembler,
    closed: VecDeque<Closing>,
    /// Set once nobody writes any more: what is there is all there will be.
    over: Option<End>,
    /// Set once the end was told, or an error that nothing can follow.
    done: bool,
}

/// What following a run gives.
#[derive(Debug)]
pub enum Followed {
    /// A closed event.
    Event(Event),
    /// Nothing new came in the time given.
    Quiet,
    /// Every event was delivered, and none will follow.
    End(End),
}

/// How a run that was followed ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum End {
    /// Its writer finished it.
    Finished,
    /// Its writer died, and left it open.
    WriterGone,
}

impl Follow {
    /// Follows the run in this directory, or the one that `path` lies in, from its first event on.
    ///
    /// # Errors
    /// Where there is no run, its `run.json` cannot be read, or the kernel cannot watch the directory.
    pub fn open(path: impl AsRef<Path>) -> Result<Self, StoreError> {
        Self::read(Files::here(path.as_ref()))
    }

    /// Follows a run whose files are elsewhere. That its writer died it cannot know: such a run stays quiet.
    ///
    /// # Errors
    /// As [`open`](Self::open).
    pub fn open_at(files: Arc<dyn RunFiles>) -> Result<Self, StoreError> {
        Self::read(Files::Elsewhere(files))
    }

    pub(crate) fn read(files: Files) -> Result<Self, StoreError> {
        let watch = watch(&files).map_err(|error| match error {
            Errno::NOENT | Errno::NOTDIR => StoreError::NotARun(files.path().to_owned()),
            error => StoreError::os("watching", files.path())(error),
        })?;
        let info = files.info()?;
        Ok(Self {
            files,
            info,
            watch,
            due: true,
            segment: 0,
            walk: None,
            block: 0,
            assembler: Assembler::default(),
            closed: VecDeque::new(),
            over: None,
            done: false,
        })
    }

    /// What `run.json` said when it was last read.
    pub fn info(&self) -> &RunInfo {
        &self.info
    }

    /// The next event. Waits for it no longer than `timeout`; with none of it, looks and returns at once.
    ///
    /// # Errors
    /// Where an event cannot be read, or a block of a run that is over is damaged or missing: the next call goes on
    /// behind it. Where a file cannot be read: the next call tries again.
    pub fn next(&mut self, timeout: Duration) -> Result<Followed, StoreError> {
        let deadline = Instant::now().checked_add(timeout);
        loop {
            if let Some((event, status)) = self.take_closed() {
                return self.assemble(event, status).map(Followed::Event);
            }
            if self.done {
                return Ok(Followed::End(self.over.unwrap_or(End::Finished)));
            }
            // Before looking, so that what happens after the look wakes us.
            self.due |= self.drain_watch();
            if self.due && self.advance()? {
                continue;
            }
            if let Some(end) = self.over {
                self.done = true;
                let blocks = self.info.totals.blocks.saturating_sub(self.block);
                if end == End::Finished && blocks > 0 {
                    return Err(StoreError::Missing { path: self.files.path().to_owned(), blocks });
                }
                return Ok(Followed::End(end));
            }
            if self.due {
                self.over = self.look_for_end()?;
                // A look at a directory costs next to nothing; a server is not asked again before it is time.
                self.due = self.over.is_some() || matches!(self.files, Files::Here(_));
            }
            if self.over.is_none() && !self.sleep_until(deadline)? {
                return Ok(Followed::Quiet);
            }
        }
    }

    /// Skips the events that are closed already, without reading them: [`next`](Self::next) gives those that are closed
    /// from now on.
    ///
    /// # Errors
    /// As [`next`](Self::next), for blocks. Another call goes on.
    pub fn skip_to_now(&mut self) -> Result<(), StoreError> {
        loop {
            // Also those of a block that was taken in before.
            while let Some((event, _)) = self.take_closed() {
                self.assembler.close(event);
            }
            if !self.advance()? {
                return Ok(());
            }
        }
    }

    /// Takes in the next block; false where there is none yet.
    fn advance(&mut self) -> Result<bool, StoreError> {
        let walk = match &mut self.walk {
            Some(walk) => walk,
            None => {
                let file = match self.files.segment(self.segment, 0) {
                    Err(error) if is_not_there(&error) => return self.skip_segment(),
                    Err(StoreError::NotAFile(_)) if self.over.is_none() => return Ok(false),
                    Err(error @ StoreError::NotAFile(_)) => {
                        self.segment = self.segment.saturating_add(1);
                        return Err(error);
                    }
                    file => Arc::new(file?),
                };
                self.walk.insert(Walk::open(file, &self.info, Depth::Whole)?)
            }
        };
        let expected = Expected { run: self.info.run, builder: self.info.builder, block: self.block };
        let at = walk.at();
        let step = match walk.step(expected) {
            // Elsewhere, the first read tells that a segment is not there yet.
            Err(error) if is_not_there(&error) => return self.skip_segment(),
            step => step?,
        };
        match step {
            Step::Block(place) => {
                self.block += 1;
                let place = Arc::new(place);
                self.assembler.add(&place);
                for closing in place.closings() {
                    self.closed.push_back(closing.map_err(|error| place.error(error))?);
                }
                Ok(true)
            }
            Step::Footer(footer) => {
                // What was closed by a block that is missing, it knows; all else was given out already.
                for closing in footer.closings {
                    let left = self.assembler.of(&closing).into_iter();
                    self.closed.extend(left.map(|first| Closing { first, count: 1, ..closing }));
                }
                self.walk = None;
                self.segment += 1;
                Ok(true)
            }
            // Of a block that is being written any part may be there.
            Step::Stop(error) => match self.over {
                None => Ok(false),
                Some(End::WriterGone) => self.pass(at, error),
                Some(End::Finished) => self.pass_by(at, error),
            },
        }
    }

    /// Goes on behind a segment of a finished run that is not there, if there are others; false where none is to be
    /// expected.
    fn skip_segment(&mut self) -> Result<bool, StoreError> {
        let is_over = self.over == Some(End::Finished);
        let next = if is_over { self.segments()?.find(|number| *number > self.segment) } else { None };
        self.walk = None;
        self.segment = next.unwrap_or(self.segment);
        Ok(next.is_some())
    }

    /// Goes on where the writer died: behind a damaged block of a segment that was closed, and to the next segment if
    /// no block is missing in between.
    fn pass(&mut self, offset: u64, error: FormatError) -> Result<bool, StoreError> {
        let file = self.files.segment(self.segment, 0)?;
        let footer = trusted_footer(&file, &self.info).map_err(StoreError::io("reading", file.path()))?;
        if footer.is_some_and(|(first, footer)| (first..footer.next_block).contains(&self.block)) {
            return self.pass_by(offset, error);
        }
        let Some(next) = self.segments()?.find(|number| *number == self.segment + 1) else { return Ok(false) };
        let is_end = matches!(error, FormatError::Blank | FormatError::Short(0));
        let goes_on = is_end || {
            let file = self.files.segment(next, 0)?;
            file.begins_with(self.expected()).map_err(StoreError::io("reading", file.path()))?
        };
        if goes_on {
            self.walk = None;
            self.segment = next;
        }
        Ok(goes_on)
    }

    /// Goes on behind a place in a finished run where no block is, as [`Run`](crate::Run) does. That blocks are missing
    /// is an error, once.
    fn pass_by(&mut self, offset: u64, error: FormatError) -> Result<bool, StoreError> {
        let is_end = matches!(error, FormatError::Blank | FormatError::Short(0));
        let path = self.files.path().join(segment_name(self.segment));
        let expected = self.expected();
        if let Some(number) = self.walk.as_mut().map_or(Ok(None), |walk| walk.skip(expected))? {
            self.block = number;
            return Err(StoreError::Format { path, offset, error });
        }
        self.walk = None;
        let next = self.segments()?.find(|number| *number > self.segment);
        self.segment = next.unwrap_or(self.segment.saturating_add(1));
        // What is missing at the end is told there. A footer that the writer could not write is not missed.
        let told_later = next.is_none() && self.info.totals.blocks > self.block;
        match told_later || is_end && self.info.state == RunState::Incomplete {
            true => Ok(true),
            false => Err(StoreError::Format { path, offset, error }),
        }
    }

    fn expected(&self) -> Expected {
        Expected { run: self.info.run, builder: self.info.builder, block: self.block }
    }

    /// The numbers of the segments, in ascending order.
    fn segments(&self) -> Result<impl Iterator<Item = u32> + use<>, StoreError> {
        Ok(self.files.segments()?.into_iter().map(|(number, _)| number))
    }

    fn take_closed(&mut self) -> Option<(EventId, EventStatus)> {
        let closing = self.closed.front_mut()?;
        let taken = (closing.first, closing.status);
        if closing.count <= 1 {
            self.closed.pop_front();
        } else {
            closing.first = EventId(closing.first.0 + closing.stride);
            closing.count -= 1;
        }
        Some(taken)
    }

    fn assemble(&mut self, id: EventId, status: EventStatus) -> Result<Event, StoreError> {
        let located = self.assembler.close(id);
        let find = |located: &Located| Fragment::find(&located.block, &located.entry);
        let fragments = located.iter().map(find).collect::<Result<Vec<_>, _>>()?;
        one_of_each(&fragments, &self.info.source_ids(), id, self.files.path())?;
        Ok(Event { id, status, fragments })
    }

    /// Whether the run has ended, in which case everything has to be looked at once more.
    fn look_for_end(&mut self) -> Result<Option<End>, StoreError> {
        // The lock before the state: a writer that finishes in between is not taken for one that died.
        let life = self.files.writer();
        self.info = self.files.info()?;
        Ok(match (self.info.state, life) {
            (RunState::Open, WriterLife::Gone) => Some(End::WriterGone),
            (RunState::Open, _) => None,
            _ => Some(End::Finished),
        })
    }

    /// Waits until something happens in the directory; false where the deadline comes first.
    fn sleep_until(&self, deadline: Option<Instant>) -> Result<bool, StoreError> {
        loop {
            let left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
            let timeout = left.and_then(|left| Timespec::try_from(left).ok());
            let mut fds = [PollFd::new(&self.watch, PollFlags::IN)];
            match rustix::event::poll(&mut fds, timeout.as_ref()) {
                Ok(0) => return Ok(false),
                Ok(_) => return Ok(true),
                Err(Errno::INTR) => {}
                Err(error) => return Err(StoreError::os("watching", self.files.path())(error)),
            }
        }
    }

    /// Forgets what woke us; whether there was anything.
    fn drain_watch(&self) -> bool {
        let mut buffer = [0; 4096];
        let mut anything = false;
        while rustix::io::read(&self.watch, &mut buffer).is_ok_and(|read| read > 0) {
            anything = true;
        }
        anything
    }
}

impl AsFd for Follow {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.watch.as_fd()
    }
}

/// What is readable when it is time to look at the files again.
fn watch(files: &Files) -> Result<OwnedFd, Errno> {
    match files {
        Files::Here(directory) => {
            let watch = inotify::init(inotify::CreateFlags::CLOEXEC | inotify::CreateFlags::NONBLOCK)?;
            let events = inotify::WatchFlags::MODIFY
                | inotify::WatchFlags::CREATE
                | inotify::WatchFlags::MOVED_TO
                | inotify::WatchFlags::CLOSE_WRITE
                | inotify::WatchFlags::DELETE_SELF;
            inotify::add_watch(&watch, &**directory, events)?;
            Ok(watch)
        }
        Files::Elsewhere(_) => {
            let flags = TimerfdFlags::CLOEXEC | TimerfdFlags::NONBLOCK;
            let watch = timerfd_create(TimerfdClockId::Monotonic, flags)?;
            let interval = Timespec { tv_sec: 0, tv_nsec: LOOK_AGAIN.subsec_nanos().into() };
            let every = Itimerspec { it_interval: interval, it_value: interval };
            timerfd_settime(&watch, TimerfdTimerFlags::empty(), &every)?;
            Ok(watch)
        }
    }
}

fn is_not_there(error: &StoreError) -> bool {
    matches!(error, StoreError::Io { error, .. } if error.kind() == io::ErrorKind::NotFound)
}

/// How often files elsewhere are looked at.
const LOOK_AGAIN: Duration = Duration::from_millis(500);
