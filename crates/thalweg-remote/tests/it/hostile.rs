//! A server that sends nonsense or acts maliciously: clients report an error, and no wrong file appears on disk.

use std::fs::File;
use std::io::{BufRead, BufReader, ErrorKind, Read, Write};
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tempfile::TempDir;
use thalweg_remote::{
    Head, MountError, Mounted, Options, Progress, RemoteError, Server, mount_server, open_remote_run, pull_entry,
    push_path,
};
use thalweg_testing::skip::skipped;

/// A server that answers each request by a function of method, path and `Range`, or `Content-Range`.
struct Liar {
    server: Server,
    asked: Arc<Mutex<Vec<String>>>,
    /// Conditional fields, such as `If-Match`, in lower case.
    conditions: Arc<Mutex<Vec<String>>>,
}

impl Liar {
    fn new(path: &str, answer: impl Fn(&str, &str, &str) -> String + Send + Sync + 'static) -> Self {
        let door = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}{path}", door.local_addr().unwrap());
        let asked = Arc::new(Mutex::new(Vec::new()));
        let conditions = Arc::new(Mutex::new(Vec::new()));
        let (answer, heard, seen) = (Arc::new(answer), Arc::clone(&asked), Arc::clone(&conditions));
        std::thread::spawn(move || {
            for client in door.incoming().map_while(Result::ok) {
                let (answer, heard, seen) = (Arc::clone(&answer), Arc::clone(&heard), Arc::clone(&seen));
                std::thread::spawn(move || {
                    let mut request = BufReader::new(&client);
                    let mut lines = request.by_ref().lines().map_while(Result::ok);
                    let first = lines.next().unwrap_or_default();
                    let fields: Vec<String> =
                        lines.take_while(|line| !line.is_empty()).map(|line| line.to_lowercase()).collect();
                    let field = |name| fields.iter().find_map(|line| line.strip_prefix(name).map(str::to_owned));
                    let range = field("range: ").or_else(|| field("content-range: "));
                    let length = field("content-length: ").and_then(|length| length.parse().ok()).unwrap_or(0);
                    let _ = std::io::copy(&mut request.take(length), &mut std::io::sink());
                    seen.lock().unwrap().extend(fields.iter().filter(|line| line.starts_with("if-")).cloned());
                    heard.lock().unwrap().push(first.clone());
                    let mut words = first.split(' ');
                    let (method, path) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
                    let _ = (&client).write_all(answer(method, path, &range.unwrap_or_default()).as_bytes());
                });
            }
        });
        let options = Options { timeout: Duration::from_millis(1), ..Options::default() };
        Self { server: Server::new(&url, &options).unwrap(), asked, conditions }
    }

    /// Sends the same answer to every request.
    fn always(answer: &str) -> Self {
        let answer = answer.to_owned();
        Self::new("/a", move |_, _, _| answer.clone())
    }
}

fn answer(status: &str, fields: &str, content: &str) -> String {
    format!("HTTP/1.1 {status}\r\nConnection: close\r\nContent-Length: {}\r\n{fields}\r\n{content}", content.len())
}

/// Four bytes, `text`, at `/a`, with further header fields.
fn file(fields: &'static str) -> Liar {
    Liar::new("/a", move |method, _, range| {
        let fields = format!("ETag: \"1\"\r\n{fields}");
        match (method, range) {
            ("HEAD", _) => format!("HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 4\r\n{fields}\r\n"),
            (_, "") => answer("200 OK", &fields, "text"),
            _ => answer("206 Partial Content", &format!("{fields}Content-Range: bytes 0-3/4\r\n"), "text"),
        }
    })
}

fn is_empty(directory: &Path) -> bool {
    std::fs::read_dir(directory).unwrap().next().is_none()
}

#[test]
fn what_is_right_is_fetched() {
    let here = tempfile::tempdir().unwrap();
    let liar = file("Repr-Digest: crc32c=:L1MZ4Q==:\r\n");
    let head = liar.server.fetch_head("").unwrap();
    assert_eq!((head.length, head.etag.as_deref()), (4, Some("\"1\"")));
    assert_eq!(head.crc32c, Some(thalweg_remote::Digest::from_bytes(b"text").crc32c));
    pull_entry(&liar.server, here.path(), 4, &Progress::default()).unwrap();
    assert_eq!(std::fs::read(here.path().join("a")).unwrap(), b"text");
    assert_eq!(liar.server.read_range("", 0..4, None).unwrap(), b"text");
}

