//! Tests of ports of virtual devices, and of the link over them.

mod link;
mod ports;
