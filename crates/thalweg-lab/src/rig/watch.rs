//! Watches links while nodes run: samples the lengths and byte counts of their queues, and reads TCP's counters when
//! the measured time begins and ends.

use super::timeline::{self, Steps};
use crate::counters::{Counters, Counts};
use crate::network::{Network, TBF_HANDLE};
use crate::queue::{Queue, QueueState};
use crate::report::{self, LinkKind, LinkOverTime, LinkUse};
use crate::scenario::{Link, Scenario};
use crate::{LabError, RunProgress};
use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create, timerfd_settime,
};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

/// A watch that is running in a thread of its own.
pub(super) struct Watch {
    over: Arc<AtomicBool>,
    begins: Arc<OnceLock<Instant>>,
    thread: Option<JoinHandle<Result<Watched, LabError>>>,
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.over.store(true, Ordering::Relaxed);
    }
}

/// Results of a watch.
#[derive(Debug)]
pub(super) struct Watched {
    /// Results of each switch port, in the order of their links.
    pub(super) ports: Vec<WatchedPort>,
    /// TCP counters of each sender.
    pub(super) senders: Vec<Counted>,
    /// TCP counters of the other flows' host.
    pub(super) cross: Option<Counted>,
    /// Time at which data began to flow, if it did.
    pub(super) started: Option<Instant>,
    /// Times at which the measured time began and ended.
    pub(super) measured: (Instant, Instant),
    /// Use of all watched links in the measured time.
    pub(super) uses: Vec<LinkUse>,
    /// Use of links over the steps of the measured time.
    pub(super) steps: Steps,
    pub(super) links: Vec<LinkOverTime>,
}

/// Results of a switch port.
#[derive(Debug, Clone)]
pub(super) struct WatchedPort {
    pub(super) link: Link,
    pub(super) queue: report::Queue,
    pub(super) drops: u64,
    pub(super) whole_drops: u64,
    pub(super) drops_before: u64,
}

/// TCP counters of a host, for the measured time and for the whole run.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Counted {
    pub(super) measured: Counts,
    pub(super) whole: Counts,
    /// From the beginning of the run to that of the measured time.
    pub(super) before: Counts,
}

impl Watch {
    /// Starts a watch, which writes the progress to `directory`.
    pub(super) fn start_watching(scenario: &Scenario, network: &Network, directory: &Path) -> Result<Self, LabError> {
        let kinds: Vec<LinkKind> = network.ports.iter().map(|port| port.link.kind).collect();
        let drawn = timeline::select_drawn_links(&kinds);
        // A sender's card is sampled less often, as it drops nothing; of very many, only those that are drawn or that
        // differ from the others.
        let unlike: Vec<String> = scenario.network.unlike.iter().map(|one| format!("sender-{}", one.number)).collect();
        let watched = network
            .ports
            .iter()
            .zip(drawn)
            .filter(|(port, drawn)| *drawn || port.link.buffer.is_some() || unlike.contains(&port.link.name));
        let links = watched.map(|(port, drawn)| {
            let queue = port.space.run_inside(|| Queue::open(device_index(&port.device)?, TBF_HANDLE))??;
            Ok(WatchedLink { link: port.link.clone(), drawn, queue, seen: Vec::new() })
        });
        let counters = network.senders.iter().chain(&network.cross).map(|host| Counters::open(&host.space));
        let begins = Arc::new(OnceLock::new());
        let sampler = Sampler {
            scenario: scenario.clone(),
            directory: directory.to_owned(),
            progress_percent: 0,
            links: links.collect::<Result<_, LabError>>()?,
            counters: counters.collect::<Result<_, _>>()?,
            begins: begins.clone(),
        };
        let over = Arc::new(AtomicBool::new(false));
        let thread = thread::Builder::new()
            .name("watch".into())
            .spawn({
                let over = over.clone();
                move || sampler.sample_until_over(&over)
            })
            .map_err(LabError::system_error("starting a thread"))?;
        Ok(Self { over, begins, thread: Some(thread) })
    }

    /// Returns the time at which the measured time begins, known as soon as data flows.
    pub(super) fn measurement_start(&self) -> Option<Instant> {
        self.begins.get().copied()
    }

    pub(super) fn finish_watching(mut self) -> Result<Watched, LabError> {
        let thread = self.thread.take();
        drop(self);
        let watched = thread.map(|thread| thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)));
        watched.unwrap_or(Err(LabError::Interrupted))
    }
}

