//! Parsers of the peers' output: one function for each, from its output to one figure.

use serde_json::Value;

/// Result of one turn of a peer.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Measured {
    /// Figure in bit/s, messages/s or microseconds, as the pairing requires.
    pub(crate) value: f64,
    /// Payload bytes that arrived, if their cost is known.
    pub(crate) bytes: Option<f64>,
    /// Processor seconds used for them, if the program prints them itself and its processes did other work too.
    pub(crate) cpu: Option<f64>,
}

/// Parser of one program's output. Returns `None` if there is no figure in it.
pub(super) type Parser = fn(&str) -> Option<Measured>;

/// Returns a figure above 0, without bytes.
fn positive_figure(value: f64) -> Option<Measured> {
    (value.is_finite() && value > 0.0).then_some(Measured { value, bytes: None, cpu: None })
}

/// Returns a rate above 0, with a number of bytes.
fn figure_with_bytes(value: f64, bytes: f64) -> Option<Measured> {
    positive_figure(value)
        .filter(|_| bytes.is_finite() && bytes > 0.0)
        .map(|only| Measured { bytes: Some(bytes), ..only })
}

/// Parses JSON, which a program may print after other text.
fn parse_json(text: &str) -> Option<Value> {
    serde_json::from_str(&text[text.find('{')?..]).ok()
}

/// `iperf3 -c … --json`: bit/s and bytes as the receiver counted them, all streams together. The program exits with 0
/// even if it failed: then there is an `error`, and no `sum_received`.
pub(super) fn parse_iperf3(text: &str) -> Option<Measured> {
    let received = parse_json(text)?;
    let received = &received["end"]["sum_received"];
    figure_with_bytes(received["bits_per_second"].as_f64()?, received["bytes"].as_f64()?)
}

/// `nuttcp -fparse`: `megabytes=… rate_Mbps=…`, where a megabyte has 2²⁰ bytes and a megabit 10⁶ bits.
pub(super) fn parse_nuttcp(text: &str) -> Option<Measured> {
    figure_with_bytes(nuttcp_value(text, "rate_Mbps")? * 1e6, nuttcp_value(text, "megabytes")? * f64::from(1 << 20))
}

fn nuttcp_value(text: &str, key: &str) -> Option<f64> {
    text.split_whitespace().find_map(|word| word.strip_prefix(key)?.strip_prefix('=')?.parse().ok())
}

/// `qperf -uu tcp_lat`, `udp_lat`: `latency = … ns`, the mean of half a round trip.
pub(super) fn parse_qperf_latency(text: &str) -> Option<Measured> {
    positive_figure(qperf_value(text, "latency", "ns")? / 1e3)
}

/// `qperf -uu -ub tcp_bw`: `bw = … bits/sec`, at the receiver.
pub(super) fn parse_qperf_bandwidth(text: &str) -> Option<Measured> {
    positive_figure(qperf_value(text, "bw", "bits/sec")?)
}

fn qperf_value(text: &str, name: &str, unit: &str) -> Option<f64> {
    text.lines().find_map(|line| {
        let (left, right) = line.split_once('=')?;
        let number = right.trim().strip_suffix(unit)?;
        if left.trim() == name { number.trim().parse().ok() } else { None }
    })
}

/// `sockperf ping-pong`: `---> percentile 50.000 = …` microseconds, half a round trip.
pub(super) fn parse_sockperf(text: &str) -> Option<Measured> {
    let after = text.lines().find_map(|line| line.split_once("percentile 50.000 ="))?.1;
    positive_figure(after.trim().parse().ok()?)
}

/// `ucx_perftest -f -t …_lat`: the last line's second column is the median of half a round trip in microseconds.
pub(super) fn parse_ucx_latency(text: &str) -> Option<Measured> {
    positive_figure(last_line_column(text, 8, 1)?)
}

/// `ucx_perftest -f -t …_bw`: the last line's sixth column is the bandwidth over the whole test in 2²⁰ bytes per
/// second.
pub(super) fn parse_ucx_bandwidth(text: &str) -> Option<Measured> {
    positive_figure(last_line_column(text, 8, 5)? * 8.0 * f64::from(1 << 20))
}

