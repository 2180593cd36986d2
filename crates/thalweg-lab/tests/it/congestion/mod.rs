//! Tests of the congestion controls, outside a kernel.

mod replay;
