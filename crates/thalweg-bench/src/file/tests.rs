use super::*;
use crate::options::parsed;
use crate::point::Point;
use std::fs;
use thalweg_testing::skip::skipped;

fn options(dir: &std::path::Path, words: &str) -> Options {
    parsed(&format!("-t 1ms -O 1ms --repeat 1 --path {} {words}", dir.display()))
}

fn measure(dir: &std::path::Path, words: &str) -> Vec<Point> {
    let options = options(dir, words);
    let mut instrument = options.create_instrument().unwrap();
    let keys = options.requested_cases().into_iter().map(Case::point_key);
    keys.map(|key| match instrument.measure_point(&key, &options.timing, &Stop::default()) {
        Ok(figures) => Point::new("file", key.clone(), vec![figures], instrument.point_notes(&key), None),
        Err(error) => Point::new("file", key, vec![], vec![], Some(error.to_string())),
    })
    .collect()
}

/// Returns the error of options that cannot be measured.
fn refused(dir: &std::path::Path, words: &str) -> BenchError {
    options(dir, words).create_instrument().err().unwrap()
}

/// Makes a directory on a disk: beside the tests themselves, since the one for temporary files may be in memory.
fn disk() -> tempfile::TempDir {
    tempfile::tempdir_in(std::env::current_exe().unwrap().parent().unwrap()).unwrap()
}

fn is_unavailable(error: &str) -> bool {
    error.contains("not available here")
}

#[test]
fn written_data_is_read_back_by_every_method_in_every_order() {
    let dir = disk();
    let every = "--file-size 300KiB --sizes 4KiB,64KiB --pattern sequential,random --cache cold,warm --check-data";
    let points = measure(dir.path(), every);
    // Two orders, two sizes, and (five methods to read, four to write).
    assert_eq!(points.len(), 2 * 2 * 9);
    for point in &points {
        match &point.error {
            Some(error) => {
                assert!(is_unavailable(error), "{point:?}");
                skipped(error);
            }
            None => {
                let figures = &point.figures;
                let bits = figures.messages_per_second.unwrap() * point.key.size as f64 * 8.0;
                assert!((figures.goodput_bits_per_second.unwrap() / bits - 1.0).abs() < 1e-9, "{point:?}");
                let calls = figures.system_calls_per_megabyte.unwrap() * point.key.size as f64 / 1e6;
                // At most one call per block, except for writing back pages of the page cache.
                assert!(calls > 0.0 && calls <= 2.0, "{point:?}");
                let direct = matches!(point.key.method.as_str(), "direct" | "io_uring");
                assert_eq!(figures.copies_per_byte, Some(if direct { 0.0 } else { 1.0 }));
                assert!(figures.latency_us.unwrap().count > 0);
            }
        }
    }
    assert!(points.iter().any(|point| point.error.is_none()));
    let left: Vec<_> = fs::read_dir(dir.path()).unwrap().collect();
    assert!(left.is_empty(), "{left:?}");
}

#[test]
fn a_write_that_got_lost_is_found() {
    let dir = disk();
    let options = options(dir.path(), "--file-size 64KiB --sizes 4KiB --direction write --method buffered");
    let (stop, clock) = (Stop::default(), Clock::new());
    let mut target = Target::create_unnamed(dir.path(), 64 << 10).unwrap();
    target.overwrite_with_zeros(&stop).unwrap();
    let mut work = Work::new(options.requested_cases()[0], &mut target, &clock, true).unwrap();
    // Four blocks are claimed to be written, and none was.
    let error = work.verify_written_blocks(4, &stop).unwrap_err();
    assert!(matches!(error, BenchError::Corrupt { message: 0, .. }), "{error}");
}

#[test]
fn impossible_options_are_refused_before_anything_is_written() {
    let dir = disk();
    let error = refused(dir.path(), "--file-size 4KiB --sizes 64KiB");
    assert!(error.is_usage_error());
    assert_eq!(
        error.to_string(),
        "a file of 4 KiB holds no block of 64 KiB; ask for a larger --file-size or smaller --sizes"
    );
    assert!(refused(dir.path(), "--sizes 0").is_usage_error());
    let error = refused(dir.path(), "--file-size 1048576GiB").to_string();
    assert!(is_unavailable(&error) && error.contains("ask for a smaller --file-size"), "{error}");
    let nowhere = dir.path().join("nowhere");
    let error = refused(&nowhere, "").to_string();
    assert!(error.starts_with(&format!("making a temporary file in {}: ", nowhere.display())), "{error}");
}

#[test]
fn blocks_that_do_not_fit_the_disk_are_refused_by_direct_access_alone() {
    let dir = disk();
    for point in measure(dir.path(), "--file-size 100000 --sizes 1000 --method buffered,direct,io_uring") {
        match (point.key.method.as_str(), &point.error) {
            ("buffered", error) => assert_eq!(*error, None),
            (_, error) => assert!(is_unavailable(error.as_ref().unwrap()), "{error:?}"),
        }
    }
}

#[test]
fn where_files_are_in_memory_only_there_is_nothing_direct_and_nothing_cold() {
    let shm = std::path::Path::new("/dev/shm");
    let points = match Target::create_unnamed(shm, 1 << 20) {
        Err(error) => return skipped(error),
        Ok(_) => measure(shm, "--file-size 1MiB --sizes 64KiB --cache cold,warm"),
    };
    for point in points {
        let is_cold = point.key.settings.get("cache").is_some_and(|cache| cache == "cold");
        assert_eq!(point.error.is_none(), point.key.method == "buffered" && !is_cold, "{point:?}");
        assert!(point.error.is_none_or(|error| is_unavailable(&error)));
    }
}

#[test]
fn a_file_with_few_blocks_limits_the_number_in_flight() {
    let dir = disk();
    let points = measure(dir.path(), "--file-size 64KiB --sizes 16KiB --method io_uring --direction read");
    match &points[0].error {
        Some(error) => skipped(error),
        None => assert_eq!(points[0].notes, ["4 blocks were under way at once: the file has no more"]),
    }
}

#[test]
fn it_ends_when_it_is_stopped() {
    let dir = disk();
    let options = options(dir.path(), "--file-size 64KiB --sizes 4KiB");
    let mut instrument = options.create_instrument().unwrap();
    let stop = Stop::default();
    stop.request_stop();
    for key in instrument.point_keys() {
        assert!(matches!(instrument.measure_point(&key, &options.timing, &stop), Err(BenchError::Stopped)));
    }
}
