//! `thalweg cat`: prints events and fragments, one by one.

use super::place::{explained_error, open_run};
use crate::print;
use crate::terminal::{Failure, Output, outlet};
use serde::Serialize;
use std::fmt::{Display, Formatter, Write};
use std::io::IsTerminal;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;
use thalweg_store::{End, Event, EventStatus, Follow, Followed, Run, RunInfo, RunState, StoreError, WriterLife};
use thalweg_text::{format_count, format_quantity, format_size, format_tai, replace_controls, wrap_words};
use thalweg_wire::{EventId, EventRange, FragmentHeader, Meaning, NumberKind, PayloadType, SourceId, Status};

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Prints one line per event, then one per fragment: source, sequence number, timestamp (TAI; 'no time' if the device or \
recording has none), size and type of the payload, and status. With --json, each event is one JSON object on one line.

Examples:
  thalweg cat runs/run-000042 --event 7 --data 16
  thalweg cat runs/run-000042 --event 7 --source 1.0 --raw > payload.bin
  thalweg cat runs/run-000042 --follow --json | my-monitor

Exit code: 0, also if the reader of a pipe closes it; 1 if something cannot be read; 2 if the run, event or source does not exist.")]
pub(crate) struct Options {
    /// A run's directory, such as runs/run-000042; runs/run-000042-b1 has the data of one of several builders
    #[arg(value_name = "RUN")]
    run: PathBuf,
    /// Only this event, or those from A up to but not including B; A or B can be omitted
    #[arg(long, value_name = "E|A..B")]
    event: Option<EventRange>,
    /// Only fragments of this source, by name or id such as 1.0; separate several by commas
    #[arg(long, value_name = "SOURCE", value_delimiter = ',')]
    source: Vec<String>,
    /// Also the first N values of each payload: samples, pixels, or bytes in hexadecimal
    #[arg(long, value_name = "N")]
    data: Option<usize>,
    /// Only the payloads, as raw bytes one after the other
    #[arg(long, conflicts_with = "data")]
    raw: bool,
    /// Follow a run while it is being written, in the order in which events are closed, until it ends
    #[arg(long)]
    follow: bool,
}

pub(super) fn run_cat(options: &Options, json: bool, out: &mut Output) -> Result<ExitCode, Failure> {
    if options.raw && json {
        return Err(Failure::Usage("--raw writes payloads, not JSON: leave out one of --raw and --json".into()));
    }
    if options.raw && std::io::stdout().is_terminal() {
        return Err(Failure::Usage("--raw would write bytes to this terminal: send them to a file, or a pipe".into()));
    }
    let mut cat = Cat { options, json, out, sources: Vec::new(), troubles: 0, unread: None, reports: 0 };
    if options.follow {
        cat.follow_events()?
    } else {
        cat.print_events()?
    };
    Ok(if cat.troubles > 0 { ExitCode::from(1) } else { ExitCode::SUCCESS })
}

struct Cat<'a> {
    options: &'a Options,
    json: bool,
    out: &'a mut Output,
    /// Sources whose fragments are shown; all of them if it is empty.
    sources: Vec<SourceId>,
    /// Number of errors while reading.
    troubles: u64,
    /// Consecutive events with the same error that were not reported yet.
    unread: Option<Unread>,
    /// Number of reports so far.
    reports: u64,
}

/// Events that cannot be read because their place in the file is damaged.
struct Unread {
    first: EventId,
    last: EventId,
    count: u64,
    why: String,
}

