//! Instruments, over real sockets.

mod listening;
