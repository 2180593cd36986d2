//! Devices that work by themselves: a toy digitizer fills its buffers out of order, late, and with gaps in its counter.
//! Fragments that it delivers are on disk, and those that it lost are in a bucket of their own.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use thalweg_arena::{Arena, Registration};
use thalweg_device::{
    Acquired, Acquisition, AsAcquisition, Buffer, Description, DeviceError, Frame, HeaderValues, ModelAdcConfig,
    model_adc,
};
use thalweg_node::{
    BuilderNode, BuilderReport, Feed, Handle, Policy, SourceNode, SourceReport, SourceSettings, Topology, Wait,
};
use thalweg_store::Run;
use thalweg_text::ByteSize;
use thalweg_wire::{EventId, PayloadType, SourceId, Status, TaiNanos, crc32c};

const EVENTS: u64 = 500;
const BYTES: usize = 1000;

/// Behaviour of the digitizer.
#[derive(Debug, Clone, Copy)]
struct Habits {
    /// Divisor of the frame numbers that are lost: its counter skips them.
    loses: u64,
    /// True if it reports losses, instead of leaving that to its counter.
    says_so: bool,
    /// True if it reports that it was not triggered for these frames.
    missed: bool,
    /// Number of buffers that come back together, the last first.
    group: u32,
    /// Number of polls until each group comes.
    late: u32,
    /// True if it computes the checksum itself.
    sums: bool,
}

/// Digitizer without an input: each frame's bytes follow from its number.
#[derive(Debug)]
struct Toy {
    habits: Habits,
    description: Description,
    posted: Vec<Buffer>,
    done: Vec<Acquired>,
    number: u64,
    looks: u32,
    started: bool,
    registration: Option<Registration>,
}

impl Toy {
    fn new(habits: Habits) -> Self {
        let description = Description { kind: "toy".into(), simulated: true, ..Description::default() };
        let (posted, done) = (Vec::new(), Vec::new());
        Self { habits, description, posted, done, number: 0, looks: 0, started: false, registration: None }
    }

    fn fill(&mut self, mut buffer: Buffer) {
        let Habits { loses, says_so, missed, .. } = self.habits;
        if self.number.is_multiple_of(loses) {
            if missed {
                self.done.push(Acquired::Missed { first: self.number, count: 1 });
            } else if says_so {
                self.done.push(Acquired::Lost { first: self.number, count: 1 });
            }
            self.number += 1;
        }
        let payload = &mut buffer.payload_mut()[..BYTES];
        payload.fill(content(self.number));
        let crc = self.habits.sums.then(|| crc32c(payload));
        let filled = HeaderValues {
            payload_type: PayloadType::RAW,
            status: Status::SIMULATED,
            window: 7,
            timestamp: Some(TaiNanos(self.number)),
        };
        self.done.push(Acquired::Frame(Frame { buffer, number: self.number, len: BYTES, filled, crc, copied: 0 }));
        self.number += 1;
    }
}

fn content(number: u64) -> u8 {
    (number % 251) as u8
}

impl Acquisition for Toy {
    fn description(&self) -> &Description {
        &self.description
    }

    fn max_payload_bytes(&self) -> usize {
        BYTES
    }

    fn max_posted_buffers(&self) -> u32 {
        self.habits.group
    }

    fn reorder_depth(&self) -> u32 {
        self.habits.group - 1
    }

    fn register_memory(&mut self, arena: &Arc<Arena>) -> Result<(), DeviceError> {
        self.registration = Some(arena.record_registration("a toy"));
        Ok(())
    }

    fn post_buffer(&mut self, buffer: Buffer) {
        assert!(self.registration.is_some(), "its buffers lie in memory that it does not know");
        self.posted.push(buffer);
    }

    fn start_acquisition(&mut self, _at: TaiNanos) -> Result<(), DeviceError> {
        self.started = true;
        Ok(())
    }

    fn poll_acquired(&mut self, _now: Duration) -> Result<Acquired, DeviceError> {
        assert!(self.started, "it was not started");
        self.looks += 1;
        let Habits { group, late, .. } = self.habits;
        if self.done.is_empty() && self.posted.len() == group as usize && self.looks >= late {
            self.looks = 0;
            std::mem::take(&mut self.posted).into_iter().for_each(|buffer| self.fill(buffer));
        }
        Ok(self.done.pop().unwrap_or(Acquired::NotYet))
    }

    fn next_poll_time(&self) -> Option<Duration> {
        // It has no descriptor, so it is polled all the time.
        Some(Duration::ZERO)
    }
}

