//! Search for devices under /dev that this crate takes data from.

use crate::local::comedi;
use crate::local::ioctl::{field_text, send_request};
use crate::local::v4l2::{CAN_CAPTURE, Capability};
use rustix::fs::{Mode, OFlags, open};
use std::fs;
use std::os::fd::AsFd;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};

/// A device that is a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeviceFile {
    /// The `kind` of device that takes data from the file.
    pub kind: &'static str,
    /// Path of the file.
    pub file: PathBuf,
    /// Name that the driver gives the device.
    pub name: String,
    /// Name of the driver.
    pub driver: String,
    /// Reason why the file cannot be opened, if it cannot.
    pub problem: Option<String>,
}

/// Returns the cameras that capture, boards that sample, cards that are read by DMA, and serial ports with hardware,
/// each kind sorted by name.
pub fn find_devices() -> Vec<DeviceFile> {
    let mut all = Vec::new();
    all.extend(entry_names("/sys/class/video4linux").iter().filter_map(|name| find_video(name)));
    all.extend(entry_names("/sys/class/comedi").iter().filter_map(|name| find_board(name)));
    all.extend(entry_names("/dev").iter().filter_map(|name| find_card(name)));
    all.extend(entry_names("/sys/class/tty").iter().filter_map(|name| find_serial(name)));
    all
}

fn entry_names(class: &str) -> Vec<String> {
    let entries = fs::read_dir(class).into_iter().flatten().flatten();
    let mut names: Vec<String> = entries.filter_map(|entry| entry.file_name().into_string().ok()).collect();
    names.sort_by_key(|name| (name.len(), name.clone()));
    names
}

/// Returns a video node, if it captures.
fn find_video(name: &str) -> Option<DeviceFile> {
    let file = Path::new("/dev").join(name);
    let model = fs::read_to_string(format!("/sys/class/video4linux/{name}/name")).unwrap_or_default();
    let mut found = DeviceFile {
        kind: "v4l2",
        file: file.clone(),
        name: model.trim().into(),
        driver: driver_name(&format!("/sys/class/video4linux/{name}/device")),
        problem: None,
    };
    let mut capability = Capability::default();
    let opened = open(&file, OFlags::RDWR | OFlags::NONBLOCK | OFlags::CLOEXEC, Mode::empty());
    match opened.and_then(|fd| send_request(fd.as_fd(), &mut capability)) {
        Ok(_) if capability.device & CAN_CAPTURE == 0 => return None,
        Ok(_) => found.driver = field_text(&capability.driver),
        Err(error) => found.problem = Some(error.to_string()),
    }
    Some(found)
}

/// Returns a comedi board, if it samples by itself. The board's parts have files of their own.
fn find_board(name: &str) -> Option<DeviceFile> {
    if name.contains("subd") {
        return None;
    }
    let file = Path::new("/dev").join(name);
    let mut found =
        DeviceFile { kind: "comedi", file: file.clone(), name: String::new(), driver: String::new(), problem: None };
    let opened = open(&file, OFlags::RDWR | OFlags::NONBLOCK | OFlags::CLOEXEC, Mode::empty());
    match opened.and_then(|fd| comedi::Board::read_description(fd.as_fd(), None)) {
        Ok(Some(board)) => (found.name, found.driver) = (board.name, board.driver),
        // No device that this program takes data from, or a number to which no board belongs.
        Ok(None) | Err(rustix::io::Errno::NODEV) => return None,
        Err(error) => found.problem = Some(error.to_string()),
    }
    Some(found)
}

/// Returns a card, recognized by the name that XDMA's driver gives the files of those engines that write to memory.
fn find_card(name: &str) -> Option<DeviceFile> {
    let file = Path::new("/dev").join(name);
    let is_device = fs::metadata(&file).is_ok_and(|metadata| metadata.file_type().is_char_device());
    let driver = name.split_once("_c2h_").filter(|_| is_device).map(|(card, _)| card)?;
    let driver = driver.trim_end_matches(|last: char| last.is_ascii_digit()).to_owned();
    let problem = open(&file, OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC, Mode::empty()).err();
    Some(DeviceFile { kind: "dma", file, name: String::new(), driver, problem: problem.map(|error| error.to_string()) })
}

/// Returns a serial port, if a device is connected to it: of the eight names for ports of the mainboard most have none.
fn find_serial(name: &str) -> Option<DeviceFile> {
    let device = format!("/sys/class/tty/{name}/device");
    if !Path::new(&device).exists() {
        return None;
    }
    // `PORT_UNKNOWN` (include/uapi/linux/serial_core.h).
    if fs::read_to_string(format!("/sys/class/tty/{name}/type")).is_ok_and(|kind| kind.trim() == "0") {
        return None;
    }
    // For a port of a USB adapter, the adapter's description is two or three levels up.
    let above = ["..", "../..", "../../.."];
    let product = above.iter().find_map(|up| fs::read_to_string(format!("{device}/{up}/product")).ok());
    Some(DeviceFile {
        kind: "stream",
        file: Path::new("/dev").join(name),
        name: product.unwrap_or_default().trim().into(),
        driver: driver_name(&device),
        problem: None,
    })
}

fn driver_name(device: &str) -> String {
    let link = fs::read_link(format!("{device}/driver")).ok();
    link.and_then(|path| Some(path.file_name()?.to_string_lossy().into_owned())).unwrap_or_default()
}
