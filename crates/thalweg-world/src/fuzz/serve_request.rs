//! A request to the data server is refused, or means the same however it comes in, and asks for nothing that is not
//! there.

/// Tries one input.
pub fn run(bytes: &[u8]) {
    thalweg_serve::fuzz::check_request(bytes);
    // A fuzzer does not guess words: behind these the fields are reached.
    thalweg_serve::fuzz::check_request(&[b"PUT /a HTTP/1.1\r\nHost: a\r\nRange: bytes=", bytes, b"\r\n\r\n"].concat());
}