#[test]
fn a_file_that_does_not_agree_with_its_digest_gets_no_name() {
    let here = tempfile::tempdir().unwrap();
    let liar = file("Repr-Digest: crc32c=:AAAAAA==:\r\n");
    let error = pull_entry(&liar.server, here.path(), 4, &Progress::default()).unwrap_err();
    assert!(matches!(error, RemoteError::Digest { expected: 0, .. }), "{error}");
    assert!(is_empty(here.path()));
}

#[test]
fn names_lead_nowhere_else() {
    for name in ["../evil", "..", "/etc/evil", ".evil", ""] {
        let above = tempfile::tempdir().unwrap();
        let here = above.path().join("here");
        let liar = Liar::new("/", move |_, _, _| {
            let entry = format!("{{\"name\": {name:?}, \"kind\": \"file\", \"bytes\": 4}}");
            answer("200 OK", "", &format!("{{\"path\": \"/\", \"entries\": [{entry}]}}"))
        });
        let error = pull_entry(&liar.server, &here, 4, &Progress::default()).unwrap_err();
        assert!(matches!(error, RemoteError::Json { .. }), "{name}: {error}");
        assert!(is_empty(above.path()));
    }
}

#[test]
fn directories_in_one_another_without_end_are_left() {
    let here = tempfile::tempdir().unwrap();
    let liar = Liar::new("/", |_, _, _| {
        answer("200 OK", "", r#"{"path": "/", "entries": [{"name": "deeper", "kind": "directory"}]}"#)
    });
    let error = pull_entry(&liar.server, here.path(), 4, &Progress::default()).unwrap_err();
    assert!(error.to_string().contains("endlessly nested"), "{error}");
}

#[test]
fn nobody_is_led_to_another_server() {
    let liar = Liar::always(&answer("302 Found", "Location: http://127.0.0.1:1/a/\r\n", ""));
    for result in [
        liar.server.fetch_head("").map(drop),
        liar.server.list_directory("").map(drop),
        liar.server.read_range("", .., None).map(drop),
    ] {
        assert!(matches!(result, Err(RemoteError::Status { status: 302, .. })), "{result:?}");
    }
    assert_eq!(liar.asked.lock().unwrap().len(), 3);
}

#[test]
fn ranges_that_were_not_asked_for_are_no_answer() {
    for (status, fields) in [
        ("206 Partial Content", ""),
        ("206 Partial Content", "Content-Range: bytes 0-3/4\r\n"),
        ("206 Partial Content", "Content-Range: bytes 3-2/4\r\n"),
        ("206 Partial Content", "Content-Range: bytes 2-5/4\r\n"),
        ("206 Partial Content", "Content-Range: bytes 2-18446744073709551615/18446744073709551615\r\n"),
        ("206 Partial Content", "Content-Range: bytes 2-3/*\r\n"),
        ("206 Partial Content", "Content-Range: text 2-3/4\r\n"),
        ("200 OK", ""),
        ("416 Range Not Satisfiable", ""),
        ("416 Range Not Satisfiable", "Content-Range: bytes */4\r\n"),
    ] {
        let liar = Liar::always(&answer(status, fields, "text"));
        let result = liar.server.read_range("", 2..4, None);
        assert!(matches!(result, Err(RemoteError::Answer { .. })), "{status} {fields}: {result:?}");
    }
    let behind = Liar::always(&answer("416 Range Not Satisfiable", "Content-Range: bytes */4\r\n", ""));
    assert_eq!(behind.server.read_range("", 4..9, None).unwrap(), b"");
    let changed = Liar::always(&answer("412 Precondition Failed", "", ""));
    let head = Head { length: 4, etag: Some("\"1\"".into()), modified: None, crc32c: None };
    assert!(matches!(changed.server.read_range("", 2..4, Some(&head)), Err(RemoteError::Changed(_))));
}

#[test]
fn noise_and_silence_are_errors() {
    for noise in [
        "",
        "\r\n",
        "HTTP/1.1",
        "HTTP/1.1 999 ?\r\n\r\n",
        "HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n",
        "\u{0}\u{1}",
    ] {
        let liar = Liar::always(noise);
        assert!(liar.server.fetch_head("").is_err() && liar.server.list_directory("").is_err(), "{noise:?}");
        assert!(liar.server.read_range("", 0..4, None).is_err(), "{noise:?}");
    }
    // Repeated breaks without any progress end, too.
    let liar = Liar::always("HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\n");
    assert!(matches!(liar.server.read_range("", .., None), Err(RemoteError::BrokeOff { .. })));
}

#[test]
fn what_breaks_off_is_asked_for_from_there_on() {
    let liar = Liar::new("/a", |_, _, range| match range {
        "" => "HTTP/1.1 200 OK\r\nETag: \"1\"\r\nContent-Length: 4\r\n\r\nte".to_owned(),
        "bytes=2-3" => answer("206 Partial Content", "ETag: \"1\"\r\nContent-Range: bytes 2-3/4\r\n", "xt"),
        _ => answer("400 Bad Request", "", ""),
    });
    let options = Options { timeout: Duration::from_secs(5), ..Options::default() };
    let server = Server::new(&liar.server.url_of_resource(""), &options).unwrap();
    assert_eq!(server.read_range("", .., None).unwrap(), b"text");
    let head = Head { length: 4, etag: Some("\"1\"".into()), modified: None, crc32c: None };
    assert_eq!(server.read_range("", .., Some(&head)).unwrap(), b"text");
}

const THEN: &str = "Last-Modified: Sun, 22 Nov 2026 08:00:00 GMT\r\n";
const LATER: &str = "Last-Modified: Sun, 22 Nov 2026 08:00:01 GMT\r\n";

#[test]
fn two_contents_are_not_put_together() {
    let digest = "Repr-Digest: crc32c=:AAAAAA==:\r\n";
    for (at_first, then, range) in [
        (THEN, LATER, "0-3/4"),
        (THEN, THEN, "0-3/5"),
        ("", "", "0-3/5"),
        ("ETag: \"1\"\r\n", "ETag: \"2\"\r\n", "0-3/4"),
        ("Repr-Digest: crc32c=:L1MZ4Q==:\r\n", digest, "0-3/4"),
    ] {
        let here = tempfile::tempdir().unwrap();
        let liar = Liar::new("/a", move |method, _, _| match method {
            "HEAD" => format!("HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 4\r\n{at_first}\r\n"),
            _ => answer("206 Partial Content", &format!("{then}Content-Range: bytes {range}\r\n"), "text"),
        });
        let error = pull_entry(&liar.server, here.path(), 1, &Progress::default()).unwrap_err();
        assert!(matches!(error, RemoteError::Changed(_)), "{at_first}{then}{range}: {error}");
        assert!(!here.path().join("a").exists());
    }
}

#[test]
fn what_breaks_off_does_not_go_on_with_another_content() {
    let liar = Liar::new("/a", |_, _, range| match range {
        "bytes=0-3" => {
            format!("HTTP/1.1 206 Partial Content\r\n{THEN}Content-Range: bytes 0-3/4\r\nContent-Length: 4\r\n\r\nte")
        }
        _ => answer("206 Partial Content", &format!("{LATER}Content-Range: bytes 2-3/4\r\n"), "xt"),
    });
    let options = Options { timeout: Duration::from_secs(5), ..Options::default() };
    let server = Server::new(&liar.server.url_of_resource(""), &options).unwrap();
    let then = std::time::UNIX_EPOCH + Duration::from_secs(1_795_334_400);
    let head = Head { length: 4, etag: None, modified: Some(then), crc32c: None };
    let result = server.read_range("", 0..4, Some(&head));
    assert!(matches!(result, Err(RemoteError::Changed(_))), "{result:?}");
    let condition = "if-unmodified-since: sun, 22 nov 2026 08:00:00 gmt";
    assert_eq!(*liar.conditions.lock().unwrap(), [condition, condition]);
}

#[test]
fn a_server_that_cannot_now_is_asked_again_and_one_that_will_not_is_not() {
    let liar = Liar::always(&answer("503 Service Unavailable", "", "later"));
    let error = liar.server.list_directory("").unwrap_err().to_string();
    assert!(error.contains("busy (503: later)"), "{error}");
    assert!(liar.asked.lock().unwrap().len() > 1);
    let liar = Liar::always(&answer("403 Forbidden", "", ""));
    assert!(liar.server.list_directory("").is_err());
    assert_eq!(liar.asked.lock().unwrap().len(), 1);
}

#[test]
fn a_run_that_is_none_or_contradicts_itself_is_not_opened() {
    let info = r#"{"run": 1}"#;
    for (listed, content) in [("[]", info), ("[]", "{}"), (r#"[{"name": "../a.seg", "kind": "file"}]"#, info)] {
        let listing = format!("{{\"path\": \"/a/\", \"entries\": {listed}}}");
        let liar = Liar::new("/a", move |_, path, _| {
            answer("200 OK", "", if path.ends_with("run.json") { content } else { &listing })
        });
        let options = Options { timeout: Duration::ZERO, ..Options::default() };
        assert!(open_remote_run(&liar.server.url_of_resource(""), &options).is_err(), "{listed} {content}");
    }
}

/// Returns the `run.json` of a run that has ended, with these numbers of events and blocks.
fn book(began: u64, events: u64, blocks: u64) -> String {
    let totals = format!(r#"{{"events": {events}, "blocks": {blocks}}}"#);
    format!(
        r#"{{"format": "thalweg-run", "version": 1, "run": 1, "builder": 0, "builders": 1, "state": "COMPLETE",
            "began": {began}, "ended": 9, "writer": {{}}, "recorder": {{}}, "totals": {totals}}}"#
    )
}

fn none() -> String {
    answer("404 Not Found", "", "")
}

/// Answers `HEAD` and `GET` with a file of this content.
fn there(method: &str, content: &str) -> String {
    match method {
        "HEAD" => format!("HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: {}\r\n\r\n", content.len()),
        _ => answer("200 OK", "", content),
    }
}

/// Sends a file `a` of four bytes.
fn send(liar: &Liar) -> Result<(), RemoteError> {
    let here = tempfile::tempdir().unwrap();
    std::fs::write(here.path().join("a"), "text").unwrap();
    push_path(&liar.server, &here.path().join("a"), 1, &Progress::default()).map(drop)
}

#[test]
fn an_upload_that_is_whole_and_has_no_name_is_begun_anew() {
    let thrown_away = AtomicBool::new(false);
    let liar = Liar::new("", move |method, path, range| match (method, path, range) {
        ("HEAD", "/a?upload", _) => answer("204 No Content", "Upload-Offset: 4\r\n", ""),
        ("DELETE", "/a?upload", _) => {
            thrown_away.store(true, Relaxed);
            answer("204 No Content", "", "")
        }
        ("PUT", "/a", "") if thrown_away.load(Relaxed) => answer("201 Created", "", ""),
        ("PUT", ..) => answer("400 Bad Request", "", ""),
        _ => none(),
    });
    send(&liar).unwrap();
}

#[test]
fn an_upload_of_which_the_server_loses_some_goes_on_and_one_that_comes_no_further_ends() {
    let liar = |at_two: &'static str| {
        Liar::new("", move |method, path, range| match (method, path, range) {
            ("HEAD", "/a?upload", _) => answer("204 No Content", "Upload-Offset: 0\r\n", ""),
            ("PUT", _, "") => answer("202 Accepted", "Upload-Offset: 2\r\n", ""),
            ("PUT", _, "bytes 2-3/4") => answer("409 Conflict", "Upload-Offset: 1\r\n", ""),
            ("PUT", _, "bytes 1-3/4") => answer(at_two, "Upload-Offset: 2\r\n", ""),
            _ => none(),
        })
    };
    send(&liar("201 Created")).unwrap();
    let endless = liar("202 Accepted");
    let error = send(&endless).unwrap_err();
    assert!(matches!(error, RemoteError::Answer { .. }), "{error}");
}

