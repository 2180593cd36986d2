//! Devices that are files: what the kernel has a driver for, and what a program writes into a pipe.
//!
//! Each is an [`Acquisition`](thalweg_device::Acquisition): it fills slots that are posted to it.
//!
//! # Files, in the order of the data's way
//!
//! | file | what is in it |
//! | --- | --- |
//! | `options` | Options of devices that are files: their `device = { kind = "stream", … }`, `"v4l2"`, `"comedi"` and `"dma"` tables |
//! | `found` | What there is below /dev that this crate takes data from |
//! | `stream` | Records out of a pipe, a serial port or standard input: read into slots as they come |
//! | `records` | Where records begin and end in a stream of bytes: all of one length, or each with its length in front |
//! | `framing` | Records on a line that loses bytes: each begins with a mark, or ends with one, and so the next is found again |
//! | `video` | Cameras that the kernel has a driver for (V4L2): images into slots, and the driver's count of them |
//! | `images` | The numbers of a camera's images: by its driver's count, and where that begins anew, by time |
//! | `v4l2` | The kernel's interface to video devices, as far as a capture needs it |
//! | `sampler` | Boards that sample (comedi): samples into slots, and what was sampled while nobody took them |
//! | `windows` | Which samples of such a board are which fragment, where it stood still for a while |
//! | `comedi` | The kernel's interface to boards that sample, as far as reading by command needs it |
//! | `card` | Cards whose driver reads by DMA into slots, several reads at a time (io_uring) |
//! | `transfers` | Which reads of a card are under way, and which numbers their frames have |
//! | `ioctl` | Asking a driver something |
//! | `port` | What bytes are read from: opened, waited for, and opened again where it was unplugged |
//! | `trials` | Of tests: devices that lose, restart and stand still as a seed has it |

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
pub use found::{Found, found};
pub use options::{ComediConfig, DmaConfig, LengthPrefix, Mark, StreamConfig, V4l2Config};
pub use sampler::Sampler;
pub use stream::Stream;
pub use video::Video;

/// Registers the kinds `stream`, `v4l2`, `comedi` and `dma` in this process.
pub fn register() {
    thalweg_device::register::<StreamConfig>();
    thalweg_device::register::<V4l2Config>();
    thalweg_device::register::<ComediConfig>();
    thalweg_device::register::<DmaConfig>();
}
