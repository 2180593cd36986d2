//! Notices of alarms and runs to people and other programs: a webhook, a log book, e-mail.
//!
//! Each destination has a queue and a thread of its own ([`Delivery`]): one that is slow or down delays nothing else.
//! What is sent is JSON ([`Notice::content`]), or is made of it by a template.

use crate::alarms::AlarmView;
use crate::config::ControlConfig;
use crate::delivery::{Delivery, DeliveryLimits, Outcome, Step};
use crate::mail::MailDestination;
use crate::records::{Quality, RunRecord, RunState};
use crate::webhook::PostDestination;
use parking_lot::{Condvar, Mutex};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::fs;
use std::io::Read;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant, UNIX_EPOCH};
use thalweg_text::{format_count, format_seconds, replace_controls};
use utoipa::ToSchema;

/// Limits of posts: each notice is one.
const POST_LIMITS: DeliveryLimits = DeliveryLimits {
    max_waiting: 200,
    max_batch: 1,
    gather_time: Duration::ZERO,
    first_pause: Duration::from_secs(1),
    longest_pause: Duration::from_secs(60),
    max_age: Duration::from_secs(3600),
};
/// Limits of e-mail: when a crate loses power, its alarms are one mail.
const MAIL_LIMITS: DeliveryLimits =
    DeliveryLimits { max_batch: 200, gather_time: Duration::from_secs(2), ..POST_LIMITS };
/// Age of a run, in seconds, up to which it is news that another service has begun it.
const RECENT_SECONDS: f64 = 60.0;
/// Longest secret in a file, in bytes.
const MAX_SECRET_BYTES: u64 = 4096;

/// Event that a notice is of.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum NoticeEvent {
    /// An alarm has begun.
    Alarm,
    /// An alarm is over.
    AlarmOver,
    /// A run has begun.
    Start,
    /// A run is over, or has failed to begin.
    Stop,
    /// A run was judged.
    Flag,
}

impl NoticeEvent {
    /// All events.
    pub const ALL: [Self; 5] = [Self::Alarm, Self::AlarmOver, Self::Start, Self::Stop, Self::Flag];
    /// Events of alarms.
    pub const OF_ALARMS: [Self; 2] = [Self::Alarm, Self::AlarmOver];
    /// Events of runs.
    pub const OF_RUNS: [Self; 3] = [Self::Start, Self::Stop, Self::Flag];
}

/// Notice to all destinations that want it.
#[derive(Debug, Clone, PartialEq)]
pub struct Notice {
    /// Event that it is of.
    pub event: NoticeEvent,
    /// Sentence for people.
    pub text: String,
    /// Everything about it: `event`, `experiment`, `time` (RFC 3339), `text`, and `alarm` or `run`.
    pub content: Value,
}

impl Notice {
    fn new(event: NoticeEvent, experiment: &str, unix: f64, text: String, subject: (&str, Value)) -> Self {
        let text = replace_controls(&text).to_string();
        let mut content = json!({
            "event": event, "experiment": experiment, "time": format_time(unix), "text": text,
        });
        content[subject.0] = subject.1;
        Self { event, text, content }
    }

    /// Returns the notice of an alarm that has begun or is over.
    pub fn of_alarm(experiment: &str, unix: f64, alarm: &AlarmView) -> Self {
        let (event, change) =
            if alarm.is_active { (NoticeEvent::Alarm, "alarm") } else { (NoticeEvent::AlarmOver, "the alarm is over") };
        Self::new(event, experiment, unix, format!("{change}: {}", alarm.text), ("alarm", json!(alarm)))
    }

    /// Returns the notice of a run.
    pub fn of_run(experiment: &str, unix: f64, event: NoticeEvent, record: &RunRecord) -> Self {
        Self::new(event, experiment, unix, run_sentence(event, record), ("run", json!(record)))
    }
}

fn format_time(unix: f64) -> String {
    let time = UNIX_EPOCH + Duration::try_from_secs_f64(unix).unwrap_or_default();
    humantime::format_rfc3339_millis(time).to_string()
}

