use super::*;

fn wrong(text: &str) -> String {
    Scenario::parse(text).unwrap_err().to_string()
}

#[test]
fn three_words_make_a_scenario() {
    let scenario = Scenario::parse("[network]\nsenders = 3\n").unwrap();
    assert_eq!(scenario.network.receivers, 1);
    assert_eq!(scenario.network.rate, BitRate(1_000_000_000));
    assert_eq!(scenario.traffic.control, Control::default());
    assert_eq!(scenario.payload_range(), (65536, 65536));
    assert_eq!(scenario.warm_up_time(), Duration::from_millis(50));
    assert_eq!(scenario.packet_time(), Duration::from_nanos(12_304));
    // 1448 of 1538 bytes, and 65536 of 65600.
    assert_eq!(scenario.ceiling_bits_per_second().round(), 940_563_925.0);
}

#[test]
fn a_number_of_unlike_senders_points_to_their_list() {
    let text = wrong("[network]\nsender = 3\n");
    assert!(
        text.starts_with("line 2: `sender`: the number is `senders`") && text.contains("[[network.sender]]"),
        "{text}"
    );
}

#[test]
fn what_was_read_can_be_written_and_read_again() {
    let text = r#"
        [network]
        senders = 10
        receivers = 2
        rate = "2.5 Gbit/s"
        delay = "0.25ms"
        loss = 0.001
        buffer = "1 MB"
        mtu = 9000
        [[network.sender]]
        number = 9
        rate = "100mbit"
        [[network.sender]]
        number = 8
        sizes = ["1 MiB", "2 MiB"]
        [[network.receiver]]
        number = 1
        rate = "500 Mbit/s"
        stall = { at = "0.5s", length = "20ms" }
        dies = "1s"
        [network.tree]
        leaves = 2
        oversubscription = 2.5
        buffer = "500 kB"
        [traffic]
        control = "credit+vegas"
        sizes = ["1 B", "128 KiB"]
        interval = "100us"
        burst = 8
        barrier = true
        cross = 2
        classic_recovery = true
        [measure]
        seconds = 2
        warm_up = "1s"
        sample = "100us"
        wall_limit = "1m"
    "#;
    let scenario = Scenario::parse(text).unwrap();
    assert_eq!(scenario.network.delay, Duration::from_micros(250));
    assert_eq!(scenario.sender_rate(9), BitRate(100_000_000));
    assert_eq!(scenario.sender_rate(8), scenario.network.rate);
    assert_eq!((scenario.payload_range_of(8), scenario.payload_range_of(9)), ((1 << 20, 2 << 20), (1, 128 << 10)));
    assert_eq!(scenario.receiver_rate(1), BitRate(500_000_000));
    assert_eq!(scenario.burst_period(), Some(Duration::from_micros(800)));
    assert_eq!(Scenario::parse(&toml::to_string(&scenario).unwrap()), Ok(scenario));
}

#[test]
fn an_error_names_the_line_and_says_what_is_allowed() {
    let errors = [
        "[network]\nrate = \"1 Gbit/s\"\n",
        "[network]\nsenders = 0\n",
        "[network]\nsenders = 3\nreceivers = 0\n",
        "[network]\nsenders = 3\n\nrate = \"-1 Gbit/s\"\n",
        "[network]\nsenders = 3\nrate = 1000000000\n",
        "[network]\nsenders = 3\nbuffer = \"1 kB\"\n",
        "[network]\nsenders = 3\n[[network.sender]]\nnumber = 0\nrate = \"1mbit\"\n[[network.sender]]\nrate = \"1mbit\"\nnumber = 3\n",
        "[network]\nsenders = 3\n[[network.sender]]\nnumber = 0\n",
        "[network]\nsenders = 3\n[[network.sender]]\nnumber = 0\nsize = \"0 B\"\n",
        "[network]\nsenders = 3\n[[network.receiver]]\nnumber = 1\ndies = \"10ms\"\n",
        "[network]\nsenders = 3\n[[network.receiver]]\nnumber = 0\ndies = \"10ms\"\n",
        "[network]\nsenders = 3\n[[network.receiver]]\nnumber = 0\nstall = { at = \"990ms\", length = \"20ms\" }\n",
        "[network]\nsenders = 3\n[network.shared]\nsenders = 4\n",
        "[network]\nsenders = 3\n[network.shared]\nsenders = 3\nbuffer = \"1 kB\"\n",
        "[network]\nsenders = 3\n[network.tree]\nleaves = 1\n",
        "[network]\nsenders = 3\n[network.tree]\nleaves = 2\noversubscription = 0\n",
        "[network]\nsenders = 3\n[network.shared]\nsenders = 3\n[network.tree]\nleaves = 2\n",
        "[network]\nsenders = 3\n[traffic]\nburst = 8\n",
        "[network]\nsenders = 3\nloss = 1.5\n",
        "[network]\nsenders = 3\ndelay = \"fast\"\n",
        "[network]\nsenders = 3\n[traffic]\nsize = \"1 KiB\"\ncontrol = \"tahoe\"\n",
        "[network]\nsenders = 3\n[traffic]\nsize = \"1 KiB\"\nsizes = [\"1 KiB\", \"2 KiB\"]\n",
        "[network]\nsenders = 3\n[traffic]\nsizes = [\"3 KiB\", \"2 KiB\"]\n",
        "[network]\nsenders = 3\n[traffic]\nintervall = \"1ms\"\n",
        "[network]\nsenders = 3\n[measure]\nseconds = nan\n",
        "[network]\nsenders = 3\n[measure]\nseconds = -1\n",
        "[network\n",
    ]
    .map(wrong);
    insta::assert_snapshot!(errors.join("\n"));
}

