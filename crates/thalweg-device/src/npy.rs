//! Replay of a NumPy array, fragment by fragment along its first axis (`.npy`, versions 1 to 3,
//! <https://numpy.org/doc/stable/reference/generated/numpy.lib.format.html>).
//!
//! The elements are numbers, complex numbers, or pairs of whole numbers that make a complex one, such as `[('r',
//! '<i2'), ('i', '<i2')]`. The header is a Python literal; the parser accepts only the part of Python that it may
//! contain.

use crate::file::InputFile;
use crate::replay::{Clock, Recording, Replay};
use crate::{Description, DeviceError, Filled, MAX_AXES, MAX_PAYLOAD, NpyConfig, StoredType};
use std::path::Path;
use thalweg_wire::{Element, NumberKind, PayloadType};

/// First bytes of a file.
pub(crate) const MAGIC: &[u8; 6] = b"\x93NUMPY";
/// Maximum length of a header, in bytes, the same as in NumPy (`max_header_size`).
const MAX_HEADER: usize = 10_000;

/// Opens the array and checks that it is complete.
pub(crate) fn open_array(config: &NpyConfig) -> Result<Replay<Npy>, DeviceError> {
    let file = InputFile::open(&config.file)?;
    let Header { stored, shape, data_at } = Header::read_header(&file)?;
    let path = &config.file;
    let [fragments, axes @ ..] = &shape[..] else {
        return Err(header_error(path, 0, "shape", "()", "of at least two axes: the first is the fragment"));
    };
    if axes.is_empty() {
        let expected = "of at least two axes, the first of which is the fragment: save array.reshape(fragments, -1)";
        return Err(header_error(path, 0, "shape", &format!("({fragments},)"), expected));
    }
    if shape.len() > MAX_AXES + 1 {
        return Err(header_error(path, 0, "shape", &format!("{shape:?}"), "of at most 9 axes"));
    }
    let size = stored.element.array_bytes(axes).filter(|size| (1..=MAX_PAYLOAD as u64).contains(size));
    let Some(size) = size.and_then(|size| usize::try_from(size).ok()) else {
        let expected = "such that a fragment has 1 byte to 1 GiB";
        return Err(header_error(path, 0, "shape", &format!("{shape:?}"), expected));
    };
    if *fragments == 0 {
        return Err(DeviceError::Empty { file: config.file.clone() });
    }
    let left = file.len() - data_at;
    match fragments.checked_mul(size as u64) {
        Some(needed) if needed == left => {}
        Some(needed) if needed < left => {
            let found = format!("{} bytes long", left - needed);
            return Err(header_error(path, 0, "data after the array", &found, "absent: one file holds one array"));
        }
        needed => {
            let (file, needed) = (config.file.clone(), needed.unwrap_or(u64::MAX));
            return Err(DeviceError::Truncated { file, at: data_at, what: "the array", needed, left });
        }
    }
    let (payload_type, axes) = stored.payload_layout(axes.to_vec());
    let description = Description {
        kind: "npy".to_owned(),
        payload_type: payload_type.type_name().to_owned(),
        shape: Some(axes),
        fragment_rate: config.rate.map(|rate| rate.hertz()),
        record_bytes: Some(size as u64),
        file: Some(config.file.display().to_string()),
        notes: stored.byte_order_note(&config.file).into_iter().collect(),
        ..Default::default()
    };
    let records = *fragments;
    let npy = Npy { file, data_at, records, size, payload_type, stored, clock: Clock(config.rate) };
    Ok(Replay::new(npy, description, size, config.looped))
}

#[derive(Debug)]
pub(crate) struct Npy {
    file: InputFile,
    data_at: u64,
    records: u64,
    size: usize,
    payload_type: PayloadType,
    stored: StoredType,
    clock: Clock,
}

impl Recording for Npy {
    fn record_count(&self) -> u64 {
        self.records
    }

