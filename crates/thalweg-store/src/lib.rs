//! Runs on disk: format, recorder, reader, verify, recovery
