//! Assembly of events: slots are fetched into places, and closed events go to the recorder.

use super::peers::Peers;
use super::setup::Setup;
use super::stall::Stall;
use super::time_use::Awaited;
use super::trigger::Trigger;
use super::{PROGRAM_TOKEN, RECORDER_TOKEN};
use crate::blocks::{Blocks, BlocksOutcome, DISK_TIME};
use crate::sample::Samples;
use crate::{IncompleteEvent, Levels, NodeError, TriggerReport};
use std::collections::VecDeque;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::Duration;
use thalweg_arena::{Arena, BlockPool, Span};
use thalweg_core::build::{Builder, Closed, Fetch};
use thalweg_link::{Bytes, Interest, LinkError, Poller};
use thalweg_store::{Recorder, RecorderConfig};
use thalweg_wire::{Announcement, EventId, TaiNanos};

/// Memory in which events take shape: the blocks that go to disk, the trigger levels that hold fragments back from
/// them, and the stalls while neither has room.
#[derive(Debug)]
pub(super) struct Assembly {
    blocks: Blocks,
    /// Trigger levels, where fragments wait for a decision; `None` if there are none.
    trigger: Option<Trigger>,
    /// Arena in which the blocks lie.
    memory: Arc<Arena>,
    stall: Stall,
    /// True if this builder keeps its sources from going on, because the disk has the blocks.
    holds_sources_up: bool,
    records: bool,
    /// Time after which a block that is not full goes to disk.
    flush: Duration,
    /// Dates at which the first complete event of the run was closed, and the last event.
    event_dates: [Option<TaiNanos>; 2],
    /// Copies of fragments, for those who watch the run.
    samples: Samples,
    /// Latest events that were closed incomplete.
    incomplete_events: VecDeque<IncompleteEvent>,
}

/// Number of incomplete events that are kept for snapshots.
const MAX_INCOMPLETE_EVENTS: usize = 16;
/// Number of sources that are named for each of them.
const MAX_MISSING_SOURCES: usize = 64;

/// Time of a turn, and the date.
#[derive(Debug, Clone, Copy)]
pub(super) struct Moment {
    pub(super) now: Duration,
    pub(super) date: TaiNanos,
}

/// Result of an attempt to fetch.
#[derive(Debug)]
enum Fetched {
    /// Something was requested, and more may be.
    Some,
    /// There is no room, or nothing to request.
    Nothing,
    /// The connection to the source is to be closed.
    Failed(LinkError),
}

/// Error: there is no place for a slot.
#[derive(Debug)]
struct NoPlace;

impl Assembly {
    /// Creates the assembly of a builder with these blocks and trigger levels.
    pub(super) fn new(setup: &Setup, pool: BlockPool, stride: u32, trigger: Option<Trigger>) -> Self {
        Self {
            memory: Arc::clone(pool.arena()),
            blocks: Blocks::new(pool, stride, setup.ids.len()),
            trigger,
            stall: Stall::default(),
            holds_sources_up: false,
            records: setup.run.record,
            flush: setup.config.flush,
            event_dates: [None; 2],
            samples: Samples::new(setup.ids.len()),
            incomplete_events: VecDeque::new(),
        }
    }

    /// Creates what the trigger levels need, once the sources are known and before there is a run on disk.
    pub(super) fn prepare_trigger(&mut self, setup: &Setup, peers: &mut Peers) -> Result<(), NodeError> {
        let Some(trigger) = &mut self.trigger else { return Ok(()) };
        trigger.prepare_levels(setup, peers)?;
        trigger.allocate_places(&setup.config, peers)?;
        Ok(trigger.places_arena().map_or(Ok(()), |places| peers.register_memory(places))?)
    }

    /// Creates a run's directory and its recorder, which the poller then watches.
    pub(super) fn create_recorder(&mut self, config: RecorderConfig, poller: &Poller) -> Result<Recorder, NodeError> {
        let recorder = Recorder::create_run(config, self.blocks.block_pool_mut())?;
        poller.add_descriptor(recorder.as_fd(), RECORDER_TOKEN, Interest::READ)?;
        Ok(recorder)
    }

    /// Records into the run of a recorder.
    pub(super) fn start_recording(&mut self, recorder: Recorder) {
        self.blocks.start_recording(recorder);
    }

