//! What `thalweg serve` does about clients that mean no good, or are very slow: it refuses them, or waits no longer
//! than it said.
//!
//! Nothing here is timed: a client waits until the server has had enough of it, however long that takes.

use crate::common::dialogue::{Dialogue, all_of, trickle};
use crate::common::served::big;
use crate::common::{TIMEOUT, at_once, thalweg};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream};
use std::os::unix::fs::symlink;
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// Clients of these servers are not waited for long.
const IMPATIENT: [&str; 2] = ["--idle-timeout", "2s"];

#[test]
fn no_spelling_of_a_path_leads_out() {
    let served = Dialogue::start(&[]);
    let up = [
        "..",
        "%2e%2e",
        "%2E.",
        ".%2e",
        "..%2f",
        "%2e%2e%2f",
        "..%5c",
        "..\\",
        "%252e%252e",
        "..;",
        "..%00",
        "%c0%ae%c0%ae",
        "%e0%80%ae%e0%80%ae",
        "%uff0e%uff0e",
        "....",
        "..%2f..",
        ".%00.",
        "%2e%2e%5c",
        "..%c0%af",
        "\u{ff0e}\u{ff0e}",
    ];
    let paths = up.iter().flat_map(|up| {
        [
            format!("/{up}/secret"),
            format!("/{up}secret"),
            format!("//{up}/secret"),
            format!("/digits/{up}/{up}/secret"),
            format!("/runs/{up}/{up}/secret"),
            format!("/runs/1/{up}/{up}/secret"),
            format!("http://here/{up}/secret"),
            format!("/{up}/{up}/{up}/{up}/{up}/{up}/{up}/{up}/etc/passwd"),
        ]
    });
    let paths: Vec<String> = paths.collect();
    let is = |answer: &str, statuses: &[&str]| statuses.contains(&&answer[9..12]);
    for path in &paths {
        let answer = served.ask("GET", path, "");
        assert!(is(&answer, &["400", "403", "404"]), "{path}: {answer}");
    }
    for path in &paths {
        // A name that is merely strange may be written; it is one beneath the root.
        let answer = served.ask("PUT", path, "Content-Length: 0\r\n");
        assert!(is(&answer, &["400", "403", "404", "409", "201"]), "{path}: {answer}");
    }
    assert_eq!(std::fs::read_to_string(served.directory.path().join("secret")).unwrap(), "secret");
    let beside: Vec<_> =
        std::fs::read_dir(served.directory.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(beside.len(), 2, "{beside:?}");
}

#[test]
fn no_link_leads_out_and_nothing_but_files_is_read() {
    let served = Dialogue::start(&[]);
    symlink("..", served.path("up")).unwrap();
    symlink("/", served.path("slash")).unwrap();
    symlink(served.directory.path().join("secret"), served.path("absolute")).unwrap();
    symlink("up/secret", served.path("twice")).unwrap();
    symlink("round", served.path("round")).unwrap();
    symlink("/proc/self/root/etc", served.path("magic")).unwrap();
    rustix::fs::mknodat(rustix::fs::CWD, served.path("fifo"), rustix::fs::FileType::Fifo, 0o644.into(), 0).unwrap();
    for path in ["/link", "/up/secret", "/up/", "/slash/etc/passwd", "/absolute", "/twice", "/round", "/magic/passwd"] {
        served.answers("GET", path, "", 403, "leaves the served directory");
    }
    served.answers("GET", "/fifo", "", 404, "nothing found");
    for path in ["/up/new", "/slash/tmp/new", "/up/root/new"] {
        served.answers("PUT", path, "Content-Length: 0\r\n", 403, "leaves the served directory");
        served.answers("HEAD", &format!("{path}?upload"), "", 403, "");
        served.answers("DELETE", &format!("{path}?upload"), "", 403, "leaves the served directory");
    }
    served.answers("PUT", "/link", "If-Match: *\r\nContent-Length: 0\r\n", 409, "this name exists and is not a file");
    let listing = served.ask("GET", "/", "");
    assert!(
        ["up", "slash", "absolute", "twice", "round", "magic", "fifo"].iter().all(|name| !listing.contains(name)),
        "{listing}"
    );
}

#[test]
fn absurd_ranges_cost_no_more_than_the_file() {
    let served = Dialogue::start(&[]);
    for list in ["0-,".repeat(5000), "0-0,".repeat(3000), "-1,".repeat(100), ",".repeat(15_000), "9".repeat(10_000)] {
        let answer = served.ask("GET", "/digits", &format!("Range: bytes={list}\r\n"));
        assert!(answer.starts_with("HTTP/1.1 200 ") && answer.ends_with("\r\n\r\n0123456789"), "{answer:.300}");
    }
    let ten: Vec<String> = (0..10).rev().map(|at| format!("{at}-{at}")).collect();
    let answer = served.ask("GET", "/digits", &format!("Range: bytes={}\r\n", ten.join(",")));
    assert!(answer.starts_with("HTTP/1.1 206 ") && answer.len() < 3000, "{answer}");
}

#[test]
fn nobody_smuggles_a_request_behind_another() {
    let served = Dialogue::start(&[]);
    let hidden = "GET /digits HTTP/1.1\r\nHost: here\r\n\r\n";
    for fields in [
        "Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        "Transfer-Encoding: chunked\r\nContent-Length: 5\r\n\r\n0\r\n\r\n",
        "Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        "Transfer-Encoding: chunked\r\n\r\nffffffffffffffffffff\r\n",
        "Transfer-Encoding: chunked\r\n\r\n-1\r\n",
        "Transfer-Encoding:\tchunked\r\n\r\n0\r\n\r\n",
        "Transfer-Encoding: xchunked\r\n\r\n0\r\n\r\n",
        "Transfer-Encoding : chunked\r\n\r\n0\r\n\r\n",
        "Transfer-Encoding: \x0bchunked\r\n\r\n0\r\n\r\n",
        "Transfer-Encoding: chunked, identity\r\n\r\n0\r\n\r\n",
        "X: y\r\n Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        "X: y\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        "X: y\rTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        "X: y\0\r\n\r\n",
        "X\0: y\r\n\r\n",
        "Content-Length: 0\r\nContent-Length: 5\r\n\r\n",
        "Content-Length: 5\r\nContent-Length: 5\r\n\r\nabcde",
        "Content-Length: 0, 5\r\n\r\n",
        "Content-Length: +5\r\n\r\nabcde",
        "Content-Length: 0x5\r\n\r\nabcde",
        "Content-Length: 5 5\r\n\r\nabcde",
        "Content-Length:\r\n 5\r\n\r\nabcde",
        "Content_Length: 5\r\nContent-Length : 5\r\n\r\nabcde",
        "Host: there\r\n\r\n",
        " : y\r\n\r\n",
        ": y\r\n\r\n",
        "no colon\r\n\r\n",
    ] {
        for method in ["GET", "PUT", "POST"] {
            let answer =
                served.tell(format!("{method} /smuggler HTTP/1.1\r\nHost: here\r\n{fields}{hidden}").as_bytes());
            assert_eq!(answer.matches("\r\nserver: ").count(), 1, "{method} {fields:?}: {answer}");
            assert!(
                answer.starts_with("HTTP/1.1 4") || answer.starts_with("HTTP/1.1 5"),
                "{method} {fields:?}: {answer}"
            );
        }
    }
    assert!(!served.path("smuggler").exists());
}

#[test]
fn pipelined_requests_are_answered_in_their_order() {
    let served = Dialogue::start(&["--path", "sendfile"]);
    let request = |at| format!("GET /digits HTTP/1.1\r\nHost: here\r\nRange: bytes={at}-{at}\r\n\r\n");
    let requests: String = (0..200).map(|number| request(number % 10)).collect();
    let answers = served.tell(requests.as_bytes());
    let digits: String = answers.split("\r\n\r\n").skip(1).filter_map(|after| after.chars().next()).collect();
    assert_eq!(digits, "0123456789".repeat(20));
}

#[test]
fn nothing_behind_a_last_request_is_answered() {
    let served = Dialogue::start(&[]);
    let last = "GET /digits HTTP/1.1\r\nHost: here\r\nConnection: close\r\n\r\n";
    let answer = served.tell(last.repeat(1000).as_bytes());
    // All of it comes, although much was sent that nobody reads.
    assert!(answer.ends_with("\r\n\r\n0123456789") && answer.matches("HTTP/1.1 ").count() == 1, "{answer}");
}

#[test]
fn a_head_that_trickles_in_is_not_waited_for() {
    // Long enough for a client to say its first word, even if it has no processor for a while.
    let served = Dialogue::start(&["--idle-timeout", "5s"]);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let head = b"GET /digits HTTP/1.1\r\nHost: here\r\nA: ".iter().copied().chain(std::iter::repeat(b'a'));
            let answer = trickle(&mut served.connect(), head);
            assert!(answer.starts_with("HTTP/1.1 408 ") && answer.contains("connection: close"), "{answer}");
        });
        // Half a head, and nothing more.
        scope.spawn(|| {
            let mut silent = served.connect();
            silent.write_all(b"GET /digits HTTP/1.1\r\n").unwrap();
            assert!(all_of(&mut silent).starts_with("HTTP/1.1 408 "));
        });
        // Nobody says anything, before or after a request.
        scope.spawn(|| assert_eq!(all_of(&mut served.connect()), ""));
        scope.spawn(|| {
            let mut quiet = served.connect();
            quiet.write_all(b"GET /digits HTTP/1.1\r\nHost: here\r\n\r\n").unwrap();
            let answer = all_of(&mut quiet);
            assert!(answer.ends_with("\r\n\r\n0123456789"), "{answer}");
        });
    });
}

