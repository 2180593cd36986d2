//! Answers to requests for the latest fragments of sources, at a pace that leaves the builder's processor to the data.

use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};
use thalweg_node::service::latest::{LatestAnswer, LatestFragment};
use thalweg_node::{Handle, Sample};

/// Least time from one fragment of a source to the next.
const SOURCE_INTERVAL: Duration = Duration::from_millis(100);
/// Longest wait for a fragment that arrives after its request. Then the answer is an earlier one.
const ARRIVAL_TIME: Duration = Duration::from_millis(100);
/// Payload bytes of fragments copied in a second, of all sources together: a small part of what a processor copies,
/// checks and sends.
const MAX_BYTES_PER_SECOND: f64 = 16e6;
/// Longest time that one fragment takes of the others' time, however long it is.
const MAX_PAUSE: Duration = Duration::from_secs(1);
/// Largest number of requests that wait. Further ones get no answer.
const MAX_REQUESTS: usize = 1024;

/// Times at which the next fragments may be copied, for all services of a node together.
#[derive(Debug, Clone, Default)]
pub(super) struct LatestPace(Arc<Mutex<Times>>);

#[derive(Debug, Default)]
struct Times {
    /// Time for any source; `None` for at once.
    any: Option<Instant>,
    /// Time for each source, by its place.
    sources: BTreeMap<usize, Instant>,
}

impl LatestPace {
    /// Returns whether a fragment of a source may be copied now. If so, the source's next one has to wait.
    fn begin_copy(&self, source: usize, now: Instant) -> bool {
        let mut times = self.0.lock();
        times.sources.retain(|_, next| *next > now);
        if times.any.is_some_and(|next| next > now) || times.sources.contains_key(&source) {
            return false;
        }
        times.sources.insert(source, now + SOURCE_INTERVAL);
        true
    }

    /// Notes that a fragment was copied: those of all sources wait as long as its length takes.
    fn end_copy(&self, payload_bytes: usize, now: Instant) {
        let pause = Duration::from_secs_f64(payload_bytes as f64 / MAX_BYTES_PER_SECOND).min(MAX_PAUSE);
        let mut times = self.0.lock();
        times.any = Some(times.any.map_or(now, |next| next.max(now)) + pause);
    }
}

/// Requests of a service that have no answer yet.
#[derive(Debug)]
pub(super) struct LatestRequests {
    waiting: Vec<Waiting>,
    pace: LatestPace,
}

/// Request for the latest fragment of a source.
#[derive(Debug)]
pub(super) struct LatestRequest {
    /// Number of the request.
    pub(super) id: u64,
    /// Place of the source in the topology.
    pub(super) source: usize,
    /// Name of the source; `None` if the topology here does not have it (yet), so there is no fragment.
    pub(super) name: Option<String>,
    /// Largest number of columns.
    pub(super) width: u32,
}

#[derive(Debug)]
struct Waiting {
    request: LatestRequest,
    /// Request to the builder, once the pace allows it.
    copy: Option<CopyRequest>,
}

/// Request to the builder for a copy of the next fragment.
#[derive(Debug)]
struct CopyRequest {
    /// Latest copy before the request.
    before: Option<Arc<Sample>>,
    /// Time at which it is the answer if no other one has come.
    until: Instant,
}

impl CopyRequest {
    /// Returns the answer, if it is there.
    fn arrived_copy(&self, latest: Option<Arc<Sample>>, now: Instant) -> Option<Option<Arc<Sample>>> {
        let is_newer = match (&latest, &self.before) {
            (Some(latest), Some(before)) => !Arc::ptr_eq(latest, before),
            (latest, before) => latest.is_some() != before.is_some(),
        };
        (is_newer || now >= self.until).then_some(latest)
    }
}

impl LatestRequests {
    /// Creates an empty list.
    pub(super) fn new(pace: LatestPace) -> Self {
        Self { waiting: Vec::new(), pace }
    }

