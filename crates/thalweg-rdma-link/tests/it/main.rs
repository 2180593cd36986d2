//! Stories of links over RDMA.

mod by_hand;
mod conformance;
mod costs;
mod hostile_builder;
mod hostile_source;
mod leaving;
