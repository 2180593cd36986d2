//! Storage of numbers and records: a thread of its own waits for the disk, or for etcd. One that hangs delays the next
//! start, and nothing else.

use crate::etcd::{EtcdConfig, EtcdError, EtcdStore};
use crate::numbers::NumberFile;
use crate::records::{RecordFile, RunRecord};
use crate::service::unix_micros;
use crate::status::ServiceView;
use std::collections::BTreeMap;
use std::fs::{File, OpenOptions, TryLockError};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread;
use std::time::{Duration, Instant};

/// Time from one look at what other services have changed to the next.
const POLL_INTERVAL: Duration = Duration::from_secs(1);

/// Order to the storage.
#[derive(Debug)]
pub enum StorageOrder {
    /// Works at this place from now on.
    Configure(Box<StoragePlace>),
    /// Reserves a number for this request, at least that of the record, and writes the record.
    Reserve(u64, Box<RunRecord>),
    /// Writes the record of a run.
    Record(Box<RunRecord>),
    /// Sends to etcd what it did not take before, and reports whether it has all records. One that the file did not take was
    /// reported as a [problem](StorageReport::Problem).
    Report(Sender<bool>),
}

/// Place of the storage, beside the files of the service.
#[derive(Debug, Clone)]
pub struct StoragePlace {
    /// Directory of runs.
    pub runs: PathBuf,
    /// The etcd; none if it has no endpoints.
    pub etcd: EtcdConfig,
    /// Name of the experiment.
    pub experiment: String,
    /// This service, as others see it.
    pub service: ServiceView,
}

/// Report of the storage.
#[derive(Debug)]
pub enum StorageReport {
    /// Record with the number that was reserved for this request.
    Reserved(u64, Result<Box<RunRecord>, String>),
    /// Record that another service has changed, or that a lost answer of etcd has left.
    Changed(Box<RunRecord>),
    /// Situation as of the last look.
    Looked(StorageView),
    /// Record that could not be written.
    Problem(String),
}

/// What the storage has found.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct StorageView {
    /// Number that the next run gets, unless another service takes it.
    pub next_number: Option<u32>,
    /// Reason why no number can be reserved; empty if one can be.
    pub problem: String,
    /// Services of the experiment that are up, as far as etcd knows them.
    pub services: Vec<ServiceView>,
    /// True if another service of the experiment sends its notices: of those that etcd knows, the one that began first; in
    /// a directory that several share, the one that has locked a file there.
    pub another_sends_notices: bool,
}

/// The storage.
#[derive(Debug)]
pub struct Storage(Sender<StorageOrder>);

impl Storage {
    /// Opens the storage in the directory of a service's files. Returns it, its worker and the records of runs.
    ///
    /// # Errors
    /// A file cannot be read or written.
    pub fn open(directory: &Path) -> io::Result<(Self, StorageWorker, BTreeMap<u32, RunRecord>)> {
        let (file, records) = RecordFile::open_records(directory)?;
        let (sender, orders) = channel();
        let worker = StorageWorker {
            orders,
            numbers: NumberFile::in_directory(directory),
            file,
            etcd: None,
            // Two services of a host begin at different times.
            id: format!("{}-{}", rustix::system::uname().nodename().to_string_lossy(), unix_micros()),
            place: None,
            first_free: 0,
            known: records.clone(),
            unsent: BTreeMap::new(),
            view: StorageView::default(),
            notices: NoticeLock { path: directory.join("notices.lock"), file: None },
        };
        Ok((Self(sender), worker, records))
    }

    /// Gives an order.
    pub fn order(&self, order: StorageOrder) {
        // The worker ends after this value, and not before.
        let _ = self.0.send(order);
    }

    /// Returns a receiver of the report whether the records of all orders so far are written.
    pub fn request_report(&self) -> Receiver<bool> {
        let (sender, report) = channel();
        self.order(StorageOrder::Report(sender));
        report
    }
}

/// Worker of the storage, which has a thread of its own.
#[derive(Debug)]
pub struct StorageWorker {
    orders: Receiver<StorageOrder>,
    numbers: NumberFile,
    file: RecordFile,
    etcd: Option<EtcdStore>,
    /// Name of this service among those of the experiment.
    id: String,
    place: Option<StoragePlace>,
    /// Number after the highest of the runs in the directory.
    first_free: u32,
    /// Records as they were written, or read, last.
    known: BTreeMap<u32, RunRecord>,
    /// Records that are to be sent to etcd.
    unsent: BTreeMap<u32, RunRecord>,
    view: StorageView,
    notices: NoticeLock,
}

