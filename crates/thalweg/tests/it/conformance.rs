//! What RFC 9110, 9112 and 9530 ask of a server like this one, requirement by requirement, and whether `thalweg serve`
//! does it.
//!
//! The table here is the only one: each request in it is sent to the program as it was built, each answer is compared,
//! and docs/data-server-conformance.md is this table, written out. `THALWEG_WRITE_DOCS=1 cargo test -p thalweg --test
//! it conformance::` writes it anew.

use crate::common::dialogue::Dialogue;
use crate::common::record_events;
use std::fmt::Write;
use std::time::{Duration, SystemTime};

/// A requirement.
struct Rule {
    section: &'static str,
    level: Level,
    /// What is required, shortened.
    says: &'static str,
    /// What is done.
    does: &'static str,
    shown: &'static [Shown],
}

#[derive(Clone, Copy, Debug)]
enum Level {
    Must,
    Should,
    May,
}
use Level::{May, Must, Should};

/// How it is seen.
enum Shown {
    /// A request, and what its answer is. Lines of the request end with LF here and with CR LF on the wire, `Host` and
    /// the empty line are added. Of the answer: the status; then fields that it has, `-field` for those that it has
    /// not, and `= body`.
    Case(&'static str, &'static [&'static str]),
    /// The same, with every byte as it is sent.
    Raw(&'static str, &'static [&'static str]),
    /// A test, in the file of this name.
    Test(&'static str, &'static str),
}
use Shown::{Case, Raw, Test};

#[test]
fn every_requirement_is_met() {
    let served = Dialogue::start(&["--path", "sendfile"]);
    let then = SystemTime::UNIX_EPOCH + Duration::from_secs(784_111_777);
    let touch = |name: &str, time| {
        std::fs::File::options().write(true).open(served.path(name)).unwrap().set_modified(time).unwrap();
    };
    touch("digits", then);
    std::fs::write(served.path("empty"), "").unwrap();
    std::fs::write(served.path("tomorrow"), "0").unwrap();
    touch("tomorrow", SystemTime::now() + Duration::from_secs(86_400));
    std::fs::create_dir(served.path("directory")).unwrap();
    for number in 0..40 {
        std::fs::write(served.path(&format!("directory/{number}")), "").unwrap();
    }
    let out = served.path("");
    record_events(&out, &["--size", "1KiB", "--rate", "100"], 10);
    let etag_of = |path: &str| {
        let told = served.ask("HEAD", path, "");
        Answer::of(&told).field("etag").unwrap_or_else(|| panic!("{path} has an ETag")).to_owned()
    };
    let known = [
        ("{etag}", etag_of("/digits")),
        ("{listing}", etag_of("/directory/")),
        ("{events}", etag_of("/runs/1/events/0..10")),
        ("{then}", "Sun, 06 Nov 1994 08:49:37 GMT".to_owned()),
        ("{then in 1994}", "Sunday, 06-Nov-94 08:49:37 GMT".to_owned()),
        ("{then in C}", "Sun Nov  6 08:49:37 1994".to_owned()),
        ("{before}", "Sun, 06 Nov 1994 08:49:36 GMT".to_owned()),
        ("{after}", "Sun, 06 Nov 1994 08:49:38 GMT".to_owned()),
        ("{many a}", "a".repeat(20_000)),
        ("{8000 a}", "a".repeat(8_000)),
    ];
    let fill = |text: &str| known.iter().fold(text.to_owned(), |text, (name, value)| text.replace(name, value));
    let mut wrong = String::new();
    for rule in RULES {
        for shown in rule.shown {
            let (request, bytes, expected) = match shown {
                Case(request, expected) => (request, on_the_wire(&fill(request)), expected),
                Raw(request, expected) => (request, fill(request), expected),
                Test(..) => continue,
            };
            let told = served.tell(bytes.as_bytes());
            for line in Answer::of(&told).lacks(&told, &expected.iter().map(|line| fill(line)).collect::<Vec<_>>()) {
                let _ =
                    writeln!(wrong, "{}: {}\n  {request:?}\n  not '{line}' but {told:.600?}", rule.section, rule.says);
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong}");
}

#[test]
fn each_coding_of_a_listing_is_a_state_of_its_own() {
    let served = Dialogue::start(&[]);
    for number in 0..40 {
        std::fs::write(served.path(&number.to_string()), "").unwrap();
    }
    let etag = |coding: &str| {
        let answer = served.ask("HEAD", "/", &format!("Accept-Encoding: {coding}\r\n"));
        Answer::of(&answer).field("etag").map(str::to_owned).expect("an ETag")
    };
    let [plain, gzip, zstd] = ["identity", "gzip", "zstd"].map(etag);
    assert!(plain != gzip && gzip != zstd && zstd != plain, "{plain} {gzip} {zstd}");
    served.answers("GET", "/", &format!("Accept-Encoding: gzip\r\nIf-None-Match: {gzip}\r\n"), 304, "");
    let zstd = served.ask("GET", "/", &format!("Accept-Encoding: zstd\r\nIf-None-Match: {gzip}\r\n"));
    assert!(zstd.starts_with("HTTP/1.1 200 "), "{zstd}");
}

#[test]
fn the_document_is_the_table() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/data-server-conformance.md");
    let document = document();
    if std::env::var_os("THALWEG_WRITE_DOCS").is_some() {
        std::fs::write(path, &document).unwrap();
    }
    let written = std::fs::read_to_string(path).unwrap_or_default();
    assert!(written == document, "docs/data-server-conformance.md is of another time: THALWEG_WRITE_DOCS=1 writes it");
    for rule in RULES {
        for shown in rule.shown {
            let Test(file, name) = shown else { continue };
            let source = std::fs::read_to_string(format!("{}/{file}", env!("CARGO_MANIFEST_DIR"))).unwrap();
            assert!(source.contains(&format!("fn {name}(")), "{}: there is no {name} in {file}", rule.section);
        }
    }
}

fn on_the_wire(request: &str) -> String {
    let (head, body) = request.split_once("\n\n").unwrap_or((request, ""));
    let mut lines = head.lines();
    let line = lines.next().unwrap();
    let line = if line.contains(" HTTP/") { line.to_owned() } else { format!("{line} HTTP/1.1") };
    let fields: String = lines.map(|field| format!("{field}\r\n")).collect();
    format!("{line}\r\nHost: here\r\n{fields}\r\n{body}")
}

/// The first answer of what was told.
struct Answer<'a> {
    status: &'a str,
    fields: Vec<(&'a str, &'a str)>,
    body: &'a str,
}

impl<'a> Answer<'a> {
    fn of(told: &'a str) -> Self {
        let (head, body) = told.split_once("\r\n\r\n").unwrap_or((told, ""));
        let mut lines = head.split("\r\n");
        let status = lines.next().and_then(|line| line.strip_prefix("HTTP/1.1 ")).unwrap_or_default();
        Self { status, fields: lines.filter_map(|line| line.split_once(": ")).collect(), body }
    }

    fn field(&self, name: &str) -> Option<&'a str> {
        self.fields.iter().find(|(field, _)| *field == name).map(|(_, value)| *value)
    }

    /// Which of the lines do not hold.
    fn lacks(&self, told: &str, expected: &[String]) -> Vec<String> {
        let holds = |line: &&String| match line.split_once(' ') {
            _ if line.starts_with('-') => self.field(&line[1..]).is_none(),
            Some(("=", body)) => self.body == body,
            Some(("twice", text)) => told.matches(text).count() == 2,
            Some((name, value)) => self.field(name.trim_end_matches(':')) == Some(value),
            None if line.bytes().all(|byte| byte.is_ascii_digit()) => self.status.starts_with(&format!("{line} ")),
            None if *line == "=" => self.body.is_empty(),
            None => self.field(line).is_some(),
        };
        expected.iter().filter(|line| !holds(line)).cloned().collect()
    }
}

fn document() -> String {
    let mut text = String::from(INTRODUCTION);
    for rule in RULES {
        let shown: Vec<String> = rule.shown.iter().map(example).collect();
        let level = format!("{:?}", rule.level).to_uppercase();
        let says = rule.says.replace('|', "\\|");
        let _ = writeln!(text, "| {} | {level} | {says} | {} | {} |", rule.section, rule.does, shown.join("<br>"));
    }
    text
}

fn example(shown: &Shown) -> String {
    let (request, expected) = match shown {
        Case(request, expected) => (request.replace('\n', " ⏎ "), expected),
        Raw(request, expected) => (request.replace("\r\n", " ⏎ "), expected),
        Test(file, name) => return format!("`{name}` ({file})"),
    };
    let request = request.trim_end_matches(" ⏎ ").chars();
    let request: String =
        request.map(|c| if c.is_control() { c.escape_debug().to_string() } else { c.to_string() }).collect();
    format!("`{request}` → `{}`", expected.join("`, `"))
}

const INTRODUCTION: &str = "\
# The data server and the standards

*Reference: the requirements of RFC 9110 (HTTP semantics), 9112 (HTTP/1.1) and 9530 (digests) on a server like
`thalweg serve`, and how it meets them. [The data server](data-server.md) describes its use.*

This page is written by a test, `cargo test -p thalweg --test it conformance::`, which sends each request to the program
and compares each answer. In the last column ⏎ is the end of a line, and `Host: here` is omitted. After the arrow follow
the status, fields of the answer, with their values where these matter, `-field` for a field that it must not have, and
the body after `=`. `{etag}` is the file's `ETag`, `{then}` its `Last-Modified`, `{before}` and `{after}` are a second
less and more. `/digits` contains `0123456789`. Requirements on proxies and caches are omitted, and so are features that
this server never uses: trailers, `Upgrade`, weak validators and `Content-Location`.

`scripts/http_suites.py` runs independent test suites for HTTP servers, if installed: REDbot (PyPI, `redbot`) and
slowhttptest (Debian). It exits with 1 if one of them finds a problem.

| section | | what is required | what the server does | shown by |
| --- | --- | --- | --- | --- |
";

const RULES: &[Rule] = &[
    // --- RFC 9112
    Rule {
        section: "9112 §2.2",
        level: Should,
        says: "ignore at least one empty line in front of the request line",
        does: "ignores them",
        shown: &[Raw("\r\nGET /digits HTTP/1.1\r\nHost: here\r\n\r\n", &["200", "= 0123456789"])],
    },
    Rule {
        section: "9112 §2.2",
        level: Must,
        says: "a CR that no LF follows is invalid, or replaced by a space",
        does: "refuses it",
        shown: &[Raw("GET /digits HTTP/1.1\r\nHost: here\r\nA: b\rc\r\n\r\n", &["400", "connection: close"])],
    },
    Rule {
        section: "9112 §2.2",
        level: May,
        says: "take an LF without CR for the end of a line",
        does: "does not: another reader might not either",
        shown: &[Raw("GET /digits HTTP/1.1\r\nHost: here\nA: b\r\n\r\n", &["400", "connection: close"])],
    },
    Rule {
        section: "9112 §2.2",
        level: Must,
        says: "refuse, or read without them, lines with leading space behind the request line",
        does: "refuses them",
        shown: &[Raw("GET /digits HTTP/1.1\r\n Host: here\r\nHost: here\r\n\r\n", &["400"])],
    },
    Rule {
        section: "9112 §2.3, 9110 §2.5",
        level: Should,
        says: "process a higher minor version as the highest that is known",
        does: "as HTTP/1.1",
        shown: &[Case("GET /digits HTTP/1.7", &["200", "-connection"])],
    },
    Rule {
        section: "9110 §15.6.6",
        level: Should,
        says: "505 for a major version that is not supported",
        does: "505",
        shown: &[Case("GET /digits HTTP/2.0", &["505"]), Raw("GET /digits HTTP/3.0\r\n\r\n", &["505"])],
    },
    Rule {
        section: "9112 §3",
        level: Should,
        says: "400 (or 301) for an invalid request line",
        does: "400",
        shown: &[
            Raw("GET /digits\r\nHost: here\r\n\r\n", &["400"]),
            Raw("GET /dig its HTTP/1.1\r\nHost: here\r\n\r\n", &["400"]),
            Case("GET /%zz", &["400"]),
            Case("GET /digits#1", &["400"]),
            Raw("\u{16}\u{3}\u{1}\u{2}", &["400"]),
        ],
    },
    Rule {
        section: "9112 §3",
        level: Must,
        says: "414 for a target longer than any that the server wants to read",
        does: "a request's head may have 16 KiB",
        shown: &[Case("GET /{many a}", &["414", "connection: close"])],
    },
    Rule {
        section: "9112 §3",
        level: Should,
        says: "support request lines of 8000 octets and more",
        does: "up to 16 KiB",
        shown: &[Case("GET /{8000 a}", &["404"])],
    },
    Rule {
        section: "9112 §3.2",
        level: Must,
        says: "400 for a request of HTTP/1.1 without `Host`, with two, or with one that is invalid",
        does: "400",
        shown: &[
            Raw("GET /digits HTTP/1.1\r\n\r\n", &["400"]),
            Raw("GET /digits HTTP/1.1\r\nHost: a\r\nHost: a\r\n\r\n", &["400"]),
            Raw("GET /digits HTTP/1.1\r\nHost: a/b\r\n\r\n", &["400"]),
            Raw("GET /digits HTTP/1.1\r\nHost: a@b\r\n\r\n", &["400"]),
            Raw("GET /digits HTTP/1.0\r\n\r\n", &["200"]),
            Raw("GET /digits HTTP/1.1\r\nHost:\r\n\r\n", &["200"]),
        ],
    },
    Rule {
        section: "9112 §3.2.2",
        level: Must,
        says: "accept the absolute form, whatever `Host` says; (9110 §4.2.1) not without a host",
        does: "accepts it, for any host",
        shown: &[Case("GET http://there/digits", &["200", "= 0123456789"]), Case("GET http:///digits", &["400"])],
    },
    Rule {
        section: "9112 §3.2.4",
        level: Must,
        says: "the asterisk form is for `OPTIONS`",
        does: "for nothing else",
        shown: &[Case("OPTIONS *", &["204", "allow"]), Case("GET *", &["400"])],
    },
    Rule {
        section: "9112 §5.1",
        level: Must,
        says: "400 for whitespace between a field's name and its colon",
        does: "400",
        shown: &[Case("GET /digits\nRange : bytes=0-1", &["400"])],
    },
    Rule {
        section: "9112 §5.1",
        level: Must,
        says: "whitespace around a value is no part of it",
        does: "leaves it out",
        shown: &[Case("GET /digits\nRange:  \t bytes=2-4 \t", &["206", "= 234"])],
    },
    Rule {
        section: "9112 §5.2",
        level: Must,
        says: "refuse a folded line with 400, or unfold it",
        does: "400",
        shown: &[Case("GET /digits\nA: b\n c", &["400"])],
    },
    Rule {
        section: "9110 §5.4",
        level: Must,
        says: "a status 4xx for fields larger than the server wants to process",
        does: "431 for more than 16 KiB, or 64 fields",
        shown: &[
            Case("GET /digits\nA: {many a}", &["431", "connection: close"]),
            Test("tests/it/serve.rs", "floods_and_nonsense_are_refused_and_the_next_client_is_served"),
        ],
    },
    Rule {
        section: "9110 §5.5",
        level: Must,
        says: "refuse a value with CR, LF or NUL, or replace them",
        does: "refuses it",
        shown: &[Case("GET /digits\nA: b\0c", &["400"])],
    },
    Rule {
        section: "9110 §5.3",
        level: Must,
        says: "(senders) no field twice that is not a list",
        does: "400 for those that mean something here; other readers might take the other one",
        shown: &[
            Case("GET /digits\nRange: bytes=0-1\nRange: bytes=2-3", &["400"]),
            Case("GET /digits\nAuthorization: Bearer a\nAuthorization: Bearer b", &["400"]),
        ],
    },
    Rule {
        section: "9112 §6.1",
        level: Must,
        says: "a request of HTTP/1.0 with `Transfer-Encoding` has faulty framing: close",
        does: "400, closed",
        shown: &[Case("PUT /a HTTP/1.0\nTransfer-Encoding: chunked", &["400", "connection: close"])],
    },
    Rule {
        section: "9112 §6.1",
        level: Should,
        says: "501 for a transfer coding that is not understood",
        does: "501",
        shown: &[Case("PUT /a\nTransfer-Encoding: gzip, chunked", &["501", "connection: close"])],
    },
    Rule {
        section: "9112 §6.1, §6.3",
        level: May,
        says: "refuse a request with both `Content-Length` and `Transfer-Encoding`; it must be closed after the answer",
        does: "400, closed: it is how requests are smuggled",
        shown: &[Case("PUT /a\nContent-Length: 3\nTransfer-Encoding: chunked", &["400", "connection: close"])],
    },
    Rule {
        section: "9112 §6.3",
        level: Must,
        says: "400 and close where the last transfer coding is not chunked, or (§6.1) chunked comes twice",
        does: "400, closed",
        shown: &[
            Case("PUT /a\nTransfer-Encoding: gzip", &["400", "connection: close"]),
            Case("PUT /a\nTransfer-Encoding: chunked, chunked", &["400", "connection: close"]),
            Case("PUT /a\nTransfer-Encoding: chunked\nTransfer-Encoding: x", &["400", "connection: close"]),
        ],
    },
    Rule {
        section: "9112 §6.3",
        level: Must,
        says: "400 and close for an invalid `Content-Length`; one with the same number twice may be accepted",
        does: "400, closed",
        shown: &[
            Case("PUT /a\nContent-Length: -1", &["400", "connection: close"]),
            Case("PUT /a\nContent-Length: 1e3", &["400"]),
            Case("PUT /a\nContent-Length: 99999999999999999999", &["400"]),
            Case("PUT /a\nContent-Length: 3, 3", &["400"]),
            Case("PUT /a\nContent-Length: 3\nContent-Length: 3", &["400", "connection: close"]),
        ],
    },
    Rule {
        section: "9112 §6.3",
        level: May,
        says: "411 for a body without `Content-Length`. (§7.1: a recipient MUST be able to read chunks)",
        does: "411: how long a file is has to be known in front. So no chunk is ever read; a connection with chunks on it is closed",
        shown: &[
            Case("PUT /a\nTransfer-Encoding: chunked\n\n3\r\nabc\r\n0\r\n\r\n", &["411", "connection: close"]),
            Case("GET /digits\nTransfer-Encoding: chunked\n\n0\r\n\r\n", &["200", "connection: close", "= 0123456789"]),
        ],
    },
    Rule {
        section: "9112 §6.3",
        level: Must,
        says: "without either, a request has no body",
        does: "what follows is the next request",
        shown: &[Raw(
            "GET /digits HTTP/1.1\r\nHost: here\r\n\r\nGET /digits HTTP/1.1\r\nHost: here\r\n\r\n",
            &["200", "twice 0123456789"],
        )],
    },
    Rule {
        section: "9112 §9.3",
        level: Should,
        says: "connections persist: with HTTP/1.1 unless `close` is said, with HTTP/1.0 where `keep-alive` is",
        does: "as said",
        shown: &[
            Case("GET /digits", &["200", "-connection"]),
            Case("GET /digits\nConnection: x, Close", &["200", "connection: close"]),
            Case("GET /digits HTTP/1.0", &["200", "connection: close"]),
            Case("GET /digits HTTP/1.0\nConnection: keep-alive", &["200", "connection: keep-alive"]),
        ],
    },
    Rule {
        section: "9112 §9.3.2",
        level: Must,
        says: "answer pipelined requests in their order",
        does: "one after the other",
        shown: &[Test("tests/it/serve_hostile.rs", "pipelined_requests_are_answered_in_their_order")],
    },
    Rule {
        section: "9112 §9.5",
        level: Should,
        says: "close an idle connection gracefully",
        does: "after `--idle-timeout`; 408 where half a head has come",
        shown: &[Test("tests/it/serve_hostile.rs", "a_head_that_trickles_in_is_not_waited_for")],
    },
    Rule {
        section: "9112 §9.6",
        level: Must,
        says: "process no request behind one that says `close`, and close; (SHOULD) in stages",
        does: "stops sending, reads for up to 2 s what still comes, closes",
        shown: &[Test("tests/it/serve_hostile.rs", "nothing_behind_a_last_request_is_answered")],
    },
    Rule {
        section: "9112 §9.8",
        level: Must,
        says: "try to exchange closure alerts before a TLS connection is closed",
        does: "sends `close_notify`",
        shown: &[Test("tests/it/serve_tls.rs", "tls_ends_with_a_goodbye_and_a_handshake_has_its_time")],
    },
    // --- RFC 9110: messages and methods
    Rule {
        section: "9110 §6.6.1",
        level: Must,
        says: "`Date` in answers 2xx, 3xx and 4xx",
        does: "in all",
        shown: &[
            Case("GET /digits", &["200", "date"]),
            Case("GET /digits\nIf-None-Match: *", &["304", "date"]),
            Case("GET /nothing", &["404", "date"]),
        ],
    },
    Rule {
        section: "9110 §8.6",
        level: Must,
        says: "no `Content-Length` with 204; with a HEAD or 304 only that of the GET's 200",
        does: "as said",
        shown: &[
            Case("OPTIONS /", &["204", "-content-length", "="]),
            Case("HEAD /digits", &["200", "content-length: 10", "="]),
            Case("GET /digits\nIf-None-Match: *", &["304", "-content-length", "="]),
        ],
    },
    Rule {
        section: "9110 §8.8.2",
        level: Should,
        says: "send `Last-Modified`",
        does: "of files, once the second of their last change is over; listings and events have none",
        shown: &[Case("GET /digits", &["200", "last-modified: {then}"])],
    },
    Rule {
        section: "9110 §8.8.2.1",
        level: Must,
        says: "no `Last-Modified` later than `Date`",
        does: "none then",
        shown: &[Case("GET /tomorrow", &["200", "etag", "-last-modified"])],
    },
    Rule {
        section: "9110 §8.8.3",
        level: Should,
        says: "send an `ETag` where changes can be told",
        does: "of files, listings and events, always strong",
        shown: &[
            Case("GET /digits", &["200", "etag: {etag}"]),
            Case("GET /directory/", &["200", "etag: {listing}"]),
            Case("GET /runs/1/events/0..10", &["200", "etag: {events}"]),
        ],
    },
    Rule {
        section: "9110 §8.8.1, §8.8.3.3",
        level: Must,
        says: "another coding of the same thing has another strong `ETag`",
        does: "the tag is a checksum of the coded bytes",
        shown: &[Test("tests/it/conformance.rs", "each_coding_of_a_listing_is_a_state_of_its_own")],
    },
    Rule {
        section: "9110 §9.1",
        level: Should,
        says: "501 for a method that is not known, 405 for one that is not allowed; (§15.5.6 MUST) with `Allow`",
        does: "as said",
        shown: &[
            Case("BREW /digits", &["501"]),
            Case("get /digits", &["501"]),
            Case("POST /digits", &["405", "allow: GET, HEAD, OPTIONS, PUT"]),
            Case("DELETE /digits", &["405", "allow: GET, HEAD, OPTIONS, PUT"]),
            Case("PUT /digits?upload\nContent-Length: 0", &["405", "allow: GET, HEAD, OPTIONS, DELETE"]),
            Case("CONNECT /digits", &["405"]),
        ],
    },
    Rule {
        section: "9110 §9.3.2",
        level: Must,
        says: "no content for a HEAD; (SHOULD) the fields of a GET",
        does: "as said",
        shown: &[
            Case("HEAD /digits", &["200", "etag: {etag}", "last-modified: {then}", "accept-ranges: bytes", "="]),
            Case("HEAD /nothing", &["404", "content-length", "="]),
        ],
    },
    Rule {
        section: "9110 §9.3.4",
        level: Must,
        says: "201 for a PUT that creates, 200 or 204 for one that replaces",
        does: "replaces only what is named by `If-Match`; 409 otherwise",
        shown: &[
            Case("PUT /created\nContent-Length: 3\n\nabc", &["201", "etag"]),
            Case("PUT /created\nContent-Length: 3\n\nabc", &["409"]),
            Case("PUT /created\nIf-Match: *\nContent-Length: 3\n\nxyz", &["204", "etag"]),
            Case("GET /created", &["200", "= xyz"]),
        ],
    },
    Rule {
        section: "9110 §9.3.4, §15.5.16",
        level: Should,
        says: "refuse a representation that does not fit, with 415 where its coding does not",
        does: "415 for any `Content-Encoding`: it would not be there when the file is fetched",
        shown: &[Case(
            "PUT /coded\nContent-Encoding: gzip\nContent-Length: 3\n\nabc",
            &["415", "accept-encoding: identity", "connection: close"],
        )],
    },
    Rule {
        section: "9110 §10.1.1",
        level: Must,
        says: "answer `Expect: 100-continue` with 100 or a final status before the body; no 100 for HTTP/1.0",
        does: "as said",
        shown: &[
            Case("PUT /expected\nExpect: 100-Continue\nContent-Length: 3", &["100"]),
            Case("PUT /digits\nExpect: 100-continue\nContent-Length: 3", &["409", "connection: close"]),
            Raw("PUT /old HTTP/1.0\r\nExpect: 100-continue\r\nContent-Length: 3\r\n\r\nabc", &["201"]),
        ],
    },
    Rule {
        section: "9110 §11.6.1, §15.5.2",
        level: Must,
        says: "401 with `WWW-Authenticate`",
        does: "`Bearer`",
        shown: &[Test("tests/it/serve.rs", "a_token_is_asked_for")],
    },
    Rule {
        section: "9110 §12.5.3",
        level: Must,
        says: "no coding with weight 0; (SHOULD) `x-gzip` is `gzip`",
        does: "listings, and with `--compress` files and events, in zstd or gzip where these are named; all else as it is",
        shown: &[
            Case("GET /directory/\nAccept-Encoding: zstd;q=0, x-gzip", &["200", "content-encoding: gzip"]),
            Case("GET /directory/\nAccept-Encoding: gzip;q=0", &["200", "-content-encoding"]),
            Case("GET /digits\nAccept-Encoding: gzip", &["200", "-content-encoding"]),
        ],
    },
    Rule {
        section: "9110 §12.5.5",
        level: Should,
        says: "`Vary` where the request's fields decide",
        does: "with listings; with `--compress` with files and events, too",
        shown: &[Case("GET /directory/", &["200", "vary: accept, accept-encoding"]), Case("GET /digits", &["-vary"])],
    },
    // --- conditions
    Rule {
        section: "9110 §13.1.1",
        level: Must,
        says: "`If-Match` compares strongly; where nothing matches, 412 and nothing is done",
        does: "as said",
        shown: &[
            Case("GET /digits\nIf-Match: {etag}", &["200"]),
            Case("GET /digits\nIf-Match: \"a,b\", {etag}", &["200"]),
            Case("GET /digits\nIf-Match: *", &["200"]),
            Case("GET /digits\nIf-Match: \"other\"", &["412"]),
            Case("GET /digits\nIf-Match: W/{etag}", &["412"]),
            Case("GET /directory/\nIf-Match: \"other\"", &["412"]),
            Case("GET /runs/1/events/0..10\nIf-Match: \"other\"", &["412"]),
            Case("PUT /absent\nIf-Match: *\nContent-Length: 3\n\nabc", &["412"]),
            Case("PUT /digits\nIf-Match: \"other\"\nContent-Length: 3\n\nabc", &["412"]),
        ],
    },
    Rule {
        section: "9110 §13.1.2",
        level: Must,
        says: "`If-None-Match` compares weakly; where one matches, 304 for GET and HEAD, 412 for others",
        does: "as said",
        shown: &[
            Case("GET /digits\nIf-None-Match: {etag}", &["304"]),
            Case("HEAD /digits\nIf-None-Match: W/{etag}", &["304"]),
            Case("GET /digits\nIf-None-Match: \"other\"\nIf-None-Match: {etag}", &["304"]),
            Case("GET /digits\nIf-None-Match: *", &["304"]),
            Case("GET /digits\nIf-None-Match: \"other\"", &["200"]),
            Case("GET /digits\nIf-None-Match: \"no tag\"", &["200"]),
            Case("GET /directory/\nIf-None-Match: {listing}", &["304"]),
            Case("GET /runs/1/events/0..10\nIf-None-Match: {events}", &["304"]),
            Case("PUT /digits\nIf-None-Match: *\nContent-Length: 3\n\nabc", &["412"]),
            Case("PUT /new\nIf-None-Match: *\nContent-Length: 3\n\nabc", &["201"]),
        ],
    },
    Rule {
        section: "9110 §13.1.3",
        level: Must,
        says: "ignore `If-Modified-Since` beside `If-None-Match`, where it is no date, for other methods than GET and HEAD, and without a date of its own; (SHOULD) 304 where it is not earlier",
        does: "as said",
        shown: &[
            Case("GET /digits\nIf-Modified-Since: {then}", &["304"]),
            Case("GET /digits\nIf-Modified-Since: {after}", &["304"]),
            Case("GET /digits\nIf-Modified-Since: {before}", &["200"]),
            Case("GET /digits\nIf-Modified-Since: yesterday", &["200"]),
            Case("GET /digits\nIf-Modified-Since: {then}\nIf-None-Match: \"other\"", &["200"]),
            Case("GET /directory/\nIf-Modified-Since: {then}", &["200"]),
        ],
    },
    Rule {
        section: "9110 §13.1.4",
        level: Must,
        says: "ignore `If-Unmodified-Since` beside `If-Match`, where it is no date, and without a date of its own; otherwise 412 where it is earlier",
        does: "as said",
        shown: &[
            Case("GET /digits\nIf-Unmodified-Since: {then}", &["200"]),
            Case("GET /digits\nIf-Unmodified-Since: {before}", &["412"]),
            Case("GET /digits\nIf-Unmodified-Since: yesterday", &["200"]),
            Case("GET /digits\nIf-Unmodified-Since: {before}\nIf-Match: {etag}", &["200"]),
            Case("GET /directory/\nIf-Unmodified-Since: {before}", &["200"]),
        ],
    },
    Rule {
        section: "9110 §13.1.5",
        level: Must,
        says: "ignore `Range` where `If-Range` is another tag (compared strongly), or another date; ignore `If-Range` without `Range`",
        does: "as said",
        shown: &[
            Case("GET /digits\nRange: bytes=2-4\nIf-Range: {etag}", &["206", "= 234"]),
            Case("GET /digits\nRange: bytes=2-4\nIf-Range: W/{etag}", &["200", "= 0123456789"]),
            Case("GET /digits\nRange: bytes=2-4\nIf-Range: \"other\"", &["200", "= 0123456789"]),
            Case("GET /digits\nRange: bytes=2-4\nIf-Range: {then}", &["206", "= 234"]),
            Case("GET /digits\nRange: bytes=2-4\nIf-Range: {before}", &["200"]),
            Case("GET /digits\nRange: bytes=2-4\nIf-Range: {after}", &["200"]),
            Case("GET /digits\nIf-Range: \"other\"", &["200"]),
            Case("GET /runs/1/events/0..10\nRange: bytes=0-3\nIf-Range: {events}", &["206"]),
            Case("GET /runs/1/events/0..10\nRange: bytes=0-3\nIf-Range: \"other\"", &["200"]),
        ],
    },
    Rule {
        section: "9110 §13.1.5, §8.8.2.2",
        level: Must,
        says: "a date that is not a strong validator does not count",
        does: "a date is sent, and counts, only once its second is over",
        shown: &[Case("GET /created\nRange: bytes=0-1\nIf-Range: {then}", &["200", "= xyz"])],
    },
    Rule {
        section: "9110 §5.6.7",
        level: Must,
        says: "accept all three forms of a date",
        does: "accepts them",
        shown: &[
            Case("GET /digits\nIf-Modified-Since: {then in 1994}", &["304"]),
            Case("GET /digits\nIf-Modified-Since: {then in C}", &["304"]),
        ],
    },
    Rule {
        section: "9110 §13.2.1",
        level: Must,
        says: "ignore conditions where the answer without them would not be 2xx or 412",
        does: "ignores them",
        shown: &[
            Case("GET /nothing\nIf-None-Match: *", &["404"]),
            Case("GET /directory\nIf-Match: \"other\"", &["301"]),
            Case("POST /digits\nIf-Match: \"other\"", &["405"]),
        ],
    },
    Rule {
        section: "9110 §13.2.2",
        level: Must,
        says: "evaluate in the order: If-Match or If-Unmodified-Since, If-None-Match or If-Modified-Since, If-Range",
        does: "in this order",
        shown: &[
            Case("GET /digits\nIf-Match: \"other\"\nIf-None-Match: {etag}", &["412"]),
            Case("GET /digits\nIf-Match: {etag}\nIf-None-Match: {etag}", &["304"]),
            Case("GET /digits\nRange: bytes=2-4\nIf-None-Match: {etag}", &["304"]),
            Case("GET /digits\nRange: bytes=20-\nIf-Match: \"other\"", &["412"]),
            Case("GET /digits\nRange: bytes=20-\nIf-Range: \"other\"", &["200"]),
        ],
    },
    // --- ranges
    Rule {
        section: "9110 §14.1",
        level: Must,
        says: "names of units are not case-sensitive",
        does: "as said",
        shown: &[Case("GET /digits\nRange: Bytes=2-4", &["206", "= 234"])],
    },
    Rule {
        section: "9110 §14.1.2",
        level: Must,
        says: "first-last, first- and -suffix; a last position behind the end is the end; a suffix longer than all is all",
        does: "as said, with numbers of any length",
        shown: &[
            Case(
                "GET /digits\nRange: bytes=2-4",
                &["206", "content-range: bytes 2-4/10", "content-length: 3", "= 234"],
            ),
            Case("GET /digits\nRange: bytes=7-", &["206", "content-range: bytes 7-9/10", "= 789"]),
            Case("GET /digits\nRange: bytes=-3", &["206", "content-range: bytes 7-9/10", "= 789"]),
            Case("GET /digits\nRange: bytes=8-99999999999999999999999", &["206", "content-range: bytes 8-9/10"]),
            Case("GET /digits\nRange: bytes=-99999999999999999999999", &["206", "content-range: bytes 0-9/10"]),
        ],
    },
    Rule {
        section: "9110 §14.1.1, §14.2",
        level: May,
        says: "ignore a `Range` that is invalid",
        does: "ignores it",
        shown: &[
            Case("GET /digits\nRange: bytes=4-2", &["200"]),
            Case("GET /digits\nRange: bytes=a-b", &["200"]),
            Case("GET /digits\nRange: bytes", &["200"]),
            Case("GET /digits\nRange: bytes=", &["200"]),
        ],
    },
    Rule {
        section: "9110 §14.2",
        level: Must,
        says: "ignore `Range` with other methods than GET, and with a unit that is not known",
        does: "ignores it",
        shown: &[
            Case("HEAD /digits\nRange: bytes=2-4", &["200", "content-length: 10"]),
            Case("GET /digits\nRange: lines=2-4", &["200"]),
        ],
    },
    Rule {
        section: "9110 §14.2, §17.15",
        level: Should,
        says: "(MAY) ignore, merge or refuse more than two ranges that overlap, or many small ones",
        does: "ignores more than 64, and those that ask for more bytes than there are",
        shown: &[
            Case("GET /digits\nRange: bytes=0-,0-", &["200", "= 0123456789"]),
            Case("GET /digits\nRange: bytes=0-,0-,0-,0-,0-,0-,0-,0-,0-,0-", &["200", "= 0123456789"]),
        ],
    },
    Rule {
        section: "9110 §14.3",
        level: May,
        says: "send `Accept-Ranges`",
        does: "of all that has ranges",
        shown: &[Case("GET /digits", &["200", "accept-ranges: bytes"])],
    },
    Rule {
        section: "9110 §14.5",
        level: May,
        says: "take a PUT with `Content-Range` for a part; others SHOULD refuse it with 400",
        does: "an upload that goes on; 400 where it is nonsense, 409 where it does not fit",
        shown: &[
            Case("PUT /part\nContent-Range: bytes 0-2/6\nContent-Length: 3\n\nabc", &["202", "upload-offset: 3"]),
            Case("PUT /part\nContent-Range: bytes 4-5/6\nContent-Length: 2\n\nef", &["409", "upload-offset: 3"]),
            Case("PUT /part\nContent-Range: bytes 3-5/6\nContent-Length: 3\n\ndef", &["201"]),
            Case("PUT /part2\nContent-Range: bytes 0-2/6\nContent-Length: 4\n\nabcd", &["400"]),
            Case("PUT /part2\nContent-Range: lines 0-2/6\nContent-Length: 3\n\nabc", &["400"]),
            Case("PUT /part2\nContent-Length: 18446744073709551615", &["413"]),
        ],
    },
    Rule {
        section: "9110 §14.6, §15.3.7.2",
        level: Must,
        says: "each part has its `Content-Range`, the answer has none; (SHOULD) parts have the `Content-Type` of the whole",
        does: "as said",
        shown: &[
            Case("GET /digits\nRange: bytes=0-1,8-", &["206", "-content-range", "twice Content-Range: bytes "]),
            Case("GET /digits\nRange: bytes=0-1,8-", &["206", "twice Content-Type: application/octet-stream"]),
        ],
    },
    Rule {
        section: "9110 §15.3.7.2",
        level: Must,
        says: "no multipart answer where one range was asked for; where one is left, not necessarily",
        does: "one range is answered as one",
        shown: &[Case("GET /digits\nRange: bytes=20-, 2-4", &["206", "content-range: bytes 2-4/10", "= 234"])],
    },
    Rule {
        section: "9110 §15.3.7",
        level: Must,
        says: "with 206 the `Date`, `Cache-Control`, `ETag` and `Vary` of the 200, and its other fields",
        does: "as said",
        shown: &[Case(
            "GET /digits\nRange: bytes=2-4",
            &["206", "date", "cache-control: no-cache", "etag: {etag}", "last-modified: {then}", "content-type"],
        )],
    },
    Rule {
        section: "9110 §15.3.7",
        level: Should,
        says: "behind `If-Range`, no more than these",
        does: "as said",
        shown: &[Case(
            "GET /digits\nRange: bytes=2-4\nIf-Range: {etag}",
            &["206", "etag: {etag}", "cache-control: no-cache", "-last-modified", "-content-type"],
        )],
    },
    Rule {
        section: "9110 §15.4.5",
        level: Must,
        says: "with 304 the `Cache-Control`, `Date`, `ETag` and `Vary` of the 200; (SHOULD NOT) other metadata; no content",
        does: "as said",
        shown: &[
            Case(
                "GET /digits\nIf-None-Match: {etag}",
                &["304", "date", "cache-control: no-cache", "etag: {etag}", "-last-modified", "-content-type", "="],
            ),
            Case("GET /directory/\nIf-None-Match: {listing}", &["304", "vary: accept, accept-encoding", "="]),
        ],
    },
    Rule {
        section: "9110 §15.5.17, §14.4",
        level: Should,
        says: "416 where no range can be satisfied, with `Content-Range: bytes */LENGTH`",
        does: "as said; of nothing at all every range is ignored",
        shown: &[
            Case("GET /digits\nRange: bytes=10-", &["416", "content-range: bytes */10"]),
            Case("GET /digits\nRange: bytes=-0", &["416", "content-range: bytes */10"]),
            Case("GET /digits\nRange: bytes=10-,20-30", &["416", "content-range: bytes */10"]),
            Case("GET /empty\nRange: bytes=0-", &["200", "content-length: 0", "="]),
        ],
    },
    Rule {
        section: "9110 §15.4.2, §10.2.2",
        level: Should,
        says: "301 with `Location`, a URI",
        does: "of a directory without its slash; what was not encoded is",
        shown: &[
            Case("GET /directory?format=json", &["301", "location: /directory/?format=json"]),
            Case("GET //here/directory", &["404"]),
        ],
    },
    // --- RFC 9530
    Rule {
        section: "9530 §3",
        level: May,
        says: "`Repr-Digest`: of the whole representation, also with 206 and HEAD",
        does: "`crc32c`, of files that were uploaded and of segments",
        shown: &[
            Case("PUT /digest\nContent-Length: 9\n\n123456789", &["201", "repr-digest: crc32c=:4waSgw==:"]),
            Case("HEAD /digest", &["200", "repr-digest: crc32c=:4waSgw==:", "digest: crc32c=4waSgw=="]),
            Case("GET /digest\nRange: bytes=0-1", &["206", "repr-digest: crc32c=:4waSgw==:", "= 12"]),
        ],
    },
    Rule {
        section: "9530 §3",
        level: May,
        says: "verify the digest of a request; ignore algorithms that are not known",
        does: "verifies `crc32c`, keeps nothing where it is wrong",
        shown: &[
            Case("PUT /digest2\nRepr-Digest: crc32c=:AAAAAA==:\nContent-Length: 9\n\n123456789", &["400"]),
            Case("GET /digest2", &["404"]),
            Case("PUT /digest3\nRepr-Digest: sha-256=:AAAA:\nContent-Length: 9\n\n123456789", &["201"]),
        ],
    },
];
