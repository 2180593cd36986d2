//! Replay of camera images stored as binary PGM files (Netpbm `P5`, <https://netpbm.sourceforge.net/doc/pgm.html>).
//!
//! One fragment is one image: its pixels row by row, 8 bits each where white is at most 255, else 16 bits. PGM stores
//! the more significant byte first; in the fragment pixels are little-endian.

use crate::file::{InputFile, file_error};
use crate::replay::{Clock, Recording, Replay};
use crate::{Description, DeviceError, HeaderValues, MAX_PAYLOAD_BYTES, OwnFields, PgmConfig, StoredType};
use std::cmp::Ordering;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use thalweg_wire::{Element, PayloadType};

/// Maximum length of a header with its comments, in bytes.
const MAX_HEADER: usize = 4096;

/// Opens the sequence: reads each image's header, and compares it with its file's length and with the first image.
pub(crate) fn open_sequence(config: &PgmConfig) -> Result<Replay<Pgm>, DeviceError> {
    if config.files.is_empty() {
        return Err(DeviceError::Setting { option: "files", value: 0, expected: "a list of at least one image" });
    }
    let mut images: Vec<(PathBuf, u64)> = Vec::new();
    let mut first: Option<Shape> = None;
    for path in &config.files {
        for path in images_in_path(path, &["pgm"])? {
            let (shape, pixels_at) = check_image(&InputFile::open(&path)?)?;
            let first_shape = *first.get_or_insert(shape);
            if shape != first_shape {
                let first = images[0].0.clone();
                return Err(DeviceError::Shape {
                    file: path,
                    shape: shape.describe_shape(),
                    first,
                    first_shape: first_shape.describe_shape(),
                });
            }
            images.push((path, pixels_at));
        }
    }
    let Some(shape) = first else { return Err(DeviceError::Empty { file: config.files[0].clone() }) };
    let description = Description {
        kind: "pgm".to_owned(),
        payload_type: shape.payload_type().type_name().to_owned(),
        shape: Some(vec![shape.height.into(), shape.width.into()]),
        fragment_rate: config.rate.map(|rate| rate.hertz()),
        bits: Some(u32::BITS - shape.white.leading_zeros()),
        own: OwnFields::default()
            .with("width", shape.width)
            .with("height", shape.height)
            .with("max_value", shape.white),
        record_bytes: Some(shape.image_bytes() as u64),
        file: Some(images[0].0.display().to_string()),
        ..Default::default()
    };
    Ok(Replay::new(Pgm { images, shape, clock: Clock(config.rate) }, description, shape.image_bytes(), config.looped))
}

/// Returns the image itself, or the images of a directory with one of these endings, sorted by name.
pub(crate) fn images_in_path(path: &Path, endings: &[&str]) -> Result<Vec<PathBuf>, DeviceError> {
    if !path.is_dir() {
        return Ok(vec![path.to_owned()]);
    }
    let files: io::Result<Vec<PathBuf>> =
        std::fs::read_dir(path).and_then(|entries| entries.map(|entry| Ok(entry?.path())).collect());
    let mut images = files.map_err(|error| file_error("listing", path, error))?;
    images.retain(|file| has_ending(file, endings) && file.is_file());
    images.sort_by(|one, other| compare_naturally(one, other));
    if images.is_empty() { Err(DeviceError::Empty { file: path.to_owned() }) } else { Ok(images) }
}

/// Compares paths in natural order: numbers in them by their value, `img2` before `img10`.
fn compare_naturally(one: &Path, other: &Path) -> Ordering {
    let (mut one_rest, mut other_rest) = (one.as_os_str().as_bytes(), other.as_os_str().as_bytes());
    while let ([a, ..], [b, ..]) = (one_rest, other_rest) {
        if !(a.is_ascii_digit() && b.is_ascii_digit()) {
            if a != b {
                return a.cmp(b);
            }
            (one_rest, other_rest) = (&one_rest[1..], &other_rest[1..]);
            continue;
        }
        let (one_number, other_number);
        (one_number, one_rest) = leading_number(one_rest);
        (other_number, other_rest) = leading_number(other_rest);
        let longer = one_number.len().cmp(&other_number.len()).then_with(|| one_number.cmp(other_number));
        if longer.is_ne() {
            return longer;
        }
    }
    // Paths that differ in leading zeros only have an order as well.
    one_rest.len().cmp(&other_rest.len()).then_with(|| one.cmp(other))
}

