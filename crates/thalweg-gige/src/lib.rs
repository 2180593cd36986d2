//! GigE Vision cameras, whose packets are received straight into slots.
//!
//! A [`Camera`] is the [`Acquisition`] of a `device = { kind = "gige", … }`. A thread of its own finds the camera, takes
//! control of it, sets its features by name, and sets the destination of its stream; it sends the heartbeat, and
//! reconnects after the camera was away. The hot thread receives: it gives the kernel the destinations of the next
//! packets beforehand ([`DirectSocket`]), so that payload is written into the slot itself. Missing packets are
//! requested again.
//!
//! No packet is trusted. Packets that are malformed, too long, from another sender, late or duplicate are counted and
//! dropped. In a frame whose packets never came the gaps are zeros, its status is `corrupt`, and the log names them; a
//! frame without any packet is lost. Feature descriptions whose evaluation would not end are refused.
//!
//! # Files, in the order of the data path
//!
//! | file | what is in it |
//! | --- | --- |
//! | `options` | Options of a camera: its `device = { kind = "gige", … }` table |
//! | `camera` | The device: a port for the stream, a thread for the camera's control, and frames |
//! | `receiver` | The port that a stream comes to: the kernel writes each packet's payload to its place in the slot |
//! | `assembler` | Assembly of packets into frames in order, and of gaps into losses. Without IO |
//! | `block` | A block that is not whole yet: which packets are there, and when the others are requested or given up |
//! | `gvsp` | The packets of a stream |
//! | `pixels` | Pixel formats by name |
//! | `session` | Control of one camera: discovery, control privilege, setup, start, heartbeat, reconnection |
//! | `features` | The camera's features by name |
//! | `description` | The camera's XML description of its features: its place, unpacking, checks |
//! | `discovery` | Discovery of cameras |
//! | `channel` | The control channel of one camera |
//! | `exchange` | Request and response: one command at a time, repeated until it is answered. Without IO |
//! | `gvcp` | Commands and acknowledges |
//! | `registers` | The bootstrap registers that every camera has, and the camera's identity in them |
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
mod options;
mod pixels;
mod receiver;
mod registers;
mod session;

pub use assembler::{Assembler, Counts, Request, Stream};
pub use camera::Camera;
pub use discovery::{discover_cameras, find_camera};
pub use options::{FeatureValue, Features, GigeConfig};
pub use receiver::Intake;
pub use registers::{CameraInfo, Mac};

#[cfg(doc)]
use thalweg_device::Acquisition;
#[cfg(doc)]
use thalweg_frames::DirectSocket;

/// Registers the kind `gige` in this process.
pub fn register_kinds() {
    thalweg_device::register_kind::<GigeConfig>();
}
