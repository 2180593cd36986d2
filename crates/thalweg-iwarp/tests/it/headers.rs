//! Layouts of the headers, byte for byte.

use proptest::prelude::*;
use thalweg_iwarp::header::{
    AtomicRequest, AtomicResponse, Control, Opcode, ReadRequest, SegmentHeader, TAGGED_HEADER_BYTES,
    UNTAGGED_HEADER_BYTES,
};
use thalweg_iwarp::{AtomicOperation, ErrorCode, MAX_TERMINATE_BYTES, Stag, Terminate, TerminatedSegment};

fn encoded(encode: impl FnOnce(&mut Vec<u8>)) -> Vec<u8> {
    let mut bytes = Vec::new();
    encode(&mut bytes);
    bytes
}

/// RFC 5041 figure 4, RFC 5040 figure 3: T, L and version 1; version 1 of RDMAP and opcode 0.
#[test]
fn a_tagged_header_has_fourteen_bytes() {
    let control = Control::new(Opcode::Write, true);
    let header = SegmentHeader::Tagged { control, stag: Stag(0x0102_0304), offset: 0x1112_1314_1516_1718 };
    let bytes = encoded(|to| header.encode_header(to));
    assert_eq!(bytes, [0xc1, 0x40, 1, 2, 3, 4, 0x11, 0x12, 0x13, 0x14, 0x15, 0x16, 0x17, 0x18]);
    assert_eq!(bytes.len(), TAGGED_HEADER_BYTES);
    assert_eq!(SegmentHeader::parse_segment(&bytes), Some((header, &[][..])));
    assert_eq!(SegmentHeader::parse_segment(&bytes[..13]), None);
}

/// RFC 5041 figure 5; the example of RFC 5044 figure 5 begins with 41 43.
#[test]
fn an_untagged_header_has_eighteen_bytes() {
    let control = Control::new(Opcode::SendInvalidate, false);
    let header =
        SegmentHeader::Untagged { control, reserved: 0xaabb_ccdd, queue: 0, message: 0x0102_0304, offset: 0x10 };
    let bytes = encoded(|to| header.encode_header(to));
    assert_eq!(bytes, [1, 0x44, 0xaa, 0xbb, 0xcc, 0xdd, 0, 0, 0, 0, 1, 2, 3, 4, 0, 0, 0, 0x10]);
    assert_eq!(bytes.len(), UNTAGGED_HEADER_BYTES);
    assert_eq!(SegmentHeader::parse_segment(&bytes), Some((header, &[][..])));
    assert_eq!(SegmentHeader::parse_segment(&bytes[..17]), None);
}

/// RFC 5040 figure 6.
#[test]
fn a_read_request_has_sink_length_source() {
    let request = ReadRequest {
        sink_stag: Stag(0x0101_0101),
        sink_offset: 0x0202_0202_0303_0303,
        length: 0x0404_0404,
        source_stag: Stag(0x0505_0505),
        source_offset: 0x0606_0606_0707_0707,
    };
    let bytes = encoded(|to| request.encode_header(to));
    assert_eq!(bytes, [[1; 4], [2; 4], [3; 4], [4; 4], [5; 4], [6; 4], [7; 4]].concat());
    assert_eq!(ReadRequest::parse_header(&bytes), Some(request));
    assert_eq!(ReadRequest::parse_header(&bytes[1..]), None);
}

/// RFC 7306 figures 4 and 6, and the values that §5.2.1 has for unused fields.
#[test]
fn atomic_messages_have_their_fields_in_order() {
    let operation = AtomicOperation::CompareSwap {
        swap: u64::from_be_bytes([4; 8]),
        swap_mask: u64::from_be_bytes([5; 8]),
        compare: u64::from_be_bytes([6; 8]),
        compare_mask: u64::from_be_bytes([7; 8]),
    };
    let request = AtomicRequest {
        identifier: u32::from_be_bytes([1; 4]),
        stag: Stag(u32::from_be_bytes([2; 4])),
        offset: u64::from_be_bytes([3; 8]),
        operation: Some(operation),
    };
    let bytes = encoded(|to| request.encode_header(to));
    let wide = [[3; 8], [4; 8], [5; 8], [6; 8], [7; 8]].concat();
    assert_eq!(bytes, [&[0, 0, 0, 2, 1, 1, 1, 1, 2, 2, 2, 2][..], &wide].concat());
    assert_eq!(AtomicRequest::parse_header(&bytes), Some(request));

    let add = AtomicRequest { operation: Some(AtomicOperation::FetchAdd { add: 1, mask: 2 }), ..request };
    let bytes = encoded(|to| add.encode_header(to));
    assert_eq!(bytes[..4], [0; 4]);
    assert_eq!(bytes[36..], [[0; 8], [0xff; 8]].concat());

    let response = AtomicResponse { identifier: u32::from_be_bytes([1; 4]), original: u64::from_be_bytes([2; 8]) };
    let bytes = encoded(|to| response.encode_header(to));
    assert_eq!(bytes, [1, 1, 1, 1, 2, 2, 2, 2, 2, 2, 2, 2]);
    assert_eq!(AtomicResponse::parse_header(&bytes), Some(response));
}

