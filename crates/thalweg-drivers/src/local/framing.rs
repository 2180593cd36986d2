//! Records on a line that loses bytes: a mark before or after each record helps to find the next one. Without IO.

use crate::local::records::{RecordLength, decode_number};

/// Rule by which records on such a line are separated.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Framing {
    /// A mark precedes each record. A record counts if it is followed by another mark, or by nothing for a while.
    Begins(Vec<u8>, RecordLength),
    /// A mark ends each record, which has at most this number of bytes before the mark.
    Ends(Vec<u8>, usize),
}

/// Result of looking for the next record.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Next<'a> {
    /// A record, without its mark and its length.
    Record(&'a [u8]),
    /// Number of bytes that belong to no record.
    Skipped(usize),
    /// More bytes, or more time, are needed.
    More,
}

/// Bytes of a line that have arrived and are not handed on.
#[derive(Debug)]
pub(crate) struct Framer {
    framing: Framing,
    bytes: Vec<u8>,
    /// Number of bytes at the front that have been handed on.
    done: usize,
    /// Number of the following bytes that contain no end mark.
    searched: usize,
    /// True if the record at the front is longer than allowed: it is skipped up to its end.
    overlong: bool,
}

impl Framer {
    pub(crate) fn new(framing: Framing) -> Self {
        Self { framing, bytes: Vec::new(), done: 0, searched: 0, overlong: false }
    }

    /// Prepares for a line that may be in the middle of a record, which is skipped.
    pub(crate) fn join_midway(&mut self) {
        self.overlong = matches!(self.framing, Framing::Ends(..));
    }

    /// Appends bytes that have arrived.
    pub(crate) fn push_bytes(&mut self, bytes: &[u8]) {
        self.bytes.drain(..self.done);
        self.done = 0;
        self.bytes.extend_from_slice(bytes);
    }

    /// Returns the number of bytes that are not handed on.
    pub(crate) fn pending_bytes(&self) -> usize {
        self.bytes.len() - self.done
    }

    /// Discards the pending bytes, and returns their number.
    pub(crate) fn clear_pending(&mut self) -> usize {
        let pending = self.pending_bytes();
        (self.done, self.searched) = (self.bytes.len(), 0);
        pending
    }

    /// Returns the next record or skipped bytes. `quiet`: nothing has arrived for so long that a record has no more
    /// bytes than those present.
    pub(crate) fn next_record(&mut self, quiet: bool) -> Next<'_> {
        let rest = &self.bytes[self.done..];
        let found = match &self.framing {
            Framing::Begins(mark, rule) => find_marked_record(rest, mark, *rule, quiet),
            Framing::Ends(mark, longest) => {
                let end = rest[self.searched..].windows(mark.len()).position(|bytes| bytes == mark);
                match end.map(|end| end + self.searched) {
                    Some(end) if self.overlong || end > *longest => Found::Skip(end + mark.len()),
                    Some(end) => Found::Record { before: 0, len: end, after: mark.len() },
                    None if self.overlong || rest.len() > longest + mark.len() => {
                        self.overlong = true;
                        // The last bytes may be the beginning of the end mark.
                        match rest.len().saturating_sub(mark.len() - 1) {
                            0 => Found::More,
                            skipped => {
                                (self.done, self.searched) = (self.done + skipped, 0);
                                return Next::Skipped(skipped);
                            }
                        }
                    }
                    None => {
                        self.searched = rest.len().saturating_sub(mark.len() - 1);
                        Found::More
                    }
                }
            }
        };
        match found {
            Found::More => Next::More,
            Found::Skip(bytes) => {
                (self.done, self.searched, self.overlong) = (self.done + bytes, 0, false);
                Next::Skipped(bytes)
            }
            Found::Record { before, len, after } => {
                let begin = self.done + before;
                (self.done, self.searched) = (begin + len + after, 0);
                Next::Record(&self.bytes[begin..begin + len])
            }
        }
    }
}

/// Result of looking at the pending bytes.
enum Found {
    /// Number of bytes of the record, and of those before and after that belong to it.
    Record {
        before: usize,
        len: usize,
        after: usize,
    },
    /// Number of bytes that belong to no record.
    Skip(usize),
    More,
}

