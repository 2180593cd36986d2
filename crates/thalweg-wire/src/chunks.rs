//! Chunk data of a camera (GenICam): an image followed by the camera's data about it, each part followed by its tag.
//!
//! A tag is the part's identifier and its length in bytes, both big-endian, so that a payload is read from its end. The
//! meaning of an identifier is in the camera's own description.

/// A part of a payload: its identifier and its bytes.
pub type Chunk<'a> = (u32, &'a [u8]);

/// Maximum number of parts in a payload.
const MAX_CHUNKS: usize = 1024;

/// Returns the parts of a payload with their identifiers, in the order in which they lie: the image first. `None` if
/// the payload does not consist of parts from end to end, or has more than 1024 of them.
pub fn parse_chunks(payload: &[u8]) -> Option<Vec<Chunk<'_>>> {
    let mut found = Vec::new();
    let mut rest = payload;
    while !rest.is_empty() {
        let (parts, tag) = rest.split_last_chunk::<8>()?;
        let [id, length] = [&tag[..4], &tag[4..]].map(|long| u32::from_be_bytes([long[0], long[1], long[2], long[3]]));
        let begin = parts.len().checked_sub(usize::try_from(length).ok()?)?;
        if found.len() == MAX_CHUNKS {
            return None;
        }
        found.push((id, &parts[begin..]));
        rest = &parts[..begin];
    }
    found.reverse();
    (!found.is_empty()).then_some(found)
}

/// Returns the image of `bytes` bytes at the start of a payload, and the other parts. `None` if the payload is
/// something else. The image's part may be padded to a multiple of eight bytes.
pub fn split_image_and_chunks(payload: &[u8], bytes: usize) -> Option<(&[u8], Vec<Chunk<'_>>)> {
    let mut found = parse_chunks(payload)?;
    let (_, image) = found.remove(0);
    let padding = image.len().checked_sub(bytes)?;
    (padding < 8).then(|| (&image[..bytes], found))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn laid(parts: &[(u32, Vec<u8>)]) -> Vec<u8> {
        let tagged = |(id, bytes): &(u32, Vec<u8>)| {
            let length = u32::try_from(bytes.len()).unwrap();
            [&bytes[..], &id.to_be_bytes(), &length.to_be_bytes()].concat()
        };
        parts.iter().flat_map(tagged).collect()
    }

    #[test]
    fn the_image_and_the_chunks_after_it_are_separated() {
        let payload = laid(&[(0xa5a5, vec![7; 100]), (1, vec![0, 0, 0, 9]), (2, Vec::new())]);
        let chunks = vec![(1, &[0, 0, 0, 9][..]), (2, &[][..])];
        assert_eq!(split_image_and_chunks(&payload, 100), Some((&[7; 100][..], chunks.clone())));
        assert_eq!(split_image_and_chunks(&payload, 97), Some((&[7; 97][..], chunks)), "padded");
        assert_eq!(split_image_and_chunks(&payload, 92), None);
        assert_eq!(split_image_and_chunks(&payload, 101), None);
        assert_eq!(
            (super::parse_chunks(&[]), super::parse_chunks(&[0; 7]), super::parse_chunks(&payload[1..])),
            (None, None, None)
        );
    }

    proptest! {
        #[test]
        fn what_is_laid_is_found(parts in prop::collection::vec((any::<u32>(), any::<Vec<u8>>()), 1..20)) {
            let payload = laid(&parts);
            let found = parse_chunks(&payload).unwrap();
            prop_assert!(found.into_iter().map(|(id, bytes)| (id, bytes.to_vec())).eq(parts));
        }

        #[test]
        fn any_bytes_are_read_or_refused(payload: Vec<u8>, bytes: usize) {
            let _ = split_image_and_chunks(&payload, bytes);
        }

        /// Tags of empty parts, back to back: the work is bounded.
        #[test]
        fn there_are_not_too_many(count in 1..3000_usize) {
            prop_assert_eq!(parse_chunks(&vec![0; count * 8]).is_some(), count <= MAX_CHUNKS);
        }
    }
}
