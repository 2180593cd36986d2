//! Any bytes are an MPA frame, or are refused, in whatever pieces; what a side answers is a frame for the other one.

use std::time::Duration;
use thalweg_iwarp::mpa::{Acceptance, EnhancedOffer, Initiator, ReadDepths, Reply, Responder, StartupOffer};

const TIMEOUT: Duration = Duration::from_secs(5);
/// Length in bytes of a frame without private data, and of the longest one.
const HEADER_BYTES: usize = 20;
const FRAME_LIMIT_BYTES: usize = HEADER_BYTES + 512;

/// Tries one input.
pub fn run(bytes: &[u8]) {
    let Some((choice, rest)) = bytes.split_first() else { return };
    let piece_bytes = 1 + usize::from(choice >> 3);
    let depths = ReadDepths { inbound: Some(u16::from(choice & 3)), outbound: Some(4) };
    let enhanced = EnhancedOffer { depths, peer_to_peer: choice & 2 != 0 };
    let offer = StartupOffer { enhanced: Some(enhanced).filter(|_| choice & 1 != 0), ..StartupOffer::default() };
    let mut initiator = Initiator::new(offer.clone(), TIMEOUT).expect("an offer within the limits");
    let taken = feed(rest, piece_bytes, |piece| {
        initiator.receive(piece).map(|(taken, reply)| {
            if let Some(Reply::Accepted { connection, .. }) = &reply {
                assert!(connection.inbound_requests <= 16 && connection.outbound_requests <= 16);
            }
            (taken, reply.is_some())
        })
    });
    assert!(taken <= FRAME_LIMIT_BYTES);

    let mut responder = Responder::new(TIMEOUT, TIMEOUT);
    let mut request = None;
    feed(rest, piece_bytes, |piece| {
        responder.receive(piece).map(|(taken, found)| {
            request = found;
            (taken, request.is_some())
        })
    });
    let Some(request) = request else { return };
    let (reply, connection) = request.accept(&Acceptance::default()).expect("an answer within the limits");
    assert!(connection.crc && connection.inbound_requests <= 16 && connection.outbound_requests <= 16);
    // A reply in the form of the request is understood by an initiator that asked in this form.
    let enhanced = request.depths().map(|depths| EnhancedOffer { depths, peer_to_peer: request.is_peer_to_peer() });
    let offer = StartupOffer { enhanced, ..offer };
    if request.revision() == if enhanced.is_some() { 2 } else { 1 } {
        let mut initiator = Initiator::new(offer, TIMEOUT).expect("an offer within the limits");
        let (taken, answer) = initiator.receive(&reply).expect("a valid reply");
        assert!(taken == reply.len() && answer.is_some());
    }
}

/// Feeds pieces until a frame is complete or refused, and returns how many bytes were taken.
fn feed<E>(bytes: &[u8], piece_bytes: usize, mut receive: impl FnMut(&[u8]) -> Result<(usize, bool), E>) -> usize {
    let mut total = 0;
    for piece in bytes.chunks(piece_bytes) {
        let Ok((taken, complete)) = receive(piece) else { break };
        total += taken;
        if complete {
            break;
        }
        assert_eq!(taken, piece.len(), "an incomplete frame takes all bytes");
    }
    total
}
