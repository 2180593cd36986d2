//! MPA: RDMA over TCP (RFC 5044), and its connection set-up (RFC 6581).

mod fpdu;
mod startup;

pub use fpdu::{FpduEncoder, FpduError, FpduFrame, FpduPart, longest_ulpdu_bytes};
pub use startup::{Connection, EnhancedOffer, MAX_PRIVATE_DATA_BYTES, MAX_READ_DEPTH, ReadDepths, StartupOffer};
