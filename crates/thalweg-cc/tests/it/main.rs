//! The congestion controls, outside a kernel.

mod replay;