    /// Sends on everything that is built, of which there will be no more in this run. Returns true once the disk has all
    /// of it, so that [`begin_next_run`](Self::begin_next_run) may be called.
    pub(super) fn send_rest(&mut self, moment: Moment) -> bool {
        self.blocks.send_on(moment.date, moment.now, Duration::ZERO, true);
        self.trigger.as_ref().is_none_or(Trigger::is_idle)
            && !self.blocks.has_waiting_closings()
            && !self.blocks.has_unsent_blocks()
    }

    /// Records into the run of `next` from now on, if runs are recorded; counts begin anew.
    pub(super) fn begin_next_run(&mut self, next: Option<Recorder>, now: Duration) {
        self.blocks.begin_next_run(next);
        self.stall.begin_next_run(now);
        self.event_dates = [None; 2];
        if let Some(trigger) = &mut self.trigger {
            trigger.begin_next_run();
        }
    }

    /// Returns the outcome of the blocks of the run before, once its files are closed.
    pub(super) fn take_retired_outcome(&mut self) -> Option<BlocksOutcome> {
        self.blocks.take_retired_outcome()
    }

    /// Gives up the disk of the run before, which does not answer. Returns the fragments known not to be on disk.
    pub(super) fn give_up_retired(&mut self) -> Vec<u64> {
        self.blocks.give_up_retired()
    }

    /// Adds the descriptors of the recorder and of the programs that decide to a poller.
    pub(super) fn watch_descriptors(&self, poller: &Poller) -> Result<(), LinkError> {
        for recorder in self.blocks.recorders() {
            poller.add_descriptor(recorder.as_fd(), RECORDER_TOKEN, Interest::READ)?;
        }
        let mut programs = self.trigger.iter().flat_map(Trigger::program_descriptors);
        programs.try_for_each(|program| poller.add_descriptor(program, PROGRAM_TOKEN, Interest::READ))
    }

    /// Fetches as much as there is room for, writes closed events down, and sends full blocks on. Returns early, and is
    /// to be called again, if the connection to a source is to be closed.
    pub(super) fn build(
        &mut self,
        builder: &mut Builder,
        peers: &mut Peers,
        setup: &Setup,
        moment: Moment,
    ) -> Option<(usize, LinkError)> {
        let Moment { now, date } = moment;
        loop {
            if let Some(trigger) = &mut self.trigger {
                trigger.apply_decisions(builder, now);
            }
            let has_room = self.write_closed_events(builder, setup, moment);
            self.blocks.send_on(date, now, self.flush, false);
            let Some(fetch) = builder.next_fetch(now) else {
                // No block is waited for any more: the source that was to be asked may be gone.
                if has_room {
                    self.end_stall(builder, now);
                }
                break;
            };
            let source = fetch.source;
            match self.carry_out_fetch(fetch, builder, peers, now) {
                Fetched::Some => {}
                Fetched::Nothing => break,
                Fetched::Failed(error) => return Some((peers.connection_number(source)?, error)),
            }
        }
        let is_full = self.trigger.as_ref().is_some_and(Trigger::is_filter_full);
        if self.stall.set_filter_full(is_full) {
            self.adjust_deadlines(builder, now);
        }
        None
    }

    /// Writes closed events down, as far as there are blocks for them. The rest stays with the event builder, which
    /// opens no more events while too many closed ones wait. Returns false if no block was free for events that a level
    /// accepted.
    fn write_closed_events(&mut self, builder: &mut Builder, setup: &Setup, moment: Moment) -> bool {
        let Moment { now, date } = moment;
        loop {
            self.blocks.write_closings(&setup.ids, date, now);
            if self.blocks.has_waiting_closings() {
                return true;
            }
            let Some(trigger) = &mut self.trigger else {
                let Some(closed) = builder.next_closed() else { return true };
                note_event_dates(&mut self.event_dates, &closed, date);
                note_incomplete(&mut self.incomplete_events, &closed);
                self.blocks.queue_closings(closed);
                continue;
            };
            let takes_more = trigger.pass_filter(builder, now);
            if trigger.has_accepted() {
                if !trigger.copy_accepted_event(&mut self.blocks, &setup.ids, now) {
                    self.begin_stall(builder, now);
                    return false;
                }
                self.end_stall(builder, now);
                continue;
            }
            let Some(closed) = takes_more.then(|| builder.next_closed()).flatten() else { return true };
            note_event_dates(&mut self.event_dates, &closed, date);
            note_incomplete(&mut self.incomplete_events, &closed);
            trigger.queue_for_filter(closed);
        }
    }