/// Lock of the one service that sends notices, among those that share a directory. It ends with the service.
#[derive(Debug)]
struct NoticeLock {
    path: PathBuf,
    /// The file, while this service has locked it.
    file: Option<File>,
}

impl NoticeLock {
    /// Takes the lock, and returns false if another service has it. On a disk without locks, each service has it: a notice
    /// that comes twice is better than none.
    fn try_take(&mut self) -> bool {
        if self.file.is_some() {
            return true;
        }
        let file = OpenOptions::new().create(true).truncate(false).write(true).open(&self.path);
        let Ok(file) = file else { return true };
        match file.try_lock() {
            Ok(()) => self.file = Some(file),
            Err(TryLockError::WouldBlock) => return false,
            Err(TryLockError::Error(_)) => {}
        }
        true
    }
}

/// Receiver of reports.
type Reporter<'a> = &'a dyn Fn(StorageReport);

/// The last number, and the services that are up.
type EtcdView = (Option<u32>, Vec<ServiceView>);

impl StorageWorker {
    /// Starts the thread, which gives its reports to `report`, and ends with the [`Storage`].
    ///
    /// # Errors
    /// There is no thread for it.
    pub fn start(self, report: impl Fn(StorageReport) + Send + 'static) -> io::Result<()> {
        thread::Builder::new().name("storage".into()).spawn(move || self.work(&report)).map(drop)
    }

    fn work(mut self, report: Reporter<'_>) {
        let mut next_look = Instant::now();
        loop {
            match self.orders.recv_timeout(next_look.saturating_duration_since(Instant::now())) {
                Ok(StorageOrder::Configure(place)) => {
                    self.configure(*place);
                    next_look = Instant::now();
                }
                Ok(StorageOrder::Reserve(ticket, draft)) => {
                    let reserved = self.reserve_number(*draft);
                    report(StorageReport::Reserved(ticket, reserved.map(Box::new)));
                    next_look = Instant::now();
                }
                Ok(StorageOrder::Record(record)) => self.write_record(*record, report),
                Ok(StorageOrder::Report(sender)) => {
                    self.send_records();
                    _ = sender.send(self.unsent.is_empty());
                }
                Err(RecvTimeoutError::Timeout) => {
                    self.look(report);
                    next_look = Instant::now() + POLL_INTERVAL;
                }
                Err(RecvTimeoutError::Disconnected) => return,
            }
        }
    }

    fn configure(&mut self, place: StoragePlace) {
        self.first_free = first_free_number(&place.runs);
        let former = self.place.as_ref().map(|former| (&former.etcd, &former.experiment));
        // One that is the same may have a reservation to settle.
        if former != Some((&place.etcd, &place.experiment)) {
            let has_etcd = !place.etcd.endpoints.is_empty();
            self.etcd = has_etcd.then(|| EtcdStore::new(&place.etcd, &place.experiment));
            // Records that were made without it.
            self.unsent = if has_etcd { self.known.clone() } else { BTreeMap::new() };
        }
        self.place = Some(place);
    }

    fn reserve_number(&mut self, mut draft: RunRecord) -> Result<RunRecord, String> {
        self.first_free = self.place.as_ref().map_or(0, |place| first_free_number(&place.runs));
        draft.number = draft.number.max(self.first_free);
        let reserved = match &mut self.etcd {
            // The file goes with it: a laboratory that gives up etcd goes on with its numbers.
            Some(etcd) => etcd.reserve_number(&draft).and_then(|record| {
                self.numbers.raise_number(record.number)?;
                Ok(record)
            }),
            None => self.numbers.reserve_number(draft.number).map(|number| RunRecord { number, ..draft }),
        };
        let record = reserved.map_err(|error| error.to_string())?;
        self.file.add_record(&record)?;
        self.known.insert(record.number, record.clone());
        Ok(record)
    }

    fn write_record(&mut self, record: RunRecord, report: Reporter<'_>) {
        if let Err(problem) = self.file.add_record(&record) {
            report(StorageReport::Problem(problem));
        }
        self.known.insert(record.number, record.clone());
        if self.etcd.is_some() {
            self.unsent.insert(record.number, record);
            self.send_records();
        }
    }

