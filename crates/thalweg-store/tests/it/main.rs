//! Runs: written, damaged and read.

mod agree;
mod bounded;
mod builders;
mod common;
mod damage;
mod elsewhere;
mod follow;
mod power;
mod write_and_read;
