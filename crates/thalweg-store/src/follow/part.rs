//! Reads the part of a run that one builder writes, while it is being written.

use super::{End, Followed};
use crate::event::{Assembler, Event, Located};
use crate::files::Files;
use crate::format::{Closing, EventStatus, FormatError};
use crate::part::{check_one_of_each, read_trusted_footer};
use crate::segment::segment_file_name;
use crate::walk::{Depth, Expected, Step, Walk};
use crate::{RunInfo, RunState, StoreError, WriterLife};
use std::collections::VecDeque;
use std::io;
use std::sync::Arc;
use thalweg_wire::EventId;

/// The events that one builder closes, in the order in which it closes them.
#[derive(Debug)]
pub(super) struct FollowPart {
    files: Files,
    info: RunInfo,
    segment: u32,
    walk: Option<Walk>,
    /// Number of the next block.
    block: u64,
    assembler: Assembler,
    closed: VecDeque<Closing>,
    /// Set once no writer is left: no more data will be added.
    over: Option<End>,
    /// Set once the end was returned, or an error after which nothing can follow.
    done: bool,
}

impl FollowPart {
    pub(super) fn open_files(files: Files) -> Result<Self, StoreError> {
        let info = files.read_run_info()?;
        Ok(Self {
            files,
            info,
            segment: 0,
            walk: None,
            block: 0,
            assembler: Assembler::default(),
            closed: VecDeque::new(),
            over: None,
            done: false,
        })
    }

    /// Returns the contents of `run.json` when it was last read.
    pub(super) fn run_info(&self) -> &RunInfo {
        &self.info
    }

    /// Returns the next event, if there is one by now.
    ///
    /// # Errors
    /// As [`Follow::next_event`](super::Follow::next_event).
    pub(super) fn next_event(&mut self) -> Result<Followed, StoreError> {
        loop {
            if let Some((event, status)) = self.take_closed_event() {
                return self.assemble_event(event, status).map(Followed::Event);
            }
            if self.done {
                return Ok(Followed::End(self.over.unwrap_or(End::Finished)));
            }
            if self.read_next_block()? {
                continue;
            }
            if let Some(end) = self.over {
                self.done = true;
                let blocks = self.info.totals.blocks.saturating_sub(self.block);
                if end == End::Finished && blocks > 0 {
                    return Err(StoreError::Missing { path: self.files.run_path().to_owned(), blocks });
                }
                return Ok(Followed::End(end));
            }
            // Once the run has ended, data added in the meantime is read; after that there is nothing more.
            self.over = self.check_for_end()?;
            if self.over.is_none() {
                return Ok(Followed::Quiet);
            }
        }
    }

    /// Returns whether the next event is available without looking at the files.
    pub(super) fn has_closed_events(&self) -> bool {
        !self.closed.is_empty()
    }

    /// Returns its files, wherever they are.
    pub(super) fn run_files(&self) -> &Files {
        &self.files
    }

    /// Skips the events that are closed already, without reading them.
    pub(super) fn skip_to_now(&mut self) -> Result<(), StoreError> {
        // A writer may be faster than the reader: events added meanwhile are not skipped.
        let end = match self.files.list_segments()?.last() {
            Some((last, length)) => {
                let file = self.files.open_segment(*last, *length)?;
                (*last, file.length_bytes().map_err(StoreError::io_error("reading", file.file_path()))?)
            }
            None => (0, 0),
        };
        loop {
            // Also the events of a block that was added before.
            while let Some((event, _)) = self.take_closed_event() {
                self.assembler.take_fragments(event);
            }
            let is_past_end = (self.segment, self.walk.as_ref().map_or(0, Walk::next_offset)) >= end;
            if is_past_end || !self.read_next_block()? {
                return Ok(());
            }
        }
    }

    /// Adds the next block; returns false if there is none yet.
    fn read_next_block(&mut self) -> Result<bool, StoreError> {
        let walk = match &mut self.walk {
            Some(walk) => walk,
            None => {
                let file = match self.files.open_segment(self.segment, 0) {
                    Err(error) if is_not_found(&error) => return self.skip_segment(),
                    Err(StoreError::NotAFile(_)) if self.over.is_none() => return Ok(false),
                    Err(error @ StoreError::NotAFile(_)) => {
                        self.segment = self.segment.saturating_add(1);
                        return Err(error);
                    }
                    file => Arc::new(file?),
                };
                self.walk.insert(Walk::open_segment(file, &self.info, Depth::Whole)?)
            }
        };
        let expected = Expected { run: self.info.run, builder: self.info.builder, block: self.block };
        let at = walk.next_offset();
        let step = match walk.next_block(expected) {
            // For files elsewhere, the first read reports that a segment does not exist yet.
            Err(error) if is_not_found(&error) => return self.skip_segment(),
            step => step?,
        };
        match step {
            Step::Block(place) => {
                self.block += 1;
                let place = Arc::new(place);
                self.assembler.add_block(&place);
                for closing in place.closing_entries() {
                    self.closed.push_back(closing.map_err(|error| place.format_error(error))?);
                }
                Ok(true)
            }
            Step::Footer(footer) => {
                // The footer also has the closings of missing blocks; all other events were returned already.
                for closing in footer.closings {
                    let left = self.assembler.events_of_closing(&closing).into_iter();
                    self.closed.extend(left.map(|first| Closing { first, count: 1, ..closing }));
                }
                self.walk = None;
                self.segment += 1;
                Ok(true)
            }
            // Any part of a block that is being written may be present.
            Step::Stop(error) => match self.over {
                None => Ok(false),
                Some(End::WriterGone) => self.continue_after_writer_died(at, error),
                Some(End::Finished) => self.continue_after_gap(at, error),
            },
        }
    }

