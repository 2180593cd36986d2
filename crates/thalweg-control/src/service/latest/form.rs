//! Forms of the latest fragment of a source: JSON, for scripts, and binary, for the page.

use axum::body::Bytes;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use thalweg_node::service::latest::{Content, LatestFragment, prefixed_json};
use utoipa::ToSchema;

/// Form of an answer.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub(crate) enum LatestForm {
    /// One JSON object; the pixels of an image are in Base64.
    #[default]
    Json,
    /// The length of the JSON object (u32, little-endian), that object without pixels and samples, and these: pixels
    /// u16, samples f64, little-endian.
    Binary,
}

/// Latest fragment of a source, as [`LatestForm::Binary`] has it.
#[derive(Debug, ToSchema)]
#[schema(value_type = String, format = Binary)]
#[expect(dead_code, reason = "it is there for the description of the interface")]
pub(crate) struct LatestBytes(Bytes);

/// Latest fragment of a source.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct LatestView {
    /// Name of the source.
    source: String,
    /// Number of the run.
    run: u32,
    /// Number of the event.
    event: u64,
    /// Number of the event as text.
    event_text: String,
    /// Length of the payload, in bytes.
    bytes: u64,
    /// Type of the payload, as in `run.json`.
    payload_type: String,
    /// Kind of the contents, which `image`, `features` or `waveforms` has; `bytes` are not shown.
    kind: ViewKind,
    /// True if the data are of a model.
    is_simulated: bool,
    /// Image in at most `width` columns and rows.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    image: Option<ImageView>,
    /// Numbers of a fit by name; null for one that is not finite.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    features: Option<BTreeMap<String, Option<f64>>>,
    /// Waveform of each channel in at most `width` columns.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    waveforms: Option<Vec<WaveformView>>,
}

/// Contents of a fragment.
#[derive(Debug, Clone, Copy, Serialize, ToSchema)]
#[serde(rename_all = "lowercase")]
enum ViewKind {
    Bytes,
    Features,
    Image,
    Waveform,
}

/// Image. Each pixel is that of the place it stands for.
#[derive(Debug, Serialize, ToSchema)]
struct ImageView {
    /// Columns that are shown.
    width: u32,
    /// Rows that are shown.
    height: u32,
    /// Columns of the image.
    full_width: u32,
    /// Rows of the image.
    full_height: u32,
    /// Pixels row by row: u16 in little-endian, in Base64; 0 is `minimum`, 65535 is `maximum`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pixels: Option<String>,
    /// Least pixel.
    minimum: f64,
    /// Greatest pixel.
    maximum: f64,
}

/// Waveform of a channel.
#[derive(Debug, Serialize, ToSchema)]
struct WaveformView {
    /// Name of the channel.
    name: String,
    /// Number of samples.
    samples: u64,
    /// Least sample of each column; null in a column without a finite one.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    min: Option<Vec<Option<f64>>>,
    /// Greatest sample of each column.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    max: Option<Vec<Option<f64>>>,
}

impl LatestForm {
    /// Type of the content, as HTTP names it.
    pub(crate) fn content_type(self) -> &'static str {
        match self {
            Self::Json => "application/json",
            Self::Binary => "application/octet-stream",
        }
    }

    /// Returns the body of an answer. Where there is no fragment, its object is `null`.
    pub(super) fn body_of(self, fragment: Option<&LatestFragment>) -> Bytes {
        let Some(fragment) = fragment else {
            return match self {
                Self::Json => Bytes::from_static(b"null"),
                Self::Binary => prefixed_json(&()).into(),
            };
        };
        let (image, pixels) = match (&fragment.head.content, fragment.scaled_pixels()) {
            (&Content::Image { width, height, full_width, full_height }, Some((pixels, minimum, maximum))) => {
                let pixels: Vec<u8> = pixels.iter().flat_map(|pixel| pixel.to_le_bytes()).collect();
                let text = (self == Self::Json).then(|| STANDARD.encode(&pixels));
                let image = ImageView { width, height, full_width, full_height, pixels: text, minimum, maximum };
                (Some(image), pixels)
            }
            _ => (None, Vec::new()),
        };
        let view = view_of(fragment, image, self);
        match self {
            Self::Json => serde_json::to_vec(&view).unwrap_or_default().into(),
            Self::Binary => {
                let numbers = if pixels.is_empty() { &fragment.numbers[..] } else { &pixels };
                let mut body = prefixed_json(&view);
                body.extend_from_slice(numbers);
                body.into()
            }
        }
    }
}

fn view_of(fragment: &LatestFragment, image: Option<ImageView>, form: LatestForm) -> LatestView {
    let head = &fragment.head;
    let (kind, features, samples) = match &head.content {
        Content::Bytes => (ViewKind::Bytes, None, None),
        Content::Features(features) => (ViewKind::Features, Some(features.clone()), None),
        Content::Image { .. } => (ViewKind::Image, None, None),
        Content::Waveforms { channels, samples, .. } => (ViewKind::Waveform, None, Some((*channels, *samples))),
    };
    let columns = if form == LatestForm::Json { fragment.waveforms() } else { Vec::new() };
    let waveforms = samples.map(|(channels, samples)| {
        let mut columns = columns.into_iter();
        let waveforms = (0..channels).map(|channel| {
            let both = columns.next().map(|[min, max]| (finite_numbers(&min), finite_numbers(&max)));
            let (min, max) = both.unzip();
            WaveformView { name: format!("ch{channel}"), samples, min, max }
        });
        waveforms.collect()
    });
    LatestView {
        source: head.source.clone(),
        run: head.run,
        event: head.event,
        event_text: head.event.to_string(),
        bytes: head.bytes,
        payload_type: head.type_name().to_owned(),
        kind,
        is_simulated: head.is_simulated,
        image,
        features,
        waveforms,
    }
}

fn finite_numbers(numbers: &[f64]) -> Vec<Option<f64>> {
    numbers.iter().map(|number| Some(*number).filter(|number| number.is_finite())).collect()
}
