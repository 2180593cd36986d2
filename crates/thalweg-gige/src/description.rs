//! The camera's XML description of its features: from the URL register (GigE Vision 2.x, section 28, *Manifest and XML
//! URLs*) over the camera's memory to checked XML. Its content is not trusted.

use crate::gvcp::Refusal;
use crate::registers::text_from_bytes;
use std::collections::{HashMap, HashSet};
use std::io::{Cursor, Read};
use thiserror::Error;

/// Size limit of a description as stored in the camera, in bytes.
const MAX_STORED_BYTES: usize = 8 << 20;
/// Size limit of a description after unpacking, in bytes.
const MAX_XML_BYTES: usize = 32 << 20;
/// Limit of the nesting of elements, and of the chain of values made of others.
const MAX_DEPTH: usize = 64;
/// Limit of the number of elements: features and their parts.
const MAX_ELEMENTS: usize = 1 << 20;
/// Limit of the length of a formula in bytes: its parser recurses as deeply.
const MAX_FORMULA_BYTES: usize = 8 << 10;

/// Reason why a description is not available.
#[derive(Debug, Error)]
pub enum DescriptionError {
    /// The camera did not answer, or refused.
    #[error("reading it: {0}")]
    Camera(#[from] Refusal),
    /// The URL makes no sense, or the description is not in the camera.
    #[error("the camera states its address as '{0}', which is not an address in the camera's memory")]
    Place(String),
    /// The description is larger than any camera needs.
    #[error("{0}")]
    TooMuch(&'static str),
    /// The description is no XML, or no archive.
    #[error("it is invalid: {0}")]
    Malformed(String),
}

impl DescriptionError {
    pub(crate) fn malformed(problem: impl ToString) -> Self {
        Self::Malformed(problem.to_string())
    }
}

/// Place of a description in the camera's memory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Place {
    /// Address of the first byte.
    pub address: u32,
    /// Number of bytes.
    pub length: usize,
    /// True if the bytes are a ZIP archive.
    pub packed: bool,
}

/// Reads a URL such as `Local:name.zip;8000;1A2B`, with address and length in hexadecimal. A question mark and the
/// version of the schema may follow.
///
/// # Errors
/// The description is not in the camera's memory, or too long.
pub fn locate_description(url: &[u8]) -> Result<Place, DescriptionError> {
    let url = text_from_bytes(url);
    match parse_place(&url) {
        Some(place) if place.length > MAX_STORED_BYTES => Err(DescriptionError::TooMuch("it is longer than 8 MiB")),
        Some(place) if place.length > 0 && u64::from(place.address) + place.length as u64 <= 1 << 32 => Ok(place),
        _ => Err(DescriptionError::Place(url)),
    }
}

fn parse_place(url: &str) -> Option<Place> {
    let (scheme, rest) = url.split_at_checked(6)?;
    if !scheme.eq_ignore_ascii_case("local:") {
        return None;
    }
    let rest = rest.split('?').next().unwrap_or(rest);
    let mut parts = rest.trim_start_matches('/').split(';').map(str::trim);
    let packed = parts.next()?.to_ascii_lowercase().ends_with(".zip");
    let address = parse_hexadecimal(parts.next()?)?;
    let length = usize::try_from(parse_hexadecimal(parts.next()?)?).ok()?;
    Some(Place { address, length, packed })
}

fn parse_hexadecimal(text: &str) -> Option<u32> {
    let digits = text.strip_prefix("0x").or_else(|| text.strip_prefix("0X")).unwrap_or(text);
    u32::from_str_radix(digits, 16).ok()
}

/// Returns bytes of the camera's memory as text, unpacked and checked.
///
/// # Errors
/// The bytes are no description, or one that no camera has.
pub fn unpack_and_check(stored: Vec<u8>) -> Result<String, DescriptionError> {
    let bytes = if stored.starts_with(b"PK\x03\x04") { extract_xml(stored)? } else { stored };
    // Cameras pad with zeros.
    let end = bytes.iter().rposition(|byte| *byte != 0).map_or(0, |last| last + 1);
    let xml = String::from_utf8_lossy(&bytes[..end]).into_owned();
    check_structure(&xml)?;
    check_values(&xml)?;
    Ok(xml)
}

fn extract_xml(stored: Vec<u8>) -> Result<Vec<u8>, DescriptionError> {
    let mut archive = zip::ZipArchive::new(Cursor::new(stored)).map_err(DescriptionError::malformed)?;
    let names: Vec<String> = archive.file_names().filter_map(Result::ok).map(std::borrow::Cow::into_owned).collect();
    let name = names.iter().find(|name| name.to_ascii_lowercase().ends_with(".xml")).or(names.first());
    let name = name.ok_or_else(|| DescriptionError::malformed("its archive is empty"))?;
    let file = archive.by_name(name).map_err(DescriptionError::malformed)?;
    let mut bytes = Vec::new();
    let limit = MAX_XML_BYTES as u64 + 1;
    file.take(limit).read_to_end(&mut bytes).map_err(DescriptionError::malformed)?;
    if bytes.len() > MAX_XML_BYTES {
        return Err(DescriptionError::TooMuch("it is longer than 32 MiB when unpacked"));
    }
    Ok(bytes)
}

/// Checks for content that no camera has and whose parsing would not end: own entities, endless elements.
fn check_structure(xml: &str) -> Result<(), DescriptionError> {
    if xml.len() > MAX_XML_BYTES {
        return Err(DescriptionError::TooMuch("it is longer than 32 MiB"));
    }
    let (mut depth, mut elements, mut rest) = (0usize, 0usize, xml);
    // Characters since the last tag, not counting comments.
    let mut characters = 0;
    while let Some(begin) = rest.find('<') {
        characters += begin;
        rest = &rest[begin..];
        let end = if rest.starts_with("<!--") {
            end_after(rest, "-->")
        } else if rest.starts_with("<![CDATA[") {
            let end = end_after(rest, "]]>");
            characters += end.unwrap_or(0);
            end
        } else if rest.starts_with("<?") {
            end_after(rest, "?>")
        } else if rest.starts_with("<!") {
            return Err(DescriptionError::TooMuch("it declares entities or its own document type"));
        } else {
            let end = tag_end(rest);
            let tag = &rest[..end.unwrap_or(rest.len())];
            if tag.starts_with("</") {
                if characters > MAX_FORMULA_BYTES && (tag.contains("ormula") || tag.contains("xpression")) {
                    return Err(DescriptionError::TooMuch("a formula is longer than 8 KiB"));
                }
                depth = depth.saturating_sub(1);
            } else {
                elements += 1;
                depth += usize::from(!tag.ends_with("/>"));
            }
            characters = 0;
            end
        };
        if depth > MAX_DEPTH {
            return Err(DescriptionError::TooMuch("its elements are nested deeper than 64"));
        }
        if elements > MAX_ELEMENTS {
            return Err(DescriptionError::TooMuch("it has more than a million elements"));
        }
        rest = &rest[end.ok_or_else(|| DescriptionError::malformed("it ends inside a tag"))?..];
    }
    if elements == 0 {
        return Err(DescriptionError::malformed("it contains no element"));
    }
    Ok(())
}

/// Returns the position one past the first `end` in a text.
fn end_after(text: &str, end: &str) -> Option<usize> {
    text.find(end).map(|at| at + end.len())
}

/// Elements that name the features of which a feature's value is made.
const MADE_OF: [&str; 7] = ["pValue", "pVariable", "pAddress", "pIndex", "pValueIndexed", "pValueDefault", "pLength"];

/// Checks for values that are made of each other in a circle, or in too long a chain: their evaluation recurses as
/// deeply.
fn check_values(xml: &str) -> Result<(), DescriptionError> {
    let made_of = value_references(xml);
    // The longest chain from each feature, if it is known.
    let mut depths: HashMap<&str, usize> = HashMap::new();
    let mut on_the_way = HashSet::new();
    for &start in made_of.keys() {
        let mut stack = vec![(start, 0)];
        while let Some((name, next)) = stack.pop() {
            if next == 0 && depths.contains_key(name) {
                continue;
            }
            on_the_way.insert(name);
            let parts = made_of.get(name).map_or(&[][..], Vec::as_slice);
            match parts.get(next) {
                Some(part) if on_the_way.contains(part) => {
                    return Err(DescriptionError::TooMuch("the value of a feature depends on itself"));
                }
                Some(part) => stack.extend([(name, next + 1), (*part, 0)]),
                None => {
                    let deepest = parts.iter().filter_map(|part| depths.get(part)).max();
                    let depth = deepest.map_or(0, |depth| depth + 1);
                    if depth > MAX_DEPTH {
                        return Err(DescriptionError::TooMuch("values depend on more than 64 others in a chain"));
                    }
                    depths.insert(name, depth);
                    on_the_way.remove(name);
                }
            }
        }
    }
    Ok(())
}

/// Returns, for each feature by name, the features of which its value is made.
fn value_references(xml: &str) -> HashMap<&str, Vec<&str>> {
    let mut made_of: HashMap<&str, Vec<&str>> = HashMap::new();
    let (mut feature, mut rest) = (None, xml);
    while let Some(begin) = rest.find('<') {
        rest = &rest[begin..];
        if let Some(comment) = rest.strip_prefix("<!--") {
            rest = comment.find("-->").map_or("", |end| &comment[end..]);
            continue;
        }
        let Some(end) = tag_end(rest) else { break };
        let (tag, behind) = rest.split_at(end);
        rest = behind;
        let name = tag[1..].split(|end: char| end.is_whitespace() || end == '>' || end == '/').next().unwrap_or("");
        if let Some(named) = attribute_value(tag, "Name").filter(|_| !MADE_OF.contains(&name)) {
            feature = Some(named);
        } else if let Some(feature) = feature.filter(|_| MADE_OF.contains(&name) && !tag.ends_with("/>")) {
            let part = rest.split('<').next().unwrap_or("").trim();
            made_of.entry(feature).or_default().push(part);
        }
    }
    made_of
}

/// Returns the value of an attribute of a tag.
fn attribute_value<'xml>(tag: &'xml str, name: &str) -> Option<&'xml str> {
    let mut rest = tag;
    loop {
        let at = rest.find(name)?;
        let is_whole = rest[..at].ends_with(char::is_whitespace);
        rest = &rest[at + name.len()..];
        let Some(value) = rest.trim_start().strip_prefix('=').filter(|_| is_whole) else { continue };
        let value = value.trim_start();
        let quote = value.chars().next().filter(|quote| matches!(quote, '"' | '\''))?;
        return value[1..].split(quote).next();
    }
}