/// RFC 7306 §10.1: 1 is reserved, the others are unassigned.
#[test]
fn an_atomic_operation_without_a_definition_is_none() {
    let request = AtomicRequest { identifier: 0, stag: Stag(0), offset: 0, operation: None };
    let bytes = encoded(|to| request.encode_header(to));
    assert_eq!(AtomicRequest::parse_header(&bytes).unwrap().operation, None);
}

/// RFC 7306 §5.1.1, the pseudocode, as it stands there.
fn add_as_in_the_rfc(original: u64, add: u64, mask: u64) -> u64 {
    let (mut location, mut carry, mut value) = (1_u64, 0, 0);
    for bit in 0..64 {
        if bit != 0 {
            location <<= 1;
        }
        let sum = carry + ((original & location) >> bit) + ((add & location) >> bit);
        carry = (sum & 2) >> 1;
        if sum & 1 != 0 {
            value |= location;
        }
        carry = u64::from(carry != 0 && mask & location == 0);
    }
    value
}

proptest! {
    #[test]
    fn masked_addition_is_that_of_the_pseudocode(original: u64, add: u64, mask: u64) {
        let operation = AtomicOperation::FetchAdd { add, mask };
        prop_assert_eq!(operation.apply(original), add_as_in_the_rfc(original, add, mask));
    }

    #[test]
    fn headers_survive_the_wire(bytes in proptest::collection::vec(any::<u8>(), 0..40)) {
        if let Some((header, payload)) = SegmentHeader::parse_segment(&bytes) {
            let again = encoded(|to| header.encode_header(to));
            prop_assert_eq!(again.len() + payload.len(), bytes.len());
            let again = [&again, payload].concat();
            prop_assert_eq!(SegmentHeader::parse_segment(&again), Some((header, payload)));
        }
    }

    #[test]
    fn a_terminate_message_survives_the_wire(bytes in proptest::collection::vec(any::<u8>(), 0..80)) {
        if let Some(terminate) = Terminate::parse_payload(&bytes) {
            let again = encoded(|to| terminate.encode_payload(to));
            prop_assert!(again.len() <= MAX_TERMINATE_BYTES);
            prop_assert_eq!(Terminate::parse_payload(&again), Some(terminate));
            prop_assert!(!terminate.to_string().is_empty());
        }
    }
}

#[test]
fn addition_wraps_within_its_fields() {
    let bytes = AtomicOperation::FetchAdd { add: 0x0101, mask: 0x8080 };
    assert_eq!(bytes.apply(0x01ff), 0x0200, "the carry out of the lower byte is discarded");
    assert_eq!(AtomicOperation::FetchAdd { add: 1, mask: 0 }.apply(u64::MAX), 0);
}

/// RFC 5040 figures 7 and 8: layer 1, type 1, code 2; M and D; the length; the header.
#[test]
fn a_terminate_message_has_control_length_and_headers() {
    let control = Control::new(Opcode::Write, true);
    let header = SegmentHeader::Tagged { control, stag: Stag(0x0202_0202), offset: u64::from_be_bytes([3; 8]) };
    let segment = TerminatedSegment { length: 0x0101, header, read_request: None };
    let terminate = Terminate { error: ErrorCode::DDP_NOT_ASSOCIATED, segment: Some(segment) };
    let bytes = encoded(|to| terminate.encode_payload(to));
    let header = [&[0xc1, 0x40][..], &[2; 4], &[3; 8]].concat();
    assert_eq!(bytes, [&[0x11, 0x02, 0xc0, 0x00, 0x01, 0x01][..], &header].concat());

    let bytes = encoded(|to| Terminate { error: ErrorCode::MPA_CRC, segment: None }.encode_payload(to));
    assert_eq!(bytes, [0x20, 0x02, 0, 0]);
}

/// As siw sends it: the last bit is set, the header is not there.
#[test]
fn a_terminate_message_that_lacks_an_announced_header_keeps_its_error() {
    let mut bytes = vec![0x01, 0x02, 0xe0, 0x00, 0, 46, 0x41, 0x41];
    bytes.extend([0; 16]);
    let terminate = Terminate::parse_payload(&bytes).unwrap();
    assert_eq!(terminate.error, ErrorCode::RDMAP_ACCESS_RIGHTS);
    assert!(terminate.segment.is_some_and(|segment| segment.read_request.is_none()));
    assert_eq!(Terminate::parse_payload(&bytes[..20]).unwrap().segment, None);
    assert_eq!(Terminate::parse_payload(&bytes[..3]), None);
}

#[test]
fn all_codes_have_words_and_sections() {
    for code in ErrorCode::ALL {
        let text = code.to_string();
        assert!(text.contains("RFC "), "{text}");
        assert!(text.contains(&format!("layer {}, type {}, code {:#04x}", code.layer, code.error_type, code.code)));
    }
    let unknown = ErrorCode { layer: 3, error_type: 9, code: 1 };
    assert_eq!(unknown.to_string(), "an error that no RFC defines (layer 3, type 9, code 0x01)");
}
