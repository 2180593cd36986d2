//! The latest fragment of a source, as a node sends it to a service and a service makes it smaller for its clients: the
//! least and the greatest sample of each column of a waveform, fewer pixels of an image, the numbers of a fit.
//!
//! The answer to [`ToNode::Latest`](super::ToNode) is a binary message: the length of its head (u32, little-endian), the
//! head (JSON), and the numbers of a waveform or an image as they are in memory.

use crate::Sample;
use bytes::Bytes;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::collections::BTreeMap;
use thalweg_wire::{Element, Meaning, NumberKind, PayloadType};
use thiserror::Error;

/// Largest number of channels of a waveform.
const MAX_CHANNELS: usize = 16;
/// Largest number of columns of a waveform or an image.
const MAX_COLUMNS: usize = 4096;
/// Numbers that are decoded at a time: they stay in the first cache.
const BLOCK_NUMBERS: usize = 2048;
/// Bytes of a number of a waveform: f64, little-endian.
const EXTREME_BYTES: usize = 8;
/// Bytes of the length before the head.
const PREFIX_BYTES: usize = 4;

/// Answer of a node: the latest fragment of a source.
#[derive(Debug, Clone, PartialEq)]
pub struct LatestAnswer {
    /// Number of the request.
    pub id: u64,
    /// The fragment; `None` if there is none yet.
    pub fragment: Option<LatestFragment>,
}

#[derive(Serialize, Deserialize)]
struct AnswerHead {
    id: u64,
    fragment: Option<FragmentHead>,
}

/// Fragment in a limited number of columns.
#[derive(Debug, Clone, PartialEq)]
pub struct LatestFragment {
    /// The event, and the layout of the numbers.
    pub head: FragmentHead,
    /// Numbers of a waveform or an image.
    pub numbers: Bytes,
}

/// Description of a fragment.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct FragmentHead {
    /// Name of the source.
    pub source: String,
    /// Number of the run.
    pub run: u32,
    /// Number of the event.
    pub event: u64,
    /// Length of the payload, in bytes.
    pub bytes: u64,
    /// Number of the payload's type.
    pub payload_type: u16,
    /// True if the data are of a model.
    pub is_simulated: bool,
    /// Contents, as far as they can be shown.
    pub content: Content,
}

/// Contents of a fragment, and the layout of its numbers.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Content {
    /// Bytes without a meaning, which are not sent.
    Bytes,
    /// Numbers of a fit by name; `None` for one that is not finite. There are no others.
    Features(BTreeMap<String, Option<f64>>),
    /// Waveforms. The numbers are f64: for each channel the least sample of each column, then the greatest of each; NaN
    /// in columns without a finite one.
    Waveforms {
        /// Number of channels.
        channels: u32,
        /// Number of columns.
        columns: u32,
        /// Number of samples of a channel.
        samples: u64,
    },
    /// Image. The numbers are elements of the payload, row by row.
    Image {
        /// Columns and rows that are shown.
        width: u32,
        /// Rows that are shown.
        height: u32,
        /// Columns of the image.
        full_width: u32,
        /// Rows of the image.
        full_height: u32,
    },
}

/// Error for a message that is no answer.
#[derive(Debug, Error)]
pub enum AnswerError {
    /// The message ends before its head does.
    #[error("the latest fragment: the message has {message_bytes} bytes, and its head ends after them")]
    Short {
        /// Length of the message.
        message_bytes: usize,
    },
    /// The head is not readable.
    #[error("the latest fragment: its head is not readable: {0}")]
    Head(#[from] serde_json::Error),
    /// The numbers do not agree with the head.
    #[error("the latest fragment: it has {number_bytes} bytes of numbers, which its head does not describe")]
    Numbers {
        /// Length of the numbers.
        number_bytes: usize,
    },
}

impl LatestAnswer {
    /// Returns the message in two parts, of which the second one is not copied.
    pub fn encode_message(&self) -> [Bytes; 2] {
        let head = AnswerHead { id: self.id, fragment: self.fragment.as_ref().map(|fragment| fragment.head.clone()) };
        let numbers = self.fragment.as_ref().map(|fragment| fragment.numbers.clone()).unwrap_or_default();
        [prefixed_json(&head).into(), numbers]
    }

