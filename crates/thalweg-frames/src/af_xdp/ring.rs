//! The rings that a program and the kernel share: one writes, the other reads, and two counters say how far each is
//! (Documentation/networking/af_xdp.rst, "Rings"; net/xdp/xsk_queue.h).
//!
//! # Why this is sound
//!
//! A ring is `size` entries, a power of two, and two counters of 32 bits that only grow, modulo 2³²: what the writer
//! has written, and what the reader has read. The kernel made the mapping and said where in it they are; that these
//! places lie inside it is checked when the ring is mapped. They stay mapped as long as the ring lives.
//!
//! An entry between the two counters belongs to the reader, any other to the writer. The writer stores its counter
//! after the entry (release), the reader loads it before the entry (acquire), and the other way round for the reader's
//! counter; the kernel's half of these pairs is in xsk_queue.h. So neither touches an entry that is the other's.
//!
//! The counter of this side is kept in this process, and stored for the other: what is read back is the other's counter
//! alone. A counter that says more than there are entries is nonsense, and then there is nothing to read or write. So a
//! kernel that errs can change which entries are used and what they say, but nothing outside the ring; what entries say
//! is checked by who reads them.

use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};
use std::ffi::c_void;
use std::io;
use std::os::fd::BorrowedFd;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, Ordering};

/// Where the parts of a ring are in its mapping.
pub(super) type Places = libc::xdp_ring_offset;

/// What may be an entry: any bytes are a valid one.
///
/// # Safety
/// Every bit pattern is a value of the type.
pub(super) unsafe trait Entry: Copy {}

// SAFETY: an integer.
unsafe impl Entry for u64 {}
// SAFETY: a structure of integers without padding (linux/if_xdp.h).
unsafe impl Entry for libc::xdp_desc {}

/// A ring that this process writes to: what is to be sent (`T` a descriptor), or may be filled (an address).
#[derive(Debug)]
pub(super) struct Writer<T> {
    ring: Ring<T>,
    /// Entries written, whether or not the kernel has been told.
    written: u32,
    /// Entries that the kernel was last seen to have read.
    read: u32,
}

impl<T: Entry> Writer<T> {
    pub(super) fn map(fd: BorrowedFd<'_>, at: u64, places: &Places, size: u32) -> io::Result<Self> {
        Ok(Self { ring: Ring::map(fd, at, places, size)?, written: 0, read: 0 })
    }

    /// How many entries can be written, looked at anew only where fewer than `wanted` were left.
    pub(super) fn room(&mut self, wanted: u32) -> u32 {
        if self.ring.size - self.written.wrapping_sub(self.read) < wanted {
            self.look();
        }
        self.ring.size - self.written.wrapping_sub(self.read)
    }

    /// Entries that the kernel has not read yet.
    pub(super) fn unread(&mut self) -> u32 {
        self.look();
        self.written.wrapping_sub(self.read)
    }

    fn look(&mut self) {
        let read = self.ring.consumer().load(Ordering::Acquire);
        // The kernel reads what was written, in order: anything else is nonsense.
        if self.written.wrapping_sub(read) <= self.written.wrapping_sub(self.read) {
            self.read = read;
        }
    }

    /// Writes an entry, for which there must be [`room`](Self::room). The kernel sees it after
    /// [`publish`](Self::publish).
    pub(super) fn write(&mut self, entry: T) {
        assert!(self.written.wrapping_sub(self.read) < self.ring.size, "a ring is written to beyond its end");
        let place = self.ring.entry(self.written);
        // SAFETY: the place is an entry of the ring, and this side's: it is not between the kernel's counter, which
        // only grows, and ours.
        unsafe { place.write(entry) };
        self.written = self.written.wrapping_add(1);
    }

    /// Tells the kernel of all that was written.
    pub(super) fn publish(&self) {
        self.ring.producer().store(self.written, Ordering::Release);
    }

    /// Whether the kernel sleeps and has to be woken by a system call (`XDP_USE_NEED_WAKEUP`).
    pub(super) fn needs_wakeup(&self) -> bool {
        self.ring.flags().load(Ordering::Relaxed) & libc::XDP_RING_NEED_WAKEUP != 0
    }
}

/// A ring that the kernel writes to: what has come (`T` a descriptor), or was sent (an address).
#[derive(Debug)]
pub(super) struct Reader<T> {
    ring: Ring<T>,
    /// Entries read, whether or not the kernel has been told.
    read: u32,
    /// Entries that the kernel was last seen to have written.
    written: u32,
}

impl<T: Entry> Reader<T> {
    pub(super) fn map(fd: BorrowedFd<'_>, at: u64, places: &Places, size: u32) -> io::Result<Self> {
        Ok(Self { ring: Ring::map(fd, at, places, size)?, read: 0, written: 0 })
    }