#[test]
fn nothing_is_sent_to_where_another_run_is() {
    let here = tempfile::tempdir().unwrap();
    let run = here.path().join("run-000001");
    std::fs::create_dir(&run).unwrap();
    std::fs::write(run.join("run.json"), book(1, 0, 0)).unwrap();
    for name in ["00000.seg", "00001.seg"] {
        std::fs::write(run.join(name), name).unwrap();
    }
    let open = book(1, 0, 0).replace("COMPLETE", "OPEN");
    for (book, first, fits) in [
        (Some(book(2, 0, 0)), None, false),
        (Some(open.replace("\"began\": 1", "\"began\": 2")), None, false),
        (Some("{".to_owned()), None, false),
        (None, Some("another"), false),
        (Some(open), None, true),
        (None, None, true),
    ] {
        let told = format!("{book:?} {first:?}");
        let liar = Liar::new("", move |method, path, _| match (method, path, &book) {
            ("HEAD" | "GET", "/run-000001/run.json", Some(book)) => there(method, book),
            ("HEAD", "/run-000001/00000.seg", _) if first.is_some() => there(method, first.unwrap_or_default()),
            ("HEAD", path, _) if path.ends_with("?upload") => answer("204 No Content", "Upload-Offset: 0\r\n", ""),
            ("PUT", ..) => answer("201 Created", "", ""),
            _ => none(),
        });
        let result = push_path(&liar.server, &run, 2, &Progress::default());
        let sent = liar.asked.lock().unwrap().iter().filter(|asked| asked.starts_with("PUT")).count();
        match fits {
            true => assert_eq!((result.map(|moved| moved.files).ok(), sent), (Some(3), 3), "{told}"),
            false => {
                assert!(matches!(result, Err(RemoteError::Exists(_))), "{told}: {result:?}");
                assert_eq!(sent, 0, "{told}");
            }
        }
    }
}

