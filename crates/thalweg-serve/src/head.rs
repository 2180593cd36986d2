//! The head of a request: its line and its header fields.

use http::header::{CONNECTION, CONTENT_LENGTH, HOST, TRANSFER_ENCODING};
use http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode};

/// Bytes that a head may have.
pub(crate) const MOST_BYTES: usize = 16 << 10;
/// Header fields that it may have.
const MOST_FIELDS: usize = 64;

/// A request without its body.
#[derive(Debug, Clone)]
pub(crate) struct Head {
    pub(crate) method: Method,
    /// As it was sent, without the query, and without scheme and authority.
    pub(crate) path: String,
    pub(crate) query: String,
    pub(crate) fields: HeaderMap,
    /// What the client will send behind it.
    pub(crate) body: Body,
    /// Whether the client wants to go on with this connection.
    pub(crate) keep: bool,
    /// Minor version of HTTP/1.
    pub(crate) version: u8,
}

/// How long a request's body is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Body {
    /// Bytes; 0 for none.
    Length(u64),
    /// Nobody knows: it comes in chunks.
    Chunks,
}

/// A head that is refused, with the status that says why and a sentence.
pub(crate) type Refused = (StatusCode, &'static str);

/// Reads a head from the beginning of `bytes`: it, and how long it is; nothing while its end has not come.
pub(crate) fn parse(bytes: &[u8]) -> Result<Option<(Head, usize)>, Refused> {
    let mut fields = [httparse::EMPTY_HEADER; MOST_FIELDS];
    let mut request = httparse::Request::new(&mut fields);
    let length = match request.parse(bytes) {
        Ok(httparse::Status::Complete(length)) => length,
        Ok(httparse::Status::Partial) if bytes.len() < MOST_BYTES => return Ok(None),
        Ok(httparse::Status::Partial) => return Err((TOO_LARGE, "the request's head is longer than 16 KiB")),
        Err(httparse::Error::TooManyHeaders) => return Err((TOO_LARGE, "there are more than 64 header fields")),
        Err(httparse::Error::Version) => {
            return Err((StatusCode::HTTP_VERSION_NOT_SUPPORTED, "this server speaks HTTP/1.1"));
        }
        Err(_) => return Err((BAD, "this is not an HTTP/1.1 request")),
    };
    let method = request.method.and_then(|name| Method::from_bytes(name.as_bytes()).ok());
    let method = method.ok_or((BAD, "the method is not a token"))?;
    let version = request.version.unwrap_or(0);
    let (path, query) = target(request.path.unwrap_or_default())?;
    let mut map = HeaderMap::with_capacity(request.headers.len());
    for field in request.headers.iter() {
        let name =
            HeaderName::from_bytes(field.name.as_bytes()).map_err(|_| (BAD, "a header field's name is not one"))?;
        let value = HeaderValue::from_bytes(field.value).map_err(|_| (BAD, "a header field's value is not one"))?;
        map.append(name, value);
    }
    let hosts = map.get_all(HOST).iter().count();
    if hosts > 1 || (hosts == 0 && version > 0) {
        return Err((BAD, "there must be one Host field"));
    }
    let body = body(&map)?;
    let keep = keeps(&map, version);
    Ok(Some((Head { method, path, query, fields: map, body, keep, version }, length)))
}

/// Path and query of a request's target (RFC 9112, section 3.2): in origin form, or absolute as through a proxy.
fn target(target: &str) -> Result<(String, String), Refused> {
    let refused = Err((BAD, "the request's target is not a path"));
    let origin = match target.split_once("://") {
        Some((scheme, rest)) if scheme.eq_ignore_ascii_case("http") || scheme.eq_ignore_ascii_case("https") => {
            rest.find('/').map_or("/", |slash| &rest[slash..])
        }
        _ if target == "*" => "/",
        _ => target,
    };
    if !origin.starts_with('/') {
        return refused;
    }
    let (path, query) = origin.split_once('?').unwrap_or((origin, ""));
    Ok((path.to_owned(), query.to_owned()))
}

/// RFC 9112, section 6.3. What two readers could understand in two ways is refused: a proxy in front of us might be the other one.
fn body(fields: &HeaderMap) -> Result<Body, Refused> {
    let mut lengths = fields.get_all(CONTENT_LENGTH).iter();
    let length = match (lengths.next(), lengths.next()) {
        (None, _) => None,
        (Some(_), Some(_)) => return Err((BAD, "there is more than one Content-Length")),
        (Some(length), None) => {
            let digits = length.to_str().ok().filter(|text| text.bytes().all(|byte| byte.is_ascii_digit()));
            Some(digits.and_then(|text| text.parse().ok()).ok_or((BAD, "Content-Length is not a number"))?)
        }
    };
    match (fields.contains_key(TRANSFER_ENCODING), length) {
        (true, Some(_)) => Err((BAD, "there are both Content-Length and Transfer-Encoding")),
        (true, None) => Ok(Body::Chunks),
        (false, length) => Ok(Body::Length(length.unwrap_or(0))),
    }
}

fn keeps(fields: &HeaderMap, version: u8) -> bool {
    let says = |what: &str| {
        let values = fields.get_all(CONNECTION).iter().filter_map(|value| value.to_str().ok());
        values.flat_map(|value| value.split(',')).any(|option| option.trim().eq_ignore_ascii_case(what))
    };
    if version == 0 { says("keep-alive") && !says("close") } else { !says("close") }
}

const BAD: StatusCode = StatusCode::BAD_REQUEST;
const TOO_LARGE: StatusCode = StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE;

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn head(text: &str) -> Head {
        parse(text.as_bytes()).unwrap().unwrap().0
    }

    #[track_caller]
    fn refused(text: &str, status: u16) {
        assert_eq!(parse(text.as_bytes()).unwrap_err().0.as_u16(), status, "{text:?}");
    }

    #[test]
    fn a_request_is_read() {
        let text = "GET /a%20b?format=json HTTP/1.1\r\nHost: x\r\nRange: bytes=0-1\r\n\r\nrest";
        let (head, length) = parse(text.as_bytes()).unwrap().unwrap();
        assert_eq!((head.method, head.path.as_str(), head.query.as_str()), (Method::GET, "/a%20b", "format=json"));
        assert_eq!(&text[length..], "rest");
        assert!(head.keep);
        assert_eq!(head.body, Body::Length(0));
    }

    #[test]
    fn a_head_may_come_in_pieces() {
        let text = b"GET / HTTP/1.1\r\nHost: x\r\n\r\n";
        for length in 0..text.len() {
            assert!(parse(&text[..length]).unwrap().is_none(), "{length}");
        }
    }

    #[test]
    fn targets_may_be_absolute() {
        assert_eq!(head("GET http://a:80/b?c HTTP/1.1\r\nHost: a\r\n\r\n").path, "/b");
        assert_eq!(head("GET http://a HTTP/1.1\r\nHost: a\r\n\r\n").path, "/");
        refused("GET b HTTP/1.1\r\nHost: a\r\n\r\n", 400);
        refused("CONNECT a:80 HTTP/1.1\r\nHost: a\r\n\r\n", 400);
    }

    #[test]
    fn what_could_be_understood_in_two_ways_is_refused() {
        refused("GET / HTTP/1.1\r\n\r\n", 400);
        refused("GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n", 400);
        refused("PUT / HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\nContent-Length: 1\r\n\r\n", 400);
        refused("PUT / HTTP/1.1\r\nHost: a\r\nContent-Length: +1\r\n\r\n", 400);
        refused("PUT / HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n", 400);
        refused("GET / HTTP/2.0\r\nHost: a\r\n\r\n", 505);
        refused("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 505);
        refused("\u{16}\u{3}\u{1}", 400);
    }

    #[test]
    fn floods_are_refused() {
        let many = "a: b\r\n".repeat(65);
        refused(&format!("GET / HTTP/1.1\r\nHost: x\r\n{many}\r\n"), 431);
        refused(&format!("GET /{} HTTP/1.1\r\n", "a".repeat(MOST_BYTES)), 431);
    }

    #[test]
    fn a_connection_is_kept_as_the_version_says() {
        assert!(!head("GET / HTTP/1.0\r\n\r\n").keep);
        assert!(head("GET / HTTP/1.0\r\nConnection: Keep-Alive\r\n\r\n").keep);
        assert!(!head("GET / HTTP/1.1\r\nHost: a\r\nConnection: foo, close\r\n\r\n").keep);
    }

    proptest! {
        #[test]
        fn no_bytes_make_it_panic(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
            let _ = parse(&bytes);
            let mut text = b"GET / HTTP/1.1\r\nHost: ".to_vec();
            text.extend(bytes);
            let _ = parse(&text);
        }
    }
}
