//! The Python package
