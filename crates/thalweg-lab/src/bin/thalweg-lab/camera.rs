//! `thalweg-lab camera`: GigE Vision cameras without hardware, each of which sends the images of a file.

use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use thalweg::terminal::{Failure, Output};
use thalweg_device::Description;
use thalweg_lab::image_camera::{Camera, Model};
use thalweg_text::{format_quantity, wrap_words};
use thalweg_wire::EventId;

#[derive(Debug, clap::Args)]
#[command(after_help = "\
The first camera has the serial number CAM0, the next CAM1, and so on, and consecutive \
addresses: a topology names them as device = { kind = \"gige\", address = \"CAM0\" }. They \
run until Ctrl-C. Their images are simulated, even if the files are recordings.

Examples:
  thalweg-lab camera --rate 60 camera-0.npy camera-1.npy &
  thalweg run six_cameras.toml

Exit code: 0; 1 if a camera cannot start; 2 if a file has no images of 8 bits.")]
pub(crate) struct Options {
    /// Images per second of each camera
    #[arg(long, value_name = "HZ", default_value_t = 10.0)]
    rate: f64,
    /// Address of the first camera; the next has the next address
    #[arg(long, value_name = "ADDRESS", default_value_t = Ipv4Addr::new(127, 0, 0, 10))]
    address: Ipv4Addr,
    /// One file per camera: 8-bit images as a NumPy array (.npy, one image or several along the first axis), PGM or TIFF,
    /// sent again and again
    #[arg(required = true, num_args = 1..=64)]
    files: Vec<PathBuf>,
}

/// Runs a camera for each file until the process is stopped.
pub(crate) fn run_cameras(options: &Options, json: bool) -> Result<ExitCode, Failure> {
    if !(options.rate > 0.0 && options.rate <= 100_000.0) {
        return Err(Failure::Usage("--rate: it must be above 0 and at most 100000 images per second".into()));
    }
    let (mut cameras, mut started) = (Vec::new(), Vec::new());
    let mut out = Output::new();
    for (number, file) in (0..).zip(&options.files) {
        let Images { images, width, height } = load_images(file)?;
        let address = Ipv4Addr::from_bits(options.address.to_bits().wrapping_add(number));
        let serial = format!("CAM{number}");
        let count = format_quantity(images.len() as u64, "image");
        let shown = format!("{serial} at {address}: {count} of {width} × {height} from {}, simulated", file.display());
        started.push(serde_json::json!({
            "serial": serial, "address": address, "file": file, "images": images.len(), "width": width, "height": height,
        }));
        let (lost, resends, skips) = (0, true, |_| false);
        let model = Model { address, serial, width, height, rate: options.rate, lost, resends, skips, images };
        let camera = Camera::start(model).map_err(|error| {
            Failure::Usage(format!(
                "camera at {address}: {error}; choose an --address of this machine that no other camera uses"
            ))
        })?;
        cameras.push(camera);
        if !json {
            out.text(&wrap_words("", &shown))?;
        }
    }
    if json {
        out.json(&serde_json::json!({ "cameras": started }))?;
    }
    out.flush()?;
    loop {
        std::thread::park();
    }
}

/// Images of a file, and their size.
struct Images {
    images: Vec<Vec<u8>>,
    width: u32,
    height: u32,
}

fn load_images(file: &Path) -> Result<Images, Failure> {
    let unusable = |problem: String| Failure::Usage(format!("{}: {problem}", file.display()));
    let configs = thalweg_device::devices_for(&[file.to_owned()], false).map_err(Failure::usage)?;
    let [config] = &configs[..] else { return Err(unusable("it has several recordings".to_owned())) };
    let mut device = thalweg_device::open_device(config).map_err(Failure::usage)?;
    let mut images = Vec::new();
    while let Some(length) = device.next_payload_bytes() {
        let mut image = vec![0; length];
        let filled = device.fill_payload(EventId(images.len() as u64), &mut image);
        filled.map_err(|error| unusable(error.to_string()))?;
        images.push(image);
    }
    let Description { payload_type, shape, .. } = device.description();
    match shape.as_deref().map(|lengths| lengths.iter().map(|length| u32::try_from(*length)).collect::<Vec<_>>()) {
        Some(lengths) if payload_type == "image-u8" && !images.is_empty() => match lengths[..] {
            [Ok(height), Ok(width)] => Ok(Images { images, width, height }),
            _ => Err(unusable("its images do not have two axes".to_owned())),
        },
        _ => Err(unusable(format!("it has payloads of {payload_type}, but must have images of 8 bits"))),
    }
}
