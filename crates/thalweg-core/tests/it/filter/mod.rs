//! Trigger levels, from outside.

mod program;
