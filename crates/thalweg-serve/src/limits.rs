//! How long clients may take.

use std::time::Duration;

/// How long a request's head may take from its first byte on, and a TLS handshake.
pub(crate) const HEAD_TIME: Duration = Duration::from_secs(10);
/// How long what a refused client still sends is thrown away.
pub(crate) const LINGER: Duration = Duration::from_secs(2);