impl Cat<'_> {
    /// Prints the events that are there, in ascending order.
    fn print_events(&mut self) -> Result<(), Failure> {
        let run = open_run(&self.options.run)?;
        self.find_sources(run.run_info())?;
        let range = self.options.event.unwrap_or(EventRange::ALL);
        let mut found = false;
        let in_range = run.event_ids().skip_while(|(id, _)| id.0 < range.first);
        for (id, status) in in_range.take_while(|(id, _)| id.0 <= range.last) {
            found = true;
            match run.read_event(id, status) {
                Ok(event) => self.print_event(&event)?,
                Err(error) => self.note_unreadable_event(Some(id), &error)?,
            }
            if !self.out.is_read() {
                return Ok(());
            }
        }
        if !found && self.options.event.is_some() {
            return Err(self.no_event_error(&run));
        }
        self.out.flush()?;
        self.report_unread_events();
        // Other missing data does not matter for one event that is there.
        if !range.is_single_event() {
            self.report_end_reason(&run);
        }
        Ok(())
    }

    /// Prints the events that are there and those that follow, until the run ends.
    fn follow_events(&mut self) -> Result<(), Failure> {
        let path = &self.options.run;
        let mut follow = Follow::open(path).map_err(|error| match error {
            StoreError::Io { error, .. } if error.kind() == std::io::ErrorKind::NotFound => {
                explained_error(path, &StoreError::NotARun(path.clone()))
            }
            error => explained_error(path, &error),
        })?;
        self.find_sources(follow.run_info())?;
        let range = self.options.event.unwrap_or(EventRange::ALL);
        let mut timeout = Duration::ZERO;
        while self.out.is_read() {
            match follow.next_event(timeout) {
                Ok(Followed::Event(event)) => {
                    timeout = Duration::ZERO;
                    if range.contains(event.id) {
                        self.print_event(&event)?;
                    }
                    if range == (EventRange { first: event.id.0, last: event.id.0 }) {
                        break;
                    }
                }
                Ok(Followed::Quiet) => {
                    // Events that were already read are printed without delay.
                    self.out.flush()?;
                    timeout = Duration::from_secs(60);
                }
                Ok(Followed::End(End::Finished)) => {
                    self.out.flush()?;
                    if self.troubles == 0 {
                        self.report_end_reason(&open_run(path)?);
                    }
                    break;
                }
                Ok(Followed::End(End::WriterGone)) => {
                    self.out.flush()?;
                    print_message(&format!("{}: its writer died; no more can be read", path.display()));
                    break;
                }
                Err(error @ (StoreError::Record { .. } | StoreError::Event { .. })) => {
                    self.note_unreadable_event(None, &error)?
                }
                Err(error @ (StoreError::Format { .. } | StoreError::Missing { .. })) => {
                    self.troubles += 1;
                    print_message(&error.to_string());
                }
                Err(error) => return Err(Failure::broken(error)),
            }
        }
        self.out.flush()
    }

    fn print_event(&mut self, event: &Event) -> Result<(), Failure> {
        let sources = &self.sources;
        let fragments = event.fragments.iter();
        let fragments = fragments.filter(|fragment| sources.is_empty() || sources.contains(&fragment.header.source));
        if self.options.raw {
            for fragment in fragments {
                self.out.bytes(fragment.payload())?;
            }
            return Ok(());
        }
        let complete = event.status == EventStatus::Complete;
        let data = self.options.data;
        if self.json {
            let fragments =
                fragments.map(|fragment| FragmentLine::new(&fragment.header, fragment.payload(), data)).collect();
            return self.out.json(&EventLine { event: event.id.0, complete, fragments });
        }
        let missing = event.fragments.iter().filter(|fragment| fragment.header.status.contains(Status::MISSING));
        let mut text = event_text(event.id, complete, missing.count(), event.fragments.len());
        for fragment in fragments {
            text.push_str(&fragment_text(&fragment.header, fragment.payload(), data));
        }
        self.out.text(&text)
    }

    /// Notes an event that cannot be read, and goes on with later ones. A damaged block may have thousands of them:
    /// they are reported once.
    fn note_unreadable_event(&mut self, event: Option<EventId>, error: &StoreError) -> Result<(), Failure> {
        self.troubles += 1;
        if let (true, Some(event)) = (self.json, event) {
            self.out.json(&serde_json::json!({ "event": event.0, "error": error.to_string() }))?;
        }
        let why = error.to_string();
        match (&mut self.unread, event) {
            (Some(unread), Some(event)) if unread.why == why => {
                unread.last = event;
                unread.count += 1;
            }
            (_, Some(event)) => {
                self.report_unread_events();
                self.unread = Some(Unread { first: event, last: event, count: 1, why });
            }
            (_, None) => self.report_error(&format!("an event cannot be read: {why}")),
        }
        Ok(())
    }

    /// Reports the events that could not be read for one reason.
    fn report_unread_events(&mut self) {
        let Some(Unread { first, last, count: number, why }) = self.unread.take() else { return };
        match number {
            1 => self.report_error(&format!("event {} cannot be read: {why}", first.0)),
            _ => self.report_error(&format!(
                "{} events, {} to {}, cannot be read: {why}",
                format_count(number),
                first.0,
                last.0
            )),
        }
    }

    /// Reports one of many errors, of which only the first few are printed.
    fn report_error(&mut self, text: &str) {
        self.reports += 1;
        match self.reports {
            ..=TROUBLES => print_message(text),
            reports if reports == TROUBLES + 1 => {
                print_message("further events cannot be read; run `thalweg verify` to see what is wrong");
            }
            _ => {}
        }
    }

    /// Finds the sources that the options name or give the id of.
    fn find_sources(&mut self, info: &RunInfo) -> Result<(), Failure> {
        for wanted in &self.options.source {
            let known = self.sources.len();
            let sources = info.sources.iter();
            let found = sources.filter(|source| source.name == *wanted || source.id.to_string() == *wanted);
            self.sources.extend(found.map(|source| source.id));
            if self.sources.len() == known {
                let ids: Vec<String> = info.sources.iter().map(|source| source.id.to_string()).collect();
                let names: Vec<&str> = info.sources.iter().map(|source| &source.name[..]).collect();
                let (path, ids, names) = (self.options.run.display(), ids.join(", "), names.join(", "));
                return Err(Failure::Usage(format!("{path} has no source {wanted}; it has {ids} ({names})")));
            }
        }
        Ok(())
    }

    /// Returns the error that there is no event in the range.
    fn no_event_error(&self, run: &Run) -> Failure {
        let path = self.options.run.display();
        let Some((first, last)) = run.event_ids().next().map(|(id, _)| id.0).zip(run.last_event()) else {
            return Failure::Usage(format!("{path} has no events"));
        };
        let which = match self.options.event {
            Some(range) if range.is_single_event() => format!("event {range}"),
            _ => "events in this range".to_owned(),
        };
        let missing = match (run.run_info().builders, run.builder_parts()) {
            (builders @ 2.., [_]) => format!(" of builder {} of {builders}", run.run_info().builder),
            _ => String::new(),
        };
        let known = format_quantity(run.len(), "event");
        let text = format!("{path} has no {which}; it has {known}{missing}, {first} to {}", last.0);
        match run.found_problems().first() {
            Some(problem) => Failure::Broken(format!("{text}, and is damaged: {problem}; `thalweg verify {path}`")),
            None => Failure::Usage(text),
        }
    }

    /// Reports why there are no more events, if the reason is not obvious.
    fn report_end_reason(&mut self, run: &Run) {
        let path = self.options.run.display();
        match (run.run_info().state, run.writer_life(), run.recovery_point()) {
            (RunState::Open, Some(WriterLife::Gone), Some(end)) => {
                print_message(&format!("{path}: its writer died; recovered to block {}", end.blocks));
            }
            (RunState::Open, ..) => {
                print_message(&format!("{path} is OPEN: --follow continues with events as they are written"))
            }
            _ => {}
        }
        let Some(first) = run.found_problems().first() else { return };
        self.troubles += 1;
        print_message(&format!("{path} is damaged: {first}"));
        if let events @ 1.. = run.run_info().totals.events.saturating_sub(run.len()) {
            print_message(&format!(
                "{path}: {} of its {} are missing",
                format_count(events),
                format_quantity(run.run_info().totals.events, "event")
            ));
        }
        print_message(&format!(
            "run `thalweg verify {path}` to see what is wrong, `thalweg salvage {path}` to keep what is intact"
        ));
    }
}

