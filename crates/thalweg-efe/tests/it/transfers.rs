//! Transfers over a made-up network: what arrives, how often, in which order and how fast.

use crate::network::{Outcome, Scenario, simulate};
use proptest::prelude::*;
use std::time::Duration;
use thalweg_efe::{LastLink, Options};

/// N senders to one receiver, which knows its last link: 10 Gbit/s unless stated otherwise.
fn many_to_one(senders: usize, bytes_per_second: u64, buffer_bytes: u64, seed: u64) -> Outcome {
    let base = Scenario::new(seed);
    let round_trip = base.link_delay * 4 + Duration::from_nanos(4 * 1500 * 1_000_000_000 / bytes_per_second);
    let last_link = Some(LastLink { bytes_per_second, round_trip, buffer_bytes });
    simulate(&Scenario {
        senders,
        packets: u32::try_from(10_000 / senders).unwrap(),
        bytes_per_second,
        buffer_bytes,
        options: Options { last_link, ..base.options.clone() },
        ..base
    })
}

#[test]
fn many_to_one_drops_nothing_and_fills_the_link() {
    for (rate, buffer) in [(1_250_000_000, 340_000), (125_000_000, 340_000), (1_250_000_000, 100_000)] {
        for senders in [1, 3, 10, 100] {
            let outcome = many_to_one(senders, rate, buffer, 7);
            assert_eq!(outcome.dropped, 0, "{senders} to one: {outcome:?}");
            assert!(outcome.longest_queue_bytes < buffer, "{outcome:?}");
            assert_eq!(outcome.sent.sent_again, 0, "{outcome:?}");
            assert!(outcome.goodput >= 0.97 * outcome.ceiling, "{senders} to one: {outcome:?}");
        }
    }
}

#[test]
fn loss_costs_little_more_than_what_was_lost() {
    let base = Scenario::new(3);
    let lossless = simulate(&base).goodput;
    for lost_ppm in [10_000, 50_000] {
        for burst in [Duration::ZERO, Duration::from_micros(12)] {
            let outcome = simulate(&Scenario { lost_ppm, burst, ..base.clone() });
            let bar = 0.9 * (1.0 - lost_ppm as f64 / 1e6) * lossless;
            assert!(outcome.goodput >= bar, "{} for a bar of {bar}: {outcome:?}", outcome.goodput);
            assert_eq!(outcome.sent.sent_in_vain, 0, "{outcome:?}");
            // All but the last packets are found by bitmaps.
            assert!(outcome.sent.sent_by_timer <= 2, "{outcome:?}");
        }
    }
}

#[test]
fn nothing_is_sent_again_for_reordering_within_a_quarter_of_the_round_trip() {
    for delayed_ppm in [10_000, 1_000_000] {
        let max_delay = Duration::from_micros(4);
        let outcome = simulate(&Scenario { delayed_ppm, max_delay, ..Scenario::new(11) });
        assert_eq!((outcome.sent.sent_again, outcome.received.repeated), (0, 0), "{outcome:?}");
    }
}

#[test]
fn larger_reordering_is_learned_from_few_packets_sent_in_vain() {
    let max_delay = Duration::from_millis(10);
    let outcome = simulate(&Scenario { delayed_ppm: 1_000_000, max_delay, packets: 5_000, ..Scenario::new(13) });
    assert!(outcome.sent.sent_again <= 100, "{outcome:?}");
}

/// A receiver whose processor another program has for milliseconds costs that time, and what it needs to get going
/// again: not a window that begins anew, and nothing that is sent twice without end.
#[test]
fn a_receiver_that_rests_for_milliseconds_costs_its_rests() {
    for (run_micros, rest_micros) in [(4_000, 4_000), (1_000, 10_000), (100, 3_000)] {
        let (receiver_run, receiver_rest) = (Duration::from_micros(run_micros), Duration::from_micros(rest_micros));
        let outcome = simulate(&Scenario { receiver_run, receiver_rest, ..Scenario::new(17) });
        let part = run_micros as f64 / (run_micros + rest_micros) as f64;
        assert!(outcome.goodput >= 0.8 * part * outcome.ceiling, "{} of {part}: {outcome:?}", outcome.goodput);
        assert!(outcome.sent.sent_again <= 500, "{outcome:?}");
    }
}

fn any_scenario() -> impl Strategy<Value = Scenario> {
    let network = (any::<u64>(), 1usize..6, 0u64..60_000, 0u64..60_000, 0u64..1_000_000, 0u64..10_000);
    let load =
        (1usize..=3, 0usize..700, 0usize..700, 0u64..20_000, 20_000u64..400_000, 8_000u64..400_000, any::<bool>());
    (network, load).prop_map(|(network, load)| {
        let (seed, senders, lost_ppm, duplicated_ppm, delayed_ppm, delay_micros) = network;
        let (classes, least, more, refused_ppm, buffer_bytes, max_credit_bytes, is_bursty) = load;
        let status_delay = Duration::from_micros(if seed % 2 == 0 { 20 } else { 0 });
        let base = Scenario::new(seed);
        Scenario {
            senders,
            packets: 300,
            packet_bytes: (least, least + more),
            classes,
            buffer_bytes,
            lost_ppm,
            burst: Duration::from_micros(if is_bursty { 10 } else { 0 }),
            duplicated_ppm,
            delayed_ppm,
            max_delay: Duration::from_micros(delay_micros),
            refused_ppm,
            options: Options { max_credit_bytes, status_delay, ..base.options.clone() },
            ..base
        }
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    /// Whatever the network does, each packet arrives once and is delivered in order, and the credit is kept to: `simulate`
    /// checks it.
    #[test]
    fn each_packet_once_in_order_and_within_the_credit(scenario in any_scenario()) {
        simulate(&scenario);
    }
}
