//! RDMAP, DDP and MPA as a peer sees them.

mod ends;
mod fpdu;
mod headers;
mod model;
mod operations;
mod rules;
mod startup;
