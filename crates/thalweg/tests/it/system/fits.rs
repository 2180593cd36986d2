//! Fits of images as sources beside their cameras: what a run of replayed images says of them.

use crate::common::*;
use serde_json::Value;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};

const WIDTH: usize = 64;
const HEIGHT: usize = 48;

/// Image `n` of a beam that moves to the right; one of the dark, for every fourth.
fn image(n: usize) -> Vec<u8> {
    let mut file = format!("P5\n{WIDTH} {HEIGHT}\n255\n").into_bytes();
    file.extend((0..WIDTH * HEIGHT).map(|at| {
        let (x, y) = ((at % WIDTH) as f64 - centre(n), (at / WIDTH) as f64 - 24.0);
        if n % 4 == 3 { 7 } else { (10.0 + 200.0 * (-(x * x + y * y) / 32.0).exp()).round() as u8 }
    }));
    file
}

fn centre(n: usize) -> f64 {
    20.0 + (n % 8) as f64
}

/// A camera that shows eight such images, and fits of them.
fn topology(folder: &Path, run: &str, camera: &str, fits: &[&str]) -> PathBuf {
    let mut text = format!(
        "[run]\ndirectory = \"runs\"\n{run}\n\n[[builder]]\nname = \"b\"\nlisten = [\"tcp:127.0.0.1:0\"]\n\
         deadline = \"60s\"\n\n[[source]]\nname = \"camera\"\nid = \"1.0\"\ndevice = {{ kind = \"pgm\", files = ["
    );
    for n in 0..8 {
        std::fs::write(folder.join(format!("{n}.pgm")), image(n)).unwrap();
        let _ = write!(text, "\"{n}.pgm\", ");
    }
    let _ = writeln!(text, "], loop = true }}\n{camera}");
    for (n, fit) in fits.iter().enumerate() {
        let _ = writeln!(
            text,
            "[[source]]\nname = \"fit{n}\"\nid = \"2.{n}\"\ndevice = {{ kind = \"fit\", of = \"camera\", {fit} }}"
        );
    }
    let path = folder.join("fits.toml");
    std::fs::write(&path, text).unwrap();
    path
}

/// The rows of a fit, by event, and the names of what is in them.
fn rows(folder: &Path, fit: u16) -> (Vec<String>, Vec<(u64, Vec<f64>)>) {
    let run = thalweg_store::Run::open(folder.join("runs/run-000001")).unwrap();
    let id = thalweg_wire::SourceId::new(2, fit);
    let source = run.run_info().sources.iter().find(|source| source.id == id).unwrap();
    let names: Vec<String> = serde_json::from_value(source.description["metadata"]["features"].clone()).unwrap();
    let mut rows = Vec::new();
    for event in run.events() {
        let event = event.unwrap();
        for fragment in event.fragments.iter().filter(|f| f.header.source == id && !f.payload().is_empty()) {
            let numbers = fragment.payload().as_chunks().0.iter().map(|bytes| f64::from_le_bytes(*bytes));
            rows.push((event.id.0, numbers.collect()));
        }
    }
    (names, rows)
}

fn run(file: &Path, code: i32) -> Value {
    let mut command = thalweg();
    command.args(["--json", "run"]).arg(file).current_dir(file.parent().unwrap());
    Node::start("run", command).finish().report(code)
}

#[test]
fn each_image_has_its_fits_in_the_run_beside_it() {
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let fits = ["fit = \"gaussian-2d\", pixel_mm = 0.5, waiting = 16", "fit = \"moments\", waiting = 16"];
    let file = topology(folder.path(), "events = 16", "rate = 100", &fits);
    let report = run(&file, 0);
    check_books(&report);
    assert_eq!((&report["events"]["built"], &report["events"]["incomplete"]), (&16.into(), &0.into()), "{report:#}");
    let (names, all) = rows(folder.path(), 0);
    let at = |name: &str| names.iter().position(|known| known == name).unwrap();
    assert_eq!(all.len(), 16);
    for (event, row) in all {
        let n = event as usize;
        match n % 4 {
            3 => assert!(row[0] == 2.0 && row[1..].iter().all(|value| value.is_nan()), "there is no light: {row:?}"),
            _ => {
                assert!(row[0] == 0.0 && (row[at("x")] - centre(n)).abs() < 0.05, "{n}: {row:?}");
                assert!((row[at("sigma_major_mm")] - 2.0).abs() < 0.02, "{n}: {row:?}");
            }
        }
    }
    assert_eq!(rows(folder.path(), 1).1.len(), 16);
}

