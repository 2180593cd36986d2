//! The head of a request: request line and header fields.

use http::header::{
    AUTHORIZATION, CONNECTION, CONTENT_LENGTH, CONTENT_RANGE, EXPECT, HOST, IF_MODIFIED_SINCE, IF_RANGE,
    IF_UNMODIFIED_SINCE, RANGE, TRANSFER_ENCODING,
};
use http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode};

/// Maximum length of a head, in bytes.
pub(crate) const MAX_HEAD_BYTES: usize = 16 << 10;
/// Maximum number of header fields.
const MAX_FIELDS: usize = 64;

/// A request without its body.
#[derive(Debug, Clone)]
pub(crate) struct Head {
    pub(crate) method: Method,
    /// Path as it was sent, without query, scheme and authority.
    pub(crate) path: String,
    pub(crate) query: String,
    pub(crate) fields: HeaderMap,
    /// Body that follows the head.
    pub(crate) body: Body,
    /// True if the client wants to keep the connection.
    pub(crate) keep: bool,
    /// Minor version of HTTP/1.
    pub(crate) version: u8,
}

/// Length of a request's body.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Body {
    /// Length in bytes; 0 if there is no body.
    Length(u64),
    /// Unknown length: the body comes in chunks.
    Chunks,
}

/// Status and sentence with which a malformed head is refused.
pub(crate) type Refusal = (StatusCode, &'static str);

/// Parses a head from the beginning of `bytes`. Returns it and its length in bytes, or `None` if it is incomplete.
pub(crate) fn parse_head(bytes: &[u8]) -> Result<Option<(Head, usize)>, Refusal> {
    let mut fields = [httparse::EMPTY_HEADER; MAX_FIELDS];
    let mut request = httparse::Request::new(&mut fields);
    let length = match request.parse(bytes) {
        Ok(httparse::Status::Complete(length)) => length,
        Ok(httparse::Status::Partial) if bytes.len() < MAX_HEAD_BYTES => return Ok(None),
        Ok(httparse::Status::Partial) if !bytes[..MAX_HEAD_BYTES].contains(&b'\n') => {
            return Err((StatusCode::URI_TOO_LONG, "the request line is longer than 16 KiB"));
        }
        Ok(httparse::Status::Partial) => return Err((TOO_LARGE, "the request header is longer than 16 KiB")),
        Err(httparse::Error::TooManyHeaders) => return Err((TOO_LARGE, "there are more than 64 header fields")),
        Err(httparse::Error::Version) => {
            return match with_known_version(bytes) {
                Some(known) => parse_head(&known),
                None if contains_version(bytes) => Err((UNKNOWN_VERSION, "this server speaks HTTP/1.1")),
                None => Err((BAD, "this is not an HTTP/1.1 request")),
            };
        }
        Err(_) => return Err((BAD, "this is not an HTTP/1.1 request")),
    };
    if bytes[..length].iter().zip(&bytes[1..length]).any(|(before, byte)| *byte == b'\n' && *before != b'\r') {
        return Err((BAD, "a line ends with LF instead of CR LF"));
    }
    let method = request.method.and_then(|name| Method::from_bytes(name.as_bytes()).ok());
    let method = method.ok_or((BAD, "the method is not a token"))?;
    let version = request.version.unwrap_or(0);
    let (path, query) = parse_target(request.path.unwrap_or_default(), &method)?;
    let mut map = HeaderMap::with_capacity(request.headers.len());
    for field in request.headers.iter() {
        let name =
            HeaderName::from_bytes(field.name.as_bytes()).map_err(|_| (BAD, "a header field has an invalid name"))?;
        let value = HeaderValue::from_bytes(field.value).map_err(|_| (BAD, "a header field has an invalid value"))?;
        if SINGLE_VALUE_FIELDS.contains(&name) && map.contains_key(&name) {
            return Err((BAD, "a header field that allows one value is present twice"));
        }
        map.append(name, value);
    }
    match map.get(HOST).map(HeaderValue::to_str) {
        None if version > 0 => return Err((BAD, "the Host field is missing")),
        Some(Ok(host)) if !host.is_empty() && !is_host_and_port(host) => {
            return Err((BAD, "the Host field names no host"));
        }
        Some(Err(_)) => return Err((BAD, "the Host field names no host")),
        _ => {}
    }
    let body = body_length(&map, version)?;
    let keep = keeps_connection(&map, version);
    Ok(Some((Head { method, path, query, fields: map, body, keep, version }, length)))
}

/// Returns a head of HTTP/1.2 to 1.9 as HTTP/1.1 (RFC 9110, section 2.5), or `None` if it is no such head.
fn with_known_version(bytes: &[u8]) -> Option<Vec<u8>> {
    let begin = bytes.iter().position(|byte| !b"\r\n".contains(byte))?;
    // The line may still be incomplete.
    let end = bytes[begin..].iter().position(|byte| *byte == b'\r').map_or(bytes.len(), |length| begin + length);
    let minor = end.checked_sub(1).filter(|at| matches!(bytes[*at], b'2'..=b'9'))?;
    bytes[begin..minor].ends_with(b" HTTP/1.").then(|| {
        let mut known = bytes.to_vec();
        known[minor] = b'1';
        known
    })
}

/// Returns whether a version stands in its place, after method and target.
fn contains_version(bytes: &[u8]) -> bool {
    let mut words = bytes.split(|byte| *byte == b' ');
    words.nth(2).is_some_and(|word| word.starts_with(b"HTTP/"))
}

/// Returns path and query of a request's target (RFC 9112, section 3.2): in origin form, in absolute form as through a
/// proxy, or `*` for the server as a whole (`OPTIONS *`).
fn parse_target(target: &str, method: &Method) -> Result<(String, String), Refusal> {
    let refused = (BAD, "the request target is not a path");
    let origin = match target.split_once("://") {
        Some((scheme, rest)) if scheme.eq_ignore_ascii_case("http") || scheme.eq_ignore_ascii_case("https") => {
            let (host, path) = rest.split_at(rest.find(['/', '?']).unwrap_or(rest.len()));
            if !is_host_and_port(host) {
                return Err(refused);
            }
            if path.starts_with('/') { path.to_owned() } else { format!("/{path}") }
        }
        _ if target == "*" && method == Method::OPTIONS => "/".to_owned(),
        _ => target.to_owned(),
    };
    if !origin.starts_with('/') || origin.contains('#') || !is_percent_encoded(&origin) {
        return Err(refused);
    }
    let (path, query) = origin.split_once('?').unwrap_or((&origin, ""));
    Ok((path.to_owned(), query.to_owned()))
}

/// Returns whether two hexadecimal digits follow each percent sign (RFC 3986, section 2.1).
fn is_percent_encoded(text: &str) -> bool {
    let mut codes = text.split('%').skip(1);
    codes.all(|code| code.as_bytes().first_chunk::<2>().is_some_and(|hex| hex.iter().all(u8::is_ascii_hexdigit)))
}

/// Returns whether a text has the form `host` or `host:port` (RFC 3986, section 3.2.2). This server answers for any
/// host.
fn is_host_and_port(text: &str) -> bool {
    let authority: Result<http::uri::Authority, _> = text.parse();
    authority.is_ok_and(|authority| {
        let host = authority.host();
        let port = text.strip_prefix(host).map(|rest| rest.strip_prefix(':').unwrap_or(rest));
        !host.is_empty() && port.is_some_and(|port| port.bytes().all(|byte| byte.is_ascii_digit()))
    })
}

/// Returns the length of the body (RFC 9112, section 6.3). Ambiguous fields are refused: a proxy before this server
/// might read them differently.
fn body_length(fields: &HeaderMap, version: u8) -> Result<Body, Refusal> {
    let length = fields.get(CONTENT_LENGTH).map(|length| {
        let digits = length.to_str().ok().filter(|text| text.bytes().all(|byte| byte.is_ascii_digit()));
        digits.and_then(|text| text.parse().ok()).ok_or((BAD, "Content-Length is not a number"))
    });
    let codings = fields.get_all(TRANSFER_ENCODING).iter().map(|value| value.to_str().unwrap_or("?"));
    let codings: Vec<_> = codings.flat_map(|value| value.split(',')).map(str::trim).collect();
    match (codings.split_last(), length.transpose()?) {
        (None, length) => Ok(Body::Length(length.unwrap_or(0))),
        (Some(_), Some(_)) => Err((BAD, "both Content-Length and Transfer-Encoding are present")),
        (Some(_), None) if version == 0 => Err((BAD, "HTTP/1.0 has no Transfer-Encoding")),
        (Some((last, before)), None) => {
            if !is_chunked_coding(last) || before.iter().any(|coding| is_chunked_coding(coding)) {
                Err((BAD, "the end of the body is unknown: its last coding, and only that, must be chunked"))
            } else if before.is_empty() {
                Ok(Body::Chunks)
            } else {
                Err((StatusCode::NOT_IMPLEMENTED, "the only supported transfer coding is chunked"))
            }
        }
    }
}

fn is_chunked_coding(coding: &str) -> bool {
    coding.eq_ignore_ascii_case("chunked")
}

/// Returns whether the connection stays open after the request: in HTTP/1.0, only if the client asks for it.
fn keeps_connection(fields: &HeaderMap, version: u8) -> bool {
    !has_connection_option(fields, "close") && (version > 0 || has_connection_option(fields, "keep-alive"))
}

fn has_connection_option(fields: &HeaderMap, option: &str) -> bool {
    let values = fields.get_all(CONNECTION).iter().filter_map(|value| value.to_str().ok());
    values.flat_map(|value| value.split(',')).any(|known| known.trim().eq_ignore_ascii_case(option))
}

/// Fields that may have only one value. Of two values, another reader might take the other (RFC 9110, section 5.3).
const SINGLE_VALUE_FIELDS: [HeaderName; 9] = [
    AUTHORIZATION,
    CONTENT_LENGTH,
    CONTENT_RANGE,
    EXPECT,
    HOST,
    IF_MODIFIED_SINCE,
    IF_RANGE,
    IF_UNMODIFIED_SINCE,
    RANGE,
];
const BAD: StatusCode = StatusCode::BAD_REQUEST;
const UNKNOWN_VERSION: StatusCode = StatusCode::HTTP_VERSION_NOT_SUPPORTED;
const TOO_LARGE: StatusCode = StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE;

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn head(text: &str) -> Head {
        parse_head(text.as_bytes()).unwrap().unwrap().0
    }

    #[track_caller]
    fn refused(text: &str, status: u16) {
        assert_eq!(parse_head(text.as_bytes()).unwrap_err().0.as_u16(), status, "{text:?}");
    }

    #[test]
    fn a_request_is_read() {
        let text = "GET /a%20b?format=json HTTP/1.1\r\nHost: x\r\nRange: bytes=0-1\r\n\r\nrest";
        let (head, length) = parse_head(text.as_bytes()).unwrap().unwrap();
        assert_eq!((head.method, head.path.as_str(), head.query.as_str()), (Method::GET, "/a%20b", "format=json"));
        assert_eq!(&text[length..], "rest");
        assert!(head.keep);
        assert_eq!(head.body, Body::Length(0));
    }

    #[test]
    fn a_head_may_come_in_pieces() {
        for text in [b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", b"GET / HTTP/1.3\r\nHost: x\r\n\r\n"] {
            for length in 0..text.len() {
                assert!(parse_head(&text[..length]).unwrap().is_none(), "{length}");
            }
        }
    }

    #[test]
    fn targets_may_be_absolute() {
        assert_eq!(head("GET http://a:80/b?c HTTP/1.1\r\nHost: a\r\n\r\n").path, "/b");
        assert_eq!(head("GET http://a HTTP/1.1\r\nHost: a\r\n\r\n").path, "/");
        assert_eq!(head("GET http://a?c HTTP/1.1\r\nHost: a\r\n\r\n").query, "c");
        assert_eq!(head("OPTIONS * HTTP/1.1\r\nHost: a\r\n\r\n").path, "/");
        refused("GET * HTTP/1.1\r\nHost: a\r\n\r\n", 400);
        refused("GET http:///b HTTP/1.1\r\nHost: a\r\n\r\n", 400);
        refused("GET b HTTP/1.1\r\nHost: a\r\n\r\n", 400);
        refused("GET /a#b HTTP/1.1\r\nHost: a\r\n\r\n", 400);
        refused("GET /%zz HTTP/1.1\r\nHost: a\r\n\r\n", 400);
        refused("GET /%a HTTP/1.1\r\nHost: a\r\n\r\n", 400);
        refused("CONNECT a:80 HTTP/1.1\r\nHost: a\r\n\r\n", 400);
    }

    #[test]
    fn what_could_be_understood_in_two_ways_is_refused() {
        refused("GET / HTTP/1.1\r\n\r\n", 400);
        refused("GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n", 400);
        refused("PUT / HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\nContent-Length: 1\r\n\r\n", 400);
        refused("PUT / HTTP/1.1\r\nHost: a\r\nContent-Length: +1\r\n\r\n", 400);
        refused("PUT / HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n", 400);
        refused("PUT / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: gzip\r\n\r\n", 400);
        refused("PUT / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked, chunked\r\n\r\n", 400);
        refused("PUT / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: gzip, chunked\r\n\r\n", 501);
        refused("PUT / HTTP/1.0\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n", 400);
        refused("GET / HTTP/1.1\r\nHost: a\r\nRange: bytes=0-1\r\nRange: bytes=2-3\r\n\r\n", 400);
        refused("GET / HTTP/1.1\r\nHost: a\nA: b\r\n\r\n", 400);
        for host in ["a b", "a/b", "a@b", "a:b", ":80", "a:80:80", "[::1", "\u{e4}"] {
            refused(&format!("GET / HTTP/1.1\r\nHost: {host}\r\n\r\n"), 400);
        }
        refused("GET / HTTP/2.0\r\nHost: a\r\n\r\n", 505);
        refused("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 505);
        refused("\u{16}\u{3}\u{1}", 400);
    }

    #[test]
    fn a_host_is_a_name_or_an_address_and_a_port() {
        for host in ["", "a", "a:80", "a:", "1.2.3.4:80", "[::1]", "[::1]:80", "a-b.c_d"] {
            head(&format!("GET / HTTP/1.1\r\nHost: {host}\r\n\r\n"));
        }
    }

    #[test]
    fn a_later_version_of_http_1_is_taken_for_the_latest_that_is_known() {
        let later = head("\r\nGET /a HTTP/1.7\r\nHost: a\r\n\r\n");
        assert_eq!((later.path.as_str(), later.version, later.keep), ("/a", 1, true));
        refused("GET / HTTP/1.12\r\nHost: a\r\n\r\n", 400);
    }

    #[test]
    fn floods_are_refused() {
        let many = "a: b\r\n".repeat(65);
        refused(&format!("GET / HTTP/1.1\r\nHost: x\r\n{many}\r\n"), 431);
        refused(&format!("GET /{} HTTP/1.1\r\n", "a".repeat(MAX_HEAD_BYTES)), 414);
        refused(&format!("GET / HTTP/1.1\r\nA: {}\r\n", "a".repeat(MAX_HEAD_BYTES)), 431);
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
            let _ = parse_head(&bytes);
            let mut text = b"GET / HTTP/1.1\r\nHost: ".to_vec();
            text.extend(bytes);
            let _ = parse_head(&text);
        }
    }
}
