//! Programs that people have anyway, against `thalweg serve`: what is whole is the same, and what broke off goes on
//! where it was.

use crate::common::served::{Machines, Served, assert_same, big, record};
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::process::Command;
use thalweg_testing::skip::skipped;

/// Has a client fetch something into a directory, and returns what it says. Nothing where there is no such program,
/// which is said.
#[track_caller]
fn client(program: &str, arguments: &[&str], into: &Path) -> Option<String> {
    let mut command = Command::new(program);
    command.args(arguments).current_dir(into);
    for name in ["http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"] {
        command.env_remove(name);
    }
    match command.output() {
        Err(error) if error.kind() == ErrorKind::NotFound => {
            skipped(format_args!("{program}: not installed"));
            None
        }
        Err(error) => panic!("{program}: {error}"),
        Ok(output) => {
            assert!(output.status.success(), "{program} {arguments:?}: {output:?}");
            Some(String::from_utf8_lossy(&output.stdout).into_owned())
        }
    }
}

/// A server with a run, and with a file whose first part is here already.
fn begun() -> (Machines, Served, Vec<u8>, PathBuf) {
    let machines = Machines::new();
    record(&machines.there);
    let whole = big(&machines.there.join("export.h5"), 16);
    let part = machines.here.join("export.h5");
    std::fs::write(&part, &whole[..5_000_000]).unwrap();
    let served = Served::start(&machines.there, &[]);
    (machines, served, whole, part)
}

#[test]
fn curl_goes_on_where_it_was_and_lists_and_fetches_events() {
    let (machines, served, whole, part) = begun();
    let here = &machines.here;
    let Some(_) = client("curl", &["-sSfO", "-C", "-", &served.url("export.h5")], here) else { return };
    assert!(std::fs::read(part).unwrap() == whole);
    let listing = client("curl", &["-sSf", "--compressed", &served.url("runs/")], here).unwrap();
    assert!(listing.contains("\"state\":\"COMPLETE\""), "{listing}");
    client("curl", &["-sSf", "-o", "events", &served.url("runs/1/events/3..5?source=model-adc-0")], here);
    // Two records: a header of 64 bytes, and what is in it.
    assert_eq!(std::fs::metadata(here.join("events")).unwrap().len(), 2 * (64 + (64 << 10)));
}

#[test]
fn curl_gets_compressed_what_it_asks_for_so_and_nothing_else() {
    let machines = Machines::new();
    let here = &machines.here;
    let segment = std::fs::read(record(&machines.there).join("00000.seg")).unwrap();
    let served = Served::start(&machines.there, &["--compress"]);
    let url = served.url("runs/1/00000.seg");
    let events = served.url("runs/1/events/3..91");
    let Some(_) = client("curl", &["-sSf", "-o", "stored", &events], here) else { return };
    let stored = std::fs::read(here.join("stored")).unwrap();
    for coding in ["gzip", "zstd"] {
        let field = format!("Accept-Encoding: {coding}");
        // Twice over one connection, the second one events.
        let words = ["-sSf", "--compressed", "-H", &field, "-D", "head", "-o", "one", &url, "-o", "two", &events];
        client("curl", &words, here);
        let [one, two] = ["one", "two"].map(|name| std::fs::read(here.join(name)).unwrap());
        assert!(one == segment && two == stored, "{coding}: {} {}", one.len(), two.len());
        let heads = std::fs::read_to_string(here.join("head")).unwrap();
        for line in [format!("content-encoding: {coding}\r\n"), "transfer-encoding: chunked\r\n".to_owned()] {
            assert_eq!(heads.matches(&line).count(), 2, "{heads}");
        }
        assert!(!heads.contains("digest") && !heads.contains("content-length"), "{heads}");
        let sent = client("curl", &["-sSf", "-H", &field, "-o", "one", "-w", "%{size_download}", &url], here).unwrap();
        assert!(sent.parse::<usize>().unwrap() < segment.len(), "{coding}: {sent}");
        // A part of it is as it is stored; nothing is sent to who has it.
        client("curl", &["-sSf", "-H", &field, "-r", "5-99999", "-o", "part", &url], here);
        assert!(std::fs::read(here.join("part")).unwrap() == segment[5..100_000], "{coding}");
        let etag = heads.lines().find_map(|line| line.strip_prefix("etag: ")).unwrap();
        let known = format!("If-None-Match: {}", etag.trim());
        let words = ["-sSf", "-H", &field, "-H", &known, "-o", "none", "-w", "%{http_code}", &url];
        assert_eq!(client("curl", &words, here).unwrap(), "304");
        let head = client("curl", &["-sSfI", "-H", &field, &url], here).unwrap();
        assert!(head.contains(&format!("content-encoding: {coding}\r\n")), "{head}");
    }
    for words in [&["-H", "If-None-Match: \"x-zstd\""][..], &["--http1.0", "-H", "Accept-Encoding: gzip"]] {
        let words = [&["-sSf", "-D", "head", "-o", "plain"], words, &[&url]].concat();
        client("curl", &words, here);
        let head = std::fs::read_to_string(here.join("head")).unwrap();
        assert!(std::fs::read(here.join("plain")).unwrap() == segment && head.contains("repr-digest: "), "{head}");
    }
}

#[test]
fn wget_goes_on_where_it_was_and_fetches_a_run_by_its_links() {
    let (machines, served, whole, part) = begun();
    let here = &machines.here;
    let Some(_) = client("wget", &["-q", "-c", &served.url("export.h5")], here) else { return };
    assert!(std::fs::read(part).unwrap() == whole);
    let links = ["-q", "-r", "-np", "-nH", "-R", "index.html*", "--header", "Accept: text/html"];
    client("wget", &[&links[..], &[&served.url("run-000001/")]].concat(), here);
    assert_same(&machines.there.join("run-000001"), &here.join("run-000001"));
}

#[test]
fn aria2_fetches_several_ranges_at_once_and_goes_on_where_it_was() {
    let (machines, served, whole, part) = begun();
    let here = &machines.here;
    let url = served.url("export.h5");
    let Some(_) = client("aria2c", &["-q", "--no-conf", "-c", &url], here) else { return };
    assert!(std::fs::read(part).unwrap() == whole);
    client("aria2c", &["-q", "--no-conf", "-x", "4", "-s", "4", "-k", "1M", "-o", "again", &url], here);
    assert!(std::fs::read(here.join("again")).unwrap() == whole);
}

#[test]
fn a_browser_shows_what_there_is() {
    let (machines, served, ..) = begun();
    let profile = format!("--user-data-dir={}", machines.here.join("profile").display());
    let browse = |path: &str| {
        let words = ["--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", &profile, "--dump-dom"];
        client("chromium", &[&words[..], &[&served.url(path)]].concat(), &machines.here)
    };
    let Some(page) = browse("") else { return };
    for link in ["<a href=\"export.h5\">", "<a href=\"run-000001/\">"] {
        assert!(page.contains(link), "{page}");
    }
    let page = browse("runs/1/").unwrap();
    assert!(page.contains("<a href=\"00000.seg\">") && page.contains("COMPLETE"), "{page}");
}
