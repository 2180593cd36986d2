//! GigE Vision cameras without hardware, each of which shows the images of a file, again and again: to rehearse a readout
//! with. What they show is *simulated*.
//!
//! ```console
//! $ cargo run --release -p thalweg --example camera -- 60 examples/camera-*.npy
//! ```
//!
//! The number says how many images a second. A file is a NumPy array of 8-bit images: one, or several along its first axis.
//! The first camera is called CAM0 and is at 127.0.0.10, the next CAM1 at 127.0.0.11. They are there until Ctrl-C.

#[allow(dead_code, reason = "tests ask it for more")]
#[path = "../tests/it/common/camera.rs"]
mod camera;

use camera::{Camera, Model};
use std::env;
use std::error::Error;
use std::net::Ipv4Addr;
use std::path::PathBuf;
use thalweg_device::{Description, DeviceConfig};
use thalweg_wire::EventId;

fn main() -> Result<(), Box<dyn Error>> {
    let words: Vec<String> = env::args().skip(1).collect();
    let [rate, files @ ..] = &words[..] else { return Err("camera RATE FILE...".into()) };
    let rate: f64 = rate.parse().map_err(|_| format!("{rate}: a number of images a second"))?;
    let mut cameras = Vec::new();
    for (file, number) in files.iter().zip(0..240) {
        let Shown { images, width, height } = shown(file.into()).map_err(|error| format!("{file}: {error}"))?;
        let (address, serial) = (Ipv4Addr::new(127, 0, 0, 10 + number), format!("CAM{number}"));
        println!("{serial} at {address}: {} images of {width} × {height} from {file}, simulated", images.len());
        let (lost, resends, skips) = (0, true, |_| false);
        cameras.push(Camera::start(Model { address, serial, width, height, rate, lost, resends, skips, images }));
    }
    loop {
        std::thread::park();
    }
}

/// All images of a file, and their size.
struct Shown {
    images: Vec<Vec<u8>>,
    width: u32,
    height: u32,
}

fn shown(file: PathBuf) -> Result<Shown, Box<dyn Error>> {
    let config: DeviceConfig = serde_json::from_value(serde_json::json!({ "kind": "npy", "file": file }))?;
    let mut device = thalweg_device::open_device(&config)?;
    let mut images = Vec::new();
    while let Some(length) = device.next_payload_bytes() {
        let mut image = vec![0; length];
        device.fill_payload(EventId(images.len() as u64), &mut image)?;
        images.push(image);
    }
    let Description { payload_type, shape, .. } = device.description();
    match shape.as_deref() {
        Some(&[height, width]) if payload_type == "image-u8" => {
            Ok(Shown { images, width: width.try_into()?, height: height.try_into()? })
        }
        _ => Err(format!("it has {payload_type} {shape:?}, and no images of 8 bits").into()),
    }
}