/// Returns a text after a colon; nothing if it is empty.
fn colon_and(text: &str) -> String {
    if text.is_empty() { String::new() } else { format!(": {text}") }
}

fn run_sentence(event: NoticeEvent, record: &RunRecord) -> String {
    let name = format!("run {}", record.number);
    match (event, &record.flag) {
        (NoticeEvent::Flag, Some(flag)) => {
            let flagged = match flag.flag {
                Quality::Good => "good",
                Quality::Bad => "bad",
                Quality::Unknown => "unknown",
            };
            format!("{name} is flagged {flagged} by {}{}", flag.by, colon_and(&flag.why))
        }
        (NoticeEvent::Stop, _) => {
            let counts = format!(
                "{} events, {} of them incomplete, in {}",
                format_count(record.events),
                format_count(record.incomplete),
                format_seconds(record.seconds.unwrap_or_default())
            );
            match record.state {
                RunState::Failed => format!("{name} did not begin{}", colon_and(&record.reasons.join("; "))),
                RunState::Lost => format!("{name} is lost{}", colon_and(&record.reasons.join("; "))),
                RunState::Complete => format!("{name} is complete: {counts}"),
                _ => format!("{name} is incomplete: {counts}{}", colon_and(&record.reasons.join("; "))),
            }
        }
        _ => format!("{name} ({}) has begun{}", record.kind.name(), colon_and(&record.note)),
    }
}

/// Changes of runs, found in their records: a record may come again unchanged, as after a restart of the service.
#[derive(Debug, Default)]
pub struct RunWatch(BTreeMap<u32, (RunState, Option<Quality>)>);

impl RunWatch {
    /// Creates one that knows these records.
    pub fn new(records: &BTreeMap<u32, RunRecord>) -> Self {
        Self(records.values().map(|record| (record.number, state_and_flag(record))).collect())
    }

    /// Takes the present record of a run. Returns the events that it is the first to show.
    pub fn take_record(&mut self, record: &RunRecord) -> Vec<NoticeEvent> {
        let (state, flag) = state_and_flag(record);
        let (old_state, old_flag) = self.0.insert(record.number, (state, flag)).unwrap_or_default();
        while self.0.len() > crate::records::MAX_RUNS {
            self.0.pop_first();
        }
        let mut events = Vec::new();
        if state == RunState::Running && old_state != RunState::Running {
            events.push(NoticeEvent::Start);
        }
        if state.is_over() && !old_state.is_over() {
            events.push(NoticeEvent::Stop);
        }
        if flag.is_some() && flag != old_flag {
            events.push(NoticeEvent::Flag);
        }
        events
    }
}

fn state_and_flag(record: &RunRecord) -> (RunState, Option<Quality>) {
    (record.state, record.flag.as_ref().map(|flag| flag.flag))
}

/// Destination of notices, as the status shows it.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct DestinationView {
    /// Name of the destination: `webhook`, `logbook` or `mail`.
    pub name: String,
    /// Number of notices that wait.
    pub waiting: u64,
    /// Number of notices that were delivered since the service began, or since the destination was changed.
    pub sent: u64,
    /// Number of notices that were left out: refused, too old, or too many.
    pub left_out: u64,
    /// Reason why the last attempt did not succeed; empty if it did.
    pub problem: String,
}

/// Place to which notices are delivered, with its secrets.
#[derive(Debug, Clone, PartialEq)]
enum Destination {
    Post(PostDestination),
    Mail(MailDestination),
}

impl Destination {
    fn delivery_limits(&self) -> DeliveryLimits {
        match self {
            Self::Post(_) => POST_LIMITS,
            Self::Mail(_) => MAIL_LIMITS,
        }
    }

    fn wants_event(&self, event: NoticeEvent) -> bool {
        match self {
            Self::Post(post) => post.events.contains(&event),
            Self::Mail(mail) => mail.events.contains(&event),
        }
    }

