//! Reports of trigger times, by which builder 0 finds sources whose events are shifted, and guesses that are right.

use thalweg_wire::{EventId, FragmentHeader, SHIFT_WINDOW, Status, TaiNanos, TriggerTimes, trigger_time};

/// Report of one window of events, under way. Times are added in the order of events.
#[derive(Debug)]
pub(super) struct TimesReport {
    /// Message that is being filled.
    message: TriggerTimes,
    /// One past the number of the window's last event.
    end: u64,
}

impl TimesReport {
    /// Creates a report of the events from `first` on.
    pub(super) fn new(first: EventId) -> Self {
        Self { message: TriggerTimes { first, ..TriggerTimes::default() }, end: first.0.saturating_add(SHIFT_WINDOW) }
    }

    /// Returns the first event whose time was not sent.
    pub(super) fn first_event(&self) -> u64 {
        self.message.first.0
    }

    /// Returns whether the times of all events of the window were sent.
    pub(super) fn is_complete(&self) -> bool {
        self.message.first.0 >= self.end
    }

    /// Adds the time of a fragment.
    pub(super) fn note_event_time(&mut self, header: &FragmentHeader) {
        let event = header.event.0;
        let place = event.checked_sub(self.message.first.0).and_then(|place| usize::try_from(place).ok());
        if event < self.end
            && let Some(time) = place.and_then(|place| self.message.times.get_mut(place))
        {
            *time = trigger_time(header).unwrap_or(TaiNanos(0));
            self.message.uncertain |= header.status.contains(Status::UNCERTAIN);
        }
    }

    /// Returns a message that is complete, given that events below `next` are accepted or will not come.
    pub(super) fn next_complete_message(&mut self, next: u64) -> Option<TriggerTimes> {
        let behind = self.message.first.0.saturating_add(TriggerTimes::EVENTS_PER_MESSAGE);
        if self.is_complete() || next < behind.min(self.end) {
            return None;
        }
        let first = EventId(behind);
        Some(std::mem::replace(&mut self.message, TriggerTimes { first, ..TriggerTimes::default() }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use thalweg_wire::mix_bits;

    fn header(event: u64) -> FragmentHeader {
        let status = if event.is_multiple_of(50) { Status::UNCERTAIN } else { Status::empty() };
        FragmentHeader { event: EventId(event), timestamp: TaiNanos(event + 1_000_000), status, ..Default::default() }
    }

    #[test]
    fn each_event_is_reported_once_whatever_is_lost() {
        for seed in 0..200 {
            let (first, begins) = (mix_bits(seed) % 1000, mix_bits(seed + 1000) % 1200);
            let there = |event: u64| event >= begins && !mix_bits(seed << 32 | event).is_multiple_of(1 + seed % 9);
            let mut report = TimesReport::new(EventId(first));
            let mut seen = Vec::new();
            for event in (begins..first + 300).filter(|event| there(*event)) {
                seen.extend(std::iter::from_fn(|| report.next_complete_message(event)));
                report.note_event_time(&header(event));
                seen.extend(std::iter::from_fn(|| report.next_complete_message(event + 1)));
            }
            seen.extend(std::iter::from_fn(|| report.next_complete_message(u64::MAX)));
            assert!(
                report.is_complete() && seen.len() as u64 == SHIFT_WINDOW.div_ceil(TriggerTimes::EVENTS_PER_MESSAGE)
            );
            for (message, place) in seen.iter().zip(0..) {
                assert_eq!(message.first.0, first + place * TriggerTimes::EVENTS_PER_MESSAGE);
                let end = (message.first.0 + TriggerTimes::EVENTS_PER_MESSAGE).min(first + SHIFT_WINDOW);
                let mut events = message.first.0..end;
                for (event, time) in events.clone().zip(message.times) {
                    assert_eq!(time.0, if there(event) { event + 1_000_000 } else { 0 }, "seed {seed}, event {event}");
                }
                assert_eq!(message.uncertain, events.any(|event| there(event) && event.is_multiple_of(50)));
            }
        }
    }
}