    /// Reads a message. The numbers are a part of it, and agree with their description.
    ///
    /// # Errors
    /// The message is no answer.
    pub fn decode_message(message: &Bytes) -> Result<Self, AnswerError> {
        let short = || AnswerError::Short { message_bytes: message.len() };
        let (length, rest) = message.split_first_chunk::<PREFIX_BYTES>().ok_or_else(short)?;
        let head_bytes = u32::from_le_bytes(*length) as usize;
        let head = rest.get(..head_bytes).ok_or_else(short)?;
        let AnswerHead { id, fragment } = serde_json::from_slice(head)?;
        let numbers = message.slice(PREFIX_BYTES + head_bytes..);
        let fragment = fragment.map(|head| LatestFragment { head, numbers: numbers.clone() });
        let is_described = match &fragment {
            Some(fragment) => fragment.head.number_bytes() == Some(numbers.len()),
            None => numbers.is_empty(),
        };
        if is_described { Ok(Self { id, fragment }) } else { Err(AnswerError::Numbers { number_bytes: numbers.len() }) }
    }
}

/// Returns a value as JSON with its length before it, and spaces after it so that what follows is aligned to 8 bytes.
pub fn prefixed_json(value: &impl Serialize) -> Vec<u8> {
    let mut message = vec![0; PREFIX_BYTES];
    // A map with keys that are texts, and numbers: there is nothing that JSON does not have.
    serde_json::to_writer(&mut message, value).unwrap_or_default();
    message.resize(message.len().next_multiple_of(EXTREME_BYTES), b' ');
    let head_bytes = u32::try_from(message.len() - PREFIX_BYTES).unwrap_or(u32::MAX);
    message[..PREFIX_BYTES].copy_from_slice(&head_bytes.to_le_bytes());
    message
}

impl FragmentHead {
    /// Returns the name of the payload's type, as in `run.json`.
    pub fn type_name(&self) -> &'static str {
        PayloadType(self.payload_type).type_name()
    }

    /// Returns the type of an image's elements; `None` if the payload is not an array.
    fn element(&self) -> Option<Element> {
        Some(PayloadType(self.payload_type).meaning_and_element()?.1)
    }

    /// Returns the length of the numbers that the head describes; `None` if there is nothing like it.
    fn number_bytes(&self) -> Option<usize> {
        match self.content {
            Content::Bytes | Content::Features(_) => Some(0),
            Content::Waveforms { channels, columns, samples } => {
                let is_right = channels as usize <= MAX_CHANNELS && u64::from(columns) <= samples;
                let numbers = (channels as usize).checked_mul(columns as usize)?.checked_mul(2 * EXTREME_BYTES)?;
                is_right.then_some(numbers)
            }
            Content::Image { width, height, full_width, full_height } => {
                let is_right = 0 < width && width <= full_width && 0 < height && height <= full_height;
                let pixels = (width as usize).checked_mul(height as usize)?;
                let numbers = pixels.checked_mul(self.element()?.element_bytes())?;
                is_right.then_some(numbers)
            }
        }
    }
}

impl LatestFragment {
    /// Returns a copied fragment of a source in at most `columns` columns. The pixels of an image that is not made
    /// smaller are those of the copy.
    pub fn of_sample(source: &str, sample: &Sample, columns: u32) -> Self {
        let columns = (columns as usize).clamp(1, MAX_COLUMNS);
        let description = &sample.description;
        let (content, numbers) = match sample.payload_type.meaning_and_element() {
            Some((meaning, element)) => shrink_payload(description, meaning, element, &sample.payload, columns),
            None => (Content::Bytes, Bytes::new()),
        };
        let head = FragmentHead {
            source: source.to_owned(),
            run: sample.run.0,
            event: sample.event.0,
            bytes: sample.payload.len() as u64,
            payload_type: sample.payload_type.0,
            is_simulated: description["simulated"].as_bool().unwrap_or(false),
            content,
        };
        Self { head, numbers }
    }