    fn deliver_notices(&self, notices: &[Notice]) -> Outcome {
        match self {
            Self::Post(post) => notices.first().map_or(Outcome::Delivered, |notice| post.deliver_notice(notice)),
            Self::Mail(mail) => mail.deliver_notices(notices),
        }
    }
}

/// Destination with its queue and its thread, which ends when this is dropped.
#[derive(Debug)]
struct Channel {
    destination: Destination,
    queue: Arc<Queue>,
}

#[derive(Debug)]
struct Queue {
    state: Mutex<QueueState>,
    changed: Condvar,
    begun: Instant,
}

#[derive(Debug)]
struct QueueState {
    delivery: Delivery<Notice>,
    is_closed: bool,
}

impl Channel {
    fn open_channel(name: &'static str, destination: Destination) -> Result<Self, String> {
        let state = QueueState { delivery: Delivery::new(destination.delivery_limits()), is_closed: false };
        let queue = Arc::new(Queue { state: Mutex::new(state), changed: Condvar::new(), begun: Instant::now() });
        let (thread_queue, thread_destination) = (Arc::clone(&queue), destination.clone());
        let started = thread::Builder::new()
            .name(name.to_owned())
            .spawn(move || thread_queue.deliver_notices(name, &thread_destination));
        started.map_err(|error| format!("{name}: no thread: {error}"))?;
        Ok(Self { destination, queue })
    }

    fn add_notice(&self, notice: &Notice) {
        let now = self.queue.begun.elapsed();
        self.queue.state.lock().delivery.add_notice(now, notice.clone());
        self.queue.changed.notify_one();
    }
}

impl Drop for Channel {
    fn drop(&mut self) {
        self.queue.state.lock().is_closed = true;
        self.queue.changed.notify_one();
    }
}

impl Queue {
    fn deliver_notices(&self, name: &str, destination: &Destination) {
        let mut state = self.state.lock();
        while !state.is_closed {
            match state.delivery.next_step(self.begun.elapsed()) {
                Step::Wait => self.changed.wait(&mut state),
                Step::WaitUntil(time) => {
                    self.changed.wait_until(&mut state, self.begun + time);
                }
                Step::Deliver(notices) => {
                    drop(state);
                    let outcome = destination.deliver_notices(&notices);
                    state = self.state.lock();
                    if state.delivery.take_outcome(self.begun.elapsed(), outcome) {
                        match state.delivery.last_problem() {
                            Some(problem) => tracing::warn!("{name}: {problem}"),
                            None => tracing::info!("{name}: notices are delivered again"),
                        }
                    }
                }
            }
        }
    }
}

/// All destinations.
#[derive(Debug, Default)]
pub struct Notices {
    channels: BTreeMap<&'static str, Channel>,
    runs: RunWatch,
    /// True if another service of the experiment sends its notices.
    is_silent: bool,
}

impl Notices {
    /// Creates the destinations of a table `[control]`. The records of runs are those that need no notice any more.
    ///
    /// # Errors
    /// A destination cannot be used; the sentence says which, and why.
    pub fn open_destinations(config: &ControlConfig, records: &BTreeMap<u32, RunRecord>) -> Result<Self, String> {
        let mut notices = Self { runs: RunWatch::new(records), ..Self::default() };
        notices.change_destinations(config)?;
        Ok(notices)
    }