/// Splits off the leading digits, without leading zeros, from the rest.
fn leading_number(bytes: &[u8]) -> (&[u8], &[u8]) {
    let zeros = bytes.iter().take_while(|byte| **byte == b'0').count();
    let digits = bytes[zeros..].iter().take_while(|byte| byte.is_ascii_digit()).count();
    bytes[zeros..].split_at(digits)
}

/// Returns whether a file's name ends in one of these, in upper or lower case.
pub(crate) fn has_ending(file: &Path, endings: &[&str]) -> bool {
    file.extension().is_some_and(|own| endings.iter().any(|ending| own.eq_ignore_ascii_case(ending)))
}

/// Sequence of images, each with the offset of its pixels. They are opened one at a time: a sequence may have more
/// files than a process may have open.
#[derive(Debug)]
pub(crate) struct Pgm {
    images: Vec<(PathBuf, u64)>,
    shape: Shape,
    clock: Clock,
}

impl Recording for Pgm {
    fn record_count(&self) -> u64 {
        self.images.len() as u64
    }

    fn payload_len(&self, _record: u64) -> usize {
        self.shape.image_bytes()
    }

    fn header_values(&self, record: u64) -> HeaderValues {
        self.clock.header_values(record, self.shape.payload_type())
    }

    fn read_payload(&mut self, record: u64, payload: &mut [u8]) -> Result<(), DeviceError> {
        let (path, pixels_at) = &self.images[record as usize];
        InputFile::open(path)?.read_at(*pixels_at, payload)?;
        if self.shape.white > 255 {
            StoredType { element: Element::U16, big_endian: true }.to_little_endian(payload);
        }
        Ok(())
    }

    fn pass_nanos(&self) -> u64 {
        self.clock.record_nanos(self.record_count())
    }

    fn boundary_files(&self) -> Option<(&Path, &Path)> {
        let [(first, _), .., (last, _)] = &self.images[..] else { return None };
        Some((first, last))
    }
}

/// Size and white value of an image, from its header.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Shape {
    width: u32,
    height: u32,
    white: u32,
}

impl Shape {
    /// Returns the number of bytes of pixels. At most [`MAX_PAYLOAD_BYTES`], as ensured by [`check_image`].
    fn image_bytes(self) -> usize {
        self.width as usize * self.height as usize * self.bytes_per_pixel()
    }

    fn bytes_per_pixel(self) -> usize {
        if self.white > 255 { 2 } else { 1 }
    }

    fn payload_type(self) -> PayloadType {
        if self.white > 255 { PayloadType::IMAGE_U16 } else { PayloadType::IMAGE_U8 }
    }

    fn describe_shape(self) -> String {
        format!("{} x {} with white {}", self.width, self.height, self.white)
    }
}

/// Returns the shape of an image file and the offset of its pixels; the file must hold exactly one image.
fn check_image(file: &InputFile) -> Result<(Shape, u64), DeviceError> {
    let (shape, pixels_at) = parse_header(file.path(), &file.read_head(MAX_HEADER)?)?;
    let pixels_at = pixels_at as u64;
    let (needed, left) = (shape.image_bytes() as u64, file.len().saturating_sub(pixels_at));
    if left < needed {
        let file = file.path().to_owned();
        return Err(DeviceError::Truncated { file, at: pixels_at, what: "the image", needed, left });
    }
    if left > needed {
        return Err(DeviceError::Header {
            file: file.path().to_owned(),
            at: pixels_at + needed,
            field: "data after the image",
            found: format!("{} bytes long", left - needed),
            expected: "absent: one file holds one image",
        });
    }
    Ok((shape, pixels_at))
}

/// Reads `P5`, width, height and white, with white space and comments between them, and one white space at the end.
fn parse_header(path: &Path, bytes: &[u8]) -> Result<(Shape, usize), DeviceError> {
    let mut parser = Parser { path, bytes, at: 0 };
    if bytes.get(..2) != Some(b"P5") {
        let found = bytes[..bytes.len().min(2)].escape_ascii().to_string();
        return Err(parser.header_error("the magic number", format!("\"{found}\""), "\"P5\" (binary PGM)"));
    }
    parser.at = 2;
    let width = parser.parse_number("width", u32::MAX, "a number of pixels, at least 1")?;
    let height = parser.parse_number("height", u32::MAX, "a number of pixels, at least 1")?;
    let white = parser.parse_number("the maximum value", 65535, "a number from 1 to 65535")?;
    // Exactly one white space: the next byte may be a pixel that looks like white space.
    if !parser.peek().is_some_and(|b| b.is_ascii_whitespace()) {
        return Err(parser.header_error("the end of the header", parser.describe_next(), "one white-space character"));
    }
    let shape = Shape { width, height, white };
    let bytes =
        u64::from(width).checked_mul(u64::from(height)).and_then(|n| n.checked_mul(shape.bytes_per_pixel() as u64));
    if bytes.is_none_or(|bytes| bytes > MAX_PAYLOAD_BYTES as u64) {
        return Err(parser.header_error("the image's size", format!("{width} x {height}"), "at most 1 GiB"));
    }
    Ok((shape, parser.at + 1))
}