/// `fi_pingpong`: `usec/xfer`, the last line's seventh column: half a round trip in microseconds, the mean.
pub(super) fn parse_fi_pingpong(text: &str) -> Option<Measured> {
    positive_figure(last_line_column(text, 8, 6)?)
}

/// Returns one number of the last line, which must have `of` columns.
fn last_line_column(text: &str, of: usize, at: usize) -> Option<f64> {
    let columns: Vec<&str> = text.trim_end().lines().last()?.split_whitespace().collect();
    if columns.len() == of { columns[at].parse().ok() } else { None }
}

/// `fio --output-format=json`: bytes per second and bytes of the one direction of its one job, and the job's processor
/// time (percents of `job_runtime`, milliseconds): the program's own would include the laying out of the file.
pub(crate) fn parse_fio(text: &str) -> Option<Measured> {
    let output = parse_json(text)?;
    let job = &output["jobs"][0];
    if job["error"].as_i64() != Some(0) {
        return None;
    }
    let percent = job["usr_cpu"].as_f64()? + job["sys_cpu"].as_f64()?;
    let cpu = Some(percent / 100.0 * job["job_runtime"].as_f64()? / 1e3);
    ["read", "write"].iter().find_map(|direction| {
        let went = &job[direction];
        let measured = figure_with_bytes(went["bw_bytes"].as_f64()? * 8.0, went["io_bytes"].as_f64()?)?;
        Some(Measured { cpu, ..measured })
    })
}

/// Our `zmq_push_pull`: messages per second.
pub(super) fn parse_zmq_messages(text: &str) -> Option<Measured> {
    let got = parse_json(text)?;
    figure_with_bytes(got["messages"].as_f64()? / got["seconds"].as_f64()?, got["bytes"].as_f64()?)
}

/// Our `zmq_push_pull`: bit/s.
pub(super) fn parse_zmq_goodput(text: &str) -> Option<Measured> {
    let got = parse_json(text)?;
    let bytes = got["bytes"].as_f64()?;
    figure_with_bytes(bytes * 8.0 / got["seconds"].as_f64()?, bytes)
}

/// `spead2_bench.py master`: `Sustainable rate: … Gbps`, the highest at which no heap was lost.
pub(super) fn parse_spead2(text: &str) -> Option<Measured> {
    let rate = text.lines().rev().find_map(|line| line.trim().strip_prefix("Sustainable rate:"))?;
    positive_figure(rate.trim().strip_suffix("Gbps")?.trim().parse::<f64>().ok()? * 1e9)
}

