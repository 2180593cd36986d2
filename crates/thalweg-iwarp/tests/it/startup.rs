//! Start-up of MPA: frames byte for byte, negotiation, refusals, time.

use proptest::prelude::*;
use std::time::Duration;
use thalweg_iwarp::mpa::{
    Acceptance, Connection, EnhancedOffer, Initiator, MAX_READ_DEPTH, ReadDepths, Reply, Request, Responder,
    StartupError, StartupOffer,
};
use thalweg_iwarp::{ErrorCode, FirstMessage};

const NOW: Duration = Duration::from_secs(100);
const TIMEOUT: Duration = Duration::from_secs(5);

fn enhanced(inbound: Option<u16>, outbound: Option<u16>, peer_to_peer: bool) -> StartupOffer {
    let depths = ReadDepths { inbound, outbound };
    StartupOffer { enhanced: Some(EnhancedOffer { depths, peer_to_peer }), ..StartupOffer::default() }
}

/// Presents a request byte by byte, with other bytes behind it, of which none is taken.
fn request_of(frame: &[u8]) -> Result<Request, StartupError> {
    let mut responder = Responder::new(TIMEOUT, NOW);
    for byte in frame {
        if let (1, Some(request)) = responder.receive(std::slice::from_ref(byte))? {
            let again = Responder::new(TIMEOUT, NOW).receive(&[frame, b"more"].concat())?;
            assert_eq!(again, (frame.len(), Some(request.clone())));
            return Ok(request);
        }
    }
    panic!("an incomplete request");
}

fn reply_of(initiator: &mut Initiator, frame: &[u8]) -> Result<Reply, StartupError> {
    let (front, rest) = frame.split_at(frame.len() / 2);
    assert_eq!(initiator.receive(front)?, (front.len(), None));
    let (taken, reply) = initiator.receive(&[rest, b"more"].concat())?;
    assert_eq!(taken, rest.len());
    Ok(reply.expect("a whole reply"))
}

/// Sets up a connection, and returns what each side makes of it.
fn set_up(offer: &StartupOffer, acceptance: &Acceptance) -> (Reply, Connection) {
    let mut initiator = Initiator::new(offer.clone(), NOW).unwrap();
    let request = request_of(initiator.request_frame()).unwrap();
    assert_eq!(request.private_data(), offer.private_data);
    let (frame, connection) = request.accept(acceptance).unwrap();
    (reply_of(&mut initiator, &frame).unwrap(), connection)
}

fn accepted(offer: &StartupOffer, acceptance: &Acceptance) -> (Connection, Connection) {
    let (reply, there) = set_up(offer, acceptance);
    let Reply::Accepted { connection, private_data } = reply else { panic!("{reply:?}") };
    assert_eq!(private_data, acceptance.private_data);
    (connection, there)
}

/// RFC 5044 figure 8: key, C, revision 1, length.
#[test]
fn frames_have_the_layout_of_the_rfc() {
    let offer = StartupOffer { private_data: b"hello".to_vec(), ..StartupOffer::default() };
    let initiator = Initiator::new(offer, NOW).unwrap();
    assert_eq!(initiator.request_frame(), b"MPA ID Req Frame\x40\x01\x00\x05hello");
    let request = request_of(initiator.request_frame()).unwrap();
    let acceptance = Acceptance { private_data: b"welcome".to_vec(), ..Acceptance::default() };
    assert_eq!(request.accept(&acceptance).unwrap().0, b"MPA ID Rep Frame\x40\x01\x00\x07welcome");
    assert_eq!(request.reject(b"no", ReadDepths::default()).unwrap(), b"MPA ID Rep Frame\x60\x01\x00\x02no");
}