    /// Carries out a fetch, if there is a place for its slot.
    fn carry_out_fetch(&mut self, fetch: Fetch, builder: &mut Builder, peers: &mut Peers, now: Duration) -> Fetched {
        let Fetch { source, offer, .. } = &fetch;
        if fetch.range.start > 0 {
            peers.extend_fetch(&fetch, begins_to_owe(&fetch, builder), now);
            return Fetched::Some;
        }
        if peers.connection_number(*source).is_none() {
            builder.cancel_fetch(*source, offer.ticket);
            return Fetched::Nothing;
        }
        let is_oldest = offer.first <= builder.oldest_event();
        let Ok(place) = self.reserve_place(offer, peers.source_link_maps(*source), is_oldest, now) else {
            return self.fetch_without_place(&fetch, builder, peers, now);
        };
        if self.trigger.is_none() {
            self.end_stall(builder, now);
        }
        // The bytes that sources of this machine owe are not counted.
        let begins_to_owe = builder.fetch_count(*source) == 1 || begins_to_owe(&fetch, builder);
        match peers.begin_fetch(&fetch, place, begins_to_owe, now) {
            Ok(None) => Fetched::Some,
            Ok(Some(bytes)) => {
                self.take_slot(builder, *source, offer.ticket, bytes).map_or_else(Fetched::Failed, |()| Fetched::Some)
            }
            Err(error) => Fetched::Failed(error),
        }
    }

    /// Reserves a place for a slot; `None` if its bytes are used where the source has them.
    fn reserve_place(
        &mut self,
        offer: &Announcement,
        is_mapped: bool,
        is_oldest: bool,
        now: Duration,
    ) -> Result<Option<Span>, NoPlace> {
        let place = match &mut self.trigger {
            Some(_) if is_mapped => return Ok(None),
            Some(trigger) => trigger.reserve_place(offer, is_oldest),
            None if is_mapped && !self.records => return Ok(None),
            None => self.blocks.reserve(offer.bytes as usize, offer.count, now),
        };
        place.map(Some).ok_or(NoPlace)
    }

    /// Takes back a fetch for which there is no place, and continues another one: a place that is not full yet may be
    /// what keeps its block.
    fn fetch_without_place(
        &mut self,
        fetch: &Fetch,
        builder: &mut Builder,
        peers: &mut Peers,
        now: Duration,
    ) -> Fetched {
        if builder.cancel_fetch(fetch.source, fetch.offer.ticket) {
            return Fetched::Some;
        }
        // With trigger levels, the fetch waits for decisions, which may have to wait for a deadline.
        if self.trigger.is_none() {
            self.begin_stall(builder, now);
        }
        let Some(more) = builder.next_piece(now) else { return Fetched::Nothing };
        peers.extend_fetch(&more, begins_to_owe(&more, builder), now);
        Fetched::Some
    }

    /// Takes the bytes of a ticket.
    ///
    /// # Errors
    /// The source was not allowed to send them.
    pub(super) fn take_slot(
        &mut self,
        builder: &mut Builder,
        source: usize,
        ticket: u64,
        bytes: Bytes,
    ) -> Result<(), LinkError> {
        self.samples.copy_if_wanted(source, builder.config().sources[source].0, &bytes);
        let (in_pieces, result) = match (&mut self.trigger, bytes) {
            (Some(trigger), bytes) => trigger.take_slot(builder, source, ticket, bytes),
            (None, bytes @ Bytes::View(_)) => (false, builder.arrived(source, ticket, &bytes).finish()),
            (None, Bytes::Place(span)) => {
                let Some(mut place) = self.blocks.filled_place_for(&span) else { return Ok(()) };
                let mut in_pieces = false;
                let mut arrival = builder.arrived(source, ticket, &span[..]);
                for (offset, header) in &mut arrival {
                    if header.is_whole_fragment() {
                        place.enter_record(header.event, header.source, offset);
                    } else {
                        in_pieces = true;
                    }
                }
                (in_pieces, arrival.finish())
            }
        };
        result.map_err(|violation| LinkError::Protocol(violation.to_string()))?;
        // A run has one record for each fragment.
        if in_pieces && self.records {
            return Err(LinkError::Protocol("sent a fragment in pieces that cannot be recorded".into()));
        }
        Ok(())
    }

    /// Returns the copies of fragments for those who watch the run.
    pub(super) fn samples_mut(&mut self) -> &mut Samples {
        &mut self.samples
    }

    /// Returns the latest events that were closed incomplete, the oldest first.
    pub(super) fn incomplete_events(&self) -> Vec<IncompleteEvent> {
        self.incomplete_events.iter().cloned().collect()
    }