/// Prints a message on standard error. Text that it quotes from a file cannot control a terminal.
fn print_message(text: &str) {
    outlet::stderr().put_text(format!("thalweg: {}\n", replace_controls(text)));
}

fn event_text(id: EventId, complete: bool, missing: usize, sources: usize) -> String {
    match complete {
        true => format!("event {}\n", id.0),
        false => {
            let incomplete = print::paint_verdict("INCOMPLETE");
            format!("event {}: {incomplete}, {missing} of {sources} sources missing\n", id.0)
        }
    }
}

fn fragment_text(header: &FragmentHeader, payload: &[u8], data: Option<usize>) -> String {
    let FragmentHeader { source, sequence, total_length, payload_type, status, .. } = header;
    let status = status.flag_names().join(",");
    if header.status.contains(Status::MISSING) {
        return format!("  {source} {status}\n");
    }
    let when = header.event_time().map_or("no time".to_owned(), |time| format!("{} TAI", format_tai(time.0)));
    let length = format_size(u64::from(*total_length));
    let mut out = format!("  {source} #{sequence} {when} {length} {}", payload_type_name(*payload_type));
    let _ = writeln!(out, " {status}");
    if let Some(data) = data.filter(|_| !payload.is_empty()) {
        let Data { values, unit, left } = Data::decode_payload(*payload_type, payload, data);
        let mut words = values.value_words();
        if left > 0 {
            words.push(format!("... {} more", format_quantity(left, unit)));
        }
        out.push_str(&wrap_words("    ", &words.join(" ")));
    }
    out
}

