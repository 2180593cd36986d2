//! Cost of the event builder itself per fragment, without links and disks: 3 sources (then 150) offer slots of 240
//! fragments of 1 KiB, which are fetched, checked and closed, first with headers checked only, then payloads too.
//!
//! ```sh
//! cargo run --release -p thalweg-core --example throughput
//! ```
//!
//! Each source's slots reuse one buffer of the source, whose headers are written outside the measured time: records
//! come from the nearest cache that holds them all (3 sources: 0.8 MB; 150 sources: 39 MB). The median of all slots is
//! printed, so that interruptions do not count.

use std::time::{Duration, Instant};
use thalweg_core::build::{Builder, BuilderConfig, Check, Hold, Window};
use thalweg_wire::{
    Announcement, Disposition, EventId, FragmentHeader, RunNumber, SourceId, Status, crc32c, record_bytes,
};

const PAYLOAD: usize = 1024;
const FRAGMENTS: u32 = 240;

fn main() {
    println!("nanoseconds per fragment");
    println!("sources  check     arrived  of which CRC  offered  next_fetch  next_closed");
    for sources in [3, 150] {
        for check in [Check::Headers, Check::Payloads] {
            measure(sources, check);
        }
    }
}

fn measure(sources: u16, check: Check) {
    let mut builder = Builder::new(BuilderConfig {
        run: RunNumber(1),
        builder: 0,
        builders: 1,
        rank: (0, 1),
        sources: (0..sources).map(|i| (SourceId::new(1, i), format!("source {i}"))).collect(),
        level2: Vec::new(),
        first: EventId(0),
        window: Window::Constant(8 << 20),
        held: u64::MAX,
        deadline: Duration::from_secs(1),
        open_events: 4 * FRAGMENTS,
        max_payload: 1 << 16,
        check,
        hold: Hold::UntilArrived,
    });
    let payload: Vec<u8> = (0..PAYLOAD).map(|i| (i * 7) as u8).collect();
    let payload_crc = crc32c(&payload);
    let mut slots = vec![vec![0u8; FRAGMENTS as usize * record_bytes(PAYLOAD)]; usize::from(sources)];
    for slot in &mut slots {
        for record in slot.chunks_exact_mut(record_bytes(PAYLOAD)) {
            record[64..64 + PAYLOAD].copy_from_slice(&payload);
        }
    }
    for source in 0..usize::from(sources) {
        builder.source_connected(source, 4, false);
    }

    let rounds = 12_000 / u64::from(sources);
    let [mut offering, mut fetching, mut arriving, mut closing, mut crcs] = [const { Vec::new() }; 5];
    let (mut recorded, mut closed) = (0u64, 0u64);
    for round in 0..rounds {
        let now = Duration::from_micros(round);
        let first = round * u64::from(FRAGMENTS);
        for (source, slot) in slots.iter_mut().enumerate() {
            for (event, record) in (first..).zip(slot.chunks_exact_mut(record_bytes(PAYLOAD))) {
                let header = FragmentHeader {
                    status: Status::SIMULATED,
                    run: RunNumber(1),
                    event: EventId(event),
                    source: SourceId::new(1, source as u16),
                    total_length: PAYLOAD as u32,
                    piece_length: PAYLOAD as u32,
                    payload_crc,
                    ..FragmentHeader::default()
                };
                record[..64].copy_from_slice(&header.encode());
            }
        }
        let begin = Instant::now();
        for (source, slot) in slots.iter().enumerate() {
            let offer = Announcement {
                ticket: round,
                first: EventId(first),
                arena_offset: 0,
                count: FRAGMENTS,
                bytes: slot.len() as u32,
                disposition: Disposition::Held,
            };
            builder.handle_offer(source, offer, now).expect("an offer in order");
        }
        offering.push(begin.elapsed() / u32::from(sources));
        loop {
            let begin = Instant::now();
            let fetch = builder.next_fetch(now);
            let asked = Instant::now();
            let Some(fetch) = fetch else { break };
            fetching.push(asked - begin);
            builder.count_received(fetch.source, fetch.offer.bytes.into(), now);
            let mut arrival = builder.arrived(fetch.source, fetch.offer.ticket, &slots[fetch.source][..]);
            recorded += arrival.by_ref().count() as u64;
            arrival.finish().expect("what a source may send");
            builder.next_release(fetch.source);
            arriving.push(asked.elapsed());
            crcs.push(checksums(&slots[fetch.source], check));
        }
        let begin = Instant::now();
        while let Some(event) = builder.next_closed() {
            closed += u64::from(event.count);
        }
        closing.push(begin.elapsed() / u32::from(sources));
    }
    let fragments = rounds * u64::from(sources) * u64::from(FRAGMENTS);
    assert_eq!((recorded, closed), (fragments, rounds * u64::from(FRAGMENTS)));
    let median = |mut times: Vec<Duration>| {
        times.sort_unstable();
        times[times.len() / 2].as_nanos() as f64 / f64::from(FRAGMENTS)
    };
    println!(
        "{sources:7}  {:8}  {:7.1}  {:12.1}  {:7.2}  {:10.2}  {:11.2}",
        format!("{check:?}").to_lowercase(),
        median(arriving),
        median(crcs),
        median(offering),
        median(fetching),
        median(closing),
    );
}

/// Returns the time that the checksums of a slot alone take.
fn checksums(slot: &[u8], check: Check) -> Duration {
    let begin = Instant::now();
    for record in slot.chunks_exact(record_bytes(PAYLOAD)) {
        let header = crc32c(&record[..60]);
        let payload = if check == Check::Payloads { crc32c(&record[64..64 + PAYLOAD]) } else { 0 };
        std::hint::black_box((header, payload));
    }
    begin.elapsed()
}