    /// Keeps slots from being released that hold fragments of events being decided on, or accepted: they may lie in the
    /// source's own memory until they are copied.
    pub(super) fn hold_slots(&self, builder: &mut Builder) {
        if let Some(trigger) = &self.trigger {
            builder.hold_back_from(trigger.oldest_held());
        }
    }

    /// Returns whether releases may wait for a fetch with which they can be sent.
    pub(super) fn may_release_later(&self) -> bool {
        self.trigger.is_none()
    }

    fn begin_stall(&mut self, builder: &mut Builder, now: Duration) {
        self.stall.begin_stall(self.blocks.disk_has_blocks(), now);
        self.adjust_deadlines(builder, now);
    }

    fn end_stall(&mut self, builder: &mut Builder, now: Duration) {
        if self.stall.end_stall(now) {
            self.adjust_deadlines(builder, now);
        }
    }

    /// Stops deadlines of sources while run control wants them to accept nothing.
    pub(super) fn hold_sources(&mut self, are_held: bool, builder: &mut Builder, now: Duration) {
        self.stall.set_sources_held(are_held);
        self.adjust_deadlines(builder, now);
    }

    /// Stops deadlines while this builder is what keeps sources from going on.
    fn adjust_deadlines(&mut self, builder: &mut Builder, now: Duration) {
        builder.set_stalled(self.stall.stops_deadlines(), now);
        // While blocks wait for sources, no source may make a run last longer than `run.timeout`.
        self.holds_sources_up =
            self.stall.has_no_block() && self.blocks.disk_has_blocks() && self.blocks.disk_failure().is_none();
    }

    /// Returns whether this builder keeps its sources from going on, because the disk has the blocks.
    pub(super) fn holds_sources_up(&self) -> bool {
        self.holds_sources_up
    }

    /// Receives answers of the programs that decide, and applies their deadlines.
    pub(super) fn check_programs(&mut self, now: Duration) {
        if let Some(trigger) = &mut self.trigger {
            trigger.check_programs(now);
        }
    }

    /// Takes back blocks that the disk has written.
    pub(super) fn check_disk(&mut self, now: Duration) {
        self.blocks.check_disk(now, self.flush);
    }

    /// Ends the run before the event `end`.
    pub(super) fn end_before_event(&mut self, end: EventId) {
        if let Some(trigger) = &mut self.trigger {
            trigger.drop_beyond_end(end);
        }
    }

    /// Returns the first error of the disk.
    pub(super) fn disk_failure(&self) -> Option<&str> {
        self.blocks.disk_failure()
    }

    /// Returns whether the disk has blocks.
    pub(super) fn disk_has_blocks(&self) -> bool {
        self.blocks.disk_has_blocks()
    }

    /// Returns the bytes in the free blocks.
    pub(super) fn free_block_bytes(&self) -> u64 {
        self.blocks.free_block_bytes()
    }

    /// Returns when there is something to do even if nothing happens.
    pub(super) fn next_due_time(&self, now: Duration) -> Option<Duration> {
        let blocks = [self.blocks.next_flush_time(self.flush), self.blocks.next_sync_time(self.flush)];
        blocks.into_iter().flatten().chain(self.next_check_time(now)).min()
    }

    /// Returns when the disk or a program that decides will have owed an answer for too long.
    pub(super) fn next_check_time(&self, now: Duration) -> Option<Duration> {
        self.blocks.next_disk_check_time(now).into_iter().chain(self.next_program_check_time()).min()
    }

    /// Returns when to check the programs that decide even if they send nothing.
    pub(super) fn next_program_check_time(&self) -> Option<Duration> {
        self.trigger.as_ref().and_then(Trigger::next_program_check_time)
    }

    /// Sends on what is built, at the end of a run. Returns true once all of it is on disk, or known not to be.
    ///
    /// # Errors
    /// The disk does not answer.
    pub(super) fn write_out_rest(
        &mut self,
        builder: &mut Builder,
        setup: &Setup,
        moment: Moment,
    ) -> Result<bool, NodeError> {
        let Moment { now, date } = moment;
        self.check_disk(now);
        self.check_programs(now);
        self.write_closed_events(builder, setup, moment);
        self.blocks.send_on(date, now, Duration::ZERO, true);
        let is_idle = self.trigger.as_ref().is_none_or(Trigger::is_idle);
        if is_idle
            && !self.blocks.has_waiting_closings()
            && !self.blocks.has_unsent_blocks()
            && !self.blocks.disk_has_blocks()
        {
            return Ok(true);
        }
        match self.blocks.take_error_of_silent_disk(now) {
            Some(failure) => Err(self.give_up_disk(failure)),
            None => Ok(false),
        }
    }