/// The camera shows as many images as are taken; the fit does what it can.
#[test]
fn a_fit_that_is_too_slow_leaves_images_out_and_the_camera_does_not_wait() {
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let file = topology(folder.path(), "events = 20000", "", &["fit = \"gaussian-2d\", waiting = 1"]);
    let report = run(&file, 1);
    check_books(&report);
    let entry = |name: &str| {
        let sources = report["ledger"]["sources"].as_array().unwrap();
        sources.iter().find(|entry| entry["name"] == name).unwrap_or_else(|| panic!("{report:#}"))
    };
    let count = |name: &str, key: &str| entry(name)[key].as_u64().unwrap();
    assert_eq!((count("camera", "recorded"), count("camera", "lost_in_device")), (20_000, 0));
    let (fitted, lost) = (count("fit0", "recorded"), count("fit0", "lost_in_device"));
    assert!(lost > 0 && fitted > 0, "{fitted} fitted, {lost} left out");
    // Each image is fitted or left out, also those behind the last that was fitted.
    assert_eq!((fitted + lost, count("fit0", "accepted")), (20_000, 20_000));
    for (event, row) in rows(folder.path(), 0).1 {
        let n = event as usize;
        assert!(n % 4 == 3 || (row[3 + 2] - centre(n)).abs() < 0.05, "event {n} has the fit of its image: {row:?}");
    }
}

/// Level 2 asks for the rows alone; images of events that it rejects stay in the source.
#[test]
fn events_are_accepted_by_what_their_images_show() {
    for (otherwise, dark) in [("accept", true), ("reject", false)] {
        let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
        let fits = ["fit = \"gaussian-2d\", waiting = 32"];
        let file = topology(folder.path(), "events = 32", "rate = 200\nslot = \"3200B\"", &fits);
        let text = std::fs::read_to_string(&file).unwrap();
        let level2 = format!(
            "level2 = {{ sources = [\"fit0\"], accept = \"fit0.x < 22.5 && fit0.r2 > 0.9\", otherwise = {otherwise:?} }}"
        );
        std::fs::write(&file, text.replace("[[builder]]", &format!("[[builder]]\n{level2}"))).unwrap();
        let report = run(&file, 0);
        check_books(&report);
        let kept: Vec<u64> = (0..32).filter(|n| if n % 4 == 3 { dark } else { n % 8 < 3 }).collect();
        let events: Vec<u64> = rows(folder.path(), 0).1.into_iter().map(|(event, _)| event).collect();
        assert_eq!(events, kept);
        let trigger = &report["trigger"];
        assert_eq!((&trigger["undecided"]["unsure"], &trigger["simulated"]), (&8.into(), &false.into()), "{trigger}");
        assert_eq!(trigger["level2_accepted"], kept.len());
        let rejected = (32 - kept.len() as u64) * 3136;
        assert_eq!(trigger["unasked_bytes"], rejected, "images of events that were rejected were never asked for");
    }
}

