//! Taking fragments from a device that works by itself: its buffers are slots, and come back filled.

use super::{Feed, Phase, SourceNode};
use crate::slots::Filling;
use crate::{NodeError, now};
use thalweg_device::{Acquired, Buffer, Frame, FrameOrder, InTurn};
use thalweg_wire::{Disposition, EventId};

/// Frames taken from the device before others have their turn.
const FAIR_SHARE: usize = 64;

/// What a device that works by itself has under way.
#[derive(Debug, Default)]
pub(super) struct Acquiring {
    order: FrameOrder,
    /// Buffers that it has.
    posted: u32,
    started: bool,
    over: bool,
}

impl Acquiring {
    pub(super) fn new(feed: &Feed) -> Self {
        let reorders = if let Feed::Acquisition(device) = feed { device.reorders() } else { 0 };
        Self { order: FrameOrder::new(reorders), ..Self::default() }
    }
}

impl SourceNode {
    /// Gives the device what slots are free, and takes what it has filled, in the order of events.
    pub(super) fn acquire(&mut self) -> Result<(), NodeError> {
        let Self { settings, acquiring, pool, traces, .. } = self;
        let Feed::Acquisition(device) = &mut settings.feed else { return Ok(()) };
        if !matches!(self.phase, Phase::Waiting | Phase::Running) {
            return Ok(());
        }
        while !acquiring.over && acquiring.posted < device.depth() {
            let Some(slot) = pool.take() else { break };
            traces.forget(slot.index());
            device.post(Buffer::new(slot));
            acquiring.posted += 1;
        }
        if self.phase == Phase::Waiting {
            return Ok(());
        }
        if !std::mem::replace(&mut acquiring.started, true) {
            device.start()?;
        }
        for _ in 0..FAIR_SHARE {
            match device.poll(now())? {
                Acquired::Frame(frame) => {
                    self.came = true;
                    acquiring.posted = acquiring.posted.saturating_sub(1);
                    if let Some(Frame { buffer, number, .. }) = acquiring.order.came(frame) {
                        tracing::warn!(
                            source = settings.name,
                            number,
                            "the device repeated a frame, or was too late with it"
                        );
                        pool.give_back(buffer.into_slot());
                    }
                }
                Acquired::Lost { first, count } => acquiring.order.lost(first, count),
                Acquired::NotYet => break,
                Acquired::Over => {
                    acquiring.over = true;
                    break;
                }
            }
        }
        self.accept_frames()
    }

    /// Accepts frames in their turn, up to the end of the run.
    fn accept_frames(&mut self) -> Result<(), NodeError> {
        loop {
            if self.end_at.is_some_and(|end| self.next_event >= end) {
                self.end();
                return Ok(());
            }
            if self.builder_of(self.next_event).is_none() {
                // The device goes on as long as it has slots, and counts what it loses then.
                self.ask(self.next_event);
                return Ok(());
            }
            match self.acquiring.order.next(self.acquiring.over) {
                Some(InTurn::Frame(frame)) => self.accept(frame)?,
                Some(InTurn::Lost(count)) => self.lose(count),
                None => {
                    if self.acquiring.over {
                        self.end();
                    }
                    return Ok(());
                }
            }
        }
    }

    /// A frame is the next fragment: its slot is offered.
    fn accept(&mut self, frame: Frame) -> Result<(), NodeError> {
        let (event, stamp, sequence, date) = (EventId(self.next_event), self.stamp(), self.sequence, self.clock.now());
        let Some(index) = self.builder_of(event.0) else { return Ok(()) };
        let len = frame.len;
        let filling = Filling::acquired(frame, stamp, event, sequence, date).map_err(|room| {
            NodeError::Config(format!("the device says that it wrote {len} bytes into a buffer of {room}"))
        })?;
        let builder = &mut self.builders[index];
        builder.accounts.accepted += 1;
        if builder.left {
            builder.lost += 1;
            self.pool.give_back(filling.slot);
            self.step(len);
            return Ok(());
        }
        builder.filling = Some(filling);
        self.step(len);
        self.offer(index);
        Ok(())
    }

    /// The device lost so many frames from the next event on: they are announced, each builder's by itself.
    fn lose(&mut self, count: u64) {
        let (first, builders) = (self.next_event, self.builders.len() as u64);
        // Beyond the end nobody wants to know.
        let end = first.saturating_add(count).min(self.end_at.unwrap_or(u64::MAX - builders - 1));
        if self.assignments.is_some() {
            self.leave_out_all(first, end, Disposition::LostInDevice);
        } else {
            self.lose_by_number(first, end);
        }
        let lost = end.saturating_sub(first);
        self.next_event += lost;
        self.shown.lost_in_device += lost;
        #[expect(clippy::cast_possible_truncation, reason = "modulo 2³², as it is counted")]
        let skipped = lost as u32;
        self.sequence = self.sequence.wrapping_add(skipped);
        self.went_on();
    }

    fn lose_by_number(&mut self, first: u64, end: u64) {
        let builders = self.builders.len() as u64;
        for index in 0..self.builders.len() {
            let own = (first..end.min(first.saturating_add(builders))).find(|event| event % builders == index as u64);
            let Some(own) = own else { continue };
            let mut left = (end - 1 - own) / builders + 1;
            let mut from = own;
            while left > 0 {
                let run = u32::try_from(left).unwrap_or(u32::MAX);
                self.leave_out(index, EventId(from), run, Disposition::LostInDevice);
                from += u64::from(run) * builders;
                left -= u64::from(run);
            }
        }
    }
}