    /// Returns the fragment in at most `columns` columns.
    #[must_use]
    pub fn in_columns(&self, columns: u32) -> Self {
        let limit = (columns as usize).clamp(1, MAX_COLUMNS);
        let mut head = self.head.clone();
        let numbers = match &mut head.content {
            Content::Bytes | Content::Features(_) => Bytes::new(),
            Content::Waveforms { columns, .. } if *columns as usize <= limit => self.numbers.clone(),
            Content::Waveforms { columns, .. } => {
                let shrunk = merge_columns(&self.numbers, *columns as usize, limit);
                *columns = limit as u32;
                shrunk.into()
            }
            Content::Image { width, height, .. } => {
                let size = (*height as usize, *width as usize);
                let element_bytes = self.head.element().map_or(1, Element::element_bytes);
                let ((rows, columns), pixels) = shrink_image(&self.numbers, element_bytes, size, limit);
                (*width, *height) = (columns as u32, rows as u32);
                pixels
            }
        };
        Self { head, numbers }
    }

    /// Returns the pixels of an image as 16-bit numbers between its least and its greatest pixel, and these two; `None`
    /// of anything else. NaN is 0, and infinite pixels are the least or the greatest number.
    pub fn scaled_pixels(&self) -> Option<(Vec<u16>, f64, f64)> {
        let (Content::Image { .. }, Some(element)) = (&self.head.content, self.head.element()) else { return None };
        let mut block = Vec::new();
        let mut extremes = Extremes::default();
        let blocks = || self.numbers.chunks(BLOCK_NUMBERS * element.element_bytes());
        for bytes in blocks() {
            decode_numbers(element, bytes, &mut block);
            block.iter().for_each(|number| extremes.add_number(*number));
        }
        let (least, greatest) = if extremes.is_empty() { (0.0, 0.0) } else { (extremes.least, extremes.greatest) };
        let scale = f64::from(u16::MAX) / (greatest - least).max(f64::MIN_POSITIVE);
        let mut pixels = Vec::with_capacity(self.numbers.len() / element.element_bytes());
        for bytes in blocks() {
            decode_numbers(element, bytes, &mut block);
            // A conversion saturates, and turns NaN into 0. The half rounds: all are positive.
            #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "it lies between 0 and 65535")]
            pixels.extend(block.iter().map(|number| ((number - least) * scale + 0.5) as u16));
        }
        Some((pixels, least, greatest))
    }

    /// Returns the least and the greatest samples of the columns, channel by channel; of anything else than waveforms,
    /// none. A column without a finite sample is NaN.
    pub fn waveforms(&self) -> Vec<[Vec<f64>; 2]> {
        let Content::Waveforms { columns, .. } = self.head.content else { return Vec::new() };
        let mut numbers = Vec::new();
        decode_numbers(Element::F64, &self.numbers, &mut numbers);
        let channels = numbers.chunks_exact((2 * columns as usize).max(1));
        channels
            .map(|channel| channel.split_at(columns as usize))
            .map(|(least, greatest)| [least, greatest].map(<[f64]>::to_vec))
            .collect()
    }
}

/// Returns the contents of a payload, and their numbers.
fn shrink_payload(
    description: &Value,
    meaning: Meaning,
    element: Element,
    payload: &Bytes,
    columns: usize,
) -> (Content, Bytes) {
    // Names of a fit's numbers, as its device describes them.
    let features = &description["metadata"]["features"];
    let count = payload.len() / element.element_bytes();
    match (meaning, image_size(description, count)) {
        (Meaning::Image, Some((rows, full_columns))) => {
            let (size, pixels) = shrink_first_color(payload, element, (rows, full_columns), columns);
            let [height, width, full_height, full_width] =
                [size.0, size.1, rows, full_columns].map(|length| u32::try_from(length).unwrap_or(u32::MAX));
            (Content::Image { width, height, full_width, full_height }, pixels)
        }
        _ if features.is_array() => (Content::Features(feature_values(element, payload, features)), Bytes::new()),
        _ => {
            let channels = channel_count(description, meaning);
            let samples = count / channels;
            let (shown, columns) = (channels.min(MAX_CHANNELS), columns.min(samples));
            let extremes = find_extremes(element, payload, channels, columns);
            let content =
                Content::Waveforms { channels: shown as u32, columns: columns as u32, samples: samples as u64 };
            (content, extremes.into())
        }
    }
}