#[test]
fn a_condition_that_is_none_is_refused() {
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let file = topology(folder.path(), "events = 1", "", &["fit = \"moments\""]);
    let text = std::fs::read_to_string(&file).unwrap();
    let refused = |command: &str, level: &str, why: &str| {
        std::fs::write(&file, text.replace("[[builder]]", &format!("[[builder]]\n{level}"))).unwrap();
        let output = thalweg().arg(command).arg(&file).current_dir(&folder).output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(!output.status.success() && said.contains(why), "{level}: {said}");
    };
    refused("check", "filter = { accept = \"fit0.x <\" }", "filter.accept: ERROR");
    refused("check", "filter = { accept = \"other.x < 1.0\" }", "the topology has no source 'other'");
    refused("check", "filter = { accept = true }", "a fraction of the events, from 0 to 1, or a condition");
    refused("check", "filter = { accept = 1.5 }", "filter.accept: 1.5: it must be a fraction");
    refused(
        "check",
        "filter = { accept = \"fit0.x < 1.0\", seed = 3 }",
        "filter.seed: it does not draw random \
        numbers",
    );
    refused("check", "filter = { seed = 3 }", "filter.seed: it does not draw random numbers");
    refused("check", "filter = {}", "filter.accept: set `accept` or `program`");
    refused("check", "filter = { accept = 0.5, program = [\"true\"] }", "filter.program: `accept` already decides");
    refused("check", "filter = { accept = 0.5, deadline = \"1s\" }", "filter.deadline: it does not wait");
    refused("check", "filter = { accept = 0.5, directory = \"x\" }", "filter.directory: it starts nothing");
    refused("check", "filter = { accept = 0.5, sources = [\"camera\"] }", "filter.sources: it sees the whole event");
    refused("check", "filter = { program = [\"true\"], deadline = \"61s\" }", "at most the builder's deadline, 1m");
    refused(
        "check",
        "filter = { program = [\"no-program\"] }",
        "filter.program: 'no-program': No such file or directory",
    );
    refused("check", "filter = { program = [\"true\"] }", "filter.program: 'true': it ended (exit status: 0)");
    refused(
        "check",
        "filter = { accept = 0.5, otherwise = \"reject\" }",
        "filter.otherwise: a fraction leaves no event",
    );
    let level2 = "level2 = { sources = [\"camera\"], accept = \"fit0.x < 1.0\" }";
    refused("check", level2, "the topology has no source 'fit0' among level2.sources");
    refused(
        "check",
        "filter = { accept = \"fit0.y < 1.0 && fit0.z < 1.0\" }",
        "'fit0' has no feature 'z'; it has failure,",
    );
    refused(
        "check",
        "filter = { accept = \"camera.x < 1.0\" }",
        "source 'camera' has no features, since it is not a \
        fit",
    );
}

#[test]
fn what_cannot_be_fitted_is_refused_before_the_run() {
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let refused = |fit: &str| {
        let file = topology(folder.path(), "events = 1", "", &[fit]);
        let output = thalweg().arg("check").arg(&file).current_dir(&folder).output().unwrap();
        assert_eq!(output.status.code(), Some(2), "{output:?}");
        String::from_utf8(output.stderr).unwrap()
    };
    let checked = |fit: &str, why: &str| {
        let said = refused(fit);
        assert!(said.contains(why), "{said}");
    };
    checked("fit = \"gaussian-2d\", of = \"nobody\"", "duplicate key");
    checked("fit = \"gaussian-3d\"", "unknown variant `gaussian-3d`");
    checked("fit = \"moments\", turned = true", "turned: it needs fringes in two dimensions");
    checked("fit = \"moments\", pixel_mm = nan", "pixel_mm: it must be a distance of two pixels above 0");
    checked("fit = \"moments\", waiting = 0", "waiting: the number of waiting images must be 1 to 1024");
    checked(
        "fit = \"moments\", region = [0, 0, 65, 10]",
        "region: 65 × 10 pixels from (0, 0) on are not inside an image of 48 rows of 64 pixels",
    );
    let file = topology(folder.path(), "events = 1", "", &["fit = \"moments\""]);
    for command in [["node", "fit0"], ["check", "--node=fit0"]] {
        let output = thalweg().args(command).arg(&file).current_dir(&folder).output().unwrap();
        let said = String::from_utf8(output.stderr).unwrap();
        assert!(said.contains("is part of its node: start node"), "{said}");
    }
    let text = std::fs::read_to_string(&file).unwrap();
    std::fs::write(&file, text.replace("of = \"camera\"", "of = \"nobody\"")).unwrap();
    let output = thalweg().arg("check").arg(&file).current_dir(&folder).output().unwrap();
    assert!(String::from_utf8_lossy(&output.stderr).contains("of: the topology has no source 'nobody'"), "{output:?}");
}
