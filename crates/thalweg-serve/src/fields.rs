//! Header field names that the `http` crate lacks.

use http::HeaderName;

/// `Repr-Digest` (RFC 9530).
pub(crate) const REPR_DIGEST: HeaderName = HeaderName::from_static("repr-digest");
/// `Digest` (RFC 3230).
pub(crate) const DIGEST: HeaderName = HeaderName::from_static("digest");
