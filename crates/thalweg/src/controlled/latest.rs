//! The latest fragment of a source, made small for the clients of a control service: the least and the greatest sample of each
//! column of a waveform, fewer pixels of an image, the numbers of a fit.

use serde_json::{Value, json};
use thalweg_node::Sample;
use thalweg_wire::{Element, Meaning, NumberKind};

/// Largest number of channels of a waveform, and of numbers of an array.
const MAX_CHANNELS: usize = 16;
/// Largest number of columns of a waveform or an image.
const MAX_WIDTH: usize = 4096;

/// Returns a fragment as JSON, in at most `width` columns.
pub(super) fn shrink_sample(source: &str, sample: &Sample, width: u32) -> Value {
    let width = (width as usize).clamp(1, MAX_WIDTH);
    let description = &sample.description;
    let mut latest = json!({
        "source": source,
        "run": sample.run.0,
        "event": sample.event.0,
        "event_text": sample.event.0.to_string(),
        "bytes": sample.payload.len(),
        "payload_type": sample.payload_type.type_name(),
        "kind": "bytes",
        "is_simulated": description["simulated"].as_bool().unwrap_or(false),
    });
    let Some((meaning, element)) = sample.payload_type.meaning_and_element() else { return latest };
    // Names of a fit's numbers, as its device describes them.
    let features = &description["metadata"]["features"];
    let numbers = Numbers { bytes: &sample.payload, element };
    match (meaning, image_size(description, &numbers)) {
        (Meaning::Image, Some((rows, columns))) => {
            latest["kind"] = "image".into();
            latest["image"] = shrink_image(&numbers, rows, columns, width);
        }
        _ if features.is_array() => {
            latest["kind"] = "features".into();
            latest["features"] = feature_values(&numbers, features);
        }
        _ => {
            latest["kind"] = "waveform".into();
            latest["waveforms"] = shrink_waveforms(&numbers, channel_count(description, meaning), width);
        }
    }
    latest
}

/// Numbers of a payload.
struct Numbers<'a> {
    bytes: &'a [u8],
    element: Element,
}

impl Numbers<'_> {
    fn count(&self) -> usize {
        self.bytes.len() / self.element.element_bytes()
    }

    /// Returns a number; of a complex one, its magnitude. Beyond the end: NaN.
    fn value_at(&self, index: usize) -> f64 {
        let each = self.element.element_bytes();
        let Some(element) = self.bytes.get(index * each..).and_then(|bytes| bytes.get(..each)) else { return f64::NAN };
        let (real, imaginary) = element.split_at(self.element.number_bytes());
        let real = decode_number(self.element.number_kind(), real);
        if self.element.is_complex() { real.hypot(decode_number(self.element.number_kind(), imaginary)) } else { real }
    }
}

fn decode_number(kind: NumberKind, bytes: &[u8]) -> f64 {
    let mut wide = [0; 8];
    wide[..bytes.len()].copy_from_slice(bytes);
    let shift = 64 - 8 * bytes.len();
    let number = u64::from_le_bytes(wide);
    match (kind, bytes.len()) {
        (NumberKind::Unsigned, _) => number as f64,
        (NumberKind::Signed, _) => ((number << shift).cast_signed() >> shift) as f64,
        #[expect(clippy::cast_possible_truncation, reason = "it has four bytes")]
        (NumberKind::Float, 4) => f64::from(f32::from_bits(number as u32)),
        (NumberKind::Float, _) => f64::from_bits(number),
    }
}

/// Returns the number of channels: that of the description, or the last axis of samples with two axes.
fn channel_count(description: &Value, meaning: Meaning) -> usize {
    let shape = description["shape"].as_array().filter(|shape| meaning == Meaning::Samples && shape.len() > 1);
    let channels = description["channels"].as_u64().or_else(|| shape?.last()?.as_u64()).unwrap_or(1);
    usize::try_from(channels).unwrap_or(1).max(1)
}

/// Returns the rows and columns of an image, as far as its payload has them.
fn image_size(description: &Value, numbers: &Numbers<'_>) -> Option<(usize, usize)> {
    let [rows, columns, ..] = description["shape"].as_array()?.as_slice() else { return None };
    let (rows, columns) = (usize::try_from(rows.as_u64()?).ok()?, usize::try_from(columns.as_u64()?).ok()?);
    (rows > 0 && columns > 0 && rows.checked_mul(columns)? <= numbers.count()).then_some((rows, columns))
}

fn shrink_waveforms(numbers: &Numbers<'_>, channels: usize, width: usize) -> Value {
    let length = numbers.count() / channels;
    let columns = width.min(length);
    let waveforms = (0..channels.min(MAX_CHANNELS)).map(|channel| {
        let extremes: Vec<Option<(f64, f64)>> = (0..columns)
            .map(|column| {
                let samples = column * length / columns..(column + 1) * length / columns;
                find_extremes(samples.map(|sample| numbers.value_at(sample * channels + channel)))
            })
            .collect();
        json!({
            "name": format!("ch{channel}"),
            "samples": length,
            "min": extremes.iter().map(|column| column.map(|(least, _)| least)).collect::<Vec<_>>(),
            "max": extremes.iter().map(|column| column.map(|(_, greatest)| greatest)).collect::<Vec<_>>(),
        })
    });
    waveforms.collect()
}

/// Returns the least and the greatest of the values that are finite; `None` if there is none.
fn find_extremes(values: impl Iterator<Item = f64>) -> Option<(f64, f64)> {
    values.filter(|value| value.is_finite()).fold(None, |extremes, value| {
        let (least, greatest) = extremes.unwrap_or((value, value));
        Some((value.min(least), value.max(greatest)))
    })
}

