//! The rings that a program and the kernel share: one writes, the other reads, and two counters show the progress of
//! each (Documentation/networking/af_xdp.rst, "Rings"; net/xdp/xsk_queue.h).
//!
//! # Why this is sound
//!
//! A ring is `size` entries, a power of two, and two counters of 32 bits that only grow, modulo 2³²: the number of
//! entries written by the writer, and read by the reader. The kernel made the mapping and reported the offsets in it;
//! they are checked to lie inside it when the ring is mapped. The places stay mapped as long as the ring lives.
//!
//! An entry between the two counters belongs to the reader, any other to the writer. The writer stores its counter
//! after the entry (release), the reader loads it before the entry (acquire), and the other way round for the reader's
//! counter; the kernel's half of these pairs is in xsk_queue.h. So neither touches an entry that is the other's.
//!
//! The counter of this side is kept in this process, and stored for the other side: only the other side's counter is
//! ever read back. A counter beyond the number of entries is nonsense, and then there is nothing to read or write. So a
//! kernel that errs can change which entries are used and what they contain, but nothing outside the ring; the contents
//! of entries are checked by their readers.

use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};
use std::ffi::c_void;
use std::io;
use std::os::fd::BorrowedFd;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, Ordering};

/// Offsets of the parts of a ring in its mapping.
pub(super) type Places = libc::xdp_ring_offset;

/// A type that may be an entry: any bytes are a valid one.
///
/// # Safety
/// Every bit pattern is a value of the type.
pub(super) unsafe trait Entry: Copy {}

// SAFETY: an integer.
unsafe impl Entry for u64 {}
// SAFETY: a structure of integers without padding (linux/if_xdp.h).
unsafe impl Entry for libc::xdp_desc {}

/// A ring that this process writes to: frames to send (`T` a descriptor), or chunks that may be filled (`T` an
/// address).
#[derive(Debug)]
pub(super) struct Writer<T> {
    ring: Ring<T>,
    /// Number of entries written, including those not yet published to the kernel.
    written: u32,
    /// Number of entries that the kernel was last seen to have read.
    read: u32,
}

impl<T: Entry> Writer<T> {
    pub(super) fn map_ring(fd: BorrowedFd<'_>, at: u64, places: &Places, size: u32) -> io::Result<Self> {
        Ok(Self { ring: Ring::map_memory(fd, at, places, size)?, written: 0, read: 0 })
    }

    /// Returns the number of entries that can be written. The kernel's counter is read anew only if fewer than `wanted`
    /// were left.
    pub(super) fn free_entries(&mut self, wanted: u32) -> u32 {
        if self.ring.size - self.written.wrapping_sub(self.read) < wanted {
            self.refresh_read_count();
        }
        self.ring.size - self.written.wrapping_sub(self.read)
    }

    /// Returns the number of entries that the kernel has not read yet.
    pub(super) fn unread_entries(&mut self) -> u32 {
        self.refresh_read_count();
        self.written.wrapping_sub(self.read)
    }

    fn refresh_read_count(&mut self) {
        let read = self.ring.consumer_counter().load(Ordering::Acquire);
        // The kernel reads only written entries, in order: any other value is nonsense.
        if self.written.wrapping_sub(read) <= self.written.wrapping_sub(self.read) {
            self.read = read;
        }
    }

    /// Writes an entry, for which there must be [`free_entries`](Self::free_entries). The kernel sees it after
    /// [`publish_entries`](Self::publish_entries).
    pub(super) fn write_entry(&mut self, entry: T) {
        assert!(self.written.wrapping_sub(self.read) < self.ring.size, "a ring is written to beyond its end");
        let place = self.ring.entry_place(self.written);
        // SAFETY: the place is an entry of the ring, and belongs to this side: it is not between the kernel's counter,
        // which only grows, and ours.
        unsafe { place.write(entry) };
        self.written = self.written.wrapping_add(1);
    }

    /// Publishes all written entries to the kernel.
    pub(super) fn publish_entries(&self) {
        self.ring.producer_counter().store(self.written, Ordering::Release);
    }