#[test]
fn a_body_that_trickles_in_is_not_waited_for_and_what_came_is_kept() {
    at_once(["recv", "splice", "uring"], |way| {
        let mut served = Dialogue::start(&[&IMPATIENT[..], &["-v", "--inward", way]].concat());
        let mut socket = served.connect();
        socket.write_all(b"PUT /slow HTTP/1.1\r\nHost: here\r\nContent-Length: 1000000\r\n\r\n").unwrap();
        assert_eq!(trickle(&mut socket, std::iter::repeat(b'a')), "", "{way}");
        served.node.wait_for("an upload of /slow ended early");
        let offset = served.ask("HEAD", "/slow?upload", "");
        let (_, offset) = offset.split_once("upload-offset: ").unwrap();
        let (offset, _) = offset.split_once("\r\n").unwrap();
        assert!(offset.parse::<u64>().unwrap() > 0, "{way}");
        assert!(!served.path("slow").exists());
    });
}

#[test]
fn an_answer_that_is_not_taken_is_not_kept() {
    at_once(["sendfile", "splice", "read", "uring"], |way| {
        let served = Dialogue::start(&[&IMPATIENT[..], &["--path", way]].concat());
        std::fs::File::create(served.path("large")).unwrap().set_len(256 << 20).unwrap();
        // One that takes nothing, and one that takes a byte now and then.
        let [deaf, mut slow] = [(); 2].map(|()| {
            let mut socket = served.connect();
            socket.write_all(b"GET /large HTTP/1.1\r\nHost: here\r\n\r\n").unwrap();
            socket
        });
        let began = Instant::now();
        while !is_reset(&slow, Duration::from_millis(20)) {
            let _ = slow.read(&mut [0]);
            assert!(began.elapsed() < TIMEOUT, "{way}: it goes on for ever");
        }
        assert!(is_reset(&deaf, TIMEOUT), "{way}");
    });
}