/// Returns the position one past the end of a tag; a `>` in quotes does not end it.
fn tag_end(tag: &str) -> Option<usize> {
    let mut quote = None;
    tag.bytes()
        .position(|byte| match (quote, byte) {
            (None, b'>') => true,
            (None, b'"' | b'\'') => {
                quote = Some(byte);
                false
            }
            (Some(open), byte) if open == byte => {
                quote = None;
                false
            }
            _ => false,
        })
        .map(|at| at + 1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::io::Write;
    use zip::write::SimpleFileOptions;

    #[test]
    fn a_place_is_read_as_cameras_write_it() {
        let of = |url: &str| locate_description(url.as_bytes());
        let xml = Place { address: 0x10000, length: 0x1a2b, packed: false };
        assert_eq!(of("Local:a.xml;10000;1a2b").unwrap(), xml);
        assert_eq!(of("local:///a.xml;0x10000;0x1A2B?SchemaVersion=1.1.0\0\0").unwrap(), xml);
        assert!(of("Local:A.ZIP;8000;10").unwrap().packed);
        for wrong in [
            "",
            "Local:",
            "Local:a.xml;10000",
            "http://camera/a.xml",
            "File:a.xml",
            "Local:a;x;y",
            "Local:a;1;0",
            "Local:a;ffffffff;2",
            "é;é;é;é",
        ] {
            assert!(matches!(of(wrong), Err(DescriptionError::Place(_))), "{wrong}");
        }
        assert!(matches!(of("Local:a.xml;0;7fffffff"), Err(DescriptionError::TooMuch(_))));
    }

    #[test]
    fn values_that_are_made_of_themselves_are_refused() {
        let refused = |features: &str| {
            let xml = format!("<RegisterDescription>{features}</RegisterDescription>");
            unpack_and_check(xml.into_bytes()).err().map(|error| error.to_string())
        };
        let circle = "<Integer Name=\"A\"><pValue>B</pValue></Integer>\
                      <SwissKnife Name='B'><pVariable Name=\"V\">C</pVariable><Formula>V</Formula></SwissKnife>\
                      <Converter  Name = \"C\"><pValue> A </pValue></Converter>";
        assert_eq!(refused(circle).unwrap(), "the value of a feature depends on itself");
        assert!(refused("<Integer Name=\"A\"><pValue>A</pValue></Integer>").is_some());
        let chain: String =
            (0..100).map(|n| format!("<Integer Name=\"A{n}\"><pValue>A{}</pValue></Integer>", n + 1)).collect();
        assert!(refused(&chain).unwrap().contains("more than 64"));
        // As in cameras: width and offset limit each other; and one value that several others use.
        let room = "<Integer Name=\"Width\"><pValue>W</pValue><pMax>WMax</pMax></Integer>\
                    <SwissKnife Name=\"WMax\"><pVariable Name=\"O\">OffsetX</pVariable></SwissKnife>\
                    <Integer Name=\"OffsetX\"><pValue>X</pValue><pMax>XMax</pMax></Integer>\
                    <SwissKnife Name=\"XMax\"><pVariable Name=\"W\">Width</pVariable></SwissKnife>\
                    <IntReg Name=\"W\"/><IntReg Name=\"X\"/><!-- <Integer Name=\"W\"><pValue>Width</pValue></Integer> \
                        -->";
        assert_eq!(refused(room), None);
    }

    fn zipped(name: &str, content: &[u8]) -> Vec<u8> {
        let mut archive = zip::ZipWriter::new(Cursor::new(Vec::new()));
        archive.start_file(name, SimpleFileOptions::default()).unwrap();
        archive.write_all(content).unwrap();
        archive.finish().unwrap().into_inner()
    }

    #[test]
    fn a_description_may_be_packed() {
        let xml = "<?xml version=\"1.0\"?><!-- < --><A B=\"x>y\"><C/></A>";
        assert_eq!(unpack_and_check(zipped("a.xml", xml.as_bytes())).unwrap(), xml);
        assert_eq!(unpack_and_check([xml.as_bytes(), &[0; 9]].concat()).unwrap(), xml);
        let text = unpack_and_check(b"PK\x03\x04 no archive".to_vec()).unwrap_err().to_string();
        assert!(text.contains("is invalid"), "{text}");
    }

    #[test]
    fn what_would_take_for_ever_is_refused() {
        let bomb = "<!DOCTYPE a [<!ENTITY b \"bb\"><!ENTITY c \"&b;&b;\">]><a>&c;</a>".to_owned();
        let deep = "<a>".repeat(65);
        let many = format!("<a>{}</a>", "<b/>".repeat((1 << 20) + 1));
        let formula = format!("<F><Formula>{}</Formula></F>", "(".repeat(8193));
        for (xml, why) in [(bomb, "entities"), (deep, "deeper"), (many, "million"), (formula, "formula")] {
            let text = unpack_and_check(xml.into_bytes()).unwrap_err().to_string();
            assert!(text.contains(why), "{text}");
        }
        let endless = vec![b' '; MAX_XML_BYTES + 1];
        let text = unpack_and_check(zipped("a.xml", &endless)).unwrap_err().to_string();
        assert!(text.contains("32 MiB"), "{text}");
        for cut in ["<a", "<a b=\"", "<!-- ", "", "  "] {
            assert!(matches!(unpack_and_check(cut.into()), Err(DescriptionError::Malformed(_))), "{cut}");
        }
    }

    proptest! {
        #[test]
        fn any_bytes_are_a_description_or_refused(bytes: Vec<u8>, url: Vec<u8>) {
            let _ = (unpack_and_check(bytes.clone()), locate_description(&url));
            let _ = unpack_and_check([b"PK\x03\x04", &bytes[..]].concat());
        }
    }
}