    fn payload_len(&self, _record: u64) -> usize {
        self.size
    }

    fn header_values(&self, record: u64) -> Filled {
        self.clock.header_values(record, self.payload_type)
    }

    fn read_payload(&mut self, record: u64, payload: &mut [u8]) -> Result<(), DeviceError> {
        self.file.read_at(self.data_at + record * self.size as u64, payload)?;
        self.stored.to_little_endian(payload);
        Ok(())
    }

    fn pass_nanos(&self) -> u64 {
        self.clock.record_nanos(self.records)
    }
}

/// Fields of the header.
#[derive(Debug, PartialEq, Eq)]
struct Header {
    stored: StoredType,
    shape: Vec<u64>,
    /// Offset of the elements, in bytes.
    data_at: u64,
}

impl Header {
    fn read_header(file: &InputFile) -> Result<Self, DeviceError> {
        // The length covers the longest prefix: magic, version, length.
        Self::parse_header(file.path(), &file.read_head(12 + MAX_HEADER)?)
    }

    fn parse_header(path: &Path, bytes: &[u8]) -> Result<Self, DeviceError> {
        let (text_at, text) = header_text(path, bytes)?;
        let literal = Literal::parse_literal(text).map_err(|at| {
            let found = format!("\"{}\"", text[at..].escape_ascii());
            let expected = "a Python dictionary, as numpy.save writes it";
            header_error(path, text_at + at, "the header", &found, expected)
        })?;
        let Literal::Dict(entries) = &literal else {
            return Err(header_error(path, text_at, "the header", "not a dictionary", "a Python dictionary"));
        };
        let descr = find_entry(entries, "descr");
        let stored = descr.and_then(element_type).ok_or_else(|| {
            let found = descr.map_or("missing".into(), |value| format!("{value:?}"));
            let expected = "a type of numbers of 1 to 8 bytes, or of complex numbers";
            header_error(path, text_at, "descr", &found, expected)
        })?;
        match find_entry(entries, "fortran_order") {
            Some(Literal::Bool(false)) => {}
            Some(Literal::Bool(true)) => {
                let expected = "False: fragments are not contiguous; save numpy.ascontiguousarray(array)";
                return Err(header_error(path, text_at, "fortran_order", "True", expected));
            }
            _ => return Err(header_error(path, text_at, "fortran_order", "missing", "True or False")),
        }
        let shape: Option<Vec<u64>> = match find_entry(entries, "shape") {
            Some(Literal::Tuple(values)) => values.iter().map(Literal::as_number).collect(),
            _ => None,
        };
        let shape = shape.ok_or_else(|| header_error(path, text_at, "shape", "missing", "a tuple of lengths"))?;
        Ok(Self { stored, shape, data_at: (text_at + text.len()) as u64 })
    }
}

/// Returns the header's text and its offset, in bytes.
fn header_text<'a>(path: &Path, bytes: &'a [u8]) -> Result<(usize, &'a [u8]), DeviceError> {
    let Some(([major, _minor], rest)) = bytes.strip_prefix(MAGIC).and_then(|rest| rest.split_first_chunk::<2>()) else {
        let found = format!("\"{}\"", bytes[..bytes.len().min(8)].escape_ascii());
        return Err(header_error(path, 0, "the magic number", &found, "\"\\x93NUMPY\" and a version"));
    };
    let (length, text_at) = match major {
        1 => (rest.first_chunk::<2>().map(|b| u32::from(u16::from_le_bytes(*b))), 10),
        2 | 3 => (rest.first_chunk::<4>().map(|b| u32::from_le_bytes(*b)), 12),
        _ => return Err(header_error(path, 6, "the version", &major.to_string(), "1, 2 or 3")),
    };
    let length = length.map(|length| length as usize);
    if let Some(length) = length.filter(|length| *length > MAX_HEADER) {
        return Err(header_error(path, 8, "the header's length", &length.to_string(), "at most 10000 bytes"));
    }
    let text = length.and_then(|length| bytes.get(text_at..text_at + length));
    Ok((text_at, text.ok_or_else(|| header_error(path, bytes.len(), "the header", "cut off", "whole"))?))
}