/// RFC 6581 figures of §6 and §9: S, revision 2, A with the IRD, C and D with the ORD.
#[test]
fn enhanced_frames_begin_with_the_depths() {
    let offer = StartupOffer { private_data: b"x".to_vec(), markers: true, ..enhanced(Some(5), Some(6), true) };
    let initiator = Initiator::new(offer, NOW).unwrap();
    assert_eq!(initiator.request_frame(), b"MPA ID Req Frame\xd0\x02\x00\x05\x80\x05\xc0\x06x");
    let request = request_of(initiator.request_frame()).unwrap();
    assert_eq!(request.depths(), Some(ReadDepths { inbound: Some(5), outbound: Some(6) }));
    assert!(request.is_peer_to_peer() && request.revision() == 2);
    let (frame, connection) = request.accept(&Acceptance::default()).unwrap();
    assert_eq!(frame, b"MPA ID Rep Frame\x50\x02\x00\x04\x80\x06\xc0\x05");
    assert!(connection.send_markers && !connection.receive_markers);
    // §9.2: without A the other flags are zero.
    let initiator = Initiator::new(enhanced(None, Some(0), false), NOW).unwrap();
    assert_eq!(initiator.request_frame()[20..], [0x3f, 0xff, 0x00, 0x00]);
}

/// RFC 5044 §7.1.1: CRCs are off only if neither side wants them.
#[test]
fn crcs_are_used_unless_neither_side_wants_them() {
    for (ours, theirs) in [(false, false), (false, true), (true, false), (true, true)] {
        let offer = StartupOffer { crc: ours, ..StartupOffer::default() };
        let acceptance = Acceptance { crc: theirs, ..Acceptance::default() };
        let (here, there) = accepted(&offer, &acceptance);
        assert_eq!((here.crc, there.crc), (ours || theirs, ours || theirs));
    }
}

/// RFC 5044 §7.1.1: each side's M asks the other one for markers.
#[test]
fn markers_are_sent_by_the_side_that_was_asked() {
    for (ours, theirs) in [(false, true), (true, false)] {
        let offer = StartupOffer { markers: ours, ..StartupOffer::default() };
        let acceptance = Acceptance { markers: theirs, ..Acceptance::default() };
        let (here, there) = accepted(&offer, &acceptance);
        assert_eq!((here.send_markers, here.receive_markers), (theirs, ours));
        assert_eq!((there.send_markers, there.receive_markers), (ours, theirs));
    }
}

/// RFC 6581 §9.1: each side's Reads are no more than the other one serves.
#[test]
fn depths_are_negotiated() {
    let acceptance = Acceptance { inbound_requests: 8, outbound_requests: 10, ..Acceptance::default() };
    let (here, there) = accepted(&enhanced(Some(4), Some(20), false), &acceptance);
    assert_eq!((here.inbound_requests, here.outbound_requests), (4, 8));
    assert_eq!((there.inbound_requests, there.outbound_requests), (8, 4));
    // Each side learns what the other one stated.
    assert_eq!(here.peer_depths, Some(ReadDepths { inbound: Some(8), outbound: Some(4) }));
    assert_eq!(there.peer_depths, Some(ReadDepths { inbound: Some(4), outbound: Some(20) }));
    // No more is set aside than was asked for.
    let (_, there) = accepted(&enhanced(Some(4), Some(3), false), &acceptance);
    assert_eq!(there.inbound_requests, 3);
}

/// RFC 6581 §9.1: 0x3FFF is mirrored, and both sides keep their own numbers.
#[test]
fn depths_that_are_not_negotiated_stay() {
    let acceptance = Acceptance { inbound_requests: 8, outbound_requests: 10, ..Acceptance::default() };
    let offer = StartupOffer { default_depth: 30, ..enhanced(None, None, false) };
    let (here, there) = accepted(&offer, &acceptance);
    assert_eq!((here.inbound_requests, here.outbound_requests), (30, 30));
    assert_eq!((there.inbound_requests, there.outbound_requests), (8, 10));
    assert_eq!(here.peer_depths, Some(ReadDepths::default()));
}

