//! Lookup of events by their position in a run's order, and of positions by event.

use crate::format::Closing;
use thalweg_wire::EventId;

/// Index that finds events by their position among all events of a run, and positions by event. It stores closings
/// only, so it takes no memory for single events. An event that was closed twice, which occurs only in a damaged run,
/// has two positions.
#[derive(Debug)]
pub(crate) struct EventPositions(Vec<Group>);

/// Closings whose ranges of events overlap; usually a single one.
#[derive(Debug)]
struct Group {
    first: EventId,
    /// Number of events in all earlier groups.
    before: u64,
    /// Index of the group's first closing.
    begin: usize,
}

impl EventPositions {
    /// Builds the index from `closings` in ascending order of their first events.
    pub(crate) fn new(closings: &[Closing]) -> Self {
        let mut groups = Vec::new();
        let (mut before, mut highest) = (0_u64, None);
        for (begin, closing) in closings.iter().enumerate() {
            if highest.is_none_or(|highest| closing.first > highest) {
                groups.push(Group { first: closing.first, before, begin });
            }
            highest = highest.max(Some(closing.last_event()));
            before = before.saturating_add(closing.count.into());
        }
        Self(groups)
    }

    /// Returns the number of events up to and including `id`.
    pub(crate) fn count_through(&self, closings: &[Closing], id: EventId) -> u64 {
        let Some(at) = self.0.partition_point(|group| group.first <= id).checked_sub(1) else { return 0 };
        self.0[at].before.saturating_add(count_events_through(self.group_members(closings, at), id))
    }

    /// Returns the event at position `place`, counted from 0.
    pub(crate) fn nth_event(&self, closings: &[Closing], place: u64) -> Option<EventId> {
        let at = self.0.partition_point(|group| group.before <= place).checked_sub(1)?;
        let members = self.group_members(closings, at);
        let place = place - self.0[at].before;
        // Search for the lowest number up to which there are more than `place` events of the group.
        let (mut low, mut high) = (self.0[at].first.0, members.iter().map(|closing| closing.last_event().0).max()?);
        if count_events_through(members, EventId(high)) <= place {
            return None;
        }
        if let [closing] = members {
            return Some(EventId(closing.first.0 + closing.stride * place));
        }
        while low < high {
            let middle = low + (high - low) / 2;
            match count_events_through(members, EventId(middle)) > place {
                true => high = middle,
                false => low = middle + 1,
            }
        }
        Some(EventId(low))
    }

    fn group_members<'a>(&self, closings: &'a [Closing], at: usize) -> &'a [Closing] {
        let end = self.0.get(at + 1).map_or(closings.len(), |next| next.begin);
        &closings[self.0[at].begin..end]
    }
}

/// Returns the number of events of these closings up to and including `id`.
fn count_events_through(closings: &[Closing], id: EventId) -> u64 {
    let begun = closings.iter().filter_map(|closing| Some((closing, id.0.checked_sub(closing.first.0)?)));
    begun.map(|(closing, ahead)| u64::from(closing.count).min((ahead / closing.stride).saturating_add(1))).sum()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::EventStatus;
    use proptest::prelude::*;

    fn closings() -> impl Strategy<Value = Vec<Closing>> {
        let closing = (0..500_u64, 1..9_u64, 1..40_u32).prop_map(|(first, stride, count)| Closing {
            first: EventId(first),
            stride,
            count,
            status: EventStatus::Complete,
        });
        proptest::collection::vec(closing, 0..12).prop_map(|mut all| {
            all.sort_by_key(|closing| closing.first);
            all
        })
    }

    proptest! {
        #[test]
        fn events_stand_where_counting_them_puts_them(closings in closings()) {
            let mut events: Vec<EventId> = closings.iter().copied().flat_map(Closing::event_numbers).collect();
            events.sort_unstable();
            let places = EventPositions::new(&closings);
            for (place, event) in (0..).zip(&events) {
                prop_assert_eq!(places.nth_event(&closings, place), Some(*event));
            }
            prop_assert_eq!(places.nth_event(&closings, events.len() as u64), None);
            for id in (0..900).map(EventId) {
                let counted = events.iter().filter(|event| **event <= id).count() as u64;
                prop_assert_eq!(places.count_through(&closings, id), counted);
            }
        }
    }

    #[test]
    fn the_highest_numbers_there_are_have_their_places() {
        let last = Closing { first: EventId(u64::MAX - 2), stride: 2, count: 2, status: EventStatus::Complete };
        let places = EventPositions::new(&[last]);
        assert_eq!(places.nth_event(&[last], 1), Some(EventId(u64::MAX)));
        assert_eq!(places.nth_event(&[last], u64::MAX), None);
        assert_eq!(places.count_through(&[last], EventId(u64::MAX)), 2);
    }
}
