//! The links, from outside: the requirements on each of them, and the defences against hostile peers.

mod conformance;
mod frames;
mod hostile;
mod impaired;
mod packets;
mod ports;
