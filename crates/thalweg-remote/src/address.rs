//! Parts of a URL: the server, a path on it, and names beneath, encoded as each side expects.

use crate::RemoteError;
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, percent_decode_str, utf8_percent_encode};
use ureq::http::Uri;

/// A resource on a server: its path beneath the server's own URL, and a query. A `&str` is a path without a query.
#[derive(Debug, Clone, Copy)]
pub struct Resource<'a> {
    /// Path, such as `run-000042/run.json`; empty for the server's own URL. Not percent-encoded.
    pub path: &'a str,
    /// Names and values after the question mark; a name with an empty value stands alone.
    pub query: &'a [(&'a str, &'a str)],
}

impl<'a> From<&'a str> for Resource<'a> {
    fn from(path: &'a str) -> Self {
        Self { path, query: &[] }
    }
}

impl<'a> From<&'a String> for Resource<'a> {
    fn from(path: &'a String) -> Self {
        Self::from(path.as_str())
    }
}

/// The URL that all others are beneath: `http://host:port/a/b/`.
#[derive(Debug, Clone)]
pub(crate) struct Address {
    /// URL with a slash at its end.
    base: String,
    secure: bool,
    loopback: bool,
}

impl Address {
    pub(crate) fn parse(url: &str) -> Result<Self, RemoteError> {
        Self::parse_parts(url).map_err(|why| RemoteError::Url { url: url.to_owned(), why })
    }

    /// Parses a URL, or returns the reason why it is invalid.
    fn parse_parts(url: &str) -> Result<Self, &'static str> {
        const WRONG_SCHEME: &str = "it must begin with http:// or https://";
        if !url.contains("://") {
            return Err(WRONG_SCHEME);
        }
        let uri: Uri = url.parse().map_err(|_| "it is not a URL; write spaces and other special characters as %20")?;
        let secure = match uri.scheme_str() {
            Some("http") => false,
            Some("https") => true,
            _ => return Err(WRONG_SCHEME),
        };
        let authority = uri.authority().filter(|authority| !authority.host().is_empty());
        let authority = authority.ok_or("it has no host name")?;
        if authority.as_str().contains('@') {
            return Err(
                "a user name before the host is not supported; use a token (--token-file, THALWEG_TOKEN; token= in \
                 Python)",
            );
        }
        // The library ignores a port that it cannot parse, and would use the scheme's own.
        let after_host = authority.as_str().strip_prefix(authority.host()).unwrap_or_default();
        if !after_host.is_empty() && !after_host.strip_prefix(':').is_some_and(is_valid_port) {
            return Err("the port after the host's colon must be a number from 1 to 65535");
        }
        if uri.query().is_some() || url.contains('#') {
            return Err("it must not contain ? or #");
        }
        let loopback = matches!(authority.host(), "localhost" | "[::1]") || authority.host().starts_with("127.");
        let base =
            format!("{}://{authority}{}/", uri.scheme_str().unwrap_or_default(), uri.path().trim_end_matches('/'));
        Ok(Self { base, secure, loopback })
    }

    /// Returns the URL as that of a file: without a slash at its end. The URL of a whole server keeps it.
    pub(crate) fn url_as_file(&self) -> &str {
        let path = self.base.splitn(4, '/').nth(3).unwrap_or_default();
        if path.is_empty() { &self.base } else { self.base.trim_end_matches('/') }
    }

    /// Returns the last name in the URL, decoded, or `None` if it names a whole server.
    pub(crate) fn last_name(&self) -> Option<String> {
        let path = self.base.splitn(4, '/').nth(3)?.trim_end_matches('/');
        let name = path.rsplit('/').next().filter(|name| !name.is_empty())?;
        Some(percent_decode_str(name).decode_utf8().ok()?.into_owned())
    }

    /// Returns the address of a path beneath this one.
    pub(crate) fn beneath_path(&self, path: &str) -> Self {
        Self { base: format!("{}/", self.url_of_resource(path.into()).trim_end_matches('/')), ..self.clone() }
    }

    /// Returns the address of another name in the same directory.
    pub(crate) fn beside_name(&self, name: &str) -> Self {
        let base = self.base.trim_end_matches('/');
        let parent = base.rsplit_once('/').map_or(base, |(parent, _)| parent);
        Self { base: format!("{parent}/"), ..self.clone() }.beneath_path(name)
    }

    /// Returns the URL of a resource beneath this address.
    pub(crate) fn url_of_resource(&self, Resource { path, query }: Resource<'_>) -> String {
        let mut url = if path.is_empty() {
            self.url_as_file().to_owned()
        } else {
            format!("{}{}", self.base, utf8_percent_encode(path.trim_start_matches('/'), PATH))
        };
        for (index, (name, value)) in query.iter().enumerate() {
            url.push(if index == 0 { '?' } else { '&' });
            url.extend(utf8_percent_encode(name, NAME));
            if !value.is_empty() {
                url.push('=');
                url.extend(utf8_percent_encode(value, NAME));
            }
        }
        url
    }

    /// Returns whether others can read the traffic: it uses neither TLS nor the loopback interface.
    pub(crate) fn can_be_intercepted(&self) -> bool {
        !self.secure && !self.loopback
    }
}

