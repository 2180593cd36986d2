//! GigE Vision cameras, whose packets are received straight into slots.
//!
//! [`open`] makes an [`Acquisition`] of a `device = { kind = "gige", … }`. A thread of its own finds the camera, takes
//! control of it, sets its features by name, and tells it where to send; it keeps the camera alive, and takes it back
//! where it was away. The hot thread receives: it tells the kernel beforehand where the next packets belong
//! ([`DirectSocket`]), so that payload is written into the slot itself. What is missing is asked for again.
//!
//! Every packet is from a stranger. What is malformed, too long, from somebody else, late or there already is counted
//! and dropped. Of a frame whose packets never came the gaps are zeros, its status says `corrupt`, and the log names
//! them; a frame of which nothing came is lost. Descriptions of features that would take for ever are refused.
//!
//! # Files, in the order of the data's way
//!
//! | file | what is in it |
//! | --- | --- |
//! | `camera` | The device: a port for the stream, a thread for the camera's control, and frames |
//! | `receiver` | The port: the kernel writes each packet's payload where it belongs |
//! | `assembler` | From packets to frames in order, and what is lost. Without IO |
//! | `block` | A block that is not whole yet: what is missing, and when it is asked for or given up |
//! | `gvsp` | The packets of a stream |
//! | `pixels` | Pixel formats by name |
//! | `session` | What one camera is told and asked: found, taken, set up, started, lost and found again |
//! | `features` | Its features by name |
//! | `description` | Its description of them: where it is, unpacked, looked through |
//! | `discovery` | Which cameras there are |
//! | `channel` | The control channel of one camera |
//! | `exchange` | One command after the other, each until it is answered. Without IO |
//! | `gvcp` | Commands and acknowledges |
//! | `registers` | The registers that every camera has, and who a camera is |
#![forbid(unsafe_code)]

mod assembler;
mod block;
mod camera;
mod channel;
pub mod description;
mod discovery;
mod exchange;
mod features;
pub mod gvcp;
pub mod gvsp;
mod pixels;
mod receiver;
mod registers;
mod session;

pub use assembler::{Assembler, Counts, Request, Stream};
pub use camera::{Camera, check};
pub use discovery::{discover, find};
pub use receiver::Intake;
pub use registers::{Found, Mac};

use thalweg_device::{Acquisition, DeviceError, GigeConfig};
#[cfg(doc)]
use thalweg_frames::DirectSocket;

/// Finds the camera that `config` describes, takes control of it, and sets it up.
///
/// # Errors
/// An option makes no sense, the camera is not there or somebody else's, or a feature cannot be set.
pub fn open(config: &GigeConfig) -> Result<Box<dyn Acquisition>, DeviceError> {
    Ok(Box::new(Camera::open(config)?))
}
