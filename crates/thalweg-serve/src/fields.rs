//! Header fields that the library has no names for.

use http::HeaderName;

/// RFC 9530.
pub(crate) const REPR_DIGEST: HeaderName = HeaderName::from_static("repr-digest");
/// RFC 3230.
pub(crate) const DIGEST: HeaderName = HeaderName::from_static("digest");