/// Returns the number of channels: that of the description, or the last axis of samples with two axes.
fn channel_count(description: &Value, meaning: Meaning) -> usize {
    let shape = description["shape"].as_array().filter(|shape| meaning == Meaning::Samples && shape.len() > 1);
    let channels = description["channels"].as_u64().or_else(|| shape?.last()?.as_u64()).unwrap_or(1);
    usize::try_from(channels).unwrap_or(1).max(1)
}

/// Returns the rows and columns of an image, as far as its payload has them.
fn image_size(description: &Value, pixels: usize) -> Option<(usize, usize)> {
    let [rows, columns, ..] = description["shape"].as_array()?.as_slice() else { return None };
    let (rows, columns) = (u32::try_from(rows.as_u64()?).ok()?, u32::try_from(columns.as_u64()?).ok()?);
    let (rows, columns) = (rows as usize, columns as usize);
    (rows > 0 && columns > 0 && rows.checked_mul(columns)? <= pixels).then_some((rows, columns))
}

/// Returns an image of at most `limit` columns and rows. With a third axis, it is that of the first colour.
fn shrink_first_color(
    payload: &Bytes,
    element: Element,
    (rows, columns): (usize, usize),
    limit: usize,
) -> ((usize, usize), Bytes) {
    let (element_bytes, pixels) = (element.element_bytes(), rows * columns);
    let depth = payload.len() / element_bytes / pixels;
    if depth <= 1 {
        return shrink_image(&payload.slice(..pixels * element_bytes), element_bytes, (rows, columns), limit);
    }
    let step = rows.max(columns).div_ceil(limit);
    gather_pixels(payload, element_bytes, (rows, columns), step, depth)
}

/// Returns an image of at most `limit` columns and rows, each pixel that of the place it stands for.
fn shrink_image(
    pixels: &Bytes,
    element_bytes: usize,
    (rows, columns): (usize, usize),
    limit: usize,
) -> ((usize, usize), Bytes) {
    let step = rows.max(columns).div_ceil(limit);
    if step == 1 {
        return ((rows, columns), pixels.clone());
    }
    gather_pixels(pixels, element_bytes, (rows, columns), step, 1)
}

/// Returns every pixel of a number `step`, in rows and columns.
fn gather_pixels(
    pixels: &[u8],
    element_bytes: usize,
    (rows, columns): (usize, usize),
    step: usize,
    depth: usize,
) -> ((usize, usize), Bytes) {
    let (pixel_bytes, size) = (element_bytes * depth, (rows.div_ceil(step), columns.div_ceil(step)));
    let mut gathered = Vec::with_capacity(size.0 * size.1 * element_bytes);
    for row in pixels.chunks_exact(columns * pixel_bytes).take(rows).step_by(step) {
        row.chunks_exact(pixel_bytes)
            .step_by(step)
            .for_each(|pixel| gathered.extend_from_slice(&pixel[..element_bytes]));
    }
    (size, gathered.into())
}

/// The least and the greatest number of a column.
#[derive(Clone, Copy)]
struct Extremes {
    least: f64,
    greatest: f64,
}

impl Default for Extremes {
    fn default() -> Self {
        Self { least: f64::INFINITY, greatest: f64::NEG_INFINITY }
    }
}

impl Extremes {
    /// Adds a number, if it is finite.
    #[inline]
    fn add_number(&mut self, number: f64) {
        let is_finite = number.is_finite();
        self.least = if is_finite && number < self.least { number } else { self.least };
        self.greatest = if is_finite && number > self.greatest { number } else { self.greatest };
    }

