//! FPDUs: the vectors of RFC 5044, any cut of the stream, damage.

use proptest::prelude::*;
use thalweg_iwarp::ErrorCode;
use thalweg_iwarp::mpa::{FpduDecoder, FpduEncoder, FpduError, longest_ulpdu_bytes};

/// A Send of 24 zeros, as in both figures of RFC 5044 §4.4, with its message number.
fn example(message: u8) -> Vec<u8> {
    let mut ulpdu = vec![0x41, 0x43, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, message, 0, 0, 0, 0];
    ulpdu.extend([0; 24]);
    ulpdu
}

/// RFC 5044 figure 5: a marker, then the FPDU.
#[test]
fn the_first_example_of_the_rfc() {
    let mut bytes = Vec::new();
    FpduEncoder::new(true, true).append(&example(1), &[], &mut bytes);
    let expected = [&[0, 0, 0, 0, 0, 0x2a][..], &example(1), &[0x52, 0x23, 0x99, 0x83]].concat();
    assert_eq!(bytes, expected);
    let mut input = bytes.as_slice();
    assert_eq!(FpduDecoder::new(true, true).next_ulpdu(&mut input), Ok(Some(&example(1)[..])));
}

/// RFC 5044 figure 6: the second FPDU, at byte 492 of the stream, with a marker inside.
#[test]
fn the_second_example_of_the_rfc() {
    let mut encoder = FpduEncoder::new(true, true);
    let mut bytes = Vec::new();
    // Marker, length and CRC are ten bytes of the first FPDU's 492.
    encoder.append(&vec![0; 482], &[], &mut bytes);
    assert_eq!(bytes.len(), 0x1ec);
    bytes.clear();
    // The payload comes from elsewhere this time.
    let ulpdu = example(2);
    encoder.append(&ulpdu[..18], &[&ulpdu[18..30], &ulpdu[30..]], &mut bytes);
    let expected = [&[0, 0x2a][..], &ulpdu[..18], &[0, 0, 0, 0x14], &ulpdu[18..], &[0x84, 0x92, 0x58, 0x98]].concat();
    assert_eq!(bytes, expected);
}

/// The CRC is that of the bytes sent, which are written once, also where they are checksummed in parts.
#[test]
fn bytes_are_written_once_and_checksummed_where_they_lie() {
    for (payload_bytes, markers) in [(0, false), (5, true), (40_000, false), (65_500, true)] {
        let mut encoder = FpduEncoder::new(true, markers);
        let length = encoder.fpdu_bytes(14 + payload_bytes);
        let (mut bytes, mut drawn) = (vec![0xee; length + 10], 0_u32);
        // Memory that changes each time it is looked at.
        let fill = |part: &mut [u8]| {
            for byte in part {
                drawn += 1;
                *byte = (drawn % 251) as u8;
            }
        };
        assert_eq!(encoder.write_fpdu(&[1; 14], payload_bytes, fill, &mut bytes), length);
        assert_eq!((drawn as usize, &bytes[length..]), (payload_bytes, &[0xee; 10][..]));
        let mut input = &bytes[..length];
        let mut decoder = FpduDecoder::new(true, markers);
        let ulpdu = decoder.next_ulpdu(&mut input).unwrap().unwrap();
        let expected = (1..=payload_bytes).map(|drawn| (drawn % 251) as u8);
        assert!(ulpdu.iter().copied().eq([1; 14].into_iter().chain(expected)));
    }
}

/// RFC 5044 §4.5.
#[test]
fn an_fpdu_of_the_longest_ulpdu_fills_a_segment() {
    assert_eq!(longest_ulpdu_bytes(1460, false), 1454);
    assert_eq!(longest_ulpdu_bytes(1460, true), 1460 - 6 - 12);
    assert_eq!(longest_ulpdu_bytes(1447, false), 1447 - 6 - 3);
    assert_eq!(longest_ulpdu_bytes(100, false), 128, "never below 128");
    assert_eq!(longest_ulpdu_bytes(70_000, false), 65_535);
    for segment_bytes in 200..2000 {
        for markers in [false, true] {
            let mut bytes = Vec::new();
            let mut encoder = FpduEncoder::new(true, markers);
            for _ in 0..3 {
                bytes.clear();
                encoder.append(&vec![0; longest_ulpdu_bytes(segment_bytes, markers)], &[], &mut bytes);
                assert!(bytes.len() <= segment_bytes, "{} bytes in {segment_bytes}", bytes.len());
            }
        }
    }
}

/// Stream of FPDUs, with each payload in several pieces.
fn stream(ulpdus: &[Vec<u8>], crc: bool, markers: bool) -> Vec<u8> {
    let mut encoder = FpduEncoder::new(crc, markers);
    let mut bytes = Vec::new();
    for ulpdu in ulpdus {
        let (head, payload) = ulpdu.split_at(ulpdu.len().min(14));
        let pieces: Vec<&[u8]> = payload.chunks(333).collect();
        encoder.append(head, &pieces, &mut bytes);
    }
    bytes
}

fn decode(decoder: &mut FpduDecoder, mut input: &[u8]) -> Result<Vec<Vec<u8>>, FpduError> {
    let mut found = Vec::new();
    while let Some(ulpdu) = decoder.next_ulpdu(&mut input)? {
        found.push(ulpdu.to_vec());
    }
    assert!(input.is_empty());
    Ok(found)
}