fn header_error(path: &Path, at: usize, field: &'static str, found: &str, expected: &'static str) -> DeviceError {
    // The text comes from an untrusted file, so it is shortened.
    let found = found.chars().take(80).collect();
    DeviceError::Header { file: path.to_owned(), at: at as u64, field, found, expected }
}

fn find_entry<'a>(entries: &'a [(String, Literal)], name: &str) -> Option<&'a Literal> {
    entries.iter().find(|(key, _)| key == name).map(|(_, value)| value)
}

/// Returns the type of the elements of a `descr`: `'<f4'`, or two fields of one type of whole numbers.
fn element_type(descr: &Literal) -> Option<StoredType> {
    match descr {
        Literal::Text(name) => parse_simple_type(name),
        Literal::Tuple(fields) => {
            let [real, imaginary] = &fields[..] else { return None };
            let (real, imaginary) = (field_type(real)?, field_type(imaginary)?);
            let whole = real.element.number_kind() != NumberKind::Float && !real.element.is_complex();
            let element = format!("c{}", real.element).parse().ok().filter(|_| whole && real == imaginary)?;
            Some(StoredType { element, ..real })
        }
        _ => None,
    }
}

/// Returns the type of a field, a tuple of its name and type.
fn field_type(field: &Literal) -> Option<StoredType> {
    let Literal::Tuple(parts) = field else { return None };
    let [Literal::Text(_), Literal::Text(name)] = &parts[..] else { return None };
    parse_simple_type(name)
}

/// Parses a type such as `<f4`: byte order, kind, bytes of an element.
fn parse_simple_type(name: &str) -> Option<StoredType> {
    let big_endian = match name.chars().next()? {
        '<' | '|' => false,
        '>' => true,
        _ => return None,
    };
    let element = match &name[1..] {
        "u1" => Element::U8,
        "u2" => Element::U16,
        "u4" => Element::U32,
        "u8" => Element::U64,
        "i1" => Element::I8,
        "i2" => Element::I16,
        "i4" => Element::I32,
        "i8" => Element::I64,
        "f4" => Element::F32,
        "f8" => Element::F64,
        "c8" => Element::CF32,
        "c16" => Element::CF64,
        _ => return None,
    };
    Some(StoredType { element, big_endian })
}

/// The part of Python's literals that a header is made of.
#[derive(Debug, PartialEq, Eq)]
enum Literal {
    Text(String),
    Bool(bool),
    Number(u64),
    /// A tuple or a list.
    Tuple(Vec<Literal>),
    Dict(Vec<(String, Literal)>),
}

impl Literal {
    /// Parses all of `text` as one literal, or returns the offset at which it is not one.
    fn parse_literal(text: &[u8]) -> Result<Self, usize> {
        let mut parser = Parser { text, at: 0 };
        let literal = parser.parse_value(0).ok_or(parser.at)?;
        parser.skip_space();
        if parser.at == text.len() { Ok(literal) } else { Err(parser.at) }
    }

    fn as_number(&self) -> Option<u64> {
        if let Self::Number(number) = self { Some(*number) } else { None }
    }
}

struct Parser<'a> {
    text: &'a [u8],
    at: usize,
}