    /// Whether there is anything to read.
    pub(super) fn is_empty(&mut self) -> bool {
        self.look();
        self.read == self.written
    }

    /// The next entry that was there when [`is_empty`](Self::is_empty) was asked last. Its place is the kernel's again
    /// after [`release`](Self::release).
    pub(super) fn next(&mut self) -> Option<T> {
        if self.read == self.written {
            return None;
        }
        // SAFETY: the place is an entry of the ring between the two counters, so the kernel has written it and leaves
        // it alone; any bytes are an entry.
        let entry = unsafe { self.ring.entry(self.read).read() };
        self.read = self.read.wrapping_add(1);
        Some(entry)
    }

    /// Gives the places of all that was read back.
    pub(super) fn release(&self) {
        self.ring.consumer().store(self.read, Ordering::Release);
    }

    fn look(&mut self) {
        let written = self.ring.producer().load(Ordering::Acquire);
        if written.wrapping_sub(self.read) <= self.ring.size {
            self.written = written;
        }
    }
}

/// What both kinds are: a mapping, and where things are in it.
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
    fn map(fd: BorrowedFd<'_>, at: u64, places: &Places, size: u32) -> io::Result<Self> {
        let nonsense = || io::Error::new(io::ErrorKind::InvalidData, "the kernel's rings are none");
        let place = |offset: u64, align: usize| {
            usize::try_from(offset).ok().filter(|offset| *offset < 1 << 20 && offset % align == 0).ok_or_else(nonsense)
        };
        let word = align_of::<AtomicU32>();
        let (producer, consumer) = (place(places.producer, word)?, place(places.consumer, word)?);
        let (flags, entries) = (place(places.flags, word)?, place(places.desc, align_of::<T>())?);
        if !size.is_power_of_two() {
            return Err(nonsense());
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
        let mapping = NonNull::new(mapping).ok_or_else(nonsense)?;
        // SAFETY: the mapping is as long as the furthest of these places and what is there, see above.
        let at = |offset: usize| unsafe { mapping.byte_add(offset) };
        Ok(Self {
            mapping,
            bytes,
            producer: at(producer).cast(),
            consumer: at(consumer).cast(),
            flags: at(flags).cast(),
            entries: at(entries).cast(),
            size,
        })
    }

    /// The place of the entry with this number, modulo the size.
    fn entry(&self, number: u32) -> NonNull<T> {
        // SAFETY: less than `size` entries from the first, and as many are in the mapping.
        unsafe { self.entries.add((number & (self.size - 1)) as usize) }
    }

    fn producer(&self) -> &AtomicU32 {
        // SAFETY: an aligned word of the mapping, which lives as long as `self`; both sides use it atomically.
        unsafe { self.producer.as_ref() }
    }

    fn consumer(&self) -> &AtomicU32 {
        // SAFETY: as above.
        unsafe { self.consumer.as_ref() }
    }

    fn flags(&self) -> &AtomicU32 {
        // SAFETY: as above.
        unsafe { self.flags.as_ref() }
    }
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
        let writer = Writer::map(fd.as_fd(), 0, &PLACES, size).unwrap();
        let reader = Reader::map(fd.as_fd(), 0, &PLACES, size).unwrap();
        (fd, writer, reader)
    }

    #[test]
    fn entries_arrive_in_order_over_and_over() {
        let (_fd, mut writer, mut reader) = both(8);
        let mut next = 0;
        for number in 0..1000_u64 {
            if writer.room(1) == 0 {
                writer.publish();
                assert!(!reader.is_empty());
                while let Some(entry) = reader.next() {
                    assert_eq!(entry, next);
                    next += 1;
                }
                reader.release();
                assert_eq!(writer.unread(), 0);
            }
            assert!(writer.room(1) > 0);
            writer.write(number);
        }
        assert_eq!(next, 992);
    }

    #[test]
    fn counters_that_are_nonsense_are_nothing_new() {
        let (_fd, mut writer, mut reader) = both(8);
        writer.write(7);
        writer.publish();
        // The kernel claims to have read more than was written, and to have written more than there is room for.
        writer.ring.consumer().store(5, Ordering::Release);
        assert_eq!((writer.unread(), writer.room(8)), (1, 7));
        reader.ring.producer().store(9, Ordering::Release);
        assert!(reader.is_empty());
        reader.ring.producer().store(1, Ordering::Release);
        assert!(!reader.is_empty());
        assert_eq!((reader.next(), reader.next()), (Some(7), None));
    }

    #[test]
    fn places_outside_the_mapping_are_refused() {
        let (fd, ..) = both(8);
        for places in [Places { producer: 2, ..PLACES }, Places { desc: u64::MAX, ..PLACES }] {
            assert!(Writer::<u64>::map(fd.as_fd(), 0, &places, 8).is_err());
        }
        assert!(Writer::<u64>::map(fd.as_fd(), 0, &PLACES, 7).is_err());
    }
}
