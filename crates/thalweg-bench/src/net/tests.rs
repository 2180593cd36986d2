//! Both ends in one process: every method to carry messages, and ends that violate the protocol.

use super::bandwidth::Stream;
use super::control::{Control, ControlStream};
use super::latency::{Net, PingPong};
use super::session::{Other, serve_jobs};
use super::{Ends, Path, Place};
use crate::drive::{Instrument, Stop};
use crate::options::Timing;
use crate::{BenchError, Plan, Sizes};
use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::thread::JoinHandle;
use std::time::Duration;

const SHORT: Timing = Timing { min_time: Duration::from_millis(3), warmup: Duration::from_millis(1), repeat: 1 };

/// Starts a serving end on a thread of this process.
pub(crate) fn other() -> (Other, JoinHandle<Result<(), BenchError>>) {
    let (ours, theirs) = UnixStream::pair().unwrap();
    let serving = std::thread::spawn(move || serve_jobs(control(theirs), None, || {}));
    (Other::from_greeting(control(ours), None).unwrap(), serving)
}

fn control(stream: UnixStream) -> Control {
    Control::new(ControlStream::Unix(stream), "a test".into(), Some(Duration::from_secs(60))).unwrap()
}

/// Parses options as on the command line.
fn path(options: &str) -> (Path, Ends, Sizes) {
    let words: Vec<String> = format!("latency {options}").split(' ').map(str::to_owned).collect();
    match Plan::parse_words(&words).unwrap() {
        Plan::Latency(options) => (options.path, options.ends, options.sizes),
        _ => unreachable!("the first word says latency"),
    }
}

fn net(options: &str) -> (Net, JoinHandle<Result<(), BenchError>>) {
    let (path, ends, sizes) = path(options);
    let mut net = Net::new(&path, &ends, &sizes).unwrap();
    let (other, serving) = other();
    net.other = Some((Place::Here, other));
    (net, serving)
}

const ALL: &str = "--link tcp,udp,shm,rdma,rdma-efe \
                   --method write,sendmsg,zerocopy,sendfile,io_uring,copy,handover,verbs --check-data";

#[test]
fn every_method_carries_messages_both_ways_unchanged() {
    for wait in ["sleep", "poll"] {
        let (net, serving) = net(&format!("{ALL} --wait {wait} --sizes 1,48,100,9000,65KiB"));
        let mut instrument = PingPong { net };
        let keys = instrument.point_keys();
        assert_eq!(keys.len(), (6 + 3 + 3 + 1 + 1) * 5);
        for key in keys {
            let measured = instrument.measure_point(&key, &SHORT, &Stop::default());
            if key.link == "udp" && key.method == "io_uring" && key.size > 65_507 {
                assert!(measured.unwrap_err().to_string().contains("a datagram holds 65507"));
                // After an error the other end is reached anew: here, another thread.
                instrument.net.other = Some((Place::Here, other().0));
                continue;
            }
            let figures = measured.unwrap_or_else(|error| panic!("{key:?}: {error}"));
            let latency = figures.latency_us.unwrap();
            assert!(latency.count > 0 && latency.p50 > 0.0 && latency.p50 <= latency.max, "{key:?}: {latency:?}");
            // A message is copied into the kernel and out of it, or half of that, or not at all.
            let copies = match key.method.as_str() {
                "write" | "sendmsg" | "io_uring" | "copy" => 2.0..=2.0,
                "sendfile" => 1.0..=1.0,
                // As the kernel reports; and Thalweg's small slots are sent along with their offers, which copies them.
                "zerocopy" => 1.0..=2.1,
                "verbs" if key.link == "tcp" => 1.0..=2.1,
                // By the RNIC and by the kernel, at both ends.
                "verbs" if key.link.starts_with("rdma") => 2.0..=8.0,
                _ => 0.0..=0.0,
            };
            assert!(copies.contains(&figures.copies_per_byte.unwrap()), "{key:?}: {figures:?}");
        }
        drop(instrument);
        let _ = serving.join().unwrap();
    }
}