/// Returns a network device's index, in the namespace of the calling thread.
fn device_index(name: &str) -> Result<i32, LabError> {
    // The kernel's own list: /sys would show the devices of the namespace it was mounted in.
    let socket = rustix::net::socket(rustix::net::AddressFamily::INET, rustix::net::SocketType::DGRAM, None);
    let socket = socket.map_err(LabError::system_error("opening a socket"))?;
    let index = rustix::net::netdevice::name_to_index(&socket, name)
        .map_err(LabError::system_error(format!("looking for the device {name}")))?;
    i32::try_from(index).map_err(|error| LabError::system_error("looking for a device")(std::io::Error::other(error)))
}

/// Time between two samples after the measured time.
const TAIL_SAMPLE_PERIOD: Duration = Duration::from_millis(1);

/// Time at which counters were read, and their values.
type Mark = (Instant, Vec<Counts>);

struct Sampler {
    scenario: Scenario,
    directory: PathBuf,
    /// Progress last written, in percent.
    progress_percent: u32,
    links: Vec<WatchedLink>,
    counters: Vec<Counters>,
    begins: Arc<OnceLock<Instant>>,
}

/// A link that is watched.
struct WatchedLink {
    link: Link,
    drawn: bool,
    queue: Queue,
    seen: Vec<(Instant, QueueState)>,
}

impl Sampler {
    fn sample_until_over(mut self, over: &AtomicBool) -> Result<Watched, LabError> {
        let mut period = self.scenario.sample_interval();
        let mut tick = periodic_timer(period).map_err(LabError::system_error("setting a timer"))?;
        let begin = self.read_all_counters()?;
        let mut started: Option<Instant> = None;
        let mut measured: [Option<Mark>; 2] = [None, None];
        let cards = Steps::for_scenario(&self.scenario).ports_samples_per_card_sample(period);
        let mut looks = 0;
        while !over.load(Ordering::Relaxed) {
            rustix::io::read(&tick, &mut [0; 8]).map_err(LabError::system_error("waiting for a timer"))?;
            let now = Instant::now();
            for link in self.links.iter_mut().filter(|link| link.link.buffer.is_some() || looks % cards == 0) {
                link.seen.push((now, link.queue.query_state()?));
            }
            looks += 1;
            started = started.or_else(|| self.has_started().then_some(now));
            let Some(started) = started else { continue };
            self.begins.get_or_init(|| started + self.scenario.warm_up_time());
            self.report_progress(now - started);
            let from = started + self.scenario.warm_up_time();
            for (at, mark) in [from, from + self.scenario.measured_time()].into_iter().zip(&mut measured) {
                if now >= at && mark.is_none() {
                    *mark = Some((now, read_counters(&mut self.counters)?));
                }
            }
            if measured[1].is_some() && period < TAIL_SAMPLE_PERIOD {
                // The end of a run can be long, and its queues are not studied.
                period = TAIL_SAMPLE_PERIOD;
                tick = periodic_timer(period).map_err(LabError::system_error("setting a timer"))?;
            }
        }
        let end = (Instant::now(), self.read_all_counters()?);
        let [from, to] = measured;
        let to = to.unwrap_or_else(|| end.clone());
        // A run that did not reach the measured time has nothing to count.
        let from = from.unwrap_or_else(|| to.clone());
        let mut counted = (0..begin.len()).map(|at| Counted {
            measured: to.1[at].increase_since(from.1[at]),
            whole: end.1[at].increase_since(begin[at]),
            before: from.1[at].increase_since(begin[at]),
        });
        let senders = counted.by_ref().take(self.scenario.network.senders as usize).collect();
        let cross = counted.next();
        let sample = self.scenario.sample_interval();
        let ports = self.links.iter();
        let ports = ports.filter_map(|link| link.port_results(sample, (from.0, to.0), started.unwrap_or(from.0)));
        let steps = Steps::for_scenario(&self.scenario);
        let drawn = self.links.iter().filter(|link| link.drawn);
        let links = drawn.map(|link| {
            steps.link_over_time(&link.link, self.scenario.queue_rate_for(link.link.rate), &link.seen, from.0)
        });
        let uses = self.links.iter().map(|link| {
            let counted = self.scenario.queue_rate_for(link.link.rate);
            timeline::link_use(&link.link, counted, &link.seen, (from.0, to.0))
        });
        Ok(Watched {
            ports: ports.collect(),
            senders,
            cross,
            started,
            measured: (from.0, to.0),
            uses: uses.collect(),
            steps,
            links: links.collect(),
        })
    }