    /// Closes the run's files, since `since`. Returns true once they are closed.
    ///
    /// # Errors
    /// The disk has not closed them in time.
    pub(super) fn close_files(&mut self, since: Duration, now: Duration) -> Result<bool, NodeError> {
        self.blocks.end();
        self.blocks.reap_written_blocks();
        let is_ended = self.blocks.is_ended();
        if !is_ended && now > since + DISK_TIME {
            let time = humantime::format_duration(DISK_TIME);
            return Err(self.give_up_disk(format!("the disk did not complete the run's files within {time}")));
        }
        Ok(is_ended)
    }

    /// Gives up a disk that does not answer, and returns the error. The memory of its blocks is the kernel's until the
    /// kernel lets go of it, and this process must not wait for that.
    fn give_up_disk(&mut self, failure: String) -> NodeError {
        std::mem::forget(self.blocks.take_recorder());
        NodeError::Disk(failure)
    }

    /// Returns the outcome of all blocks, once the run's files are closed.
    pub(super) fn take_outcome(&mut self) -> BlocksOutcome {
        self.blocks.take_outcome()
    }

    /// Returns the dates at which the first event of the run was closed that has a fragment of each source, and the last
    /// event.
    pub(super) fn event_dates(&self) -> [Option<TaiNanos>; 2] {
        self.event_dates
    }

    /// Returns the stage that this builder waits for, if it has no room.
    pub(super) fn stalled_stage(&self) -> Option<Awaited> {
        self.stall.stalled_stage()
    }

    /// Returns the number of stalls for which the disk was the reason, and their total duration in nanoseconds.
    pub(super) fn stall_totals(&self) -> (u64, u64) {
        self.stall.stall_totals()
    }

    /// Returns the description of the blocks' memory.
    pub(super) fn memory_description(&self) -> String {
        self.memory.to_string()
    }

    /// Returns the payload bytes copied from where fragments waited for a decision.
    pub(super) fn copied_bytes(&self) -> u64 {
        self.trigger.as_ref().map_or(0, Trigger::copied_bytes)
    }

    /// Returns the counts of the trigger levels for a run of `seconds`; `None` if there are none.
    pub(super) fn trigger_report(&self, setup: &Setup, builder: &Builder, seconds: f64) -> Option<TriggerReport> {
        let trigger = self.trigger.as_ref()?;
        let (undecided, simulated) = (trigger.undecided_counts(), trigger.is_simulated());
        let levels = Levels { level2: setup.config.level2.is_some(), filter: setup.config.filter.is_some() };
        Some(TriggerReport { undecided, simulated, ..TriggerReport::new(builder.trigger_counts(), seconds, levels) })
    }

    /// Returns a reason about events that the programs of trigger levels did not decide on; `None` if there are none.
    pub(super) fn undecided_reason(&self) -> Option<String> {
        let undecided = self.trigger.as_ref()?.undecided_by_programs();
        let parts = [
            (undecided.unsure, "could not be decided"),
            (undecided.late, "were decided too late"),
            (undecided.gone, "had no running program to decide them"),
        ];
        let parts: Vec<String> =
            parts.iter().filter(|(events, _)| *events > 0).map(|(events, what)| format!("{events} {what}")).collect();
        (!parts.is_empty()).then(|| format!("of the events that a program was to decide on, {}", parts.join(", ")))
    }
}

/// Notes the date at which events were closed.
fn note_event_dates([first, last]: &mut [Option<TaiNanos>; 2], closed: &Closed, date: TaiNanos) {
    if closed.missing.is_empty() {
        first.get_or_insert(date);
    }
    *last = Some(date);
}

/// Keeps an event that was closed incomplete.
#[inline]
fn note_incomplete(latest: &mut VecDeque<IncompleteEvent>, closed: &Closed) {
    if closed.missing.is_empty() {
        return;
    }
    if latest.len() == MAX_INCOMPLETE_EVENTS {
        latest.pop_front();
    }
    let missing = closed.missing.iter().take(MAX_MISSING_SOURCES).map(|missing| missing.source).collect();
    latest.push_back(IncompleteEvent { event: closed.first.0, missing });
}

/// Returns whether this fetch is all that is requested of its source.
fn begins_to_owe(fetch: &Fetch, builder: &Builder) -> bool {
    builder.bytes_in_flight_of(fetch.source) <= u64::from(fetch.range.end - fetch.range.start)
}
