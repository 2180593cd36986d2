//! Any file is a recording or is refused, and what is played has the stated length.

use thalweg_device::{ModelAdcConfig, devices_for, open_device};
use thalweg_wire::EventId;

/// The endings by which a recording's kind is known; the first byte of the input chooses one.
const ENDINGS: [&str; 6] = ["npy", "tif", "vdif", "pgm", "sigmf", "sigmf-collection"];

/// Tries one input.
pub fn run(bytes: &[u8]) {
    let Some((choice, content)) = bytes.split_first() else { return };
    let directory = tempfile::tempdir().expect("a directory in TMPDIR");
    let path = directory.path().join("recording").with_extension(ENDINGS[usize::from(*choice) % ENDINGS.len()]);
    std::fs::write(&path, content).expect("a file in TMPDIR");
    let Ok(devices) = devices_for(&[path], true) else { return };
    for device in devices.iter().take(4) {
        assert!(device.options_as::<ModelAdcConfig>().is_none());
        let Ok(mut device) = open_device(device) else { continue };
        let longest = device.max_payload_bytes();
        for event in 0..4 {
            // More is allocated by whoever has the memory.
            let Some(length) = device.next_payload_bytes().filter(|length| *length <= 1 << 20) else { break };
            assert!(length <= longest);
            let _ = device.fill_payload(EventId(event), &mut vec![0; length]);
        }
    }
}