/// Looks for a record with a mark before it.
fn find_marked_record(rest: &[u8], mark: &[u8], rule: RecordLength, quiet: bool) -> Found {
    if rest.is_empty() {
        return Found::More;
    }
    if !may_begin_mark(rest, mark) {
        return skip_to_mark(rest, mark);
    }
    let bounds = match rule {
        RecordLength::Fixed(len) => Some((mark.len(), len)),
        RecordLength::Prefixed { prefix, max_bytes: longest } => {
            let before = mark.len() + usize::from(prefix.bytes);
            let head = rest.get(mark.len()..before);
            match head.map(|head| usize::try_from(decode_number(head, prefix.little_endian))) {
                None => None,
                Some(Ok(len)) if len <= longest => Some((before, len)),
                Some(_) => return skip_to_mark(rest, mark),
            }
        }
    };
    match bounds.and_then(|(before, len)| Some((before, len, rest.get(before + len..)?))) {
        None if !quiet => Found::More,
        Some((before, len, next)) if next.starts_with(mark) || quiet && may_begin_mark(next, mark) => {
            Found::Record { before, len, after: 0 }
        }
        Some((.., next)) if may_begin_mark(next, mark) => Found::More,
        // A part of the record was lost, or this is no beginning.
        _ => skip_to_mark(rest, mark),
    }
}

/// Returns true if the bytes begin with the mark, or with as much of it as there are bytes.
fn may_begin_mark(bytes: &[u8], mark: &[u8]) -> bool {
    bytes.starts_with(mark) || mark.starts_with(bytes)
}