#[test]
fn who_takes_little_but_steadily_gets_all_of_it() {
    let takes_little = |way: &str| {
        let served = Dialogue::start(&["--idle-timeout", "4s", "--path", way]);
        let bytes = big(&served.path("big"), 16);
        let mut socket = served.connect();
        rustix::net::sockopt::set_socket_recv_buffer_size(&socket, 64 << 10).unwrap();
        socket.write_all(b"GET /big HTTP/1.1\r\nHost: here\r\nConnection: close\r\n\r\n").unwrap();
        // Nobody says anything here: to listen takes a moment.
        let (mut silent, _mute) = UnixStream::pair().unwrap();
        silent.set_read_timeout(Some(Duration::from_millis(20))).unwrap();
        let mut answer = Vec::new();
        let began = Instant::now();
        while began.elapsed() < Duration::from_secs(5) {
            let mut some = [0; 16 << 10];
            let read = socket.read(&mut some).unwrap();
            answer.extend_from_slice(&some[..read]);
            let _ = silent.read(&mut some);
        }
        let end = socket.read_to_end(&mut answer);
        assert!(end.is_ok() && answer.ends_with(&bytes), "{way}: {end:?}");
    };
    at_once(["splice", "uring", "read"], takes_little);
}

#[test]
fn a_head_without_an_end_is_cut_off() {
    let served = Dialogue::start(&IMPATIENT);
    for line in ["A: b\r\n", "a", "\r\n", "A: b\r\n c\r\n", "\0"] {
        let mut socket = served.connect();
        let _ = socket.write_all(b"GET /digits HTTP/1.1\r\nHost: here\r\n");
        let flood = line.repeat(65536 / line.len());
        // As much as the server takes; it throws away what it gets for a moment, so that the client can read why.
        let began = Instant::now();
        while socket.write_all(flood.as_bytes()).is_ok() {
            assert!(began.elapsed() < TIMEOUT, "{line:?} goes on for ever");
        }
    }
    served.answers("GET", "/digits", "", 200, "0123456789");
}