#[test]
fn the_slowest_sender_and_the_interval_lower_the_ceiling() {
    let slow = "[network]\nsenders = 3\n[[network.sender]]\nnumber = 1\nrate = \"100 Mbit/s\"\n";
    let full = 1448.0 / 1538.0 * 65536.0 / 65600.0;
    assert!((Scenario::parse(slow).unwrap().ceiling_bits_per_second() / (300e6 * full) - 1.0).abs() < 1e-9);
    let paced = "[network]\nsenders = 3\n[traffic]\nsize = \"1 kB\"\ninterval = \"1ms\"\n";
    assert!((Scenario::parse(paced).unwrap().ceiling_bits_per_second() / 24e6 - 1.0).abs() < 1e-9);
}

/// Returns the ceiling of eight senders and receivers, in links of 1 Gbit/s.
fn ceiling_with(network: &str) -> f64 {
    let full = 1448.0 / 1538.0 * 65536.0 / 65600.0 * 1e9;
    let text = format!("[network]\nsenders = 8\nreceivers = 8\n{network}");
    (Scenario::parse(&text).unwrap().ceiling_bits_per_second() / full * 1e6).round() / 1e6
}

#[test]
fn the_narrowest_link_is_the_ceiling_wherever_it_is() {
    assert_eq!(ceiling_with(""), 8.0);
    // Builders take events in turn: each waits for the slowest.
    assert_eq!(ceiling_with("[[network.receiver]]\nnumber = 3\nrate = \"100 Mbit/s\"\n"), 0.8);
    assert_eq!(ceiling_with("[network.shared]\nsenders = 4\n"), 2.0);
    assert_eq!(ceiling_with("[network.shared]\nsenders = 4\nrate = \"3 Gbit/s\"\n"), 6.0);
    // Half of what a leaf of two sends stays in it: a trunk as fast as its hosts is never the narrowest.
    assert_eq!(ceiling_with("[network.tree]\nleaves = 2\n"), 8.0);
    assert_eq!(ceiling_with("[network.tree]\nleaves = 2\noversubscription = 2\n"), 8.0);
    assert_eq!(ceiling_with("[network.tree]\nleaves = 2\noversubscription = 4\n"), 4.0);
    // Of four leaves, three quarters leave.
    assert_eq!(ceiling_with("[network.tree]\nleaves = 4\noversubscription = 3\n"), 3.555_556);
}

/// Returns rate in Mbit/s and buffer for the credit of the first of four builders.
fn port_with(network: &str) -> (u64, u64) {
    let text = format!("[network]\nsenders = 8\nreceivers = 4\n{network}");
    let (rate, buffer) = Scenario::parse(&text).unwrap().port_for_credit(0);
    (rate.0 / 1_000_000, buffer)
}

#[test]
fn credit_fits_what_all_builders_share_where_that_is_narrower_than_their_ports() {
    assert_eq!(port_with(""), (1000, 340_000));
    // Half of each event comes from each rack, of whose uplink a builder has a quarter.
    assert_eq!(port_with("[network.shared]\nsenders = 4\nrate = \"1 Gbit/s\"\n"), (500, 340_000));
    assert_eq!(port_with("[network.shared]\nsenders = 4\nrate = \"1 Gbit/s\"\nbuffer = \"100 kB\"\n"), (500, 100_000));
    let one = "[network]\nsenders = 8\n[network.shared]\nsenders = 8\nrate = \"500 Mbit/s\"\nbuffer = \"100 kB\"\n";
    assert_eq!(Scenario::parse(one).unwrap().port_for_credit(0), (BitRate(500_000_000), 100_000));
    // As fast as the ports together: it is not where anything waits.
    assert_eq!(port_with("[network.shared]\nsenders = 4\nrate = \"2 Gbit/s\"\n"), (1000, 340_000));
    assert_eq!(port_with("[network.shared]\nsenders = 2\nrate = \"500 Mbit/s\"\nbuffer = \"1 MB\"\n"), (500, 340_000));
    assert_eq!(port_with("[network.tree]\nleaves = 2\n"), (1000, 340_000));
    assert_eq!(port_with("[network.tree]\nleaves = 2\noversubscription = 4\n"), (500, 340_000));
}

#[test]
fn a_sender_of_large_fragments_limits_by_its_own_size() {
    let text = "[network]\nsenders = 4\nreceivers = 4\n[[network.sender]]\nnumber = 1\nsize = \"6400 KiB\"\n";
    let scenario = Scenario::parse(text).unwrap();
    // Its link is always full, and the other three add a hundredth each.
    assert!(
        (scenario.ceiling_bits_per_second() / 0.9415e9 / 1.03 - 1.0).abs() < 1e-3,
        "{}",
        scenario.ceiling_bits_per_second()
    );
    let links = scenario.all_links();
    assert!((links[1].event_bytes / links[0].event_bytes - 100.0).abs() < 0.1);
    assert!(
        (links[4].event_bytes * 4.0 / links[..4].iter().map(|link| link.event_bytes).sum::<f64>() - 1.0).abs() < 1e-9
    );
}

#[test]
fn a_leaf_without_senders_still_has_a_trunk() {
    let scenario = Scenario::parse("[network]\nsenders = 2\nreceivers = 3\n[network.tree]\nleaves = 3\n").unwrap();
    let links = scenario.all_links();
    let names: Vec<&str> = links.iter().map(|link| link.name.as_str()).collect();
    assert_eq!(
        names.join(", "),
        "sender-0, sender-1, leaf-0 up, leaf-0 down, leaf-1 up, leaf-1 down, leaf-2 up, leaf-2 down, receiver-0, receiver-1, receiver-2"
    );
    assert_eq!((links[6].rate, links[6].event_bytes), (scenario.network.rate, 0.0));
    assert!(scenario.ceiling_bits_per_second() > 0.0);
}