/// RFC 6581 §9.2: a Write where both can, else a Read, else a Terminate message (§8 code 7).
#[test]
fn peer_to_peer_connections_begin_with_a_message_of_the_initiator() {
    let (here, there) = accepted(&enhanced(Some(1), Some(1), true), &Acceptance::default());
    assert_eq!((here.first_message, there.first_message), (FirstMessage::ReadyByWrite, FirstMessage::AwaitPeer));
    let reply = |enhanced_data: &[u8; 4], outbound| {
        let mut initiator = Initiator::new(enhanced(Some(1), Some(outbound), true), NOW).unwrap();
        let frame = [b"MPA ID Rep Frame\x50\x02\x00\x04", &enhanced_data[..]].concat();
        reply_of(&mut initiator, &frame).unwrap()
    };
    let first = |reply| match reply {
        Reply::Accepted { connection, .. } => Ok(connection.first_message),
        Reply::Unusable { error, .. } => Err(error),
        Reply::Rejected { .. } => panic!("{reply:?}"),
    };
    assert_eq!(first(reply(&[0x80, 1, 0x40, 1], 1)), Ok(FirstMessage::ReadyByRead));
    // Only a Send; only a Read, where none can be sent; another model than the one asked for.
    for (data, outbound) in [([0xc0, 1, 0, 1], 1), ([0x80, 1, 0x40, 1], 0), ([0, 1, 0xc0, 1], 1)] {
        assert_eq!(first(reply(&data, outbound)), Err(ErrorCode::MPA_NO_MATCHING_RTR));
    }
}

/// RFC 6581 §9.1: the responder's ORD exceeds what the initiator can serve (§8 code 6).
#[test]
fn a_responder_that_wants_too_many_reads_is_refused() {
    let mut initiator = Initiator::new(enhanced(Some(3), Some(3), false), NOW).unwrap();
    let reply = reply_of(&mut initiator, b"MPA ID Rep Frame\x50\x02\x00\x04\x00\x03\x00\x04").unwrap();
    assert!(matches!(reply, Reply::Unusable { error: ErrorCode::MPA_INSUFFICIENT_IRD, .. }), "{reply:?}");
}

#[test]
fn a_rejected_connection_returns_what_the_responder_needs() {
    let offer = enhanced(Some(1), Some(1), false);
    let mut initiator = Initiator::new(offer, NOW).unwrap();
    let request = request_of(initiator.request_frame()).unwrap();
    let depths = ReadDepths { inbound: Some(1), outbound: Some(40) };
    let frame = request.reject(b"too few", depths).unwrap();
    let expected = Reply::Rejected { depths: Some(depths), private_data: b"too few".to_vec() };
    assert_eq!(reply_of(&mut initiator, &frame), Ok(expected));
}

/// RFC 6581 §10: an unenhanced request has an unenhanced reply; §6: of whatever revision it is.
#[test]
fn an_unenhanced_request_has_an_unenhanced_reply() {
    let mut frame = b"MPA ID Req Frame\x40\x02\x00\x00".to_vec();
    let request = request_of(&frame).unwrap();
    assert_eq!(request.depths(), None);
    assert_eq!(request.accept(&Acceptance::default()).unwrap().0, b"MPA ID Rep Frame\x40\x02\x00\x00");
    // RFC 5044 §7.1.1: reserved bits and R are not checked in a request; in revision 1, S is one of them.
    (frame[16], frame[17]) = (0x7f, 1);
    assert_eq!(request_of(&frame).unwrap().depths(), None);
}

/// RFC 5044 §7.1.1: reserved bits are not checked on reception. siw sets one (0x08) for a purpose of its own.
#[test]
fn reserved_bits_of_a_reply_are_ignored() {
    let mut initiator = Initiator::new(enhanced(Some(1), Some(1), true), NOW).unwrap();
    let reply = reply_of(&mut initiator, b"MPA ID Rep Frame\x5f\x02\x00\x04\x80\x01\x80\x01").unwrap();
    let Reply::Accepted { connection, .. } = reply else { panic!("{reply:?}") };
    assert_eq!(connection.first_message, FirstMessage::ReadyByWrite);
}