#[test]
fn every_method_carries_a_stream() {
    for wait in ["sleep", "poll"] {
        let (net, serving) = net(&format!("{ALL} --wait {wait} --sizes 1,48,9000,200000"));
        let mut instrument = Stream { net, line_rate: Some(1e9) };
        for key in instrument.point_keys().into_iter().filter(|key| key.link != "udp" || key.method != "io_uring") {
            let figures = instrument.measure_point(&key, &SHORT, &Stop::default());
            let figures = figures.unwrap_or_else(|error| panic!("{key:?}: {error}"));
            let goodput = figures.goodput_bits_per_second.unwrap();
            assert!(goodput > 0.0, "{key:?}");
            let percent = figures.percent_of_line_rate.map(|percent| (percent * 1e7 / goodput).round());
            assert_eq!(percent, (key.link != "shm").then_some(1.0));
            let loss = figures.loss.filter(|_| key.link == "udp");
            assert_eq!(loss.is_some(), key.link == "udp");
            assert!(loss.is_none_or(|loss| loss.received <= loss.sent));
        }
        drop(instrument);
        serving.join().unwrap().unwrap();
    }
}

#[test]
fn system_calls_are_counted_where_they_are_made() {
    let (net, _) = net("--link tcp,shm --method write,io_uring,handover --sizes 1000");
    let mut instrument = PingPong { net };
    let calls: Vec<f64> = instrument
        .point_keys()
        .iter()
        .map(|key| instrument.measure_point(key, &SHORT, &Stop::default()).unwrap().system_calls_per_megabyte.unwrap())
        .collect();
    // For 1000 bytes: a write and a read; one io_uring_enter, and another one if no data was there yet; none. A
    // megabyte is a thousand of them.
    assert!((2000.0..6000.0).contains(&calls[0]) && (1000.0..3000.0).contains(&calls[1]), "{calls:?}");
    assert_eq!(calls[2], 0.0);
}

#[test]
fn a_measurement_that_is_stopped_ends_at_once() {
    let (net, _) = net("--link tcp --sizes 1");
    let mut instrument = PingPong { net };
    let stop = Stop::default();
    stop.request_stop();
    let timing = Timing { min_time: Duration::from_secs(3600), warmup: Duration::from_secs(3600), repeat: 1 };
    let key = instrument.point_keys().remove(0);
    // The time of one message is recorded; the test must not wait an hour for it.
    assert!(instrument.measure_point(&key, &timing, &stop).unwrap().latency_us.unwrap().count <= 1);
}

/// Returns the error of options that cannot be measured.
fn refused(options: &str) -> String {
    let (path, ends, sizes) = path(options);
    Net::new(&path, &ends, &sizes).map(drop).unwrap_err().to_string()
}

/// Returns the error of a point that cannot be measured.
fn measurement_error(options: &str) -> String {
    let (net, _) = net(&format!("--link tcp --sizes 1 {options}"));
    let mut instrument = PingPong { net };
    let key = instrument.point_keys().remove(0);
    instrument.measure_point(&key, &SHORT, &Stop::default()).unwrap_err().to_string()
}

#[test]
fn impossible_measurements_are_refused_before_any_is_made() {
    assert_eq!(refused("--sizes 0"), "a message of 0 bytes: from 1 byte to 1 GiB can be sent");
    assert_eq!(refused("--sizes 2GiB"), "a message of 2147483648 bytes: from 1 byte to 1 GiB can be sent");
    assert_eq!(refused("--link udp,shm --method sendfile"), "--method sendfile is none of --link udp,shm");
    assert!(refused("--link shm --peer nowhere").contains("leave out --peer"));
    assert!(refused("--socket-buffer 8GiB").contains("4 GiB"));
}

#[test]
fn an_unavailable_point_has_a_reason() {
    assert!(measurement_error("--socket-buffer 2GiB").contains("socket buffers of 2147483648 bytes"));
    let unknown = measurement_error("--congestion no-such-thing");
    assert!(unknown.contains("congestion control 'no-such-thing'") && unknown.contains("tcp_available"), "{unknown}");
    assert!(measurement_error("--cpu 9999").contains("binding to processor 9999"));
}

