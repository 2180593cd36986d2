//! What a client is told that asks `thalweg serve` for something, in the words that are on the wire; and what one is
//! told that means no good.

use crate::common::dialogue::{Dialogue, all_of};
use crate::common::served::{big, record};
use crate::common::{Node, thalweg};
use serde_json::Value;
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use tempfile::TempDir;
use thalweg_testing::skip::skipped;

#[test]
fn a_file_is_sent_whole_and_in_parts() {
    let served = Dialogue::start(&["--path", "sendfile"]);
    served.answers("GET", "/digits", "", 200, "0123456789");
    served.answers("HEAD", "/digits", "", 200, "");
    served.answers("GET", "/digits", "Range: bytes=2-4\r\n", 206, "234");
    served.answers("GET", "/digits", "Range: bytes=-3\r\n", 206, "789");
    served.answers("GET", "/digits", "Range: bytes=10-\r\n", 416, "it has 10 bytes");
    served.answers("GET", "/digits", "Range: bytes=0-,0-\r\n", 200, "0123456789");
    served.answers("GET", "/digits", "Range: bytes=2-4\r\nIf-Range: \"another\"\r\n", 200, "0123456789");
    served.answers("GET", "/digits", "If-None-Match: *\r\n", 304, "");
    served.answers("GET", "/?format=json", "", 200, r#"{"name":"digits","kind":"file","bytes":10"#);
    // Two requests at once are answered one after the other.
    let two = "GET /digits HTTP/1.1\r\nHost: here\r\n\r\n".repeat(2);
    assert_eq!(served.tell(two.as_bytes()).matches("0123456789").count(), 2);
}

#[test]
fn every_way_sends_the_same() {
    for way in ["read", "sendfile", "splice", "ahead", "direct", "dontcache", "uring"] {
        let served = Dialogue::start(&["--path", way]);
        let answer = served.ask("GET", "/digits", "Range: bytes=1-8\r\n");
        assert!(answer.ends_with("\r\n\r\n12345678"), "{way}: {answer}");
    }
}

#[test]
fn on_one_connection_all_kinds_of_requests_follow_each_other() {
    let served = Dialogue::start(&[]);
    let ask = |what: &str, more: &str| format!("{what} HTTP/1.1\r\nHost: here\r\n{more}\r\n");
    let digits = ask("GET /digits", "");
    // A file is sent by an event loop, a listing and an upload need a thread; then it is the loop's turn again.
    let upload = ask("PUT /new", "Content-Length: 3\r\n") + "abc";
    let listing = ask("GET /?format=json", "");
    let about = ask("HEAD /new?upload", "");
    let all = [&*digits, &listing, &digits, &upload, &ask("GET /new", ""), &about, &upload, &listing, &digits].concat();
    let told = served.tell(all.as_bytes());
    let status = |answer: &str| answer.get(..3).map(str::to_owned);
    let statuses: Vec<_> = told.split("HTTP/1.1 ").skip(1).filter_map(status).collect();
    assert_eq!(statuses, ["200", "200", "200", "201", "200", "204", "409"], "{told}");
    assert_eq!(told.matches("0123456789").count(), 2);
    // Whose upload is refused, its body is not taken for requests.
    assert!(told.contains("connection: close\r\n"), "{told}");
}

#[test]
fn what_is_not_in_the_page_cache_is_sent_all_the_same() {
    let served = Dialogue::start(&[]);
    let bytes = big(&served.path("big"), 5);
    let file = std::fs::File::open(served.path("big")).unwrap();
    file.sync_all().unwrap();
    let mut socket = served.connect();
    // In the cache, from the disk, and in the cache up to its middle.
    for forgotten in [bytes.len()..bytes.len(), 0..bytes.len(), bytes.len() / 2..bytes.len()] {
        let length = std::num::NonZeroU64::new(forgotten.len() as u64);
        if length.is_some() {
            rustix::fs::fadvise(&file, forgotten.start as u64, length, rustix::fs::Advice::DontNeed).unwrap();
        }
        socket.write_all(b"GET /big HTTP/1.1\r\nHost: here\r\nRange: bytes=1-\r\n\r\n").unwrap();
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            let mut byte = [0];
            socket.read_exact(&mut byte).unwrap();
            head.extend(byte);
        }
        let mut body = vec![0; bytes.len() - 1];
        socket.read_exact(&mut body).unwrap();
        assert!(body == bytes[1..], "{forgotten:?}");
    }
}

