//! Control messages of sendmsg(2) and recvmsg(2): cmsg(3).

use std::mem::{MaybeUninit, size_of};

/// Room for the control messages of one call: an error with its address, and a number or two.
#[repr(C, align(8))]
#[derive(Clone, Copy)]
pub(crate) struct Room(pub(crate) [MaybeUninit<u8>; 128]);

impl Room {
    pub(crate) const EMPTY: Self = Self([MaybeUninit::uninit(); 128]);
}

/// Writes a control message with one number, and returns the number of bytes of `room` that it takes.
pub(crate) fn write_u16_message(room: &mut Room, level: i32, kind: i32, value: u16) -> usize {
    let length = (size_of::<libc::cmsghdr>() + size_of::<u16>()).next_multiple_of(8);
    let header = room.0.as_mut_ptr().cast::<libc::cmsghdr>();
    // SAFETY: `Room` is aligned for and larger than a header and a number, for which every bit pattern is valid.
    unsafe {
        header.write(libc::cmsghdr {
            cmsg_len: size_of::<libc::cmsghdr>() + size_of::<u16>(),
            cmsg_level: level,
            cmsg_type: kind,
        });
    }
    // SAFETY: the number lies after the header, inside `Room`.
    let number = unsafe { header.add(1) }.cast::<u16>();
    // SAFETY: as above; it need not be aligned.
    unsafe { number.write_unaligned(value) };
    length
}

/// Calls `each` with level, kind and content of the control messages in the first `length` bytes of `room`, which the
/// kernel has written.
pub(crate) fn for_each_message(room: &Room, length: usize, mut each: impl FnMut(i32, i32, &[u8])) {
    let length = length.min(room.0.len());
    // SAFETY: the kernel has written the first `length` bytes (recvmsg(2): `msg_controllen`).
    let bytes = unsafe { std::slice::from_raw_parts(room.0.as_ptr().cast::<u8>(), length) };
    let mut at = 0;
    while let Some(header) = bytes.get(at..at + size_of::<libc::cmsghdr>()) {
        // SAFETY: as many bytes as a header has, all initialised; every bit pattern of its integers is valid.
        let header = unsafe { header.as_ptr().cast::<libc::cmsghdr>().read_unaligned() };
        let Some(content) = bytes.get(at + size_of::<libc::cmsghdr>()..at.saturating_add(header.cmsg_len)) else {
            break;
        };
        each(header.cmsg_level, header.cmsg_type, content);
        at += header.cmsg_len.next_multiple_of(8);
    }
}

/// Reads the number at the beginning of a control message.
pub(crate) fn read_number(content: &[u8]) -> Option<u32> {
    content.first_chunk().map(|bytes| u32::from_ne_bytes(*bytes))
}