#[test]
fn a_run_of_which_some_is_missing_is_told() {
    for (events, blocks, whole) in [(0, 0, true), (400, 0, false), (0, 20, false)] {
        let here = tempfile::tempdir().unwrap();
        let info = book(1, events, blocks);
        let text = info.clone();
        let liar = Liar::new("/runs/1", move |method, path, _| match (method, path) {
            ("HEAD", "/runs/1") => answer("301 Moved Permanently", "Location: /runs/1/\r\n", ""),
            (_, "/runs/1/run.json") => there(method, &text),
            _ => answer("200 OK", "", &format!("{{\"path\": \"/runs/1/\", \"entries\": [], \"info\": {text}}}")),
        });
        let result = pull_entry(&liar.server, here.path(), 1, &Progress::default());
        let missing = |result: &Result<_, _>| matches!(result, Err(RemoteError::NotWhole { .. }));
        assert_eq!((result.is_ok(), missing(&result)), (whole, !whole), "{result:?}");
        let run = here.path().join("run-000001");
        assert_eq!(std::fs::read_to_string(run.join("run.json")).unwrap(), info);
        if !whole {
            let liar = Liar::always(&none());
            assert!(missing(&push_path(&liar.server, &run, 1, &Progress::default())));
            assert!(liar.asked.lock().unwrap().is_empty());
        }
    }
}