/// RFC 6581 §10: a peer that closes instead of replying may not know enhanced set-up.
#[test]
fn an_initiator_falls_back_to_revision_one() {
    let mut initiator = Initiator::new(enhanced(Some(1), Some(1), true), NOW).unwrap();
    let again = initiator.fall_back(NOW + TIMEOUT).unwrap();
    assert_eq!(again.request_frame(), b"MPA ID Req Frame\x40\x01\x00\x00");
    assert_eq!(again.deadline(), NOW + TIMEOUT + Duration::from_secs(10));
    assert!(again.fall_back(NOW).is_none());
    // A peer that began a reply knows something.
    initiator.receive(b"MPA ").unwrap();
    assert!(initiator.fall_back(NOW).is_none());
}

/// RFC 5044 §7.1.1, §7.1.2 rules 5, 8, 9.
#[test]
fn frames_that_are_not_valid_are_refused() {
    let refused = |frame: &[u8]| Responder::new(TIMEOUT, NOW).receive(frame).unwrap_err();
    assert_eq!(refused(b"GET / HTTP/1.1\r\n"), StartupError::Key { expected: "MPA request" });
    assert_eq!(refused(b"MPA ID Rep"), StartupError::Key { expected: "MPA request" }, "at the first wrong byte");
    let revision = |revision| refused(&[b"MPA ID Req Frame\x40", &[revision, 0, 0][..]].concat());
    for found in [0, 3, 255] {
        assert_eq!(revision(found), StartupError::Revision { found, expected: "1 and 2 are understood" });
    }
    let too_long = StartupError::PrivateData { bytes: 513, reason: "more than 512 (RFC 5044 §7.1.1)" };
    assert_eq!(refused(b"MPA ID Req Frame\x40\x01\x02\x01"), too_long);
    let text = refused(b"MPA ID Req Frame\x50\x02\x00\x03abc").to_string();
    assert!(text.contains("3 bytes of private data") && text.contains("RFC 6581 §9"), "{text}");

    let refused = |offer: StartupOffer, frame: &[u8]| Initiator::new(offer, NOW).unwrap().receive(frame).unwrap_err();
    assert_eq!(refused(StartupOffer::default(), b"MPA ID Req Frame"), StartupError::BothInitiators);
    assert_eq!(refused(StartupOffer::default(), b"SSH-2.0"), StartupError::Key { expected: "MPA reply" });
    let enhanced = enhanced(Some(1), Some(1), false);
    let one = refused(enhanced.clone(), b"MPA ID Rep Frame\x40\x01\x00\x00");
    assert_eq!(one, StartupError::Revision { found: 1, expected: "2 was asked for" });
    assert_eq!(refused(enhanced, b"MPA ID Rep Frame\x40\x02\x00\x00"), StartupError::NotEnhanced);
    let two = refused(StartupOffer::default(), b"MPA ID Rep Frame\x50\x02\x00\x04\0\0\0\0");
    assert_eq!(two, StartupError::Revision { found: 2, expected: "1 was asked for" });
}

/// RFC 5044 §7.1.1: 512 bytes; RFC 6581 §9: 4 less.
#[test]
fn frames_of_this_side_keep_to_the_limits() {
    for (enhancement, limit) in [(None, 512), (enhanced(Some(1), Some(1), false).enhanced, 508)] {
        let offer =
            |bytes| StartupOffer { private_data: vec![0; bytes], enhanced: enhancement, ..StartupOffer::default() };
        let error = StartupError::OwnPrivateData { bytes: limit + 1, limit };
        assert_eq!(Initiator::new(offer(limit + 1), NOW).unwrap_err(), error);
        let initiator = Initiator::new(offer(limit), NOW).unwrap();
        assert_eq!(initiator.request_frame().len(), 20 + 512);
        let request = request_of(initiator.request_frame()).unwrap();
        assert_eq!(request.private_data_limit(), limit);
        let acceptance = Acceptance { private_data: vec![0; limit + 1], ..Acceptance::default() };
        assert_eq!(request.accept(&acceptance).unwrap_err(), error);
        assert_eq!(request.reject(&vec![0; limit + 1], ReadDepths::default()).unwrap_err(), error);
    }
    let depth = MAX_READ_DEPTH + 1;
    assert_eq!(Initiator::new(enhanced(Some(depth), None, false), NOW).unwrap_err(), StartupError::OwnDepth { depth });
}