/// Returns the first version number in a program's output: digits with a point between them, and the characters
/// attached to them.
pub(super) fn find_version(text: &str) -> Option<String> {
    text.split(|char: char| char.is_whitespace() || matches!(char, ',' | '(' | ')' | ':')).find_map(|word| {
        let version = &word[word.find(|char: char| char.is_ascii_digit())?..];
        let (major, rest) = version.split_once('.')?;
        let is_number =
            major.chars().all(|char| char.is_ascii_digit()) && rest.starts_with(|c: char| c.is_ascii_digit());
        is_number.then(|| version.to_owned())
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const PARSERS: [Parser; 12] = [
        parse_iperf3,
        parse_nuttcp,
        parse_qperf_latency,
        parse_qperf_bandwidth,
        parse_sockperf,
        parse_ucx_latency,
        parse_ucx_bandwidth,
        parse_fi_pingpong,
        parse_fio,
        parse_zmq_messages,
        parse_zmq_goodput,
        parse_spead2,
    ];

    /// Output of the programs on this machine, shortened where it is much longer.
    const OUTPUTS: [(Parser, &str, f64, Option<f64>); 12] = [
        (parse_iperf3, include_str!("outputs/iperf3.json"), 64_887_479_055.369_4, Some(8_112_046_080.0)),
        (
            parse_nuttcp,
            "megabytes=3726.0000 real_seconds=1.00 rate_Mbps=31257.2037 tx_cpu=44 rx_cpu=40 retrans=0 rtt_ms=0.10\n",
            31_257_203_700.0,
            Some(3_906_994_176.0),
        ),
        (parse_qperf_latency, "udp_lat:\n    latency  =  5375.56 ns\n", 5.37556, None),
        (parse_qperf_bandwidth, include_str!("outputs/qperf_tcp_bw.txt"), 24_835_522_560.0, None),
        (parse_sockperf, include_str!("outputs/sockperf.txt"), 5.102, None),
        (parse_ucx_latency, include_str!("outputs/ucx_tag_lat.txt"), 0.105, None),
        (parse_ucx_bandwidth, include_str!("outputs/ucx_tag_bw.txt"), 403.42 * 8.0 * 1_048_576.0, None),
        (parse_fi_pingpong, include_str!("outputs/fi_pingpong.txt"), 27.08, None),
        (parse_fio, include_str!("outputs/fio.json"), 26_078_531_096.0, Some(3_295_674_368.0)),
        (parse_zmq_messages, ZMQ, 100_000.0, Some(204_800_000.0)),
        (parse_zmq_goodput, ZMQ, 819_200_000.0, Some(204_800_000.0)),
        (
            parse_spead2,
            "Rate: 10.597 Gbps (10.576 actual): GOOD\nSustainable rate: 10.576 Gbps\n",
            10_576_000_000.0,
            None,
        ),
    ];

    const ZMQ: &str = r#"{"messages": 200000, "bytes": 204800000, "seconds": 2.000000, "cpu_receiver": 1.5,
        "cpu_senders": 1.5, "version": "4.3.4"}"#;

    #[test]
    fn figures_are_found_in_real_output() {
        for (index, (parser, output, value, bytes)) in OUTPUTS.into_iter().enumerate() {
            let measured = parser(output).unwrap_or_else(|| panic!("{index}: {output}"));
            assert!((measured.value / value - 1.0).abs() < 1e-6, "{index}: {measured:?} is not {value}");
            assert_eq!(measured.bytes, bytes, "{index}");
        }
    }

    #[test]
    fn fio_prints_the_processor_time_of_its_job() {
        let cpu = parse_fio(include_str!("outputs/fio.json")).unwrap().cpu.unwrap();
        assert!((cpu - 0.18).abs() < 1e-4, "{cpu}");
    }

    #[test]
    fn a_failure_is_no_figure() {
        let failures = [
            r#"{"start": {}, "end": {}, "error": "unable to connect to server: Connection refused"}"#,
            r#"{"end": {"sum_received": {"bits_per_second": 0, "bytes": 0}}}"#,
            r#"{"jobs": [{"error": 5, "read": {"bw_bytes": 1, "io_bytes": 1}}]}"#,
            r#"{"jobs": []}"#,
            r#"{"messages": 1, "bytes": 1, "seconds": 0}"#,
            "nuttcp-t: Info: connection refused",
            "latency = fast ns",
            "Sustainable rate: 0 Gbps",
            "1 2 3 4 5 6 7 8 9",
            "nan nan nan nan nan nan nan nan",
        ];
        for (parser, output) in PARSERS.iter().flat_map(|parser| failures.map(|output| (parser, output))) {
            assert_eq!(parser(output), None, "{output}");
        }
    }

    #[test]
    fn versions_are_found_in_the_output_of_programs() {
        let outputs = [
            ("iperf 3.12 (cJSON 1.7.15)\nLinux vm 6.18.44", "3.12"),
            ("nuttcp-6.1.2", "6.1.2"),
            ("sockperf, version 3.7-no.git\n   compiled 2021-08-23 12:14:23", "3.7-no.git"),
            ("# Version 1.13.1\n# Git branch '<unknown>'", "1.13.1"),
            ("fi_info: 1.17.0\nlibfabric: 1.17.0", "1.17.0"),
            ("fio-3.33", "3.33"),
            ("4.5.1", "4.5.1"),
        ];
        for (text, expected) in outputs {
            assert_eq!(find_version(text).as_deref(), Some(expected));
        }
        assert_eq!(find_version("no digits. none"), None);
    }

    proptest! {
        #[test]
        fn no_output_makes_a_parser_panic(output in ".{0,300}", cut in 0usize..4000, at in 0usize..12) {
            for parser in PARSERS {
                parser(&output);
            }
            find_version(&output);
            // Real output, cut off anywhere, with any text after it.
            let (parser, good, ..) = OUTPUTS[at];
            let cut: String = good.chars().take(cut).collect();
            parser(&(cut + &output));
        }
    }
}