#[test]
fn nothing_outside_and_nothing_hidden_is_served() {
    let served = Dialogue::start(&[]);
    served.answers("GET", "/../secret", "", 400, "not a path");
    served.answers("GET", "/%2e%2e/secret", "", 400, "not a path");
    served.answers("GET", "/a%2f..%2fsecret", "", 400, "not a path");
    served.answers("GET", "/link", "", 403, "leaves the served directory");
    served.answers("GET", "/.hidden", "", 404, "nothing found");
    served.answers("GET", "/runs/1/events/2..1", "", 404, "10..20");
    served.answers("PUT", "/link/x", "Content-Length: 1\r\n", 403, "leaves the served directory");
    served.answers("PUT", "/.hidden", "Content-Length: 1\r\n", 404, "nothing found");
    let listing = served.ask("GET", "/", "Accept: text/html\r\n");
    assert!(listing.contains("digits") && !listing.contains("hidden") && !listing.contains("secret"), "{listing}");
}

#[test]
fn the_page_of_runs_says_what_ls_says() {
    let served = Dialogue::start(&[]);
    record(&served.path(""));
    let listed = thalweg().arg("ls").arg(served.path("")).output().unwrap();
    let listed = String::from_utf8(listed.stdout).unwrap();
    let run = listed.lines().find(|line| line.contains("run-000001")).unwrap();
    let (state, bytes) = (run.split_whitespace().nth(1).unwrap(), run.rsplit("  ").next().unwrap().trim());
    let page = served.ask("GET", "/", "Accept: text/html\r\n");
    assert!(page.contains(&format!(">{state}</td>")) && page.contains(&format!(">{bytes}</td>")), "{run}: {page}");
    // A run that ended and has lost its segment.
    std::fs::remove_file(served.path("run-000001/00000.seg")).unwrap();
    let page = served.ask("GET", "/", "Accept: text/html\r\n");
    assert!(page.contains("<td class=\"bad\">DAMAGED</td>"), "{page}");
    // A run with another name is listed by it, and not by its number.
    std::fs::rename(served.path("run-000001"), served.path("d3")).unwrap();
    served.answers("GET", "/?format=json", "", 200, r#"{"name":"d3","kind":"run""#);
    served.answers("GET", "/runs/?format=json", "", 200, r#""entries":[]"#);
}

#[test]
fn floods_and_nonsense_are_refused_and_the_next_client_is_served() {
    let served = Dialogue::start(&[]);
    let fields = "a: b\r\n".repeat(100);
    served.answers("GET", "/digits", &fields, 431, "64 header fields");
    served.answers("GET", &format!("/{}", "a".repeat(100_000)), "", 414, "16 KiB");
    served.answers("GET", "/digits", "Content-Length: 3\r\nTransfer-Encoding: chunked\r\n", 400, "both");
    served.answers("POST", "/digits", "", 405, "POST");
    served.answers("BREW", "/digits", "", 501, "BREW");
    served.answers("PUT", "/new", "Transfer-Encoding: chunked\r\n", 411, "Content-Length");
    served.answers("PUT", "/digits", "Content-Length: 1\r\n", 409, "If-Match");
    assert!(served.tell(b"\x16\x03\x01\x02\x00\x01").starts_with("HTTP/1.1 400 "));
    assert_eq!(served.tell(b"GET / HT"), "", "half a request is none");
    served.answers("GET", "/digits", "", 200, "0123456789");
}

#[test]
fn an_upload_appears_when_it_is_whole_and_right() {
    let served = Dialogue::start(&[]);
    let there = served.path("new/file");
    // 123456789 has the CRC32C e3069283 (RFC 3720's check value).
    let wrong = "Content-Length: 9\r\nRepr-Digest: crc32c=:AAAAAA==:\r\n\r\n123456789";
    served.answers("PUT", "/new/file", wrong, 400, "instead of 00000000");
    assert!(!there.exists());
    // One that breaks off is kept, hidden, and gone on with.
    served.tell(b"PUT /new/file HTTP/1.1\r\nHost: here\r\nContent-Length: 9\r\n\r\n1234");
    assert!(!there.exists());
    let offset = served.ask("HEAD", "/new/file?upload", "");
    assert!(offset.contains("upload-offset: 4\r\n"), "{offset}");
    let rest = "Content-Length: 5\r\nContent-Range: bytes 4-8/9\r\nRepr-Digest: crc32c=:4waSgw==:\r\n\r\n56789";
    served.answers("PUT", "/new/file", &rest.replace("4-8", "5-9").replace("/9", "/10"), 409, "4 bytes received");
    served.answers("PUT", "/new/file", rest, 201, "");
    assert_eq!(std::fs::read_to_string(&there).unwrap(), "123456789");
    let head = served.ask("HEAD", "/new/file", "");
    assert!(head.contains("repr-digest: crc32c=:4waSgw==:\r\n"), "{head}");
}

#[test]
fn nobody_goes_on_from_what_is_not_there_any_more() {
    let served = Dialogue::start(&[]);
    served.answers("PUT", "/file", "Content-Length: 4\r\nContent-Range: bytes 0-3/9\r\n\r\n1234", 202, "4 bytes");
    // As after a server was killed in the middle of beginning anew.
    std::fs::File::options().write(true).open(served.path(".file.upload")).unwrap().set_len(0).unwrap();
    let offset = served.ask("HEAD", "/file?upload", "");
    assert!(offset.contains("upload-offset: 0\r\n"), "{offset}");
    let rest = "Content-Length: 5\r\nContent-Range: bytes 4-8/9\r\n\r\n56789";
    served.answers("PUT", "/file", rest, 409, "0 bytes received");
    // What is asked for wrongly is refused before anything comes, and leaves nothing.
    served.answers("PUT", "/file", "Content-Length: 9\r\nDigest: crc32c=A\r\n\r\n123456789", 400, "not a crc32c");
    let offset = served.ask("HEAD", "/file?upload", "");
    assert!(offset.contains("upload-offset: 0\r\n"), "{offset}");
    served.answers("PUT", "/file", "Content-Length: 9\r\n\r\n123456789", 201, "");
}

#[test]
fn what_was_published_is_replaced_by_nobody_who_has_not_seen_it() {
    let served = Dialogue::start(&[]);
    let head = served.ask("HEAD", "/digits", "");
    let etag = head.lines().find_map(|line| line.strip_prefix("etag: ")).unwrap();
    // Somebody is faster, while it comes in.
    let mut socket = served.connect();
    write!(socket, "PUT /digits HTTP/1.1\r\nHost: here\r\nIf-Match: {etag}\r\nContent-Length: 3\r\n").unwrap();
    write!(socket, "Expect: 100-continue\r\n\r\n").unwrap();
    let mut go_on = [0; 25];
    socket.read_exact(&mut go_on).unwrap();
    assert_eq!(&go_on, b"HTTP/1.1 100 Continue\r\n\r\n");
    std::fs::rename(served.path(".hidden"), served.path("digits")).unwrap();
    write!(socket, "abc").unwrap();
    socket.shutdown(std::net::Shutdown::Write).unwrap();
    let answer = all_of(&mut socket);
    assert!(answer.starts_with("HTTP/1.1 412 "), "{answer}");
    served.answers("GET", "/digits", "", 200, "secret");
    // A publisher was killed between the two names that one file has, where a rename cannot be told to replace nothing.
    std::fs::remove_file(served.path(".digits.upload")).unwrap();
    std::fs::hard_link(served.path("digits"), served.path(".digits.upload")).unwrap();
    let head = served.ask("HEAD", "/digits", "");
    let etag = head.lines().find_map(|line| line.strip_prefix("etag: ")).unwrap();
    let put = format!("If-Match: {etag}\r\nContent-Length: 3\r\n\r\nabc");
    served.answers("PUT", "/digits", &put, 423, "is writing this file");
    served.answers("GET", "/digits", "", 200, "secret");
}

#[test]
fn nothing_is_put_among_the_files_of_a_run_that_is_being_recorded() {
    let served = Dialogue::start(&[]);
    let run = served.path("run-000001");
    std::fs::create_dir(&run).unwrap();
    // As its recorder does.
    let lock = std::fs::File::open(&run).unwrap();
    rustix::fs::flock(&lock, rustix::fs::FlockOperation::LockExclusive).unwrap();
    let put = "Content-Length: 3\r\n\r\nabc";
    served.answers("PUT", "/runs/1/00001.seg", put, 423, "being recorded");
    served.answers("PUT", "/run-000001/notes", put, 423, "being recorded");
    assert_eq!(std::fs::read_dir(&run).unwrap().count(), 0);
    drop(lock);
    served.answers("PUT", "/run-000001/notes", put, 201, "");
}

#[test]
fn nothing_is_put_into_a_run_that_has_ended() {
    let served = Dialogue::start(&[]);
    let run = record(&served.path(""));
    let before = std::fs::read_dir(&run).unwrap().count();
    let put = "Content-Length: 3\r\n\r\nabc";
    let head = served.ask("HEAD", "/runs/1/run.json", "");
    let etag = head.lines().find_map(|line| line.strip_prefix("etag: ")).unwrap();
    let replace = format!("If-Match: {etag}\r\n{put}");
    for (path, fields) in [
        ("/run-000001/00009.seg", put),
        ("/runs/1/notes", put),
        ("/run-000001/more/notes", put),
        ("/runs/1/run.json", &replace),
    ] {
        served.answers("PUT", path, fields, 409, "this run has ended");
    }
    assert_eq!(std::fs::read_dir(&run).unwrap().count(), before, "not even a directory");
    let thalweg_run = thalweg_store::Run::open(&run).unwrap();
    assert!(thalweg_store::verify_run(&thalweg_run).consistent);
    served.answers("PUT", "/notes", put, 201, "");
}

#[test]
fn a_run_that_a_link_leads_to_outside_is_not_shown() {
    let served = Dialogue::start(&[]);
    let outside = served.directory.path().join("outside");
    let run = record(&outside);
    std::os::unix::fs::symlink(&run, served.path("run-000007")).unwrap();
    std::fs::create_dir(served.path("run-000008")).unwrap();
    std::os::unix::fs::symlink(run.join("run.json"), served.path("run-000008/run.json")).unwrap();
    for path in ["/", "/runs/", "/run-000008/", "/runs/8/"] {
        let answer = served.ask("GET", path, "");
        assert!(answer.starts_with("HTTP/1.1 200 "), "{path}: {answer}");
        assert!(!answer.contains("COMPLETE") && !answer.contains("model-adc"), "{path}: {answer}");
    }
}

#[test]
fn events_of_a_run_that_is_being_recorded_cost_what_came_since() {
    let served = Dialogue::start(&[]);
    let run = record(&served.path(""));
    let mut info: Value = serde_json::from_slice(&std::fs::read(run.join("run.json")).unwrap()).unwrap();
    let events = info["totals"]["events"].as_u64().unwrap();
    info["state"] = "OPEN".into();
    info["ended"] = Value::Null;
    std::fs::write(run.join("run.json"), info.to_string()).unwrap();
    // Without its last footer, as it is while it is written.
    let segments = (0..).map(|number| run.join(format!("{number:05}.seg"))).take_while(|path| path.exists());
    let last = segments.last().unwrap();
    let bytes = std::fs::read(&last).unwrap();
    let footer = u64::from_le_bytes(bytes[bytes.len() - 16..][..8].try_into().unwrap());
    std::fs::File::options().write(true).open(&last).unwrap().set_len(footer).unwrap();

    // Bytes that the server read, from wherever (`proc_pid_io(5)`).
    let read = || -> u64 {
        let counts = std::fs::read_to_string(format!("/proc/{}/io", served.node.pid().as_raw_nonzero())).unwrap();
        counts.lines().find_map(|line| line.strip_prefix("rchar: ")).unwrap().parse().unwrap()
    };
    let ask = |events: String| served.ask("GET", &format!("/runs/1/events/{events}?format=json"), "");
    let first = ask(format!("0..{events}"));
    assert_eq!(first.matches("\"event\":").count() as u64, events, "{first}");
    let before = read();
    for event in [0, events / 2, events - 1] {
        let answer = ask(event.to_string());
        assert_eq!(answer.matches("\"event\":").count(), 1, "{answer}");
    }
    let again = read() - before;
    assert!(again < footer / 4, "{again} bytes of {footer} were read again");
}

#[test]
fn a_segment_is_not_taken_for_one_that_had_its_number() {
    let served = Dialogue::start(&[]);
    let elsewhere = TempDir::new().unwrap();
    let whole = std::fs::read(record(elsewhere.path()).join("00000.seg")).unwrap();
    let segment = served.path("run-000001/00000.seg");
    std::fs::create_dir(segment.parent().unwrap()).unwrap();
    let digest = |served: &Dialogue| {
        let head = served.ask("HEAD", "/runs/1/00000.seg", "");
        head.lines().find_map(|line| line.strip_prefix("repr-digest: ").map(str::to_owned)).unwrap()
    };
    // Its recorder died. The file system gives the number of its file to the next one at once.
    std::fs::write(&segment, &whole[..whole.len() / 2]).unwrap();
    let of_half = digest(&served);
    std::fs::remove_file(&segment).unwrap();
    std::fs::write(&segment, &whole).unwrap();
    let of_whole = digest(&served);
    assert_ne!(of_half, of_whole);
    assert_eq!(of_whole, digest(&Dialogue::start(&[]).with_file("run-000001/00000.seg", &whole)));
    // And what was cut off is found out, too.
    std::fs::write(&segment, &whole[..whole.len() / 2]).unwrap();
    assert_eq!(digest(&served), of_half);
}

#[test]
fn a_token_is_asked_for() {
    let tokens = TempDir::new().unwrap();
    let file = tokens.path().join("tokens");
    // Of `reader`.
    let hash = "3d0941964aa3ebdcb00ccef58b1bb399f9f898465e9886d5aec7f31090a0fb30";
    std::fs::write(&file, format!("[[token]]\nsha256 = \"{hash}\"\npath = \"/\"\n")).unwrap();
    let served = Dialogue::start(&["--tokens", file.to_str().unwrap()]);
    served.answers("GET", "/digits", "", 401, "Bearer");
    served.answers("GET", "/digits", "Authorization: Bearer nobody\r\n", 401, "Bearer");
    served.answers("GET", "/digits", "Authorization: Bearer reader\r\n", 200, "0123456789");
    served.answers("PUT", "/new", "Authorization: Bearer reader\r\nContent-Length: 1\r\n", 403, "does not permit");
}

#[test]
fn when_it_is_told_to_stop_it_says_what_it_did() {
    let served = Dialogue::start(&[]);
    served.answers("GET", "/digits", "", 200, "0123456789");
    served.node.interrupt();
    let report = served.node.finish().report(0);
    assert_eq!((report["requests"].as_u64(), report["sent_bytes"].as_u64()), (Some(1), Some(10)), "{report:#}");
}

#[test]
fn the_disk_interrupts_where_it_is_told_to_while_the_server_is_there() {
    let served = env!("CARGO_TARGET_TMPDIR");
    let settings = interrupts_of_the_disk_below(served.as_ref());
    let read = || settings.iter().map(std::fs::read_to_string).collect::<Result<Vec<_>, _>>().unwrap();
    let before = read();
    // To what it is already: then nothing changes.
    let mut again = settings.iter().zip(&before).map(|(path, list)| std::fs::write(path, list));
    if settings.is_empty() || again.any(|written| written.is_err()) {
        return skipped("this disk's interrupts cannot be moved here");
    }
    let mut command = thalweg();
    command.args(["--json", "serve", "--listen", "127.0.0.1:0", "--path", "sendfile", "--disk-cpus", "0", served]);
    let mut node = Node::start("serve", command);
    node.wait_for("\"url\"");
    assert!(read().iter().all(|list| list.trim() == "0"), "{:?}", read());
    node.interrupt();
    node.finish().report(0);
    assert_eq!(read(), before);
}

/// The settings of what interrupts; none where it is not known.
fn interrupts_of_the_disk_below(directory: &Path) -> Vec<PathBuf> {
    let device = rustix::fs::stat(directory).unwrap().st_dev;
    let number = format!("{}:{}", rustix::fs::major(device), rustix::fs::minor(device));
    let disk = Path::new("/sys/dev/block").join(number).canonicalize().unwrap_or_default();
    let lists = disk.ancestors().map(|above| above.join("msi_irqs")).find_map(|list| std::fs::read_dir(list).ok());
    let numbers = lists.into_iter().flatten().flatten().map(|entry| entry.file_name());
    numbers.map(|number| Path::new("/proc/irq").join(number).join("smp_affinity_list")).collect()
}

#[test]
fn a_closed_terminal_ends_it_in_order() {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let ignored = status.lines().find_map(|line| line.strip_prefix("SigIgn:")).unwrap().trim();
    if u64::from_str_radix(ignored, 16).unwrap() & 1 << (rustix::process::Signal::HUP.as_raw() - 1) != 0 {
        return skipped("a closed terminal: whoever started the tests has them ignore that (nohup)");
    }
    let served = Dialogue::start(&[]);
    served.answers("GET", "/digits", "", 200, "0123456789");
    served.node.signal(rustix::process::Signal::HUP);
    assert_eq!(served.node.finish().report(0)["requests"], 1);
}