    /// Sends records to etcd, those that it did not take before first.
    fn send_records(&mut self) {
        let Some(etcd) = &mut self.etcd else { return };
        while let Some((number, record)) = self.unsent.pop_first() {
            if etcd.merge_record(&record).is_err() {
                self.unsent.insert(number, record);
                return;
            }
        }
    }

    /// Looks at what other services have changed, and reports that.
    fn look(&mut self, report: Reporter<'_>) {
        let changed = self.file.added_records();
        changed.into_iter().for_each(|record| self.take_record(record, report));
        let looked = self.look_at_etcd(report);
        let last = self.known.keys().next_back().map_or(1, |last| last.saturating_add(1));
        let least = last.max(self.first_free);
        let (next, services) = match looked {
            Some(Ok((number, services))) => (Ok(number.map_or(0, |last| last.saturating_add(1)).max(least)), services),
            Some(Err(error)) => (Err(error.to_string()), Vec::new()),
            None => (self.numbers.next_number(least).map_err(|error| error.to_string()), Vec::new()),
        };
        let (next_number, problem) = match next {
            Ok(next) => (Some(next), String::new()),
            Err(problem) => (None, problem),
        };
        let another_sends_notices = match (&self.etcd, &self.place) {
            (Some(_), Some(place)) => is_later(&place.service, &services),
            _ => !self.notices.try_take(),
        };
        let view = StorageView { next_number, problem, services, another_sends_notices };
        if view != self.view {
            self.view = view.clone();
            report(StorageReport::Looked(view));
        }
    }

    /// Returns what etcd holds; `None` without etcd.
    fn look_at_etcd(&mut self, report: Reporter<'_>) -> Option<Result<EtcdView, EtcdError>> {
        let (etcd, place) = (self.etcd.as_mut()?, self.place.as_ref()?);
        let looked = etcd.settle_doubt().and_then(|()| {
            let services = etcd.keep_service(&self.id, &place.service)?;
            Ok((etcd.last_number()?, services, etcd.changed_records()?))
        });
        Some(looked.map(|(number, services, records)| {
            for record in records {
                if self.unsent.get(&record.number) == Some(&record) {
                    self.unsent.remove(&record.number);
                }
                if self.known.get(&record.number) != Some(&record) {
                    if let Err(problem) = self.file.add_record(&record) {
                        report(StorageReport::Problem(problem));
                    }
                    self.take_record(record, report);
                }
            }
            self.send_records();
            (number, services)
        }))
    }

    /// Takes a record as another service has written it.
    fn take_record(&mut self, record: RunRecord, report: Reporter<'_>) {
        let merged = match self.known.get(&record.number) {
            Some(known) => known.merge(&record),
            None => record,
        };
        if self.known.get(&merged.number) != Some(&merged) {
            self.known.insert(merged.number, merged.clone());
            report(StorageReport::Changed(Box::new(merged)));
        }
    }
}

/// Returns true if one of the services began before this one.
fn is_later(own: &ServiceView, services: &[ServiceView]) -> bool {
    let first = services.iter().min_by(|one, other| one.since_at.total_cmp(&other.since_at));
    first.is_some_and(|first| (&first.host, first.since_at) != (&own.host, own.since_at))
}

/// Returns the number after the highest of the runs in a directory, as far as this host can read it.
fn first_free_number(directory: &Path) -> u32 {
    let entries = std::fs::read_dir(directory).into_iter().flatten().flatten();
    let numbers = entries.filter_map(|entry| {
        let name = entry.file_name().into_string().ok()?;
        let digits: String = name.strip_prefix("run-")?.chars().take_while(char::is_ascii_digit).collect();
        digits.parse::<u32>().ok()?.checked_add(1)
    });
    numbers.max().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_services_that_share_a_directory_one_sends_notices_until_it_ends() {
        let folder = tempfile::tempdir().unwrap();
        let [mut first, mut second] = [(); 2].map(|()| Storage::open(folder.path()).unwrap().1);
        first.look(&|_| {});
        second.look(&|_| {});
        first.look(&|_| {});
        assert_eq!([first.view.another_sends_notices, second.view.another_sends_notices], [false, true]);
        drop(first);
        second.look(&|_| {});
        assert!(!second.view.another_sends_notices);
    }
}
