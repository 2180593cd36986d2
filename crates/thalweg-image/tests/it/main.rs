//! Images of real beams.

mod beams;
