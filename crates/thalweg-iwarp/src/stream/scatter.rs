//! Ranges of memory as one string of bytes.

use crate::memory::{Access, AccessError, Memory, MemoryRange};

/// Range that could not be accessed, and the reason.
pub(super) type RangeError = (MemoryRange, AccessError);

/// Checks that offset and length do not exceed 64 bits (RFC 5041 §7.1 check 5: their unsigned sum does not wrap).
pub(super) fn check_wrap(range: MemoryRange) -> Result<(), AccessError> {
    match range.offset.checked_add(range.length.into()) {
        Some(_) => Ok(()),
        None => Err(AccessError::Wrapped),
    }
}

/// Returns the parts of the ranges that hold `length` bytes from byte `from` on.
fn range_parts(ranges: &[MemoryRange], from: u64, length: u64) -> impl Iterator<Item = MemoryRange> {
    let (mut skip, mut left) = (from, length);
    ranges.iter().filter_map(move |range| {
        let skipped = skip.min(range.length.into());
        skip -= skipped;
        let taken = left.min(u64::from(range.length) - skipped);
        left -= taken;
        // Both are at most the range's own length, which has 32 bits.
        (taken > 0).then(|| MemoryRange {
            stag: range.stag,
            offset: range.offset.wrapping_add(skipped),
            length: taken as u32,
        })
    })
}

/// Checks all ranges.
pub(super) fn check_ranges<M: Memory>(
    memory: &mut M,
    ranges: &[MemoryRange],
    access: Access,
) -> Result<(), RangeError> {
    for range in ranges.iter().filter(|range| range.length > 0) {
        check_wrap(*range).and_then(|()| memory.check(*range, access)).map_err(|reason| (*range, reason))?;
    }
    Ok(())
}

/// Appends the places of `length` bytes from byte `from` of the ranges on.
pub(super) fn gather_places<M: Memory>(
    memory: &mut M,
    (ranges, from, length): (&[MemoryRange], u64, u64),
    access: Access,
    places: &mut Vec<M::Place>,
) -> Result<(), RangeError> {
    for part in range_parts(ranges, from, length) {
        let place = check_wrap(part).and_then(|()| memory.locate(part, access));
        places.push(place.map_err(|reason| (part, reason))?);
    }
    Ok(())
}

/// Writes bytes at byte `from` of the ranges, by the owner's own leave. The ranges must hold them.
pub(super) fn scatter_bytes<M: Memory>(
    memory: &mut M,
    ranges: &[MemoryRange],
    from: u64,
    mut bytes: &[u8],
) -> Result<(), RangeError> {
    for part in range_parts(ranges, from, bytes.len() as u64) {
        let (now, later) = bytes.split_at(part.length as usize);
        let placed = check_wrap(part).and_then(|()| memory.place(part.stag, part.offset, now, Access::LocalWrite));
        placed.map_err(|reason| (part, reason))?;
        bytes = later;
    }
    Ok(())
}
