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
    assert_eq!(scenario.sizes(), (65536, 65536));
    assert_eq!(scenario.warm_up(), Duration::from_millis(50));
    assert_eq!(scenario.packet_time(), Duration::from_nanos(12_304));
    // 1448 of 1538 bytes, and 65536 of 65600.
    assert_eq!(scenario.ceiling().round(), 940_563_925.0);
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
        [traffic]
        control = "credit+vegas"
        sizes = ["1 B", "128 KiB"]
        interval = "100us"
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
    assert!((Scenario::parse(slow).unwrap().ceiling() / (300e6 * full) - 1.0).abs() < 1e-9);
    let paced = "[network]\nsenders = 3\n[traffic]\nsize = \"1 kB\"\ninterval = \"1ms\"\n";
    assert!((Scenario::parse(paced).unwrap().ceiling() / 24e6 - 1.0).abs() < 1e-9);
}

#[test]
fn times_have_decimals() {
    for (text, nanos) in [("0.1ms", 100_000), ("50 ms", 50_000_000), ("1.5s", 1_500_000_000), ("0.0001s", 100_000)] {
        assert_eq!(time::parse(text), Ok(Duration::from_nanos(nanos)), "{text}");
    }
    for text in ["", "1", "1.", ".5s", "1.5", "-1s", "1.5 lightyears", "1.5s 3ms"] {
        assert!(time::parse(text).is_err(), "{text}");
    }
}

#[test]
fn rates_are_read_as_people_and_tc_write_them() {
    for text in ["1 Gbit/s", "1gbit", "1000 Mbit/s", "1000000kbit", "1.0Gbit"] {
        assert_eq!(text.parse(), Ok(BitRate(1_000_000_000)), "{text}");
    }
    for text in ["", "1", "0 Gbit/s", "-1gbit", "1e9 bit/s", "inf gbit", "2 Tbit/s", "1 GB/s", "1 gbit/h", "1..0gbit"] {
        assert!(text.parse::<BitRate>().is_err(), "{text}");
    }
    assert_eq!(BitRate(2_500_000_000).to_string(), "2.5 Gbit/s");
    assert_eq!(BitRate(123_456_789).to_string(), "123456.789 kbit/s");
}
