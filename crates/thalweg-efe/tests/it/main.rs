//! EFE's connections: from beginning to end, over a made-up network, and against hostile frames.

mod bytes;
mod dissector;
mod hostile;
mod lifecycle;
mod network;
mod pair;
mod transfers;