/// Returns an image of at most `width` columns and rows, each pixel that of the place it stands for, as 16-bit numbers
/// between the least and the greatest of them.
fn shrink_image(numbers: &Numbers<'_>, rows: usize, columns: usize, width: usize) -> Value {
    let step = rows.max(columns).div_ceil(width);
    let (shown_rows, shown_columns) = (rows.div_ceil(step), columns.div_ceil(step));
    // With a third axis, the first colour.
    let depth = (numbers.count() / (rows * columns)).max(1);
    let values: Vec<f64> = (0..shown_rows * shown_columns)
        .map(|index| {
            let (row, column) = (index / shown_columns * step, index % shown_columns * step);
            numbers.value_at((row * columns + column) * depth)
        })
        .collect();
    let (minimum, maximum) = find_extremes(values.iter().copied()).unwrap_or_default();
    let scale = f64::from(u16::MAX) / (maximum - minimum).max(f64::MIN_POSITIVE);
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "it lies between 0 and 65535, or is NaN"
    )]
    let pixels: Vec<u8> =
        values.iter().flat_map(|value| (((value - minimum) * scale).round() as u16).to_le_bytes()).collect();
    json!({
        "width": shown_columns,
        "height": shown_rows,
        "full_width": columns,
        "full_height": rows,
        "pixels": encode_base64(&pixels),
        "minimum": minimum,
        "maximum": maximum,
    })
}

fn feature_values(numbers: &Numbers<'_>, names: &Value) -> Value {
    let names = names.as_array().into_iter().flatten().filter_map(Value::as_str);
    // A number that is not finite is `null` in JSON.
    names.enumerate().map(|(index, name)| (name.to_owned(), json!(numbers.value_at(index)))).collect()
}

/// Returns bytes in Base64 (RFC 4648, section 4).
fn encode_base64(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut text = String::with_capacity(bytes.len().div_ceil(3) * 4);
    for chunk in bytes.chunks(3) {
        let word = chunk.iter().enumerate().fold(0_u32, |word, (at, byte)| word | u32::from(*byte) << (16 - 8 * at));
        for digit in 0..4 {
            let is_padding = digit > chunk.len();
            text.push(if is_padding { '=' } else { DIGITS[(word >> (18 - 6 * digit) & 63) as usize].into() });
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use thalweg_wire::{EventId, PayloadType, RunNumber, TaiNanos};

    fn sample(payload_type: PayloadType, payload: Vec<u8>, description: Value) -> Sample {
        Sample {
            run: RunNumber(7),
            event: EventId(1 << 60),
            timestamp: TaiNanos(0),
            payload_type,
            payload,
            description,
        }
    }

    #[test]
    fn a_waveform_keeps_the_least_and_the_greatest_sample_of_each_column() {
        let samples: Vec<i16> = (0..1000).flat_map(|at| [at, if at == 501 { 9000 } else { -at }]).collect();
        let payload = samples.iter().flat_map(|sample| sample.to_le_bytes()).collect();
        let sample = sample(PayloadType::SAMPLES_I16, payload, json!({ "channels": 2, "simulated": true }));
        let latest = shrink_sample("adc", &sample, 10);
        assert_eq!((&latest["kind"], &latest["event_text"]), (&json!("waveform"), &json!("1152921504606846976")));
        assert_eq!(latest["is_simulated"], true);
        let [first, second] = [&latest["waveforms"][0], &latest["waveforms"][1]];
        assert_eq!((&first["min"][1], &first["max"][1]), (&json!(100.0), &json!(199.0)));
        assert_eq!(second["max"][5], 9000.0, "one sample in a column of a hundred is seen");
        assert_eq!(first["min"].as_array().unwrap().len(), 10);
    }

    #[test]
    fn an_image_is_made_small_and_a_torn_one_is_no_image() {
        let payload: Vec<u8> = (0..64_u8 * 2).collect();
        let description = json!({ "shape": [8, 16] });
        let latest = shrink_sample("camera", &sample(PayloadType::IMAGE_U8, payload.clone(), description.clone()), 4);
        let image = &latest["image"];
        assert_eq!((&image["width"], &image["height"], &image["full_width"]), (&json!(4), &json!(2), &json!(16)));
        assert_eq!((&image["minimum"], &image["maximum"]), (&json!(0.0), &json!(76.0)));
        let torn = shrink_sample("camera", &sample(PayloadType::IMAGE_U8, payload[..9].to_vec(), description), 4);
        assert_eq!((&torn["kind"], &torn["image"]), (&json!("waveform"), &Value::Null));
    }

    #[test]
    fn a_fit_has_its_numbers_by_name() {
        let kind = PayloadType::new(Meaning::Array, Element::F64);
        let payload = [1.5_f64, f64::NAN].iter().flat_map(|number| number.to_le_bytes()).collect();
        let latest = shrink_sample(
            "fit",
            &sample(kind, payload, json!({ "metadata": { "features": ["x", "y", "absent"] } })),
            4,
        );
        assert_eq!(latest["features"], json!({ "x": 1.5, "y": null, "absent": null }));
    }

    #[test]
    fn base64_is_that_of_rfc_4648() {
        let texts = ["", "f", "fo", "foo", "foob", "fooba", "foobar"].map(|text| encode_base64(text.as_bytes()));
        assert_eq!(texts, ["", "Zg==", "Zm8=", "Zm9v", "Zm9vYg==", "Zm9vYmE=", "Zm9vYmFy"]);
    }
}
