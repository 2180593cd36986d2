//! The program as people and programs meet it: real processes of it, each started and watched by a test.
//!
//! All are one test program, for it is linking that takes time. `cargo test -p thalweg --test it serve::` runs those of a
//! module.

mod common;

mod bench;
mod bench_peer;
#[cfg(feature = "congestion-controls")]
mod cc;
mod clients;
mod conformance;
mod damage;
mod gap;
mod lab;
mod machine;
mod mount;
mod rdma;
mod remote;
mod serve;
mod serve_hostile;
mod serve_tls;
mod show;
mod system;
mod terminal;