impl Parser<'_> {
    fn skip_space(&mut self) {
        self.at += self.text[self.at..].iter().take_while(|byte| byte.is_ascii_whitespace()).count();
    }

    /// Skips `word` and returns true, if that comes next.
    fn skip_word(&mut self, word: &str) -> bool {
        self.skip_space();
        let there = self.text[self.at..].starts_with(word.as_bytes());
        self.at += if there { word.len() } else { 0 };
        there
    }

    /// Parses a literal nested `depth` levels deep.
    fn parse_value(&mut self, depth: usize) -> Option<Literal> {
        self.skip_space();
        match self.text.get(self.at)? {
            _ if depth > 4 => None,
            b'\'' | b'"' => self.parse_string().map(Literal::Text),
            b'0'..=b'9' => {
                let digits = self.text[self.at..].iter().take_while(|byte| byte.is_ascii_digit()).count();
                let number = std::str::from_utf8(&self.text[self.at..self.at + digits]).ok()?.parse().ok()?;
                self.at += digits;
                Some(Literal::Number(number))
            }
            b'(' => self.parse_items("(", ")", |parser| parser.parse_value(depth + 1)).map(Literal::Tuple),
            b'[' => self.parse_items("[", "]", |parser| parser.parse_value(depth + 1)).map(Literal::Tuple),
            b'{' => self.parse_items("{", "}", |parser| parser.parse_entry(depth + 1)).map(Literal::Dict),
            _ if self.skip_word("True") => Some(Literal::Bool(true)),
            _ if self.skip_word("False") => Some(Literal::Bool(false)),
            _ => None,
        }
    }

    /// Parses an entry of a dictionary, whose value is nested `depth` levels deep.
    fn parse_entry(&mut self, depth: usize) -> Option<(String, Literal)> {
        self.skip_space();
        let key = self.parse_string()?;
        self.skip_word(":").then_some(())?;
        Some((key, self.parse_value(depth)?))
    }

    /// Parses items with commas between; a trailing comma is allowed.
    fn parse_items<T>(
        &mut self,
        open: &str,
        close: &str,
        mut item: impl FnMut(&mut Self) -> Option<T>,
    ) -> Option<Vec<T>> {
        self.skip_word(open).then_some(())?;
        let mut items = Vec::new();
        while !self.skip_word(close) {
            items.push(item(self)?);
            if !self.skip_word(",") {
                return self.skip_word(close).then_some(items);
            }
        }
        Some(items)
    }

    /// Parses text in quotes, without escapes.
    fn parse_string(&mut self) -> Option<String> {
        let quote = *self.text.get(self.at).filter(|byte| matches!(byte, b'\'' | b'"'))?;
        let inside = &self.text[self.at + 1..];
        let end = inside.iter().position(|byte| *byte == quote)?;
        let text = std::str::from_utf8(&inside[..end]).ok().filter(|text| !text.contains('\\'))?;
        self.at += end + 2;
        Some(text.to_owned())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Device, Rate};
    use proptest::prelude::*;
    use std::path::PathBuf;
    use thalweg_wire::{EventId, TaiNanos};

    /// A file as numpy.save writes it.
    fn saved(version: u8, header: &str, data: &[u8]) -> Vec<u8> {
        let length = if version == 1 {
            (header.len() as u16).to_le_bytes().to_vec()
        } else {
            (header.len() as u32).to_le_bytes().to_vec()
        };
        [MAGIC.as_slice(), &[version, 0], &length, header.as_bytes(), data].concat()
    }

    fn array(bytes: &[u8]) -> (tempfile::TempDir, NpyConfig) {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("array.npy");
        std::fs::write(&file, bytes).unwrap();
        (dir, NpyConfig { file, rate: None, looped: false })
    }

    #[test]
    fn the_first_axis_counts_fragments() {
        let header = "{'descr': '>i2', 'fortran_order': False, 'shape': (2, 1, 3), }      \n";
        let data: Vec<u8> = (0..6i16).flat_map(i16::to_be_bytes).collect();
        for version in [1, 2, 3] {
            let (_dir, config) = array(&saved(version, header, &data));
            let mut device = open_array(&NpyConfig { rate: Rate::new(4.0), ..config }).unwrap();
            let description = device.description();
            assert_eq!((description.payload_type.as_str(), description.records), ("samples-i16", Some(2)));
            assert_eq!(description.shape, Some(vec![1, 3]));
            assert!(description.notes[0].contains("array.npy: i16 is big-endian"), "{:?}", description.notes);
            let mut payload = [0; 6];
            device.fill_payload(EventId(0), &mut payload).unwrap();
            assert_eq!(payload, [0, 0, 1, 0, 2, 0]);
            let filled = device.fill_payload(EventId(1), &mut payload).unwrap();
            assert_eq!((payload, filled.timestamp), ([3, 0, 4, 0, 5, 0], Some(TaiNanos(250_000_000))));
            assert_eq!(device.next_payload_len(), None);
        }
    }

    #[test]
    fn types_are_those_of_numpy() {
        let of = |descr: &str| {
            let header = format!("{{'descr': {descr}, 'fortran_order': False, 'shape': (1, 2)}}\n");
            Header::parse_header(Path::new("x"), &saved(1, &header, b"")).map(|header| header.stored.to_string())
        };
        for (descr, name) in [
            ("'|u1'", "u8"),
            ("'<i8'", "i64"),
            ("'>f8'", "f64_be"),
            ("'<c8'", "cf32"),
            ("[('r', '>i2'), ('i', '>i2')]", "ci16_be"),
        ] {
            assert_eq!(of(descr).unwrap(), name);
        }
        for descr in ["'|O'", "'<U4'", "'<f2'", "'=i2'", "[('r', '<i2')]", "[('r', '<f4'), ('i', '<f4')]", "7", "''"] {
            assert!(of(descr).unwrap_err().to_string().contains("descr at byte 10 is"), "{descr}");
        }
    }

    #[test]
    fn errors_name_the_field_and_what_to_do() {
        let refused = |bytes: &[u8]| open_array(&array(bytes).1).unwrap_err().to_string();
        let with = |order: &str, shape: &str, data: usize| {
            let header = format!("{{'descr': '<f4', 'fortran_order': {order}, 'shape': {shape}}}\n");
            refused(&saved(1, &header, &vec![0; data]))
        };
        for (error, expected) in [
            (refused(b"PK\x03\x04"), "the magic number at byte 0 is \"PK\\x03\\x04\""),
            (refused(b""), "the magic number"),
            (refused(&saved(4, "", b"")), "the version at byte 6 is 4"),
            (refused(&saved(1, "{'descr': ", b"")), "as numpy.save writes it"),
            (refused(&saved(2, &" ".repeat(10_001), b"")), "the header's length at byte 8 is 10001"),
            (refused(&saved(1, "{}", b"")[..11]), "the header at byte 11 is cut off"),
            (with("True", "(2, 3)", 24), "save numpy.ascontiguousarray(array)"),
            (with("False", "()", 4), "shape at byte 0 is ()"),
            (with("False", "(6,)", 24), "save array.reshape(fragments, -1)"),
            (with("False", "(0, 6)", 0), "no data"),
            (with("False", "(6, 0)", 0), "1 byte to 1 GiB"),
            (with("False", "(2, 3)", 23), "the array at byte"),
            (with("False", "(2, 3)", 25), "data after the array"),
            (with("False", "(9999999999999999999, 9)", 25), "the array at byte"),
        ] {
            assert!(error.contains(expected) && error.contains("array.npy"), "{error}");
        }
    }

    proptest! {
        #[test]
        fn any_header_is_read_or_refused(
            text in prop_oneof!["[{}()\\[\\]'a-z0-9:, <>]{0,60}", "\\(*", "\\{'descr': '[<>|][a-z][0-9]', 'fortran_order': (True|False), 'shape': \\([0-9, ]{0,20}\\)\\}"],
            version in 1u8..4,
            junk in proptest::collection::vec(any::<u8>(), 0..20),
        ) {
            for bytes in [saved(version, &text, &junk), junk] {
                if let Ok(header) = Header::parse_header(&PathBuf::from("x"), &bytes) {
                    prop_assert!(header.data_at as usize <= bytes.len());
                }
            }
        }
    }
}
