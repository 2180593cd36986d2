//! The links, from outside: what every one of them must do, and what a peer can do to them.

mod conformance;
mod frames;
mod hostile;
mod impaired;
mod packets;
mod ports;