    fn is_empty(self) -> bool {
        self.least > self.greatest
    }

    /// Returns both, NaN if there is none.
    fn both_numbers(self) -> [f64; 2] {
        if self.is_empty() { [f64::NAN; 2] } else { [self.least, self.greatest] }
    }
}

/// Returns the least and the greatest samples of the columns of interleaved channels, as [`Content::Waveforms`] has them.
fn find_extremes(element: Element, payload: &[u8], channels: usize, columns: usize) -> Vec<u8> {
    let shown = channels.min(MAX_CHANNELS);
    let frame_bytes = channels.saturating_mul(element.element_bytes());
    let samples = payload.len() / frame_bytes;
    let mut found = vec![0; shown * columns * 2 * EXTREME_BYTES];
    let mut block = Vec::new();
    for column in 0..columns {
        let mut extremes = [Extremes::default(); MAX_CHANNELS];
        let bytes = &payload[column * samples / columns * frame_bytes..(column + 1) * samples / columns * frame_bytes];
        for bytes in bytes.chunks((BLOCK_NUMBERS / channels).max(1) * frame_bytes) {
            decode_numbers(element, bytes, &mut block);
            if channels == 1 {
                block.iter().for_each(|number| extremes[0].add_number(*number));
            } else {
                for samples in block.chunks_exact(channels) {
                    extremes.iter_mut().zip(samples).for_each(|(extremes, number)| extremes.add_number(*number));
                }
            }
        }
        for (channel, extremes) in extremes[..shown].iter().enumerate() {
            put_extremes(&mut found, (channel, column), columns, extremes.both_numbers());
        }
    }
    found
}

/// Puts the numbers of a column of a channel in their places.
fn put_extremes(found: &mut [u8], (channel, column): (usize, usize), columns: usize, numbers: [f64; 2]) {
    for (at, number) in numbers.iter().enumerate() {
        let place = ((2 * channel + at) * columns + column) * EXTREME_BYTES;
        found[place..place + EXTREME_BYTES].copy_from_slice(&number.to_le_bytes());
    }
}

/// Returns waveforms of `columns` columns in fewer ones.
fn merge_columns(numbers: &[u8], columns: usize, limit: usize) -> Vec<u8> {
    let mut merged = vec![0; numbers.len() / columns * limit];
    let mut block = Vec::new();
    for (channel, bytes) in numbers.chunks_exact(2 * columns * EXTREME_BYTES).enumerate() {
        decode_numbers(Element::F64, bytes, &mut block);
        for column in 0..limit {
            let mut extremes = Extremes::default();
            for from in column * columns / limit..(column + 1) * columns / limit {
                extremes.add_number(block[from]);
                extremes.add_number(block[columns + from]);
            }
            put_extremes(&mut merged, (channel, column), limit, extremes.both_numbers());
        }
    }
    merged
}

fn feature_values(element: Element, payload: &[u8], names: &Value) -> BTreeMap<String, Option<f64>> {
    let mut numbers = Vec::new();
    decode_numbers(element, payload, &mut numbers);
    let names = names.as_array().into_iter().flatten().filter_map(Value::as_str).enumerate();
    names
        .map(|(index, name)| (name.to_owned(), numbers.get(index).copied().filter(|number| number.is_finite())))
        .collect()
}

/// Decodes numbers; of complex ones, their magnitudes. A part of one at the end is left out.
fn decode_numbers(element: Element, bytes: &[u8], numbers: &mut Vec<f64>) {
    numbers.clear();
    decode_parts(element, bytes, numbers);
    if element.is_complex() {
        for index in 0..numbers.len() / 2 {
            numbers[index] = numbers[2 * index].hypot(numbers[2 * index + 1]);
        }
        numbers.truncate(numbers.len() / 2);
    }
}