/// An event, in the form that `--json` prints.
#[derive(Debug, Serialize)]
struct EventLine {
    event: u64,
    complete: bool,
    fragments: Vec<FragmentLine>,
}

/// A fragment, in the form that `--json` prints.
#[derive(Debug, Serialize)]
struct FragmentLine {
    source: String,
    sequence: u32,
    /// Time in TAI nanoseconds since 1970; 0 with a window of 0 if there is none.
    timestamp: u64,
    /// The same time as text, for programs whose numbers have 53 bits.
    timestamp_text: String,
    /// Length of the window in nanoseconds.
    window: u32,
    /// Number of bytes of payload.
    length: u32,
    payload_type: String,
    status: Vec<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    data: Option<Values>,
}

impl FragmentLine {
    fn new(header: &FragmentHeader, payload: &[u8], data: Option<usize>) -> Self {
        Self {
            source: header.source.to_string(),
            sequence: header.sequence,
            timestamp: header.timestamp.0,
            timestamp_text: header.timestamp.0.to_string(),
            window: header.window,
            length: header.total_length,
            payload_type: payload_type_name(header.payload_type),
            status: header.status.flag_names(),
            data: data.map(|limit| Data::decode_payload(header.payload_type, payload, limit).values),
        }
    }
}

/// First values of a payload.
#[derive(Debug)]
struct Data {
    values: Values,
    unit: &'static str,
    /// Number of values that follow.
    left: u64,
}

/// Values of the payload's type; bytes without a stated meaning in hexadecimal.
#[derive(Debug, Serialize)]
#[serde(untagged)]
enum Values {
    Numbers(Vec<Number>),
    /// Pairs of real and imaginary part.
    Complex(Vec<[Number; 2]>),
    Hex(String),
}

/// One number of a payload. A value that JSON has no number for (NaN, infinity) is null there.
#[derive(Debug, Clone, Copy, Serialize)]
#[serde(untagged)]
enum Number {
    Unsigned(u64),
    Signed(i64),
    Single(f32),
    Double(f64),
}

impl Number {
    /// Reads the little-endian number in `bytes`, which are at most 8.
    fn read(kind: NumberKind, bytes: &[u8]) -> Self {
        let sign = kind == NumberKind::Signed && bytes.last().is_some_and(|last| *last >= 128);
        let mut wide = [if sign { 0xff } else { 0 }; 8];
        wide[..bytes.len()].copy_from_slice(bytes);
        match kind {
            NumberKind::Unsigned => Self::Unsigned(u64::from_le_bytes(wide)),
            NumberKind::Signed => Self::Signed(i64::from_le_bytes(wide)),
            NumberKind::Float if bytes.len() == 4 => {
                Self::Single(f32::from_le_bytes([wide[0], wide[1], wide[2], wide[3]]))
            }
            NumberKind::Float => Self::Double(f64::from_le_bytes(wide)),
        }
    }
}