struct Parser<'a> {
    path: &'a Path,
    bytes: &'a [u8],
    at: usize,
}

impl Parser<'_> {
    fn peek(&self) -> Option<u8> {
        self.bytes.get(self.at).copied()
    }

    fn parse_number(&mut self, field: &'static str, limit: u32, expected: &'static str) -> Result<u32, DeviceError> {
        let start = self.at;
        while let Some(byte) = self.peek() {
            match byte {
                b'#' => {
                    while self.peek().is_some_and(|b| b != b'\n' && b != b'\r') {
                        self.at += 1;
                    }
                }
                byte if byte.is_ascii_whitespace() => self.at += 1,
                _ => break,
            }
        }
        let digits = self.at;
        let mut value = 0u32;
        while let Some(digit) = self.peek().filter(u8::is_ascii_digit) {
            let next = value.checked_mul(10).and_then(|v| v.checked_add(u32::from(digit - b'0')));
            value = next
                .filter(|v| *v <= limit)
                .ok_or_else(|| self.header_error(field, "too large".to_owned(), expected))?;
            self.at += 1;
        }
        if digits == start || self.at == digits || value == 0 {
            let found = if self.at == digits { self.describe_next() } else { value.to_string() };
            return Err(self.header_error(field, found, expected));
        }
        Ok(value)
    }

    fn describe_next(&self) -> String {
        match self.peek() {
            Some(byte) => format!("\"{}\"", byte.escape_ascii()),
            None if self.at >= MAX_HEADER => format!("not within the first {MAX_HEADER} bytes"),
            None => "cut off".to_owned(),
        }
    }

    fn header_error(&self, field: &'static str, found: String, expected: &'static str) -> DeviceError {
        DeviceError::Header { file: self.path.to_owned(), at: self.at as u64, field, found, expected }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Device;
    use proptest::prelude::*;
    use thalweg_wire::EventId;

    #[test]
    fn numbers_in_names_are_in_their_order() {
        let mut names = [
            "img10",
            "img2",
            "img1",
            "img01",
            "img",
            "b",
            "img2a3",
            "img2a20",
            "10",
            "9",
            "img0000000000000000000002b",
        ];
        names.sort_by(|one, other| compare_naturally(Path::new(one), Path::new(other)));
        assert_eq!(
            names,
            [
                "9",
                "10",
                "b",
                "img",
                "img01",
                "img1",
                "img2",
                "img2a3",
                "img2a20",
                "img0000000000000000000002b",
                "img10"
            ]
        );
    }

    proptest! {
        #[test]
        fn names_have_one_order(names in proptest::collection::vec("[a0-2]{0,5}", 3)) {
            let order = |one: usize, other: usize| compare_naturally(Path::new(&names[one]), Path::new(&names[other]));
            prop_assert_eq!(order(0, 1), order(1, 0).reverse());
            prop_assert_eq!(order(0, 1).is_eq(), names[0] == names[1]);
            if order(0, 1).is_lt() && order(1, 2).is_lt() {
                prop_assert!(order(0, 2).is_lt());
            }
        }
    }

    fn sequence(files: &[&[u8]]) -> (tempfile::TempDir, PgmConfig) {
        let dir = tempfile::tempdir().unwrap();
        for (i, bytes) in files.iter().enumerate() {
            std::fs::write(dir.path().join(format!("frame-{i}.pgm")), bytes).unwrap();
        }
        let files = vec![dir.path().to_owned()];
        (dir, PgmConfig { files, rate: None, looped: false })
    }

    fn refused(file: &[u8]) -> String {
        let (_dir, config) = sequence(&[file]);
        let error = open_sequence(&config).unwrap_err().to_string();
        assert!(error.contains("frame-0.pgm"), "{error}");
        error
    }

    #[test]
    fn images_are_played_by_name() {
        let (_dir, config) = sequence(&[b"P5 2 2 255\nabcd", b"P5\n# a comment\n2 # another\n 2\n255\n\n\n\n\n"]);
        let mut device = open_sequence(&config).unwrap();
        let description = device.description();
        assert_eq!(description.payload_type, "image-u8");
        assert_eq!(description.own, OwnFields::default().with("width", 2).with("height", 2).with("max_value", 255));
        assert_eq!(description.bits, Some(8));
        let mut payload = [0; 4];
        let filled = device.fill_payload(EventId(0), &mut payload).unwrap();
        assert_eq!((&payload, filled.payload_type), (b"abcd", PayloadType::IMAGE_U8));
        device.fill_payload(EventId(1), &mut payload).unwrap();
        assert_eq!(&payload, b"\n\n\n\n");
        assert_eq!(device.next_payload_bytes(), None);
    }

    #[test]
    fn wide_pixels_become_little_endian() {
        let (_dir, config) = sequence(&[b"P5 2 1 4095 \x0a\xbc\x00\x01"]);
        let mut device = open_sequence(&config).unwrap();
        assert_eq!((device.description().bits, device.next_payload_bytes()), (Some(12), Some(4)));
        let mut payload = [0; 4];
        assert_eq!(device.fill_payload(EventId(0), &mut payload).unwrap().payload_type, PayloadType::IMAGE_U16);
        assert_eq!(payload, [0xbc, 0x0a, 0x01, 0x00]);
    }

    #[test]
    fn errors_name_the_file_the_field_and_the_place() {
        assert!(refused(b"P2 1 1 255 0").contains("the magic number at byte 0 is \"P2\""));
        assert!(refused(b"").contains("the magic number"));
        assert!(refused(b"P5 0 1 255 ").contains("width at byte 4 is 0"));
        assert!(refused(b"P51 1 255 x").contains("width"));
        assert!(refused(b"P5 1 -1 255 x").contains("height at byte 5 is \"-\""));
        assert!(refused(b"P5 1 1 65536 x").contains("the maximum value"));
        assert!(refused(b"P5 1 1 255").contains("the end of the header at byte 10 is cut off"));
        assert!(refused(b"P5 1 1 255x").contains("the end of the header at byte 10 is \"x\""));
        assert!(refused(b"P5 99999999999 1 255 x").contains("width"));
        assert!(refused(b"P5 4294967295 4294967295 65535 x").contains("the image's size"));
        let error = refused(b"P5 1000 1000 255 abc");
        assert!(error.contains("the image at byte 17 needs 1000000 bytes, but only 3 are left"), "{error}");
        assert!(refused(b"P5 1 1 255 abc").contains("data after the image at byte 12 is 2 bytes long"));
        let comment = [b"P5 #".as_slice(), &[b'x'; 5000], b"\n1 1 255 x"].concat();
        assert!(refused(&comment).contains("not within the first 4096 bytes"));
    }

    #[test]
    fn images_of_one_camera_are_alike() {
        let (_dir, config) = sequence(&[b"P5 2 1 255 ab", b"P5 1 2 255 ab"]);
        let error = open_sequence(&config).unwrap_err().to_string();
        assert!(error.contains("frame-1.pgm is 1 x 2") && error.contains("frame-0.pgm is 2 x 1"), "{error}");
        let (_dir, config) = sequence(&[]);
        assert!(matches!(open_sequence(&config), Err(DeviceError::Empty { .. })));
        assert!(open_sequence(&PgmConfig { files: vec![], rate: None, looped: true }).is_err());
    }

    #[test]
    fn real_images_are_played_whole() {
        let directory = crate::file::recording_path("beam");
        let mut device =
            open_sequence(&PgmConfig { files: vec![directory.clone()], rate: None, looped: true }).unwrap();
        assert_eq!(device.description().records, Some(2));
        assert_eq!([&device.description().own["width"], &device.description().own["height"]], [200, 200]);
        let mut payload = vec![0; 40_000];
        for (event, name) in [(0, "caustic-168mm.pgm"), (1, "caustic-520mm.pgm")] {
            device.fill_payload(EventId(event), &mut payload).unwrap();
            assert!(payload == std::fs::read(directory.join(name)).unwrap()[15..], "{name}");
        }
        assert_eq!(device.content_key(EventId(2)), Some(0));
    }

    proptest! {
        #[test]
        fn any_header_is_read_or_refused(
            text in prop_oneof!["P5[ \n#0-9a]{0,40}", "P5\n[0-9]{1,11} [0-9]{1,11}\n[0-9]{1,6}\n"],
            junk in proptest::collection::vec(any::<u8>(), 0..20),
        ) {
            let bytes = [text.as_bytes(), &junk].concat();
            if let Ok((shape, at)) = parse_header(Path::new("x"), &bytes) {
                prop_assert!(at <= bytes.len());
                prop_assert!((1..=MAX_PAYLOAD_BYTES).contains(&shape.image_bytes()));
            }
        }
    }
}