/// Decodes numbers, the parts of complex ones one after the other.
fn decode_parts(element: Element, bytes: &[u8], numbers: &mut Vec<f64>) {
    macro_rules! decode {
        ($type:ty) => {
            numbers.extend(bytes.as_chunks().0.iter().map(|bytes| <$type>::from_le_bytes(*bytes) as f64))
        };
    }
    match (element.number_kind(), element.number_bytes()) {
        (NumberKind::Unsigned, 1) => decode!(u8),
        (NumberKind::Unsigned, 2) => decode!(u16),
        (NumberKind::Unsigned, 4) => decode!(u32),
        (NumberKind::Unsigned, _) => decode!(u64),
        (NumberKind::Signed, 1) => decode!(i8),
        (NumberKind::Signed, 2) => decode!(i16),
        (NumberKind::Signed, 4) => decode!(i32),
        (NumberKind::Signed, _) => decode!(i64),
        (NumberKind::Float, 4) => decode!(f32),
        (NumberKind::Float, _) => decode!(f64),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use serde_json::json;
    use thalweg_wire::{EventId, RunNumber, TaiNanos};

    fn sample(payload_type: PayloadType, payload: impl Into<Bytes>, description: Value) -> Sample {
        Sample {
            run: RunNumber(7),
            event: EventId(1 << 60),
            timestamp: TaiNanos(0),
            payload_type,
            payload: payload.into(),
            description,
        }
    }

    fn message(answer: &LatestAnswer) -> Bytes {
        answer.encode_message().concat().into()
    }

    #[test]
    fn a_waveform_keeps_the_least_and_the_greatest_sample_of_each_column() {
        let samples: Vec<i16> = (0..1000).flat_map(|at| [at, if at == 501 { 9000 } else { -at }]).collect();
        let payload: Vec<u8> = samples.iter().flat_map(|sample| sample.to_le_bytes()).collect();
        let sample = sample(PayloadType::SAMPLES_I16, payload, json!({ "channels": 2, "simulated": true }));
        let latest = LatestFragment::of_sample("adc", &sample, 10);
        assert!(latest.head.is_simulated);
        let [first, second] = latest.waveforms().try_into().unwrap();
        assert_eq!((first[0][1], first[1][1], first[0].len()), (100.0, 199.0, 10));
        assert_eq!(second[1][5], 9000.0, "one sample in a column of a hundred is seen");
        let halved = latest.in_columns(5);
        let [first, second] = halved.waveforms().try_into().unwrap();
        assert_eq!((first[0][1], first[1][1], second[1][2]), (200.0, 399.0, 9000.0));
    }

    #[test]
    fn an_image_is_made_small_and_a_torn_one_is_no_image() {
        let payload: Vec<u8> = (0..64_u8 * 2).collect();
        let description = json!({ "shape": [8, 16] });
        let whole = sample(PayloadType::IMAGE_U8, payload.clone(), description.clone());
        let latest = LatestFragment::of_sample("camera", &whole, 16);
        assert_eq!(latest.numbers.as_ptr(), whole.payload.as_ptr(), "pixels that are all shown are not copied");
        let small = latest.in_columns(4);
        assert_eq!(small, LatestFragment::of_sample("camera", &whole, 4));
        assert_eq!(small.head.content, Content::Image { width: 4, height: 2, full_width: 16, full_height: 8 });
        let (pixels, least, greatest) = small.scaled_pixels().unwrap();
        assert_eq!((&small.numbers[..5], least, greatest), (&[0, 4, 8, 12, 64][..], 0.0, 76.0));
        assert_eq!((pixels[0], pixels[1], pixels[7]), (0, 3449, 65535));
        let torn = sample(PayloadType::IMAGE_U8, payload[..9].to_vec(), description);
        let torn = LatestFragment::of_sample("camera", &torn, 4);
        assert_eq!(torn.head.content, Content::Waveforms { channels: 1, columns: 4, samples: 9 });
    }

    #[test]
    fn an_image_in_colours_shows_the_first_and_numbers_that_are_not_finite_are_no_limits() {
        let pixels = [[1.0_f32, 9.0], [f32::NAN, 9.0], [3.0, 9.0], [f32::INFINITY, 9.0]];
        let payload: Vec<u8> = pixels.as_flattened().iter().flat_map(|number| number.to_le_bytes()).collect();
        let kind = PayloadType::new(Meaning::Image, Element::F32);
        let image = sample(kind, payload, json!({ "shape": [2, 2, 2] }));
        let latest = LatestFragment::of_sample("camera", &image, 2);
        assert_eq!(latest.scaled_pixels().unwrap(), (vec![0, 0, 65535, 65535], 1.0, 3.0));
    }

    #[test]
    fn a_fit_has_its_numbers_by_name() {
        let kind = PayloadType::new(Meaning::Array, Element::F64);
        let payload: Vec<u8> = [1.5_f64, f64::NAN].iter().flat_map(|number| number.to_le_bytes()).collect();
        let fit = sample(kind, payload, json!({ "metadata": { "features": ["x", "y", "absent"] } }));
        let latest = LatestFragment::of_sample("fit", &fit, 4);
        let features = [("x", Some(1.5)), ("y", None), ("absent", None)];
        let features = features.map(|(name, number)| (name.to_owned(), number)).into_iter().collect();
        assert_eq!(latest.head.content, Content::Features(features));
    }

    #[test]
    fn complex_numbers_are_shown_by_their_magnitudes() {
        let kind = PayloadType::new(Meaning::Samples, Element::CI16);
        let payload: Vec<u8> = [3_i16, -4, 0, 5].iter().flat_map(|number| number.to_le_bytes()).collect();
        let latest = LatestFragment::of_sample("radio", &sample(kind, payload, json!({})), 2);
        assert_eq!(latest.waveforms(), [[vec![5.0, 5.0], vec![5.0, 5.0]]]);
    }

    #[test]
    fn a_message_whose_lengths_do_not_agree_is_refused() {
        let image = sample(PayloadType::IMAGE_U8, vec![1; 6], json!({ "shape": [2, 3] }));
        let fragment = Some(LatestFragment::of_sample("camera", &image, 64));
        let whole = message(&LatestAnswer { id: 1, fragment });
        assert_eq!(whole.len() % 8, 6, "numbers are aligned");
        for length in 0..whole.len() {
            LatestAnswer::decode_message(&whole.slice(..length)).unwrap_err();
        }
        let head = serde_json::json!({ "id": 1, "fragment": { "source": "a", "run": 1, "event": 1, "bytes": 1,
            "payload_type": 3, "is_simulated": true, "content": { "image": {
            "width": u32::MAX, "height": u32::MAX, "full_width": u32::MAX, "full_height": u32::MAX } } } });
        let error = LatestAnswer::decode_message(&prefixed_json(&head).into()).unwrap_err();
        assert!(matches!(error, AnswerError::Numbers { number_bytes: 0 }), "{error}");
        let nothing = LatestAnswer { id: 5, fragment: None };
        assert_eq!(LatestAnswer::decode_message(&message(&nothing)).unwrap(), nothing);
    }

    proptest! {
        /// The description and the payload come from another process.
        #[test]
        fn any_fragment_is_shown_and_its_message_read(
            payload_type in prop_oneof![any::<u16>(), (1_u16..4, 0_u16..28).prop_map(|(meaning, code)| meaning << 8 | code)],
            payload in prop::collection::vec(any::<u8>(), 0..600),
            shape in prop::collection::vec(prop_oneof![0_u64..9, any::<u64>()], 0..4),
            channels in prop::option::of(prop_oneof![0_u64..20, any::<u64>()]),
            widths in [0_u32..40, 0..40],
        ) {
            let mut description = json!({ "shape": shape });
            if let Some(channels) = channels {
                description["channels"] = channels.into();
            }
            let latest = LatestFragment::of_sample("a", &sample(PayloadType(payload_type), payload, description), widths[0]);
            for fragment in [latest.in_columns(widths[1]), latest] {
                fragment.scaled_pixels();
                fragment.waveforms();
                let answer = LatestAnswer { id: 3, fragment: Some(fragment) };
                prop_assert_eq!(LatestAnswer::decode_message(&message(&answer)).unwrap(), answer);
            }
        }
    }
}
