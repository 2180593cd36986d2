//! Measures the number of cells per second through a ring between two threads, and the cost of a wake-up.
//!
//! `cargo run --release -p thalweg-arena --example ring_rate`

use std::time::Duration;
#[cfg(not(loom))]
use std::time::Instant;

fn main() {
    println!("cells between two threads, both polling, best of 20 (a thread that is preempted spoils a turn):");
    for batch in [1, 4, 16, 64] {
        let cells = 1_000_000;
        let best = (0..20).map(|_| polling(1024, batch, cells)).min().unwrap_or_default();
        report(&format!("published every {batch:2} cells"), best, cells);
    }
    let turns = 50_000;
    println!("request and answer between two threads, both sleeping (doorbell and poll):");
    report("per round trip", sleeping(turns), turns);
}

fn report(what: &str, took: Duration, count: u64) {
    let each = took.as_secs_f64() / count as f64;
    println!("  {what}: {:8.1} ns, {:6.2} million/s", each * 1e9, 1e-6 / each);
}

#[cfg(not(loom))]
fn polling(cells: u32, batch: u64, count: u64) -> Duration {
    use thalweg_arena::{CELL_BYTES, Ring};
    let (mut sender, mut receiver) = Ring::create("ring_rate", cells).expect("memory for a ring").split();
    let begin = Instant::now();
    std::thread::scope(|scope| {
        scope.spawn(move || {
            for number in 0..count {
                let cell = [number as u8; CELL_BYTES];
                while sender.push(&cell).is_err() {
                    let _nobody_sleeps = sender.publish();
                    std::hint::spin_loop();
                }
                if number % batch == batch - 1 {
                    let _nobody_sleeps = sender.publish();
                }
            }
            let _nobody_sleeps = sender.publish();
        });
        let mut number = 0;
        while number < count {
            match receiver.pop().expect("an honest peer") {
                Some(cell) => {
                    assert_eq!(cell[CELL_BYTES - 1], number as u8);
                    number += 1;
                }
                None => std::hint::spin_loop(),
            }
        }
    });
    begin.elapsed()
}

#[cfg(not(loom))]
fn sleeping(turns: u64) -> Duration {
    use rustix::event::{PollFd, PollFlags, poll};
    use thalweg_arena::{CELL_BYTES, Doorbell, Ring, RingReceiver, RingSender};

    fn turn(sender: &mut RingSender, bell: &Doorbell) {
        sender.push(&[1; CELL_BYTES]).expect("room for one");
        if sender.publish() {
            bell.wake_waiter().expect("a doorbell");
        }
    }

    fn wait(receiver: &mut RingReceiver, bell: &Doorbell) {
        while receiver.pop().expect("an honest peer").is_none() {
            if receiver.prepare_wait() {
                poll(&mut [PollFd::new(bell, PollFlags::IN)], None).expect("poll");
                bell.clear_wakeups().expect("a doorbell");
            }
        }
    }

    let ring = |name| Ring::create(name, 64).expect("memory for a ring").split();
    let ((mut ask, mut asked), (mut answer, mut answered)) = (ring("requests"), ring("answers"));
    let (request, reply) = (Doorbell::new().expect("an eventfd"), Doorbell::new().expect("an eventfd"));
    let begin = Instant::now();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for _ in 0..turns {
                wait(&mut asked, &request);
                turn(&mut answer, &reply);
            }
        });
        for _ in 0..turns {
            turn(&mut ask, &request);
            wait(&mut answered, &reply);
        }
    });
    begin.elapsed()
}

#[cfg(loom)]
fn polling(_: u32, _: u64, _: u64) -> Duration {
    unreachable!("loom's atomics run in a model only")
}

#[cfg(loom)]
fn sleeping(_: u64) -> Duration {
    unreachable!("loom's atomics run in a model only")
}