/// Returns the answer of a serving end to bytes that no asking end of ours would send.
fn answer_to(sent: &[u8]) -> (String, Result<(), BenchError>) {
    let (ours, theirs) = UnixStream::pair().unwrap();
    let serving = std::thread::spawn(move || serve_jobs(control(theirs), None, || {}));
    let mut reader = BufReader::new(&ours);
    let mut line = String::new();
    reader.read_line(&mut line).unwrap();
    assert!(line.contains("thalweg_bench"), "{line}");
    line.clear();
    // The serving end may have hung up before everything was written.
    let _ = (&ours).write_all(sent);
    let _ = ours.shutdown(std::net::Shutdown::Write);
    let _ = reader.read_line(&mut line);
    (line, serving.join().unwrap())
}

#[test]
fn a_serving_end_refuses_nonsense_and_goes_on_or_hangs_up() {
    let job = r#"{"link":"tcp","method":"write","work":"answer","size":1,"wait":"sleep","socket_buffer":null,"congestion":null,"cpu":null,"check_data":false,"listens":null}"#;
    for (change, to) in [
        ("\"size\":1", "\"size\":0"),
        ("\"size\":1", "\"size\":1099511627776"),
        ("\"write\"", "\"handover\""),
        ("\"cpu\":null", "\"cpu\":4294967295"),
        ("\"congestion\":null", "\"congestion\":\"\\u0000../../etc/passwd\""),
    ] {
        assert!(job.contains(change));
        let (line, ended) = answer_to(format!("{}\n", job.replace(change, to)).as_bytes());
        assert!(line.contains("failed") && ended.is_ok(), "{to}: {line} {ended:?}");
    }
    let (line, ended) = answer_to(b"GET / HTTP/1.1\r\n\r\n");
    assert!(line.is_empty() && ended.unwrap_err().to_string().contains("does not speak as a Thalweg bench"));
    let (_, ended) = answer_to(&vec![b'x'; 1 << 20]);
    assert!(ended.unwrap_err().to_string().contains("more than is to be said"));
    let (_, ended) = answer_to(b"{\"link\":");
    assert!(ended.unwrap_err().to_string().contains("in the middle of a word"));
}

/// Returns the error of an asking end that receives this in place of a greeting.
fn greeting_error(received: &[u8]) -> String {
    let (ours, mut theirs) = UnixStream::pair().unwrap();
    theirs.write_all(received).unwrap();
    drop(theirs);
    Other::from_greeting(control(ours), None).map(drop).unwrap_err().to_string()
}

#[test]
fn an_asking_end_names_what_is_wrong_with_the_other() {
    assert_eq!(greeting_error(b""), "the other end (a test): it is gone");
    assert!(greeting_error(b"SSH-2.0-OpenSSH_9.2\r\n").contains("does not speak as a Thalweg bench"));
    assert!(greeting_error(b"\"marked\"\n").contains("does not greet"));
    let newer = br#"{"greeting":{"thalweg_bench":9,"boot":"","host":{}}}
"#;
    assert!(greeting_error(newer).contains("it speaks version 9, this program version 1"));
    let busy = br#"{"failed":{"why":"another end measures now: two at a time would measure each other"}}
"#;
    assert!(greeting_error(busy).contains("another end measures now"));
}

#[test]
fn a_serving_end_that_dies_in_the_middle_is_noticed() {
    for link in ["tcp", "shm"] {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let doomed = theirs.try_clone().unwrap();
        std::thread::spawn(move || serve_jobs(control(theirs), None, || {}));
        let other = Other::from_greeting(control(ours), None).unwrap();
        let (path, ends, sizes) = path(&format!("--link {link} --sizes 1"));
        let mut instrument = PingPong { net: Net::new(&path, &ends, &sizes).unwrap() };
        instrument.net.other = Some((Place::Here, other));
        // The control connection ends before a job is requested.
        doomed.shutdown(std::net::Shutdown::Both).unwrap();
        let key = instrument.point_keys().remove(0);
        let error = instrument.measure_point(&key, &SHORT, &Stop::default()).unwrap_err().to_string();
        assert!(error.starts_with("the other end (a test)"), "{error}");
    }
}
