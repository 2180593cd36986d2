//! Any bytes are FPDUs or an error; what is found does not depend on the pieces they come in, and is encoded as it was.

use thalweg_iwarp::mpa::{FpduDecoder, FpduEncoder, FpduError};

/// Tries one input.
pub fn run(bytes: &[u8]) {
    let Some((choice, rest)) = bytes.split_first() else { return };
    let markers = choice & 1 != 0;
    // A fuzzer guesses no CRCs: without them the lengths and markers are reached.
    let (whole, error) = decode(rest, rest.len().max(1), false, markers);
    assert_eq!((&whole, error), (&decode(rest, 1 + usize::from(choice >> 2), false, markers).0, error));
    assert!(whole.iter().map(Vec::len).sum::<usize>() <= rest.len());
    let mut encoder = FpduEncoder::new(true, markers);
    let mut stream = Vec::new();
    for ulpdu in &whole {
        let (head, payload) = ulpdu.split_at(ulpdu.len() / 3);
        encoder.append(head, &[payload], &mut stream);
    }
    assert_eq!(decode(&stream, 1 + usize::from(choice >> 2), true, markers), (whole, None));
    decode(rest, 100, true, markers);
}

fn decode(bytes: &[u8], piece_bytes: usize, crc: bool, markers: bool) -> (Vec<Vec<u8>>, Option<FpduError>) {
    let (mut decoder, mut found) = (FpduDecoder::new(crc, markers), Vec::new());
    for mut piece in bytes.chunks(piece_bytes) {
        loop {
            match decoder.next_ulpdu(&mut piece) {
                Ok(Some(ulpdu)) => found.push(ulpdu.to_vec()),
                Ok(None) => break,
                Err(error) => return (found, Some(error)),
            }
        }
        assert!(piece.is_empty());
    }
    (found, None)
}