impl Display for Number {
    fn fmt(&self, f: &mut Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Unsigned(number) => Display::fmt(number, f),
            Self::Signed(number) => Display::fmt(number, f),
            Self::Single(number) => Display::fmt(number, f),
            Self::Double(number) => Display::fmt(number, f),
        }
    }
}

impl Values {
    /// Returns the values as words of text.
    fn value_words(&self) -> Vec<String> {
        match self {
            Self::Numbers(numbers) => numbers.iter().map(ToString::to_string).collect(),
            Self::Complex(pairs) => pairs.iter().map(|[real, imaginary]| format!("{real}{imaginary:+}j")).collect(),
            Self::Hex(hex) => hex.as_bytes().chunks(2).map(|byte| String::from_utf8_lossy(byte).into()).collect(),
        }
    }
}

impl Data {
    fn decode_payload(kind: PayloadType, payload: &[u8], limit: usize) -> Self {
        let Some((meaning, element)) = kind.meaning_and_element() else {
            let hex = payload.iter().take(limit).map(|byte| format!("{byte:02x}")).collect();
            return Self { values: Values::Hex(hex), unit: "byte", left: payload.len().saturating_sub(limit) as u64 };
        };
        let unit = match meaning {
            Meaning::Samples => "sample",
            Meaning::Image => "pixel",
            Meaning::Array => "value",
        };
        let number_kind = element.number_kind();
        let elements = payload.chunks_exact(element.element_bytes());
        let left = elements.len().saturating_sub(limit) as u64;
        let elements = elements.take(limit);
        let values = match element.is_complex() {
            false => Values::Numbers(elements.map(|bytes| Number::read(number_kind, bytes)).collect()),
            true => {
                let parts = elements.map(|pair| pair.split_at(element.number_bytes()));
                let pairs = parts
                    .map(|(real, imaginary)| [Number::read(number_kind, real), Number::read(number_kind, imaginary)]);
                Values::Complex(pairs.collect())
            }
        };
        Self { values, unit, left }
    }
}

fn payload_type_name(kind: PayloadType) -> String {
    match kind.type_name() {
        "unknown" => format!("unknown({})", kind.0),
        name => name.to_owned(),
    }
}

/// Maximum number of reports of events that cannot be read.
const TROUBLES: u64 = 10;

#[cfg(test)]
mod tests {
    use super::*;
    use thalweg_wire::{Element, RunNumber, TaiNanos};

    fn header(payload_type: PayloadType, status: Status, length: usize) -> FragmentHeader {
        FragmentHeader {
            payload_type,
            status,
            run: RunNumber(42),
            event: EventId(7),
            timestamp: TaiNanos(1_795_292_395_285_473_552),
            source: SourceId::new(1, 0),
            sequence: 7,
            total_length: length as u32,
            piece_length: length as u32,
            ..FragmentHeader::default()
        }
    }