#[test]
fn a_run_whose_book_cannot_be_read_is_no_directory() {
    let here = tempfile::tempdir().unwrap();
    let liar = Liar::new("/runs/2", |method, path, _| match (method, path) {
        ("HEAD", "/runs/2") => answer("301 Moved Permanently", "Location: /runs/2/\r\n", ""),
        (_, "/runs/2/run.json") => there(method, "{"),
        _ => answer(
            "200 OK",
            "",
            r#"{"path": "/runs/2/", "entries": [{"name": "run.json", "kind": "file", "bytes": 1}]}"#,
        ),
    });
    let error = pull_entry(&liar.server, here.path(), 1, &Progress::default()).unwrap_err();
    assert!(matches!(error, RemoteError::Json { .. }), "{error}");
    assert!(error.to_string().contains("/runs/2/run.json"), "{error}");
    assert!(is_empty(here.path()));
}

/// A server mounted as files.
struct Shown {
    _mounted: Mounted,
    at: TempDir,
}

impl Shown {
    /// Mounts the server. Returns `None`, and reports it as skipped, if this machine has no FUSE.
    fn of(liar: &Liar) -> Option<Self> {
        if let Err(error) = File::options().read(true).write(true).open("/dev/fuse") {
            skipped(format_args!("mount: /dev/fuse: {error}"));
            return None;
        }
        let at = tempfile::tempdir().unwrap();
        match mount_server(&liar.server, at.path(), 2, false) {
            Ok(mounted) => Some(Self { _mounted: mounted, at }),
            Err(error @ MountError::NoHelper) => {
                skipped(format_args!("mount: {error}"));
                None
            }
            Err(error) => panic!("{error}"),
        }
    }