fn ulpdus() -> impl Strategy<Value = Vec<Vec<u8>>> {
    let length = prop_oneof![Just(0), 0..200_usize, 400..600_usize, 1000..5000_usize, Just(65_535_usize)];
    let ulpdu = length.prop_flat_map(|length| {
        any::<u8>().prop_map(move |seed| (0..length).map(|at| (at as u8).wrapping_mul(31).wrapping_add(seed)).collect())
    });
    proptest::collection::vec(ulpdu, 1..8)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    /// Receivers must not need alignment: the stream comes in any pieces.
    #[test]
    fn ulpdus_survive_any_cut(
        ulpdus in ulpdus(),
        cuts in proptest::collection::vec(1..4000_usize, 1..20),
        crc: bool,
        markers: bool,
    ) {
        let bytes = stream(&ulpdus, crc, markers);
        let mut decoder = FpduDecoder::new(crc, markers);
        let (mut rest, mut found) = (bytes.as_slice(), Vec::new());
        for cut in cuts.iter().cycle() {
            if rest.is_empty() {
                break;
            }
            let (now, later) = rest.split_at((*cut).min(rest.len()));
            found.extend(decode(&mut decoder, now).unwrap());
            rest = later;
        }
        prop_assert!(found == ulpdus);
    }

    /// RFC 5044 §8 code 2: whichever bit of the covered part is wrong, nothing of that FPDU or after it is passed on.
    #[test]
    fn a_flipped_bit_is_found(ulpdus in ulpdus(), at: proptest::sample::Index, bit in 0..8, markers: bool) {
        let mut bytes = stream(&ulpdus, true, markers);
        let at = at.index(bytes.len());
        bytes[at] ^= 1_u8 << bit;
        let mut decoder = FpduDecoder::new(true, markers);
        let (mut input, mut found) = (bytes.as_slice(), 0);
        loop {
            match decoder.next_ulpdu(&mut input) {
                Ok(Some(ulpdu)) => {
                    prop_assert!(ulpdu == ulpdus[found]);
                    found += 1;
                }
                // A damaged length field makes the FPDU longer than the stream.
                Ok(None) => break,
                Err(error) => {
                    prop_assert_eq!(error.error_code(), ErrorCode::MPA_CRC);
                    prop_assert_eq!(decoder.next_ulpdu(&mut &[0; 100][..]), Err(error));
                    break;
                }
            }
        }
        prop_assert!(found < ulpdus.len());
    }
}

#[test]
fn ulpdus_survive_segments_of_one_byte() {
    let ulpdus: Vec<Vec<u8>> = vec![example(1), Vec::new(), vec![7; 700], example(2)];
    for (crc, markers) in [(true, false), (true, true), (false, false), (false, true)] {
        let mut decoder = FpduDecoder::new(crc, markers);
        let bytes = stream(&ulpdus, crc, markers);
        let found: Vec<_> = bytes.chunks(1).flat_map(|byte| decode(&mut decoder, byte).unwrap()).collect();
        assert_eq!(found, ulpdus);
    }
}

#[test]
fn a_truncated_fpdu_is_waited_for() {
    let bytes = stream(&[example(1)], true, false);
    for length in 0..bytes.len() {
        assert_eq!(decode(&mut FpduDecoder::new(true, false), &bytes[..length]), Ok(Vec::new()));
    }
}

/// RFC 5044 §4.1: the CRC field of a connection without CRCs is there, and is not looked at.
#[test]
fn a_connection_without_crcs_does_not_check_them() {
    let mut bytes = stream(&[example(1)], false, false);
    bytes.last_mut().map(|byte| *byte ^= 1).unwrap();
    assert_eq!(decode(&mut FpduDecoder::new(false, false), &bytes), Ok(vec![example(1)]));
}

/// RFC 5044 §8 code 3: the CRC is right, the marker is not.
#[test]
fn a_marker_that_points_elsewhere_is_found() {
    let mut bytes = stream(&[vec![1; 600]], false, true);
    assert_eq!(bytes[512..516], [0, 0, 1, 0xfc], "508 bytes back to the length field, which follows the first marker");
    bytes[515] = 0xf8;
    let error = decode(&mut FpduDecoder::new(false, true), &bytes).unwrap_err();
    assert_eq!(error, FpduError::Marker { found: 0x1f8, expected: 0x1fc });
    assert_eq!(error.error_code(), ErrorCode::MPA_MARKER);
    // §4.2: the two lowest bits are zero for the receiver.
    bytes[515] = 0xff;
    assert_eq!(decode(&mut FpduDecoder::new(false, true), &bytes), Ok(vec![vec![1; 600]]));
}

/// A ULPDU that lies in the input as a whole is not copied.
#[test]
fn whole_fpdus_stay_where_they_are() {
    let bytes = stream(&[example(1), example(2)], true, false);
    let mut decoder = FpduDecoder::new(true, false);
    let mut input = bytes.as_slice();
    let found = decoder.next_ulpdu(&mut input).unwrap().unwrap();
    assert!(bytes.as_ptr_range().contains(&found.as_ptr()));
}
