//! The inputs in `fuzz/corpus`, replayed: each that once reached something new, and each that once broke something.

use std::fs;
use std::path::{Path, PathBuf};

fn fuzz(part: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz").join(part)
}

fn replay(target: &str, run: fn(&[u8])) {
    let corpus = fuzz("corpus").join(target);
    let entries = fs::read_dir(&corpus).unwrap_or_else(|error| panic!("{}: {error}", corpus.display()));
    let mut inputs = 0;
    for entry in entries {
        let path = entry.unwrap().path();
        // A test that fails shows the input that it was at.
        println!("{}", path.display());
        run(&fs::read(path).unwrap());
        inputs += 1;
    }
    assert!(inputs > 0, "{}: no inputs; `make fuzz`, then scripts/fuzz.sh keep", corpus.display());
}

macro_rules! replayed {
    ($($target:ident),*) => {
        $(#[test]
        fn $target() {
            replay(stringify!($target), thalweg_world::fuzz::$target::run);
        })*

        #[test]
        fn every_target_is_replayed() {
            let mut targets: Vec<_> = fs::read_dir(fuzz("fuzz_targets"))
                .unwrap()
                .map(|entry| entry.unwrap().path().file_stem().unwrap().to_str().unwrap().to_owned())
                .collect();
            targets.sort_unstable();
            assert_eq!(targets, [$(stringify!($target)),*]);
        }
    };
}

replayed!(
    device_recording,
    efe_frames,
    frames_ethernet,
    gige_packets,
    instrument_datagrams,
    iwarp_fpdu,
    iwarp_startup,
    iwarp_stream,
    rdma_link_channel,
    rnic_rings,
    serve_request,
    service_latest,
    store_segment,
    verbs_manager,
    wire_header,
    wire_message,
    wire_records
);
