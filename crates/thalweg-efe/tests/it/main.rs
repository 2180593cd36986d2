//! EFE's connections over a made-up network, and against hostile frames.

mod network;

use network::{Outcome, Scenario, simulate};
use std::time::Duration;
use thalweg_efe::{LastLink, Options};

fn show(name: &str, o: &Outcome) {
    println!(
        "{name:24} {:9.3} ms goodput {:.4} ceiling {:.4} ratio {:.4} drop {} queue {} flight {}/{} again {} vain {} timer {} probes {} rep {} times {:?} frames {}",
        o.elapsed.as_secs_f64() * 1e3, o.goodput, o.ceiling, o.goodput / o.ceiling, o.dropped, o.longest_queue_bytes,
        o.most_in_flight_bytes, o.credit_bound_bytes, o.sent.sent_again, o.sent.sent_in_vain, o.sent.sent_by_timer, o.sent.probes_sent,
        o.received.repeated, o.sender_times, o.received.frames_sent
    );
}

#[test]
fn first() {
    let base = Scenario::new(1);
    show("lossless", &simulate(&base));
    for ppm in [10_000, 50_000] {
        show(&format!("loss {ppm}"), &simulate(&Scenario { lost_ppm: ppm, ..base.clone() }));
        show(&format!("bursts {ppm}"), &simulate(&Scenario { lost_ppm: ppm, burst: Duration::from_micros(12), ..base.clone() }));
    }
    show("dup", &simulate(&Scenario { duplicated_ppm: 50_000, ..base.clone() }));
    for micros in [3, 10, 100, 10_000] {
        for ppm in [10_000, 1_000_000] {
            let max_delay = Duration::from_micros(micros);
            show(&format!("delay {micros} {ppm}"), &simulate(&Scenario { delayed_ppm: ppm, max_delay, packets: 5_000, ..base.clone() }));
            show(&format!("delay {micros} {ppm} +loss"), &simulate(&Scenario { delayed_ppm: ppm, max_delay, lost_ppm: 10_000, duplicated_ppm: 10_000, packets: 5_000, ..base.clone() }));
        }
    }
    show("3 classes", &simulate(&Scenario { classes: 3, lost_ppm: 10_000, packet_bytes: (1, 1400), refused_ppm: 1000, ..base.clone() }));
    for (rate, buffer, d) in [(1_250_000_000, 340_000, 5), (125_000_000, 340_000, 20), (1_250_000_000, 100_000, 5), (125_000_000, 64_000, 50)] {
        for senders in [1, 3, 10, 100] {
            let last_link = Some(LastLink { bytes_per_second: rate, round_trip: Duration::from_micros(4 * d + 4), buffer_bytes: buffer });
            let s = Scenario { senders, packets: 20_000 / senders as u32, bytes_per_second: rate, link_delay: Duration::from_micros(d), buffer_bytes: buffer,
                options: Options { last_link, ..base.options.clone() }, ..base.clone() };
            show(&format!("{senders} to 1 {rate} {buffer}"), &simulate(&s));
            show("   loss 5", &simulate(&Scenario { lost_ppm: 50_000, ..s }));
        }
    }
}