/// RFC 5044 §7.1.2 rules 8, 10.
#[test]
fn a_peer_that_is_too_slow_is_given_up() {
    let responder = Responder::new(TIMEOUT, NOW);
    assert_eq!(responder.deadline(), NOW + TIMEOUT);
    assert_eq!(responder.check_deadline(NOW + TIMEOUT - Duration::from_nanos(1)), Ok(()));
    assert_eq!(responder.check_deadline(NOW + TIMEOUT), Err(StartupError::TimedOut { timeout: TIMEOUT }));
    let initiator = Initiator::new(StartupOffer { timeout: TIMEOUT, ..StartupOffer::default() }, NOW).unwrap();
    assert_eq!(initiator.check_deadline(initiator.deadline()), Err(StartupError::TimedOut { timeout: TIMEOUT }));
    assert_eq!(Responder::new(Duration::MAX, NOW).deadline(), Duration::MAX);
}

fn depth() -> impl Strategy<Value = Option<u16>> {
    prop_oneof![Just(None), (0..=MAX_READ_DEPTH).prop_map(Some), (0..4_u16).prop_map(Some)]
}

proptest! {
    /// RFC 6581 §9.1, the relations after a successful negotiation; and both sides agree on everything else.
    #[test]
    fn both_sides_agree(
        (inbound, outbound, peer_to_peer, is_enhanced) in (depth(), depth(), any::<bool>(), any::<bool>()),
        (limit_in, limit_out, default_depth) in (0..=MAX_READ_DEPTH, 0..=MAX_READ_DEPTH, 0..=MAX_READ_DEPTH),
        flags in proptest::array::uniform4(any::<bool>()),
    ) {
        let wanted = enhanced(inbound, outbound, peer_to_peer).enhanced;
        let offer = StartupOffer {
            crc: flags[0],
            markers: flags[1],
            enhanced: wanted.filter(|_| is_enhanced),
            default_depth,
            ..StartupOffer::default()
        };
        let (inbound_requests, outbound_requests) = (limit_in, limit_out);
        let (crc, markers) = (flags[2], flags[3]);
        let acceptance = Acceptance { crc, markers, inbound_requests, outbound_requests, ..Acceptance::default() };
        let (here, there) = accepted(&offer, &acceptance);
        prop_assert_eq!(here.crc, there.crc);
        prop_assert_eq!((here.send_markers, here.receive_markers), (there.receive_markers, there.send_markers));
        if is_enhanced && outbound.is_some() {
            prop_assert!(here.outbound_requests <= there.inbound_requests);
        }
        if is_enhanced && inbound.is_some() {
            prop_assert!(there.outbound_requests <= here.inbound_requests);
        }
        let ready = here.first_message != FirstMessage::Either;
        prop_assert_eq!(ready, is_enhanced && peer_to_peer);
        prop_assert!(here.first_message != FirstMessage::ReadyByRead || here.outbound_requests > 0);
    }

    /// Whatever a peer sends, in whatever pieces, is a frame or is refused; no byte after the frame is taken.
    #[test]
    fn any_bytes_are_a_frame_or_are_refused(
        valid in 0..21_usize,
        mut bytes in proptest::collection::vec(any::<u8>(), 0..600),
        cut in 1..50_usize,
    ) {
        let model = b"MPA ID Req Frame\x50\x02\x00\x08";
        for (byte, model) in bytes.iter_mut().zip(&model[..valid.min(20)]) {
            *byte = *model;
        }
        let mut responder = Responder::new(TIMEOUT, NOW);
        let mut total = 0;
        for piece in bytes.chunks(cut) {
            let Ok((taken, request)) = responder.receive(piece) else { break };
            total += taken;
            prop_assert!(total <= 20 + 512);
            if let Some(request) = request {
                prop_assert!(request.private_data().len() <= 512);
                prop_assert!(request.accept(&Acceptance::default()).is_ok());
                break;
            }
            prop_assert_eq!(taken, piece.len());
        }
    }
}
