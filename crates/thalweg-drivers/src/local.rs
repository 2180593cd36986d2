//! Devices that are files: devices with a kernel driver, and pipes that a program writes into.
//!
//! Each is an [`Acquisition`](thalweg_device::Acquisition): it fills slots that are posted to it.
//!
//! # Files, in the order of the data path
//!
//! | file | contents |
//! | --- | --- |
//! | `options` | Options of devices that are files: their `device = { kind = "stream", … }`, `"v4l2"`, `"comedi"` and `"dma"` tables |
//! | `found` | Search for devices under /dev that this crate takes data from |
//! | `stream` | Records from a pipe, a serial port or standard input, read into slots as they arrive |
//! | `records` | Boundaries of records in a stream of bytes: all of one length, or each preceded by its length |
//! | `framing` | Records on a line that loses bytes: a mark before or after each record helps to find the next one |
//! | `video` | Cameras that the kernel has a driver for (V4L2): images into slots, and the driver's count of them |
//! | `images` | Numbers of a camera's images: by its driver's count, and where that restarts, by time |
//! | `v4l2` | The kernel's interface to video devices, as far as a capture needs it |
//! | `sampler` | Boards that sample (comedi): samples into slots, and detection of samples that were lost |
//! | `windows` | Assignment of a board's samples to fragments, also where the board stood still for a while |
//! | `comedi` | The kernel's interface to boards that sample, as far as reading by command needs it |
//! | `card` | Cards whose driver reads by DMA into slots, several reads at a time (io_uring) |
//! | `transfers` | Reads of a card that are under way, and the numbers of their frames |
//! | `ioctl` | Requests to a driver (ioctl(2)) |
//! | `port` | Source of bytes: opened, waited for, and reopened after it was unplugged |
//! | `trials` | For tests: devices that lose, restart and stand still as a seed determines |

mod card;
mod comedi;
mod found;
mod framing;
mod images;
mod ioctl;
mod options;
mod port;
mod records;
mod sampler;
mod stream;
mod transfers;
#[cfg(test)]
mod trials;
mod v4l2;
mod video;
mod windows;

pub use card::Card;
pub use found::{DeviceFile, find_devices};
pub use options::{ComediConfig, DmaConfig, LengthPrefix, Mark, StreamConfig, V4l2Config};
pub use sampler::Sampler;
pub use stream::Stream;
pub use video::Video;

/// Registers the kinds `stream`, `v4l2`, `comedi` and `dma` in this process.
pub fn register_kinds() {
    thalweg_device::register_kind::<StreamConfig>();
    thalweg_device::register_kind::<V4l2Config>();
    thalweg_device::register_kind::<ComediConfig>();
    thalweg_device::register_kind::<DmaConfig>();
}