    fn path(&self, path: &str) -> PathBuf {
        self.at.path().join(path)
    }
}

#[test]
fn a_mount_shows_no_name_that_leads_elsewhere() {
    let file = |name: &str| format!("{{\"name\": {name:?}, \"kind\": \"file\", \"bytes\": 4}}");
    let long = "a".repeat(256);
    let hostile = ["..", ".", "", "a/b", "/etc", "\0", &long].map(file);
    let twice = format!("{0}, {0}", file("a"));
    for entries in hostile.iter().chain([&twice]) {
        let listed = format!("{{\"path\": \"/d/\", \"entries\": [{entries}]}}");
        let liar = Liar::new("", move |_, path, _| match path {
            "/" => answer("200 OK", "", r#"{"path": "/", "entries": [{"name": "d", "kind": "directory"}]}"#),
            _ => answer("200 OK", "", &listed),
        });
        let Some(shown) = Shown::of(&liar) else { return };
        let names: Vec<_> =
            std::fs::read_dir(shown.at.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        assert_eq!(names, ["d"]);
        assert!(std::fs::read_dir(shown.path("d")).is_err(), "{entries}");
        assert!(shown.path("d/a").metadata().is_err(), "{entries}");
    }
}

#[test]
fn a_mount_of_directories_in_one_another_has_an_end() {
    let liar = Liar::new("", |_, _, _| {
        answer("200 OK", "", r#"{"path": "/", "entries": [{"name": "deeper", "kind": "directory"}]}"#)
    });
    let Some(shown) = Shown::of(&liar) else { return };
    assert!(shown.path(&"deeper/".repeat(60)).is_dir());
    let error = shown.path(&"deeper/".repeat(80)).metadata().unwrap_err();
    assert_eq!(rustix::io::Errno::from_io_error(&error), Some(rustix::io::Errno::LOOP), "{error}");
}

#[test]
fn a_mount_reads_nothing_that_the_server_contradicts_itself_in() {
    let listed = |bytes: u64| {
        let entry = format!("{{\"name\": \"a\", \"kind\": \"file\", \"bytes\": {bytes}}}");
        answer("200 OK", "", &format!("{{\"path\": \"/\", \"entries\": [{entry}]}}"))
    };
    let head = |length: u64| format!("HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: {length}\r\n\r\n");
    let part = |range, text| answer("206 Partial Content", &format!("Content-Range: bytes {range}\r\n"), text);
    for (bytes, length, part) in [
        (4, 4, part("0-3/5", "text")),
        (4, 4, part("0-1/4", "te")),
        (4, 4, part("0-1/2", "te")),
        (4, 4, answer("200 OK", "", "")),
        (4, 4, answer("404 Not Found", "", "")),
        (4, 4, answer("412 Precondition Failed", "", "")),
        (4, 4, "HTTP/1.1 999\r\n\r\n".to_owned()),
        (u64::MAX, u64::MAX, part("0-3/18446744073709551615", "text")),
        (1 << 62, 1 << 62, part("0-3/4", "text")),
    ] {
        let told = part.clone();
        let liar = Liar::new("", move |method, path, _| match (method, path) {
            (_, "/") => listed(bytes),
            ("HEAD", _) => head(length),
            _ => told.clone(),
        });
        let Some(shown) = Shown::of(&liar) else { return };
        let result = File::open(shown.path("a")).and_then(|mut file| file.read_exact(&mut [0; 4]));
        assert!(result.is_err(), "{bytes} {length} {part}");
    }
}

#[test]
fn what_a_mount_may_not_read_is_not_permitted() {
    let liar = Liar::new("", |_, path, _| match path {
        "/" => {
            let entries = r#"{"name": "a", "kind": "file", "bytes": 4}, {"name": "d", "kind": "directory"}"#;
            answer("200 OK", "", &format!("{{\"path\": \"/\", \"entries\": [{entries}]}}"))
        }
        _ => "HTTP/1.1 403 Forbidden\r\nConnection: close\r\nContent-Length: 0\r\n\r\n".to_owned(),
    });
    let Some(shown) = Shown::of(&liar) else { return };
    assert_eq!(File::open(shown.path("a")).unwrap_err().kind(), ErrorKind::PermissionDenied);
    assert_eq!(std::fs::read_dir(shown.path("d")).unwrap_err().kind(), ErrorKind::PermissionDenied);
}
