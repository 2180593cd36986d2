//! Properties of the parsers that hold for any input.
//!
//! Each module has one function, `run`, which panics where its property does not hold for an input. The programs in
//! `fuzz/` feed them from libFuzzer (`make fuzz`); the tests of this crate replay the inputs kept in `fuzz/corpus`.
#![expect(clippy::missing_panics_doc, reason = "a panic is the finding")]

pub mod device_recording;
pub mod efe_frames;
pub mod frames_ethernet;
pub mod gige_packets;
pub mod instrument_datagrams;
pub mod iwarp_fpdu;
pub mod iwarp_startup;
pub mod iwarp_stream;
pub mod rdma_link_channel;
pub mod rnic_rings;
pub mod serve_request;
pub mod service_latest;
pub mod store_segment;
pub mod verbs_manager;
pub mod wire_header;
pub mod wire_message;
pub mod wire_records;
