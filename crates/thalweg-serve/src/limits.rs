//! Time limits for clients.

use std::time::Duration;

/// Time limit of a request's head, from its first byte on, and of a TLS handshake.
pub(crate) const HEAD_TIME: Duration = Duration::from_secs(10);
/// Time during which bytes that a refused client still sends are discarded.
pub(crate) const LINGER_TIME: Duration = Duration::from_secs(2);