    /// Forgets all requests: the service that made them is gone.
    pub(super) fn clear(&mut self) {
        self.waiting.clear();
    }

    /// Adds a request.
    pub(super) fn add_request(&mut self, request: LatestRequest) {
        if self.waiting.len() < MAX_REQUESTS {
            self.waiting.push(Waiting { request, copy: None });
        }
    }

    /// Requests copies of the builder as the pace allows, the oldest request first. Removes the requests whose copies
    /// have come, and returns their answers.
    pub(super) fn take_answers(&mut self, handle: &Handle, now: Instant) -> Vec<LatestAnswer> {
        let (mut answers, pace) = (Vec::new(), &self.pace);
        self.waiting.retain_mut(|Waiting { request, copy }| {
            let Some(name) = &request.name else {
                answers.push(LatestAnswer { id: request.id, fragment: None });
                return false;
            };
            let Some(copy) = copy else {
                if pace.begin_copy(request.source, now) {
                    let before = handle.latest_sample(request.source);
                    *copy = Some(CopyRequest { before, until: now + ARRIVAL_TIME });
                    handle.request_sample(request.source);
                }
                return true;
            };
            let Some(sample) = copy.arrived_copy(handle.latest_sample(request.source), now) else { return true };
            pace.end_copy(sample.as_ref().map_or(0, |sample| sample.payload.len()), now);
            let fragment = sample.map(|sample| LatestFragment::of_sample(name, &sample, request.width));
            answers.push(LatestAnswer { id: request.id, fragment });
            false
        });
        answers
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MEGABYTE: usize = 1_000_000;

    #[test]
    fn a_source_is_copied_ten_times_a_second_whatever_the_number_of_services() {
        let pace = LatestPace::default();
        let (first, second, begin) = (pace.clone(), pace.clone(), Instant::now());
        assert!(first.begin_copy(0, begin));
        assert!(!second.begin_copy(0, begin), "another service waits for its turn");
        assert!(second.begin_copy(1, begin), "another source has none to wait for");
        assert!(second.begin_copy(0, begin + SOURCE_INTERVAL));
    }

    #[test]
    fn long_fragments_are_copied_less_often() {
        let (pace, begin) = (LatestPace::default(), Instant::now());
        let copies = |payload_bytes: usize, from: Instant| {
            let mut copies = 0;
            for millis in 0..10_000 {
                let now = from + Duration::from_millis(millis);
                for source in 0..100 {
                    if pace.begin_copy(source, now) {
                        pace.end_copy(payload_bytes, now);
                        copies += 1;
                    }
                }
            }
            copies
        };
        assert!((150..=170).contains(&copies(MEGABYTE, begin)), "16 MB each second");
        assert_eq!(copies(32 * MEGABYTE, begin + Duration::from_secs(20)), 10, "the longest, once each second");
    }

    #[test]
    fn a_request_is_answered_without_a_fragment_when_none_arrives() {
        let (handle, begin) = (Handle::new().unwrap(), Instant::now());
        let mut requests = LatestRequests::new(LatestPace::default());
        for id in 0..2 {
            requests.add_request(LatestRequest { id, source: 3, name: Some("adc".into()), width: 64 });
        }
        assert!(requests.take_answers(&handle, begin).is_empty(), "the builder is asked");
        assert!(requests.take_answers(&handle, begin).is_empty(), "the next fragment has time to arrive");
        let answers = requests.take_answers(&handle, begin + ARRIVAL_TIME);
        assert_eq!(answers, [LatestAnswer { id: 0, fragment: None }]);
        let answers = requests.take_answers(&handle, begin + 2 * ARRIVAL_TIME);
        assert_eq!(answers, [LatestAnswer { id: 1, fragment: None }]);
        requests.add_request(LatestRequest { id: 2, source: 9, name: None, width: 64 });
        let answers = requests.take_answers(&handle, begin + 2 * ARRIVAL_TIME);
        assert_eq!(answers, [LatestAnswer { id: 2, fragment: None }], "at once where there is no such source");
    }
}