    /// Takes the destinations of a table `[control]`. Those that have not changed keep what waits for them.
    ///
    /// # Errors
    /// A destination cannot be used; the sentence says which, and why. Nothing has changed then.
    pub fn change_destinations(&mut self, config: &ControlConfig) -> Result<(), String> {
        let mut wanted: Vec<(&'static str, Destination)> = Vec::new();
        for (name, post, events) in [
            ("webhook", &config.webhook, NoticeEvent::ALL.as_slice()),
            ("logbook", &config.logbook, NoticeEvent::OF_RUNS.as_slice()),
        ] {
            if let Some(post) = post {
                let opened = PostDestination::from_config(post, events);
                let opened = opened.map_err(|problem| format!("[control.{name}]: {problem}"))?;
                wanted.push((name, Destination::Post(opened)));
            }
        }
        if let Some(mail) = &config.mail {
            let opened = MailDestination::from_config(mail).map_err(|problem| format!("[control.mail]: {problem}"))?;
            wanted.push(("mail", Destination::Mail(opened)));
        }
        let mut opened = BTreeMap::new();
        for (name, destination) in wanted {
            let is_kept = self.channels.get(name).is_some_and(|channel| channel.destination == destination);
            opened.insert(name, if is_kept { None } else { Some(Channel::open_channel(name, destination)?) });
        }
        let mut old = std::mem::take(&mut self.channels);
        for (name, channel) in opened {
            self.channels.extend(channel.or_else(|| old.remove(name)).map(|channel| (name, channel)));
        }
        Ok(())
    }

    /// Sets whether another service of the experiment sends its notices; this one then follows the runs alone.
    pub fn set_silent(&mut self, is_silent: bool) {
        self.is_silent = is_silent;
    }

    /// Sends notices of what a record is the first to show that another service has changed. Records of runs that were
    /// taken while this service knew nothing of them have no news.
    pub fn send_changed_record(&mut self, experiment: &str, unix: f64, record: &RunRecord) {
        let is_recent = record.asked_at.is_some_and(|asked| unix - asked < RECENT_SECONDS);
        if is_recent || self.runs.0.contains_key(&record.number) {
            self.send_record(experiment, unix, record);
        } else {
            self.runs.take_record(record);
        }
    }

    /// Sends the notice of an alarm that has begun or is over.
    pub fn send_alarm(&self, experiment: &str, unix: f64, alarm: &AlarmView) {
        let notice = Notice::of_alarm(experiment, unix, alarm);
        // That a destination takes nothing is a notice to the others.
        self.send_notice(&notice, |name| alarm.id == alarm_id(name));
    }

    /// Sends notices of what a record of a run is the first to show.
    pub fn send_record(&mut self, experiment: &str, unix: f64, record: &RunRecord) {
        for event in self.runs.take_record(record) {
            self.send_notice(&Notice::of_run(experiment, unix, event, record), |_| false);
        }
    }

    fn send_notice(&self, notice: &Notice, is_left_out: impl Fn(&str) -> bool) {
        if self.is_silent {
            return;
        }
        let channels = self.channels.iter().filter(|(name, _)| !is_left_out(name));
        for (_, channel) in channels.filter(|(_, channel)| channel.destination.wants_event(notice.event)) {
            channel.add_notice(notice);
        }
    }

    /// Returns the destinations as the status shows them.
    pub fn views(&self) -> Vec<DestinationView> {
        let channels = self.channels.iter();
        let views = channels.map(|(name, channel)| {
            let state = channel.queue.state.lock();
            let [waiting, sent, left_out] = state.delivery.notice_counts();
            let problem = state.delivery.last_problem().unwrap_or_default().to_owned();
            DestinationView { name: (*name).to_owned(), waiting, sent, left_out, problem }
        });
        views.collect()
    }
}

/// Returns the name of the alarm that a destination takes nothing.
pub fn alarm_id(destination: &str) -> String {
    format!("not-delivered:{destination}")
}

/// Reads a secret from a file that its owner alone can read.
///
/// # Errors
/// The file cannot be read, is empty or too long, or others can read it.
pub(crate) fn read_secret(path: &Path) -> Result<String, String> {
    read_secret_text(path).map_err(|problem| format!("{}: {problem}", path.display()))
}

fn read_secret_text(path: &Path) -> Result<String, String> {
    let file = fs::File::open(path).map_err(|error| error.to_string())?;
    let mode = file.metadata().map_err(|error| error.to_string())?.mode();
    if mode & 0o077 != 0 {
        return Err(format!("others can read it (mode {:o}): chmod 600 it", mode & 0o777));
    }
    let mut secret = String::new();
    file.take(MAX_SECRET_BYTES + 1).read_to_string(&mut secret).map_err(|error| error.to_string())?;
    match secret.trim_end_matches(['\r', '\n']) {
        "" => Err("it is empty: write the secret into it".into()),
        secret if secret.len() as u64 > MAX_SECRET_BYTES => {
            Err(format!("it is longer than {MAX_SECRET_BYTES} bytes: that is no secret"))
        }
        secret if secret.contains(char::is_control) => Err("it has more than one line".into()),
        secret => Ok(secret.to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::records::Flag;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn a_run_is_noticed_at_its_start_its_end_and_each_judgement_and_once() {
        let mut record = RunRecord { number: 7, ..RunRecord::default() };
        let mut watch = RunWatch::default();
        assert!(watch.take_record(&record).is_empty(), "a number alone is no run");
        record.state = RunState::Running;
        assert_eq!(watch.take_record(&record), [NoticeEvent::Start]);
        record.note = "first beam".into();
        assert!(watch.take_record(&record).is_empty());
        // Another service takes over.
        let mut watch = RunWatch::new(&BTreeMap::from([(7, record.clone())]));
        record.state = RunState::Complete;
        assert_eq!(watch.take_record(&record), [NoticeEvent::Stop]);
        record.flag = Some(Flag { flag: Quality::Bad, why: "no beam".into(), by: "anna".into(), at: 0.0 });
        assert_eq!(watch.take_record(&record), [NoticeEvent::Flag]);
        assert!(watch.take_record(&record).is_empty());
        let notice = Notice::of_run("lab", 1.5, NoticeEvent::Flag, &record);
        assert_eq!(notice.text, "run 7 is flagged bad by anna: no beam");
        assert_eq!(notice.content["time"], "1970-01-01T00:00:01.500Z");
        let failed = RunRecord { number: 8, state: RunState::Failed, ..RunRecord::default() };
        assert_eq!(watch.take_record(&failed), [NoticeEvent::Stop]);
        assert_eq!(Notice::of_run("lab", 0.0, NoticeEvent::Stop, &failed).text, "run 8 did not begin");
    }

    #[test]
    fn of_several_services_one_sends_and_the_next_goes_on_where_it_stopped() {
        let url = "http://127.0.0.1:9".to_owned();
        let webhook = Some(crate::webhook::PostConfig { url, ..Default::default() });
        let config = ControlConfig { webhook, ..ControlConfig::default() };
        let mut notices = Notices::open_destinations(&config, &BTreeMap::new()).unwrap();
        let mut record = RunRecord { number: 7, state: RunState::Running, ..RunRecord::default() };
        notices.set_silent(true);
        notices.send_record("lab", 0.0, &record);
        notices.send_changed_record("lab", 0.0, &RunRecord { number: 8, ..record.clone() });
        assert_eq!(notices.views()[0].waiting, 0);
        notices.set_silent(false);
        notices.send_changed_record("lab", 1e9, &RunRecord { number: 2, asked_at: Some(1.0), ..record.clone() });
        for (number, state) in [(7, RunState::Running), (8, RunState::Running), (8, RunState::Complete)] {
            (record.number, record.state) = (number, state);
            notices.send_record("lab", 0.0, &record);
        }
        let view = &notices.views()[0];
        assert_eq!(view.waiting + view.left_out, 1, "the end of run 8 alone");
    }

    #[test]
    fn a_secret_that_others_can_read_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("token");
        let write = |text: &str, mode| {
            fs::write(&path, text).unwrap();
            fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
            read_secret(&path)
        };
        assert_eq!(write("abc\n", 0o600).as_deref(), Ok("abc"));
        assert!(write("abc\n", 0o640).unwrap_err().contains("chmod 600"));
        assert!(write("\n", 0o600).unwrap_err().contains("empty"));
        assert!(write("a\nb", 0o600).unwrap_err().contains("more than one line"));
        assert!(read_secret(&folder.path().join("none")).unwrap_err().contains("none: No such file"));
    }
}