    /// True if the kernel sleeps and has to be woken by a system call (`XDP_USE_NEED_WAKEUP`).
    pub(super) fn needs_wakeup(&self) -> bool {
        self.ring.kernel_flags().load(Ordering::Relaxed) & libc::XDP_RING_NEED_WAKEUP != 0
    }
}

/// A ring that the kernel writes to: received frames (`T` a descriptor), or frames that were sent (`T` an address).
#[derive(Debug)]
pub(super) struct Reader<T> {
    ring: Ring<T>,
    /// Number of entries read, including those not yet released to the kernel.
    read: u32,
    /// Number of entries that the kernel was last seen to have written.
    written: u32,
}

impl<T: Entry> Reader<T> {
    pub(super) fn map_ring(fd: BorrowedFd<'_>, at: u64, places: &Places, size: u32) -> io::Result<Self> {
        Ok(Self { ring: Ring::map_memory(fd, at, places, size)?, read: 0, written: 0 })
    }

    /// True if there is nothing to read. Reads the kernel's counter anew.
    pub(super) fn is_empty(&mut self) -> bool {
        self.refresh_written_count();
        self.read == self.written
    }

    /// Returns the next entry that was there at the last call of [`is_empty`](Self::is_empty). Its place belongs to the
    /// kernel again after [`release_entries`](Self::release_entries).
    pub(super) fn next_entry(&mut self) -> Option<T> {
        if self.read == self.written {
            return None;
        }
        // SAFETY: the place is an entry of the ring between the two counters, so the kernel has written it and leaves
        // it alone; any bytes are a valid entry.
        let entry = unsafe { self.ring.entry_place(self.read).read() };
        self.read = self.read.wrapping_add(1);
        Some(entry)
    }

    /// Returns the places of all entries that were read to the kernel.
    pub(super) fn release_entries(&self) {
        self.ring.consumer_counter().store(self.read, Ordering::Release);
    }

    fn refresh_written_count(&mut self) {
        let written = self.ring.producer_counter().load(Ordering::Acquire);
        if written.wrapping_sub(self.read) <= self.ring.size {
            self.written = written;
        }
    }
}

/// The common part of both kinds: a mapping, and the places in it.
#[derive(Debug)]
struct Ring<T> {
    mapping: NonNull<c_void>,
    bytes: usize,
    producer: NonNull<AtomicU32>,
    consumer: NonNull<AtomicU32>,
    flags: NonNull<AtomicU32>,
    entries: NonNull<T>,
    size: u32,
}

// SAFETY: the mapping belongs to this ring alone, and is the same for every thread.
unsafe impl<T: Entry> Send for Ring<T> {}

impl<T: Entry> Ring<T> {
    fn map_memory(fd: BorrowedFd<'_>, at: u64, places: &Places, size: u32) -> io::Result<Self> {
        let word = align_of::<AtomicU32>();
        let producer = checked_offset(places.producer, word)?;
        let consumer = checked_offset(places.consumer, word)?;
        let flags = checked_offset(places.flags, word)?;
        let entries = checked_offset(places.desc, align_of::<T>())?;
        if !size.is_power_of_two() {
            return Err(invalid_ring_error());
        }
        let bytes =
            (entries + size as usize * size_of::<T>()).max(producer.max(consumer).max(flags) + size_of::<u32>());
        // SAFETY: a new mapping somewhere, which touches no other.
        let mapping = unsafe {
            mmap(
                std::ptr::null_mut(),
                bytes,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::SHARED | MapFlags::POPULATE,
                fd,
                at,
            )
        }?;
        let mapping = NonNull::new(mapping).ok_or_else(invalid_ring_error)?;
        // SAFETY: the mapping is long enough for the last of these places and its content, see above.
        let [producer, consumer, flags, entries] =
            [producer, consumer, flags, entries].map(|offset| unsafe { mapping.byte_add(offset) });
        Ok(Self {
            mapping,
            bytes,
            producer: producer.cast(),
            consumer: consumer.cast(),
            flags: flags.cast(),
            entries: entries.cast(),
            size,
        })
    }

