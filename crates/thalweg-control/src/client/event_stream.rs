//! Parser of server-sent events (WHATWG HTML, section 9.2.6, "Interpreting an event stream"). Sans-IO.

use thiserror::Error;

/// Longest event, in bytes: a status of thousands of sources is shorter.
pub const MAX_EVENT_BYTES: usize = 16 << 20;

/// An event.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServerEvent {
    /// Kind of the event; `message` where the stream names none.
    pub kind: String,
    /// Its data.
    pub data: String,
}

/// Reason why a stream cannot be read on.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum EventError {
    /// An event is too long.
    #[error("an event has more than {MAX_EVENT_BYTES} bytes")]
    TooLong,
}

/// Parser of a stream, which comes in pieces of any length.
#[derive(Debug, Default)]
pub struct EventParser {
    /// The present line, as far as it has come.
    line: Vec<u8>,
    kind: String,
    data: String,
    /// The last byte was a carriage return: a line feed after it belongs to the same end of a line.
    is_after_return: bool,
    has_begun: bool,
}

impl EventParser {
    /// Takes the next bytes of the stream. Returns the events that are complete with them.
    ///
    /// # Errors
    /// An event is too long: the stream is to be closed.
    pub fn push_bytes(&mut self, bytes: &[u8]) -> Result<Vec<ServerEvent>, EventError> {
        let mut events = Vec::new();
        for &byte in bytes {
            let ends_return = std::mem::replace(&mut self.is_after_return, byte == b'\r');
            match byte {
                b'\n' if ends_return => {}
                b'\n' | b'\r' => events.extend(self.end_line()),
                _ => self.line.push(byte),
            }
            if self.line.len() + self.data.len() > MAX_EVENT_BYTES {
                return Err(EventError::TooLong);
            }
        }
        Ok(events)
    }

    /// Interprets the line, which is complete. Returns the event that it ends.
    fn end_line(&mut self) -> Option<ServerEvent> {
        let line = std::mem::take(&mut self.line);
        let text = String::from_utf8_lossy(&line);
        // One leading byte order mark is left out.
        let is_first = !std::mem::replace(&mut self.has_begun, true);
        let text = if is_first { text.trim_start_matches('\u{feff}') } else { &text };
        if text.is_empty() {
            return self.end_event();
        }
        let (field, value) = text.split_once(':').unwrap_or((text, ""));
        let value = value.strip_prefix(' ').unwrap_or(value);
        match field {
            "event" => value.clone_into(&mut self.kind),
            "data" => {
                self.data.push_str(value);
                self.data.push('\n');
            }
            // Comments, ids, and times until a new attempt.
            _ => {}
        }
        None
    }

    /// Ends the event. One without data is none.
    fn end_event(&mut self) -> Option<ServerEvent> {
        let kind = std::mem::take(&mut self.kind);
        let mut data = std::mem::take(&mut self.data);
        data.pop()?;
        Some(ServerEvent { kind: if kind.is_empty() { "message".into() } else { kind }, data })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn parse(text: &str) -> Vec<(String, String)> {
        let events = EventParser::default().push_bytes(text.as_bytes()).unwrap();
        events.into_iter().map(|event| (event.kind, event.data)).collect()
    }

    fn event(kind: &str, data: &str) -> (String, String) {
        (kind.into(), data.into())
    }

    /// The examples of the standard's section 9.2.6.
    #[test]
    fn the_examples_of_the_standard_are_understood() {
        assert_eq!(parse("data: YHOO\ndata: +2\ndata: 10\n\n"), [event("message", "YHOO\n+2\n10")]);
        let four = ": test stream\n\ndata: first event\nid: 1\n\ndata:second event\nid\n\ndata:  third event\n\n";
        let expected =
            [event("message", "first event"), event("message", "second event"), event("message", " third event")];
        assert_eq!(parse(four), expected);
        assert_eq!(parse("data\n\ndata\ndata\n\ndata:"), [event("message", ""), event("message", "\n")]);
    }

    #[test]
    fn an_event_has_its_kind_and_an_unfinished_one_is_none() {
        assert_eq!(
            parse("event: status\r\ndata: {}\r\n\r\nevent: status\rdata: 1\r\rdata: 2"),
            [event("status", "{}"), event("status", "1"),]
        );
        assert_eq!(parse("event: status\n\ndata: x\n\n"), [event("message", "x")], "a kind without data is forgotten");
    }

    #[test]
    fn an_event_without_end_is_refused() {
        let mut parser = EventParser::default();
        let line = format!("data: {}\n", "x".repeat(1 << 20));
        let refused = (0..17).find_map(|_| parser.push_bytes(line.as_bytes()).err());
        assert_eq!(refused, Some(EventError::TooLong));
        let mut parser = EventParser::default();
        assert_eq!(parser.push_bytes(&vec![b'x'; MAX_EVENT_BYTES + 1]), Err(EventError::TooLong));
    }

    proptest! {
        /// Any bytes, in any pieces, give what they give at once.
        #[test]
        fn pieces_make_no_difference(bytes in proptest::collection::vec(prop_oneof![
            Just(b'\n'), Just(b'\r'), Just(b':'), Just(b' '), Just(b'd'), Just(b'a'), Just(b't'), any::<u8>()
        ], 0..200), cut in 0_usize..200) {
            let whole = EventParser::default().push_bytes(&bytes).unwrap();
            let (first, second) = bytes.split_at(cut.min(bytes.len()));
            let mut parser = EventParser::default();
            let mut pieces = parser.push_bytes(first).unwrap();
            pieces.extend(parser.push_bytes(second).unwrap());
            prop_assert_eq!(whole, pieces);
        }

        #[test]
        fn data_of_any_lines_come_back(lines in proptest::collection::vec("[^\r\n]{0,20}", 1..5)) {
            let text: String = lines.iter().map(|line| format!("data: {line}\n")).collect();
            prop_assert_eq!(parse(&format!("{text}\n")), [event("message", &lines.join("\n"))]);
        }
    }
}