#[test]
fn a_body_that_nobody_wants_is_not_taken_for_ever() {
    let served = Dialogue::start(&IMPATIENT);
    let mut socket = served.connect();
    socket.write_all(b"PUT /digits HTTP/1.1\r\nHost: here\r\nContent-Length: 1000000000000\r\n\r\n").unwrap();
    let began = Instant::now();
    while socket.write_all(&[0; 65536]).is_ok() {
        assert!(began.elapsed() < TIMEOUT, "it goes on for ever");
    }
    served.answers("GET", "/digits", "", 200, "0123456789");
}

#[test]
fn thousands_who_ask_for_nothing_keep_nobody_out() {
    // The limit holds for the whole process: other tests in it, and what they start, have it from here on.
    let Rlimit { maximum, .. } = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum }).unwrap();
    let served = Dialogue::start(&["--connections", "16"]);
    let mut idle = Vec::new();
    for number in 0..2000 {
        let mut socket = served.connect();
        // Some are silent, some say half of something, some ask and stay.
        let _ = socket.write_all(["", "GET /dig", "GET /digits HTTP/1.1\r\nHost: here\r\n\r\n"][number % 3].as_bytes());
        idle.push(socket);
        if number % 400 == 0 {
            served.answers("GET", "/digits", "", 200, "0123456789");
        }
    }
    served.answers("GET", "/digits", "", 200, "0123456789");
    assert!(served.node.memory() < 32 << 10, "{} KiB", served.node.memory());
    drop(idle);
    served.answers("GET", "/digits", "", 200, "0123456789");
}

#[test]
fn a_client_that_says_no_more_still_gets_its_answer() {
    let served = Dialogue::start(&[]);
    std::fs::File::create(served.path("large")).unwrap().set_len(16 << 20).unwrap();
    let mut half = served.connect();
    half.write_all(b"GET /large HTTP/1.1\r\nHost: here\r\n\r\n").unwrap();
    half.shutdown(Shutdown::Write).unwrap();
    let answer = all_of(&mut half);
    assert!(answer.len() > 16 << 20);
}

#[test]
fn no_wrong_token_opens_anything() {
    let tokens = TempDir::new().unwrap();
    let file = tokens.path().join("tokens");
    // Of `reader`.
    let hash = "3d0941964aa3ebdcb00ccef58b1bb399f9f898465e9886d5aec7f31090a0fb30";
    std::fs::write(&file, format!("[[token]]\nsha256 = \"{hash}\"\npath = \"/\"\n")).unwrap();
    let served = Dialogue::start(&["--tokens", file.to_str().unwrap()]);
    for field in [
        "",
        "Authorization:\r\n",
        "Authorization: Bearer\r\n",
        "Authorization: Bearer \r\n",
        "Authorization: Bearer Reader\r\n",
        "Authorization: Bearer reader,\r\n",
        "Authorization: Bearer reader reader\r\n",
        "Authorization: Bearer \u{e9}\r\n",
        &format!("Authorization: Bearer {hash}\r\n"),
        &format!("Authorization: Bearer {}\r\n", "a".repeat(10_000)),
        "Authorization: Basic cmVhZGVyOnJlYWRlcg==\r\n",
        "Cookie: Authorization=Bearer reader\r\n",
        "X-Authorization: Bearer reader\r\n",
    ] {
        for path in ["/digits", "/", "/nothing", "/runs/1", "/runs/1/events/0..10", "/digits?token=reader"] {
            served.answers("GET", path, field, 401, "a token is required");
        }
        served.answers("PUT", "/new", &format!("{field}Content-Length: 0\r\n"), 401, "a token is required");
        served.answers("HEAD", "/new?upload", field, 401, "");
        served.answers("DELETE", "/new?upload", field, 401, "a token is required");
    }
    let twice = "Authorization: Bearer reader\r\nAuthorization: Bearer nobody\r\n";
    served.answers("GET", "/digits", twice, 400, "twice");
    served.answers("GET", "/digits", "Authorization: Bearer reader\r\n", 200, "0123456789");
}

#[test]
fn what_cannot_be_asked_for_is_a_wrong_use() {
    let ended = |words: &[&str]| thalweg().arg("serve").args(words).output().unwrap();
    assert_eq!(ended(&["--idle-timeout", "0s", "."]).status.code(), Some(2));
    assert_eq!(ended(&["--connections", "0", "."]).status.code(), Some(2));
}

/// Whether the connection is broken off within a time.
fn is_reset(socket: &TcpStream, within: Duration) -> bool {
    let within = Timespec::try_from(within).unwrap();
    // Only errors and the end of both directions are asked for.
    poll(&mut [PollFd::new(socket, PollFlags::empty())], Some(&within)).unwrap() > 0
}