    /// Continues after a missing segment of a finished run, if there are later ones; returns false if none is to be
    /// expected.
    fn skip_segment(&mut self) -> Result<bool, StoreError> {
        let is_over = self.over == Some(End::Finished);
        let next = if is_over { self.segment_numbers()?.find(|number| *number > self.segment) } else { None };
        self.walk = None;
        self.segment = next.unwrap_or(self.segment);
        Ok(next.is_some())
    }

    /// Continues after the writer died: after a damaged block of a segment that was closed, and with the next segment
    /// if no block is missing in between.
    fn continue_after_writer_died(&mut self, offset: u64, error: FormatError) -> Result<bool, StoreError> {
        let file = self.files.open_segment(self.segment, 0)?;
        let footer =
            read_trusted_footer(&file, &self.info).map_err(StoreError::io_error("reading", file.file_path()))?;
        if footer.is_some_and(|(first, footer)| (first..footer.next_block).contains(&self.block)) {
            return self.continue_after_gap(offset, error);
        }
        let Some(next) = self.segment_numbers()?.find(|number| *number == self.segment + 1) else { return Ok(false) };
        let is_end = matches!(error, FormatError::Blank | FormatError::Short(0));
        let goes_on = is_end || {
            let file = self.files.open_segment(next, 0)?;
            file.begins_with_block(self.expected_block()).map_err(StoreError::io_error("reading", file.file_path()))?
        };
        if goes_on {
            self.walk = None;
            self.segment = next;
        }
        Ok(goes_on)
    }

    /// Continues after a position in a finished run where there is no block, as [`Part`](crate::Part) does. Missing
    /// blocks are reported as an error, once.
    fn continue_after_gap(&mut self, offset: u64, error: FormatError) -> Result<bool, StoreError> {
        let is_end = matches!(error, FormatError::Blank | FormatError::Short(0));
        let path = self.files.run_path().join(segment_file_name(self.segment));
        let expected = self.expected_block();
        if let Some(number) = self.walk.as_mut().map_or(Ok(None), |walk| walk.skip_to_next_block(expected))? {
            self.block = number;
            return Err(StoreError::Format { path, offset, error });
        }
        self.walk = None;
        let next = self.segment_numbers()?.find(|number| *number > self.segment);
        self.segment = next.unwrap_or(self.segment.saturating_add(1));
        // Blocks missing at the end are reported at the end. A footer that the writer could not write is not reported.
        let is_reported_later = next.is_none() && self.info.totals.blocks > self.block;
        match is_reported_later || is_end && self.info.state == RunState::Incomplete {
            true => Ok(true),
            false => Err(StoreError::Format { path, offset, error }),
        }
    }

    fn expected_block(&self) -> Expected {
        Expected { run: self.info.run, builder: self.info.builder, block: self.block }
    }

    /// Returns the numbers of the segments, in ascending order.
    fn segment_numbers(&self) -> Result<impl Iterator<Item = u32> + use<>, StoreError> {
        Ok(self.files.list_segments()?.into_iter().map(|(number, _)| number))
    }

    fn take_closed_event(&mut self) -> Option<(EventId, EventStatus)> {
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

    fn assemble_event(&mut self, id: EventId, status: EventStatus) -> Result<Event, StoreError> {
        let located = self.assembler.take_fragments(id);
        let fragments = located.iter().map(Located::read_fragment).collect::<Result<Vec<_>, _>>()?;
        check_one_of_each(&fragments, &self.info.source_ids(), id, self.files.run_path())?;
        Ok(Event { id, status, fragments })
    }

    /// Returns how the run has ended, in which case everything has to be looked at once more; `None` if it has not.
    fn check_for_end(&mut self) -> Result<Option<End>, StoreError> {
        // The lock is checked before the state: a writer that finishes in between is not taken for one that died.
        let life = self.files.writer_life();
        self.info = self.files.read_run_info()?;
        Ok(match (self.info.state, life) {
            (RunState::Open, WriterLife::Gone) => Some(End::WriterGone),
            (RunState::Open, _) => None,
            _ => Some(End::Finished),
        })
    }
}

fn is_not_found(error: &StoreError) -> bool {
    matches!(error, StoreError::Io { error, .. } if error.kind() == io::ErrorKind::NotFound)
}
