//! The connection manager of the kernel, as librdmacm uses it.

use libc::{c_int, c_void};

pub(crate) unsafe extern "C" fn write_manager(_fd: c_int, _bytes: *const c_void, _length: usize) -> isize {
    crate::set_errno(libc::ENOSYS);
    -1
}

pub(crate) unsafe extern "C" fn close_manager(_fd: c_int) {}
