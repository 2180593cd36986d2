//! Ports of virtual devices, and the link over them.

mod link;
mod ports;