/// Skips at least one byte, up to the first place at which a record may begin.
fn skip_to_mark(rest: &[u8], mark: &[u8]) -> Found {
    Found::Skip((1..rest.len()).find(|at| may_begin_mark(&rest[*at..], mark)).unwrap_or(rest.len()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::local::LengthPrefix;
    use proptest::prelude::*;

    /// Returns the records in the pieces, and the number of bytes that belong to none.
    fn records(framing: &Framing, pieces: &[&[u8]]) -> (Vec<Vec<u8>>, usize) {
        let mut framer = Framer::new(framing.clone());
        let (mut found, mut skipped) = (Vec::new(), 0);
        for (at, piece) in pieces.iter().enumerate() {
            framer.push_bytes(piece);
            loop {
                match framer.next_record(at + 1 == pieces.len()) {
                    Next::Record(record) => found.push(record.to_vec()),
                    Next::Skipped(bytes) => skipped += bytes,
                    Next::More => break,
                }
            }
        }
        (found, skipped + framer.pending_bytes())
    }

    fn fixed() -> Framing {
        Framing::Begins(b"\xa5\x5a".to_vec(), RecordLength::Fixed(4))
    }

    #[test]
    fn after_a_lost_byte_the_next_record_is_found_and_the_damaged_one_is_not_taken() {
        let come = |bytes: &[u8]| records(&fixed(), &[bytes]);
        let whole = b"\xa5\x5aone.\xa5\x5atwo.\xa5\x5athr.";
        assert_eq!(come(whole), (vec![b"one.".to_vec(), b"two.".to_vec(), b"thr.".to_vec()], 0));
        let lost = |at: usize| come(&[&whole[..at], &whole[at + 1..]].concat());
        let (first_and_last, five) = (vec![b"one.".to_vec(), b"thr.".to_vec()], 5);
        for at in 6..12 {
            // Without a byte of its mark the second is no record, nor is the first, which no record follows.
            let expected = if at < 8 { vec![b"thr.".to_vec()] } else { first_and_last.clone() };
            let (found, skipped) = lost(at);
            assert_eq!(found, expected, "byte {at}");
            assert_eq!(skipped, if at < 8 { five + 6 } else { five }, "byte {at}");
        }
        assert_eq!(lost(17), (vec![b"one.".to_vec(), b"two.".to_vec()], 5), "the last one is cut off");
        // A mark in a payload does not count.
        assert_eq!(come(b"\xa5\x5a\xa5\x5a\xa5\x5a\xa5\x5atwo.").0, [b"\xa5\x5a\xa5\x5a".to_vec(), b"two.".to_vec()]);
    }

    #[test]
    fn a_length_that_cannot_be_is_no_record() {
        let prefix = LengthPrefix { bytes: 1, little_endian: false };
        let framing = Framing::Begins(b"#".to_vec(), RecordLength::Prefixed { prefix, max_bytes: 9 });
        assert_eq!(records(&framing, &[b"#\x03abc#\xffabc#\x02de#\0"]).0, [&b"abc"[..], b"de", b""]);
    }

    #[test]
    fn lines_end_with_their_mark_and_one_that_is_too_long_is_skipped() {
        let framing = Framing::Ends(b"\r\n".to_vec(), 5);
        let (found, skipped) = records(&framing, &[b"one\r", b"\n\r\nmuch too ", b"long\r", b"\nthree\r\nfou"]);
        assert_eq!(found, [&b"one"[..], b"", b"three"]);
        assert_eq!(skipped, 15 + 3);
        let mut joined = Framer::new(framing);
        joined.join_midway();
        joined.push_bytes(b"lf\r\nall\r\n");
        assert_eq!(joined.next_record(false), Next::Skipped(4));
        assert_eq!(joined.next_record(false), Next::Record(b"all"));
    }

    proptest! {
        /// Whatever is lost, repeated or changed on the way, and in whatever pieces it arrives: nothing is taken twice,
        /// the work and the memory are bounded, and records are found if they and their successors are intact.
        #[test]
        fn records_that_were_not_touched_are_found(
            seed: u64, count in 1..40_usize, harm in prop::collection::vec((any::<prop::sample::Index>(), 0..3_u8), 0..5),
            piece in 1..50_usize, lines: bool,
        ) {
            let (framing, len) = match lines {
                true => (Framing::Ends(b"\n".to_vec(), 12), 12),
                false => (Framing::Begins(b"\xa5\x5a".to_vec(), RecordLength::Fixed(10)), 12),
            };
            // Payloads without a mark in them.
            let letter = |at: usize| b'a' + (thalweg_wire::mix_bits(seed ^ at as u64) % 26) as u8;
            let payload = |record: usize| (0..10).map(|at| letter(record * 10 + at)).collect::<Vec<u8>>();
            let line = |record: usize| match lines {
                true => [&payload(record)[..], b"!\n"].concat(),
                false => [b"\xa5\x5a", &payload(record)[..]].concat(),
            };
            let mut bytes: Vec<u8> = (0..count).flat_map(line).collect();
            let mut touched = vec![false; count + 1];
            let mut places: Vec<_> = harm.iter().map(|(at, how)| (at.index(bytes.len()), *how)).collect();
            // From the end, and each place once: a second byte taken there would belong to the following record.
            places.sort_unstable_by(|one, other| other.cmp(one));
            places.dedup_by_key(|(at, _)| *at);
            for (at, how) in places {
                touched[at / len] = true;
                match how {
                    0 => drop(bytes.remove(at)),
                    1 => bytes.insert(at, b'x'),
                    _ => bytes[at] ^= 0x15,
                }
            }
            let pieces: Vec<&[u8]> = bytes.chunks(piece).collect();
            let (found, _) = records(&framing, &pieces);
            let whole = |record: usize| match lines {
                true => [&payload(record)[..], b"!"].concat(),
                false => payload(record),
            };
            // A line is whole if the end of the preceding one is; a record if the mark of the following one is.
            let safe = |record: usize| match lines {
                true => !touched[record] && (record == 0 || !touched[record - 1]),
                false => !touched[record] && !touched[record + 1],
            };
            let mut from = 0;
            for record in (0..count).filter(|record| safe(*record)) {
                let at = found[from..].iter().position(|one| *one == whole(record));
                prop_assert!(at.is_some(), "record {record} of {found:?}");
                from += at.unwrap() + 1;
            }
            prop_assert!(found.iter().map(Vec::len).sum::<usize>() <= bytes.len());
        }
    }
}
