//! RDMAP, DDP and MPA as a peer sees them.

mod capture;
mod closing;
mod ends;
mod fpdu;
mod headers;
mod hostile;
mod model;
mod operations;
mod rules;
mod startup;
