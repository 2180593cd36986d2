//! MPA: RDMA over TCP (RFC 5044), and its connection set-up (RFC 6581).

mod fpdu;
mod startup;

pub use fpdu::{FpduDecoder, FpduEncoder, FpduError, longest_ulpdu_bytes};
pub use startup::{
    Acceptance, Connection, EnhancedOffer, Initiator, MAX_PRIVATE_DATA_BYTES, MAX_READ_DEPTH, ReadDepths, Reply,
    Request, Responder, StartupError, StartupOffer,
};