    #[test]
    fn values_are_decoded_by_type() {
        let samples: Vec<u8> = [-1i16, 300, i16::MIN, 5].iter().flat_map(|sample| sample.to_le_bytes()).collect();
        let shown = [
            (PayloadType::SAMPLES_I16, &samples[..]),
            (PayloadType::IMAGE_U16, &[0xff, 0xff, 1, 0, 2][..]),
            (PayloadType::IMAGE_U8, &[0, 255, 7, 8][..]),
            (PayloadType::new(Meaning::Samples, Element::CI16), &[1, 0, 0xfe, 0xff, 3, 0, 4, 0][..]),
            (
                PayloadType::new(Meaning::Array, Element::F32),
                &[0, 0, 0xc0, 0x3f, 0, 0, 0xc0, 0x7f, 0x0a, 0xd7, 0x23, 0x3c][..],
            ),
            (PayloadType::new(Meaning::Array, Element::U64), &[0xff; 8][..]),
            (PayloadType::RAW, b"Thalweg"),
            (PayloadType(77), b"?"),
            (PayloadType::RAW, b""),
        ];
        let text: String = shown
            .iter()
            .map(|(kind, payload)| fragment_text(&header(*kind, Status::SIMULATED, payload.len()), payload, Some(3)))
            .collect();
        insta::assert_snapshot!(text, @"
        1.0 #7 2026-11-21T20:19:55.285473552 TAI 8 B samples-i16 simulated
          -1 300 -32768 ... 1 sample more
        1.0 #7 2026-11-21T20:19:55.285473552 TAI 5 B image-u16 simulated
          65535 1
        1.0 #7 2026-11-21T20:19:55.285473552 TAI 4 B image-u8 simulated
          0 255 7 ... 1 pixel more
        1.0 #7 2026-11-21T20:19:55.285473552 TAI 8 B samples-ci16 simulated
          1-2j 3+4j
        1.0 #7 2026-11-21T20:19:55.285473552 TAI 12 B array-f32 simulated
          1.5 NaN 0.01
        1.0 #7 2026-11-21T20:19:55.285473552 TAI 8 B array-u64 simulated
          18446744073709551615
        1.0 #7 2026-11-21T20:19:55.285473552 TAI 7 B raw simulated
          54 68 61 ... 4 bytes more
        1.0 #7 2026-11-21T20:19:55.285473552 TAI 1 B unknown(77) simulated
          3f
        1.0 #7 2026-11-21T20:19:55.285473552 TAI 0 B raw simulated
        ");
    }

    #[test]
    fn a_fragment_without_a_time_says_so() {
        let at = |nanos, window| {
            let header = header(PayloadType::RAW, Status::REPLAYED, 1);
            fragment_text(&FragmentHeader { timestamp: TaiNanos(nanos), window, ..header }, &[0], None)
        };
        // The second one is the first of a recording whose times are counted from 0.
        insta::assert_snapshot!([at(0, 0), at(0, 50), at(50, 50)].concat(), @"
        1.0 #7 no time 1 B raw replayed
        1.0 #7 1970-01-01T00:00:00.000000000 TAI 1 B raw replayed
        1.0 #7 1970-01-01T00:00:00.000000050 TAI 1 B raw replayed
        ");
    }

    #[test]
    fn an_event_says_what_is_missing() {
        let mut text = event_text(EventId(7), false, 1, 2);
        let clock = Status::REPLAYED | Status::CLOCK_LOCKED;
        text.push_str(&fragment_text(&header(PayloadType::VDIF, clock, 5032), &[0; 5032], None));
        text.push_str(&fragment_text(&header(PayloadType::RAW, Status::MISSING | Status::TIMED_OUT, 0), &[], None));
        insta::assert_snapshot!(text, @"
        event 7: INCOMPLETE, 1 of 2 sources missing
          1.0 #7 2026-11-21T20:19:55.285473552 TAI 5032 B vdif replayed,clock-locked
          1.0 missing,timed-out
        ");
    }

    #[test]
    fn a_program_gets_the_same_as_one_line_of_json() {
        let payload = [1, 0, 2, 0];
        let line = |kind, data| FragmentLine::new(&header(kind, Status::SIMULATED, 4), &payload, data);
        let fragments = vec![
            line(PayloadType::SAMPLES_I16, Some(1)),
            line(PayloadType::new(Meaning::Samples, Element::CI8), Some(1)),
            line(PayloadType::RAW, Some(9)),
            line(PayloadType::RAW, None),
        ];
        let event = EventLine { event: 7, complete: true, fragments };
        insta::assert_snapshot!(serde_json::to_string(&event).unwrap().replace("},{", "},\n{"), @r#"
        {"event":7,"complete":true,"fragments":[{"source":"1.0","sequence":7,"timestamp":1795292395285473552,"timestamp_text":"1795292395285473552","window":0,"length":4,"payload_type":"samples-i16","status":["simulated"],"data":[1]},
        {"source":"1.0","sequence":7,"timestamp":1795292395285473552,"timestamp_text":"1795292395285473552","window":0,"length":4,"payload_type":"samples-ci8","status":["simulated"],"data":[[1,0]]},
        {"source":"1.0","sequence":7,"timestamp":1795292395285473552,"timestamp_text":"1795292395285473552","window":0,"length":4,"payload_type":"raw","status":["simulated"],"data":"01000200"},
        {"source":"1.0","sequence":7,"timestamp":1795292395285473552,"timestamp_text":"1795292395285473552","window":0,"length":4,"payload_type":"raw","status":["simulated"]}]}
        "#);
    }
}
