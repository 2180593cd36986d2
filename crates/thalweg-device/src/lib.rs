//! Where bytes begin: replayed recordings and model digitizers