    /// Writes the progress, once for each percent: writing takes no time of the network, but of the host.
    fn report_progress(&mut self, ran: Duration) {
        let done =
            (ran.as_secs_f64() / (self.scenario.warm_up_time() + self.scenario.measured_time()).as_secs_f64()).min(1.0);
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "from 0 to 100")]
        let percent = (100.0 * done) as u32;
        if percent > self.progress_percent {
            self.progress_percent = percent;
            let bytes = self.received_bytes();
            #[expect(clippy::cast_precision_loss, reason = "a figure for people")]
            let bits_per_second = 8.0 * bytes as f64 / ran.as_secs_f64();
            RunProgress { done, bytes, bits_per_second }.write_to(&self.directory);
        }
    }

    fn read_all_counters(&mut self) -> Result<Vec<Counts>, LabError> {
        read_counters(&mut self.counters)
    }

    /// True if data flows: more than all connections and greetings together take (less than 1000 bytes each).
    fn has_started(&self) -> bool {
        let Scenario { network, .. } = &self.scenario;
        self.received_bytes() > 1000 * u64::from(network.senders) * u64::from(network.receivers)
    }

    /// Returns the number of bytes that the receivers' ports have sent.
    fn received_bytes(&self) -> u64 {
        let ports = self.links.iter().filter(|link| link.link.kind == LinkKind::Down);
        ports.filter_map(|port| Some(port.seen.last()?.1.sent)).sum()
    }
}

impl WatchedLink {
    /// Returns the results of a switch port; `None` for a sender's card.
    fn port_results(&self, sample: Duration, (from, to): (Instant, Instant), started: Instant) -> Option<WatchedPort> {
        let measured = self.seen.iter().filter(|(at, _)| (from..=to).contains(at));
        let measured: Vec<&QueueState> = measured.map(|(_, state)| state).collect();
        let sum: u64 = measured.iter().map(|state| u64::from(state.backlog)).sum();
        let drops = match (measured.first(), measured.last()) {
            (Some(first), Some(last)) => u64::from(last.drops - first.drops),
            _ => 0,
        };
        let relevant: Vec<&(Instant, QueueState)> = self.seen.iter().filter(|(at, _)| *at >= started).collect();
        let over_time = relevant.chunks(relevant.len().div_ceil(1000).max(1)).filter_map(|some| {
            let (at, _) = some.last()?;
            let longest = some.iter().map(|(_, look)| u64::from(look.backlog)).max()?;
            let seconds = match at.checked_duration_since(from) {
                Some(after) => after.as_secs_f64(),
                None => -from.duration_since(*at).as_secs_f64(),
            };
            Some((seconds, longest))
        });
        Some(WatchedPort {
            link: self.link.clone(),
            queue: report::Queue {
                max_bytes: measured.iter().map(|state| u64::from(state.backlog)).max().unwrap_or(0),
                mean_bytes: sum / (measured.len() as u64).max(1),
                limit_bytes: self.link.buffer?,
                sample_seconds: sample.as_secs_f64(),
                over_time: over_time.collect(),
            },
            drops,
            drops_before: measured.first().map_or(0, |state| state.drops.into()),
            whole_drops: self.seen.last().map_or(0, |(_, state)| state.drops.into()),
        })
    }
}

fn read_counters(counters: &mut [Counters]) -> Result<Vec<Counts>, LabError> {
    counters.iter_mut().map(Counters::read).collect()
}

/// Creates a timer that can be read once every period, without the slack of 50 µs that sleeping has (timer_slack_ns in
/// prctl(2)).
fn periodic_timer(period: Duration) -> rustix::io::Result<rustix::fd::OwnedFd> {
    let timer = timerfd_create(TimerfdClockId::Monotonic, TimerfdFlags::CLOEXEC)?;
    let period = Timespec::try_from(period).map_err(|_| rustix::io::Errno::INVAL)?;
    timerfd_settime(&timer, TimerfdTimerFlags::empty(), &Itimerspec { it_interval: period, it_value: period })?;
    Ok(timer)
}
