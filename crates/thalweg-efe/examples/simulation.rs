//! EFE over a simulated network, in virtual time: `cargo run --release -p thalweg-efe --example simulation [SEED]`.
//!
//! One switch, links of one rate, 5 µs from host to switch. Goodput is in parts of the ceiling: what a link carries of
//! packets of this length if it is never idle. The same seed gives the same numbers on any machine.

#[path = "../tests/it/network.rs"]
mod network;

use network::{Outcome, Scenario, simulate};
use std::time::Duration;
use thalweg_efe::{LastLink, Options};

fn main() {
    let seed = std::env::args().nth(1).and_then(|seed| seed.parse().ok()).unwrap_or(1);
    let base = Scenario::new(seed);
    println!(
        "simulated, seed {seed}: packets of 1400 bytes, frames of at most 1500, 10 Gbit/s unless stated otherwise\n"
    );
    println!(
        "{:<44} {:>7} {:>7} {:>8} {:>8} {:>8}",
        "one sender, 20000 packets", "goodput", "bar", "again", "in vain", "by timer"
    );
    let lossless = simulate(&base);
    print_transfer("no loss", &lossless, None);
    for (name, lost_ppm, burst) in [
        ("1 % lost", 10_000, 0),
        ("1 % lost, for 12 µs each time", 10_000, 12),
        ("5 % lost", 50_000, 0),
        ("5 % lost, for 12 µs each time", 50_000, 12),
    ] {
        let outcome = simulate(&Scenario { lost_ppm, burst: Duration::from_micros(burst), ..base.clone() });
        print_transfer(name, &outcome, Some(0.9 * (1.0 - lost_ppm as f64 / 1e6) * lossless.goodput));
    }
    for (name, delayed_ppm, micros, lost_ppm) in [
        ("each delayed by up to 4 µs", 1_000_000, 4, 0),
        ("1 % delayed by up to 10 ms", 10_000, 10_000, 0),
        ("each delayed by up to 10 ms", 1_000_000, 10_000, 0),
        ("each delayed by up to 10 ms, 1 % lost", 1_000_000, 10_000, 10_000),
    ] {
        let max_delay = Duration::from_micros(micros);
        print_transfer(name, &simulate(&Scenario { delayed_ppm, max_delay, lost_ppm, ..base.clone() }), None);
    }
    for (run, rest) in [(4_000, 4_000), (1_000, 10_000), (100, 3_000)] {
        let (receiver_run, receiver_rest) = (Duration::from_micros(run), Duration::from_micros(rest));
        let name = format!("the receiver rests for {} ms of {}", rest as f64 / 1e3, (run + rest) as f64 / 1e3);
        print_transfer(&name, &simulate(&Scenario { receiver_run, receiver_rest, ..base.clone() }), None);
    }
    print_transfer("5 % duplicated", &simulate(&Scenario { duplicated_ppm: 50_000, ..base.clone() }), None);

    println!(
        "\n{:<44} {:>7} {:>7} {:>8} {:>8} {:>8}",
        "N senders to one, 20000 packets together", "goodput", "dropped", "queue kB", "of kB", "credit"
    );
    for (rate, rate_name) in [(1_250_000_000, "10 Gbit/s"), (125_000_000, "1 Gbit/s")] {
        for buffer_bytes in [340_000, 100_000] {
            for senders in [2, 10, 100] {
                print_incast(&base, senders, rate, rate_name, buffer_bytes);
            }
        }
    }
}

fn print_transfer(name: &str, outcome: &Outcome, bar: Option<f64>) {
    let bar = bar.map_or("-".to_owned(), |bar| format!("{:.3}", bar / outcome.ceiling));
    let sent = &outcome.sent;
    println!(
        "{name:<44} {:>7.3} {bar:>7} {:>8} {:>8} {:>8}",
        outcome.goodput / outcome.ceiling,
        sent.sent_again,
        sent.sent_in_vain,
        sent.sent_by_timer
    );
}

fn print_incast(base: &Scenario, senders: usize, bytes_per_second: u64, rate_name: &str, buffer_bytes: u64) {
    let round_trip = base.link_delay * 4 + Duration::from_nanos(4 * 1500 * 1_000_000_000 / bytes_per_second);
    let last_link = Some(LastLink { bytes_per_second, round_trip, buffer_bytes });
    let outcome = simulate(&Scenario {
        senders,
        packets: u32::try_from(20_000 / senders).unwrap_or(1),
        bytes_per_second,
        buffer_bytes,
        options: Options { last_link, ..base.options.clone() },
        ..base.clone()
    });
    println!(
        "{:<44} {:>7.3} {:>7} {:>8.1} {:>8.1} {:>8.1}",
        format!("{senders} at {rate_name}, a buffer of {} kB", buffer_bytes / 1000),
        outcome.goodput / outcome.ceiling,
        outcome.dropped,
        outcome.longest_queue_bytes as f64 / 1e3,
        buffer_bytes as f64 / 1e3,
        outcome.credit_bound_bytes as f64 / 1e3
    );
}
