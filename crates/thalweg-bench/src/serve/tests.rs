use super::*;
use crate::Plan;
use thalweg_testing::skip::skipped;

/// Makes a directory on a disk: beside the tests themselves, since the one for temporary files may be in memory.
fn disk() -> tempfile::TempDir {
    tempfile::tempdir_in(std::env::current_exe().unwrap().parent().unwrap()).unwrap()
}

fn options(directory: &std::path::Path, words: &str) -> Options {
    let mut line: Vec<String> = ["serve", "--path", directory.to_str().unwrap()].map(str::to_owned).into();
    line.extend(words.split_whitespace().map(str::to_owned));
    match Plan::parse_words(&line).unwrap() {
        Plan::Serve(options) => options,
        other => panic!("{other:?}"),
    }
}

/// Returns the program, if it was built into the same folder as this test.
fn thalweg() -> Option<PathBuf> {
    let test = std::env::current_exe().unwrap();
    test.ancestors().nth(2).map(|folder| folder.join("thalweg")).filter(|program| program.exists())
}

#[test]
fn every_method_takes_turns_with_its_reference() {
    let options = options(
        std::path::Path::new("."),
        "--file-size 64KiB --ranges 4KiB,64KiB --work cached,ranges,uncached,upload --on loopback,veth",
    );
    let keys: Vec<Key> = options.requested_cases().iter().map(|case| options.point_key(case)).collect();
    let servers = |link: &str, method: &str, size: u64| -> Vec<&str> {
        let these = keys.iter().filter(|key| (&*key.link, &*key.method, key.size) == (link, method, size));
        these.map(|key| key.settings["server"].as_str()).collect()
    };
    assert_eq!(servers("loopback", "cached", 65536), ["nginx", "nginx sendfile off", "read", "sendfile", "splice"]);
    assert_eq!(servers("veth", "ranges", 4096), ["nginx", "sendfile", "splice"]);
    assert_eq!(
        servers("veth", "uncached", 65536),
        ["fio direct", "nginx", "read", "sendfile", "splice", "ahead", "direct", "dontcache", "uring"]
    );
    assert_eq!(servers("loopback", "upload", 65536), ["fio direct", "recv", "splice", "dontcache", "uring"]);
    // The client is the one that sends there.
    let congestions = keys.iter().filter(|key| key.method == "upload").map(|key| key.settings.get("congestion"));
    assert!(congestions.flatten().filter(|name| *name == "cubic").count() == 8);
}

#[test]
fn pieces_larger_than_the_file_are_refused() {
    let disk = disk();
    for words in ["--file-size 64KiB", "--file-size 0", "--file-size 1MiB --work mounted"] {
        assert!(options(disk.path(), words).create_instrument().err().unwrap().is_usage_error(), "{words}");
    }
    assert!(options(disk.path(), "--file-size 64KiB --work cached").create_instrument().is_ok());
}

#[test]
fn figures_are_compared_with_those_of_the_same_turn() {
    let figures = |gbps: f64, cost: f64| Figures {
        goodput_bits_per_second: Some(gbps * 1e9),
        cpu: Some(crate::Cpu { seconds_per_gigabyte: Some(cost), ..crate::Cpu::default() }),
        ..Figures::default()
    };
    let key = |server: &str| Key::new("loopback", "cached", 1).with_setting("server", server);
    let nginx = vec![figures(10.0, 0.2), figures(20.0, 0.2), figures(5.0, 0.2)];
    // The machine was fast and slow in turns: each turn was half again as fast.
    let ours = vec![figures(15.0, 0.1), figures(30.0, 0.1), figures(7.5, 0.1)];
    let points = [
        Point::new("serve", key("nginx"), nginx, vec![], None),
        Point::new("serve", key("splice"), ours, vec![], None),
        Point::new("serve", key("read"), vec![], vec![], Some("it failed".to_owned())),
    ];
    let [beside] = &compare_with_references(&points)[..] else { panic!("{:?}", compare_with_references(&points)) };
    assert_eq!((beside.server.as_str(), beside.of.as_str()), ("splice", "nginx"));
    assert_eq!((beside.goodput, beside.cpu, beside.p99), (Some(1.5), Some(0.5), None));
}

#[test]
fn every_server_answers_and_every_upload_arrives() {
    let Some(program) = thalweg() else { return skipped("the program thalweg is not built") };
    let disk = disk();
    let mut options = options(disk.path(), "--file-size 256KiB --ranges 4KiB --clients 8 -t 10ms -O 1ms --repeat 1");
    options.program = Some(program);
    let mut instrument = options.create_instrument().unwrap();
    let mut measured = 0;
    for key in instrument.point_keys() {
        match instrument.measure_point(&key, &options.timing, &Stop::default()) {
            Ok(figures) => {
                measured += 1;
                assert!(figures.goodput_bits_per_second > Some(0.0), "{key:?}");
                assert!(figures.cpu.unwrap().seconds_per_gigabyte.is_some(), "{key:?}");
                assert_eq!(figures.latency_us.is_some(), key.method == "ranges", "{key:?}");
                let past =
                    ["uncached", "upload"].contains(&key.method.as_str()) && key.settings["server"] != "fio direct";
                assert_eq!(figures.page_cache_bytes.is_some(), past, "{key:?}");
            }
            // nginx or fio is not installed, or the file system cannot do what a method needs.
            Err(error) => skipped(format_args!("{key:?}: {error}")),
        }
    }
    assert!(measured >= 3, "the server's own ways need nothing else");
    drop(instrument);
    assert_eq!(std::fs::read_dir(disk.path()).unwrap().count(), 0);
}
