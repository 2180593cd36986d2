//! GPUs, whose memory a device could write to.

use super::libraries;
use crate::{Finding, read};

pub(super) fn probe_gpus() -> Finding {
    let cards: Vec<_> = read::read_names("/sys/class/drm")
        .into_iter()
        .filter(|name| name.starts_with("card") && !name.contains('-'))
        .collect();
    let driver = read::read_text("/proc/driver/nvidia/version");
    let cuda = libraries::find_library("libcuda.so");
    let devices = match (cards.is_empty(), &driver) {
        (true, None) => "none here (/sys/class/drm, /proc/driver/nvidia)".to_owned(),
        (_, driver) => {
            let line = driver.as_deref().and_then(|text| text.lines().next()).unwrap_or("no NVIDIA driver");
            format!("{}; {line}", if cards.is_empty() { "no card in /sys/class/drm".into() } else { cards.join(", ") })
        }
    };
    let cuda = cuda.map_or_else(|| "no libcuda.so".to_owned(), |path| format!("libcuda at {}", path.display()));
    Finding::new("GPU", format!("{devices}; {cuda}"))
}
