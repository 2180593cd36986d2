//! The decisions, driven from outside as nodes drive them.

mod build;
mod control;
mod filter;
