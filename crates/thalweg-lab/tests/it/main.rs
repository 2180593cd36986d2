//! The instruments, from outside.

mod congestion;