    /// Returns the place of the entry with this number, modulo the size.
    fn entry_place(&self, number: u32) -> NonNull<T> {
        // SAFETY: less than `size` entries from the first, and that many are in the mapping.
        unsafe { self.entries.add((number & (self.size - 1)) as usize) }
    }

    fn producer_counter(&self) -> &AtomicU32 {
        // SAFETY: an aligned word of the mapping, which lives as long as `self`; both sides use it atomically.
        unsafe { self.producer.as_ref() }
    }

    fn consumer_counter(&self) -> &AtomicU32 {
        // SAFETY: as above.
        unsafe { self.consumer.as_ref() }
    }

    fn kernel_flags(&self) -> &AtomicU32 {
        // SAFETY: as above.
        unsafe { self.flags.as_ref() }
    }
}

/// Checks an offset that the kernel has reported.
fn checked_offset(offset: u64, align: usize) -> io::Result<usize> {
    usize::try_from(offset)
        .ok()
        .filter(|offset| *offset < 1 << 20 && offset % align == 0)
        .ok_or_else(invalid_ring_error)
}

fn invalid_ring_error() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, "the kernel reports rings with impossible offsets or sizes")
}

impl<T> Drop for Ring<T> {
    fn drop(&mut self) {
        // SAFETY: the mapping that was made in `map`, to which no reference is left.
        let unmapped = unsafe { munmap(self.mapping.as_ptr(), self.bytes) };
        debug_assert!(unmapped.is_ok(), "{unmapped:?}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
    use std::os::fd::{AsFd, OwnedFd};

    const PLACES: Places = Places { producer: 0, consumer: 64, flags: 128, desc: 192 };

    /// Both ends of a ring in this process.
    fn both(size: u32) -> (OwnedFd, Writer<u64>, Reader<u64>) {
        let fd = memfd_create("ring", MemfdFlags::CLOEXEC).unwrap();
        ftruncate(&fd, 1 << 16).unwrap();
        let writer = Writer::map_ring(fd.as_fd(), 0, &PLACES, size).unwrap();
        let reader = Reader::map_ring(fd.as_fd(), 0, &PLACES, size).unwrap();
        (fd, writer, reader)
    }

    #[test]
    fn entries_arrive_in_order_over_and_over() {
        let (_fd, mut writer, mut reader) = both(8);
        let mut next = 0;
        for number in 0..1000_u64 {
            if writer.free_entries(1) == 0 {
                writer.publish_entries();
                assert!(!reader.is_empty());
                while let Some(entry) = reader.next_entry() {
                    assert_eq!(entry, next);
                    next += 1;
                }
                reader.release_entries();
                assert_eq!(writer.unread_entries(), 0);
            }
            assert!(writer.free_entries(1) > 0);
            writer.write_entry(number);
        }
        assert_eq!(next, 992);
    }

    #[test]
    fn impossible_counters_are_ignored() {
        let (_fd, mut writer, mut reader) = both(8);
        writer.write_entry(7);
        writer.publish_entries();
        // The kernel claims to have read more than was written, and to have written more than there is room for.
        writer.ring.consumer_counter().store(5, Ordering::Release);
        assert_eq!((writer.unread_entries(), writer.free_entries(8)), (1, 7));
        reader.ring.producer_counter().store(9, Ordering::Release);
        assert!(reader.is_empty());
        reader.ring.producer_counter().store(1, Ordering::Release);
        assert!(!reader.is_empty());
        assert_eq!((reader.next_entry(), reader.next_entry()), (Some(7), None));
    }

    #[test]
    fn places_outside_the_mapping_are_refused() {
        let (fd, ..) = both(8);
        for places in [Places { producer: 2, ..PLACES }, Places { desc: u64::MAX, ..PLACES }] {
            assert!(Writer::<u64>::map_ring(fd.as_fd(), 0, &places, 8).is_err());
        }
        assert!(Writer::<u64>::map_ring(fd.as_fd(), 0, &PLACES, 7).is_err());
    }
}