fn is_valid_port(text: &str) -> bool {
    text.starts_with(|first: char| first.is_ascii_digit()) && text.parse::<u16>().is_ok_and(|port| port > 0)
}

/// Characters that are encoded in a name: all but the unreserved characters of RFC 3986, section 2.3.
const NAME: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~');
/// Characters that are encoded in a path: the same, except for its slashes.
const PATH: &AsciiSet = &NAME.remove(b'/');

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_encoded_and_what_the_user_wrote_stays() {
        let server = Address::parse("http://[::1]:8080/2026%20a/x").unwrap();
        assert_eq!(server.url_of_resource("".into()), "http://[::1]:8080/2026%20a/x");
        assert_eq!(server.url_of_resource("/".into()), "http://[::1]:8080/2026%20a/x/");
        assert_eq!(
            server.url_of_resource("é #1?/50%.seg".into()),
            "http://[::1]:8080/2026%20a/x/%C3%A9%20%231%3F/50%25.seg"
        );
        let query = &[("source", "adc 0&1"), ("upload", "")];
        let url = server.url_of_resource(Resource { path: "events/1..3", query });
        assert_eq!(url, "http://[::1]:8080/2026%20a/x/events/1..3?source=adc%200%261&upload");
        assert_eq!(server.last_name().as_deref(), Some("x"));
        assert_eq!(server.beneath_path("b/").url_of_resource("c".into()), "http://[::1]:8080/2026%20a/x/b/c");
        for url in ["http://h", "http://h/", "HTTP://h"] {
            let server = Address::parse(url).unwrap();
            assert_eq!((server.url_of_resource("".into()).as_str(), server.last_name()), ("http://h/", None));
            assert_eq!(server.url_of_resource("a".into()), "http://h/a");
        }
        assert_eq!(Address::parse("http://h/a%20b/").unwrap().last_name().as_deref(), Some("a b"));
    }

    #[test]
    fn what_is_no_place_on_a_server_is_refused() {
        for url in [
            "",
            "h/a",
            "ftp://h/a",
            "http://",
            "http:///a",
            "http://u:p@h/",
            "http://h/?a",
            "http://h/#a",
            "http://h/a b",
            "http://127.0.0.1:99999/x",
            "http://127.0.0.1:abc/x",
            "http://127.0.0.1:-1/x",
            "http://127.0.0.1:0/x",
            "http://127.0.0.1:+80/x",
            "http://127.0.0.1:/x",
            "http://[::1]:65536/x",
        ] {
            assert!(matches!(Address::parse(url), Err(RemoteError::Url { .. })), "{url}");
        }
    }

    #[test]
    fn it_is_known_who_can_read_along() {
        let overheard = |url| Address::parse(url).unwrap().can_be_intercepted();
        assert!(overheard("http://storage/") && overheard("http://10.0.0.1/"));
        assert!(!overheard("https://storage/") && !overheard("http://127.0.0.1:80/") && !overheard("http://[::1]/"));
    }
}
