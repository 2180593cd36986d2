//! The Wireshark dissector, tried with tshark on a capture of a whole connection.

use crate::bytes::example_frame;
use crate::pair::Pair;
use std::process::Command;
use thalweg_efe::{Class, ETHER_TYPE, Options, UDP_PORT};

/// Returns a capture (pcap, Ethernet) of frames that lie directly in Ethernet frames, padded to their least length.
fn capture(frames: &[Vec<u8>], in_udp: bool) -> Vec<u8> {
    let mut file = Vec::new();
    for word in [0xa1b2_c3d4_u32, 0x0004_0002, 0, 0, 65_535, 1] {
        file.extend(word.to_le_bytes());
    }
    for (at, frame) in (0u32..).zip(frames) {
        let mut packet = vec![2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2];
        if in_udp {
            let length = u16::try_from(frame.len()).unwrap();
            packet.extend([0x08, 0x00, 0x45, 0]);
            packet.extend((length + 28).to_be_bytes());
            packet.extend([0, 0, 0, 0, 64, 17, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2]);
            packet.extend(40_000u16.to_be_bytes());
            packet.extend(UDP_PORT.to_be_bytes());
            packet.extend((length + 8).to_be_bytes());
            packet.extend([0, 0]);
        } else {
            packet.extend(ETHER_TYPE.to_be_bytes());
        }
        packet.extend(frame);
        packet.resize(packet.len().max(60), 0);
        let length = u32::try_from(packet.len()).unwrap();
        for word in [0, at, length, length] {
            file.extend(word.to_le_bytes());
        }
        file.extend(packet);
    }
    file
}

/// Returns what tshark prints for a capture, a line for each frame; `None` if there is no tshark.
fn dissect(frames: &[Vec<u8>], in_udp: bool, arguments: &[&str]) -> Option<Vec<String>> {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("efe.pcap");
    std::fs::write(&file, capture(frames, in_udp)).unwrap();
    let script = concat!("lua_script:", env!("CARGO_MANIFEST_DIR"), "/../../packaging/wireshark/efe.lua");
    let output = Command::new("tshark").args(["-X", script, "-r"]).arg(&file).args(arguments).output().ok()?;
    let (text, errors) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success() && !errors.contains("Lua: Error"), "{errors}");
    Some(text.lines().map(str::to_owned).collect())
}

#[test]
fn the_dissector_shows_each_field_and_a_wrong_checksum() {
    let mut damaged = example_frame();
    *damaged.last_mut().unwrap() ^= 1;
    let fields = [
        "kind",
        "to",
        "from",
        "token",
        "class",
        "sequence",
        "wanted",
        "echo",
        "held",
        "checksum.good",
        "status.class",
        "status.below",
        "status.granted",
        "status.missing",
        "packet",
    ];
    let names: Vec<_> = fields.iter().map(|field| format!("efe.{field}")).collect();
    let mut arguments = vec!["-T", "fields", "-E", "separator=;"];
    for name in &names {
        arguments.extend(["-e", name]);
    }
    for in_udp in [false, true] {
        let Some(lines) = dissect(&[example_frame(), damaged.clone()], in_udp, &arguments) else {
            return thalweg_testing::skip::skipped("tshark is not installed");
        };
        let whole = "5;7;3;0x0123456789abcdef;1;41;65536;1432778632;1500;1;2;17;32768;17-18;7061636b6574";
        assert_eq!(lines, [whole, &whole.replace(";1500;1;", ";1500;0;").replace("6574", "6575")]);
    }
}

#[test]
fn a_whole_connection_is_dissected_without_a_complaint() {
    let mut pair = Pair::new(&Options::default());
    pair.recording = Some(Vec::new());
    let (near, _) = pair.connect();
    for number in 0..5 {
        pair.cut[0] = number == 2;
        pair.ports[0].send(near, Class::Posted, vec![number; 30]).unwrap();
        pair.exchange();
    }
    pair.advance(std::time::Duration::from_millis(5));
    pair.ports[0].finish_sending(near);
    pair.exchange();
    pair.ports[0].abort(near, 77, b"over");
    pair.exchange();
    let frames = pair.recording.take().unwrap();
    let Some(complaints) = dissect(&frames, false, &["-Y", "_ws.expert || !efe || _ws.malformed"]) else {
        return thalweg_testing::skip::skipped("tshark is not installed");
    };
    assert_eq!(complaints, Vec::<String>::new());
    let lines = dissect(&frames, false, &["-T", "fields", "-e", "_ws.col.Info"]).unwrap();
    for text in ["Open 0 > 0", "Challenge", "Accept", "Packet 0 > 0 posted 4, 30 bytes", "missing 2", "Abort"] {
        assert!(lines.iter().any(|line| line.contains(text)), "{text} in {lines:#?}");
    }
}