/// Records the output of a device, over shared memory, with a number of builders.
fn record(folder: &Path, builders: usize, device: Box<dyn Acquisition>) -> (Vec<BuilderReport>, SourceReport) {
    let runs = folder.join("runs");
    let mut text = format!("[run]\nevents = {EVENTS}\nnumber = 1\ndirectory = {runs:?}\n");
    for index in 0..builders {
        let address = folder.join(format!("b{index}"));
        text += &format!("[[builder]]\nname = \"b{index}\"\nlisten = [\"shm:{}\"]\n", address.display());
    }
    text += "[[source]]\nname = \"toy\"\nid = \"1.0\"\nlink = \"shm\"\n";
    let file = folder.join("topology.toml");
    std::fs::write(&file, text).unwrap();
    std::fs::create_dir_all(&runs).unwrap();
    let topology = Topology::load(&file, None).unwrap();
    let nodes: Vec<BuilderNode> =
        topology.builders.iter().map(|builder| BuilderNode::new(&topology, &builder.name).unwrap()).collect();
    let settings = SourceSettings {
        name: "toy".into(),
        id: SourceId::new(1, 0),
        feed: Feed::Acquisition(device),
        builders: nodes.iter().map(|node| node.listening_addresses().remove(0)).collect(),
        adapter: None,
        congestion: None,
        rate: None,
        burst: 1,
        policy: Policy::Block,
        slots: 16,
        slot_bytes: 2048,
        timeout: Duration::from_secs(60),
        wait: Wait::default(),
        cpu: None,
    };
    std::thread::scope(|scope| {
        let building: Vec<_> =
            nodes.into_iter().map(|node| scope.spawn(|| node.run(&Handle::new().unwrap()).unwrap())).collect();
        let source = SourceNode::new(settings).unwrap().run(&Handle::new().unwrap()).unwrap();
        (building.into_iter().map(|building| building.join().unwrap()).collect(), source)
    })
}

/// Returns the payload of each event on disk that has one.
fn payloads(reports: &[BuilderReport]) -> BTreeMap<EventId, Vec<u8>> {
    let mut found = BTreeMap::new();
    for report in reports {
        let run = Run::open(report.directory.as_ref().unwrap()).unwrap();
        for event in run.events() {
            let event = event.unwrap();
            for fragment in event.fragments.iter().filter(|f| !f.header.status.contains(Status::MISSING)) {
                found.insert(event.id, fragment.payload().to_vec());
            }
        }
    }
    found
}

#[test]
fn what_a_device_delivers_is_on_disk_and_what_it_lost_is_in_a_bucket_of_its_own() {
    let all = [(1, 1, false, true), (4, 3, true, false), (8, 1, false, false)];
    for (group, late, says_so, sums) in all {
        for builders in [1, 3] {
            let folder = tempfile::tempdir().unwrap();
            let habits = Habits { loses: 7, says_so, missed: false, group, late, sums };
            let (reports, source) = record(folder.path(), builders, Box::new(Toy::new(habits)));
            let lost = (0..EVENTS).filter(|number| number % 7 == 0).count() as u64;
            let sum = |bucket: fn(&thalweg_core::build::LedgerEntry) -> u64| -> u64 {
                reports.iter().map(|report| bucket(&report.ledger.sources[0])).sum()
            };
            assert_eq!(source.lost_in_device, lost, "{habits:?} {source:#?}");
            assert_eq!(sum(|entry| entry.lost_in_device), lost, "{habits:?} {reports:#?}");
            assert_eq!(sum(|entry| entry.recorded), EVENTS - lost);
            assert_eq!(sum(|entry| entry.accepted), EVENTS);
            assert!(reports.iter().all(|report| report.ledger.unaccounted == 0));
            assert!(source.pages.ends_with("registered with a toy"), "{}", source.pages);
            let told = reports.iter().flat_map(|report| &report.reasons).any(|why| why.contains("lost in the device"));
            assert!(told, "{reports:#?}");

            let found = payloads(&reports);
            let delivered = (0..EVENTS).filter(|number| number % 7 != 0);
            assert!(found.keys().map(|event| event.0).eq(delivered));
            for (event, payload) in found {
                assert_eq!(payload, [content(event.0); BYTES]);
            }
        }
    }
}

#[test]
fn what_a_device_was_not_triggered_for_is_not_lost() {
    for builders in [1, 3] {
        let folder = tempfile::tempdir().unwrap();
        let habits = Habits { loses: 7, says_so: true, missed: true, group: 4, late: 2, sums: false };
        let (reports, source) = record(folder.path(), builders, Box::new(Toy::new(habits)));
        let taken = (0..EVENTS).filter(|number| number % 7 != 0).count() as u64;
        let sums = |bucket: fn(&thalweg_core::build::LedgerEntry) -> u64| -> u64 {
            reports.iter().map(|report| bucket(&report.ledger.sources[0])).sum()
        };
        assert_eq!((source.lost_in_device, sums(|entry| entry.lost_in_device)), (0, 0), "{source:#?}");
        assert_eq!((sums(|entry| entry.accepted), sums(|entry| entry.recorded)), (taken, taken), "{reports:#?}");
        assert!(reports.iter().all(|report| report.state == "COMPLETE"), "{reports:#?}");
        assert!(payloads(&reports).keys().all(|event| event.0 % 7 != 0));
    }
}

#[test]
fn a_device_that_is_asked_works_as_one_that_works_by_itself() {
    let folder = tempfile::tempdir().unwrap();
    let config = ModelAdcConfig {
        size: ByteSize(BYTES as u64),
        size_from: Some(ByteSize(1)),
        seed: 3,
        source: Some(SourceId::new(1, 0)),
        period: 0,
    };
    let device = thalweg_device::open_device(&config.into()).unwrap();
    let (reports, _) = record(folder.path(), 1, Box::new(AsAcquisition::new(device)));
    assert_eq!((&*reports[0].state, reports[0].events), ("COMPLETE", EVENTS), "{reports:#?}");
    for (event, payload) in payloads(&reports) {
        let mut expected = vec![0; payload.len()];
        model_adc(3, SourceId::new(1, 0), event.0, &mut expected);
        assert_eq!(payload, expected, "event {event:?}");
    }
}
