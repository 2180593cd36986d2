//! `thalweg devices`, and recording from one without a file.

use crate::common::*;
use serde_json::Value;

fn devices(words: &[&str]) -> Vec<Value> {
    let output = thalweg().args(["--json", "devices", "--wait", "100ms"]).args(words).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    let listed: Value = serde_json::from_slice(&output.stdout).unwrap();
    listed["devices"].as_array().unwrap().clone()
}

#[test]
fn devices_are_listed_with_the_sources_that_take_data_from_them() {
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let file = folder.path().join("lab.toml");
    let text = "[[builder]]\nname = \"builder\"\nlisten = [\"shm:/tmp/b.sock\"]\n\
                [[source]]\nname = \"camera\"\nid = \"1.0\"\nlink = \"shm\"\ndevice = { kind = \"v4l2\", file = \"/dev/no-video\" }\n\
                [[source]]\nname = \"adc\"\nid = \"1.1\"\nlink = \"shm\"\ndevice = { kind = \"model-adc\", size = 100 }\n";
    std::fs::write(&file, text).unwrap();
    let here = devices(&[]);
    for device in &here {
        let address = device["address"].as_str().unwrap();
        assert!(address.contains(':') && device["kind"].is_string() != address.starts_with("pci:"), "{device}");
    }
    let named = devices(&[file.to_str().unwrap()]);
    assert_eq!(named.len(), here.len() + 2, "{named:?}");
    let source = |name: &str| named.iter().find(|device| device["source"] == name).unwrap();
    assert_eq!(source("camera")["address"], "v4l2:/dev/no-video");
    assert_eq!(source("camera")["problem"], "not found here");
    assert!(source("adc")["problem"].is_null());
    let read = thalweg().args(["devices", "--wait", "100ms"]).arg(&file).output().unwrap();
    let read = String::from_utf8(read.stdout).unwrap();
    assert!(read.contains("v4l2:/dev/no-video") && read.contains("source camera, not found here"), "{read}");
}

#[test]
fn a_device_that_is_no_address_is_refused_with_those_that_are() {
    for (address, why) in [
        ("GV01", "'GV01' is not the address of a device: write one such as gige:GV01"),
        ("udp:127.0.0.1:4000", "other devices need further options, in a topology file"),
        ("v4l2:/dev/no-video", "opening /dev/no-video: No such file or directory"),
    ] {
        let output = thalweg().args(["demo", "--device", address]).output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr).replace("\n", " ");
        let said = said.split_whitespace().collect::<Vec<_>>().join(" ");
        assert_eq!(output.status.code(), Some(2), "{said}");
        assert!(said.contains(why), "{said}");
    }
}
