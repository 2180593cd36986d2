//! Read-only NumPy arrays over memory that other objects own.

use crate::RunError;
use numpy::ndarray::ArrayView1;
use numpy::{PyArray1, PyArrayDescr, PyArrayMethods};
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::PyTuple;
use serde_json::Value;
use thalweg_wire::{Chunk, Element, Meaning, NumberKind, PayloadType, split_image_and_chunks};

/// Maximum number of axes of a payload, as in `docs/wire.md`.
pub(crate) const MAX_AXES: usize = 8;

/// Lengths of the axes that a source states for its payloads; empty if it states none.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Shape {
    lengths: [usize; MAX_AXES],
    axes: usize,
}

impl Shape {
    /// Reads the lengths from a source's description in `run.json`: from `shape`, or from the older keys `channels` or
    /// `width` and `height`.
    pub(crate) fn from_description(description: &Value) -> Self {
        let axes = description.get("shape").and_then(Value::as_array);
        if let Some(lengths) = axes.and_then(|axes| axes.iter().map(axis_length).collect::<Option<Vec<usize>>>()) {
            return Self::from(lengths);
        }
        let [width, height, channels] =
            ["width", "height", "channels"].map(|key| description.get(key).and_then(axis_length));
        Self::from(match (width, height, channels) {
            (Some(width), Some(height), _) => vec![height, width],
            (_, _, Some(channels)) => vec![usize::MAX, channels],
            _ => Vec::new(),
        })
    }

    /// Returns the number of bytes of an image, or `None` if no lengths are stated.
    fn image_bytes(&self, element: Element) -> Option<usize> {
        let lengths = Some(self.axis_lengths()).filter(|lengths| !lengths.is_empty())?;
        lengths.iter().try_fold(element.element_bytes(), |bytes, length| bytes.checked_mul(*length))
    }

    fn axis_lengths(&self) -> &[usize] {
        &self.lengths[..self.axes]
    }
}

fn axis_length(value: &Value) -> Option<usize> {
    usize::try_from(value.as_u64()?).ok()
}

/// A [`Shape`] in the form in which Python pickles it.
pub(crate) type Dimensions = Vec<usize>;

impl From<Dimensions> for Shape {
    /// Returns an empty shape if there are more axes than [`MAX_AXES`].
    fn from(dimensions: Dimensions) -> Self {
        let (mut lengths, axes) = ([0; MAX_AXES], dimensions.len());
        match lengths.get_mut(..axes) {
            Some(ours) => ours.copy_from_slice(&dimensions),
            None => return Self::default(),
        }
        Self { lengths, axes }
    }
}

impl From<Shape> for Dimensions {
    fn from(shape: Shape) -> Self {
        shape.axis_lengths().to_vec()
    }
}

/// Returns `payload` as an array of its type, read-only, with `owner` as its base.
///
/// # Safety
/// `payload` stays at its address, and unchanged, for as long as `owner` lives.
pub(crate) unsafe fn typed_array<'py>(
    payload: &[u8],
    payload_type: PayloadType,
    shape: Shape,
    owner: &Bound<'py, PyAny>,
) -> PyResult<Bound<'py, PyAny>> {
    let payload = image_with_chunks(payload, payload_type, shape).map_or(payload, |(image, _)| image);
    // SAFETY: the caller promises what `bytes` requires: the memory stays valid and unchanged for as long as `owner`
    // lives.
    let bytes = unsafe { byte_array(payload, owner) }?;
    let Some((meaning, element)) = payload_type.meaning_and_element() else { return Ok(bytes) };
    let lengths = payload_axis_lengths(payload.len(), meaning, element, shape)?;
    // Views keep the bytes as their base; since the bytes cannot be written to, neither can the views.
    let typed = bytes.call_method1("view", (numpy_descr(owner.py(), element)?,))?;
    typed.call_method1("reshape", (PyTuple::new(owner.py(), lengths)?,))
}

/// Returns the image that a payload begins with, and the camera's chunks after it, by number. `None` if the payload is
/// an image alone, or no image.
pub(crate) fn image_with_chunks(
    payload: &[u8],
    payload_type: PayloadType,
    shape: Shape,
) -> Option<(&[u8], Vec<Chunk<'_>>)> {
    let (meaning, element) = payload_type.meaning_and_element()?;
    let image = shape.image_bytes(element).filter(|_| meaning == Meaning::Image)?;
    (payload.len() > image).then(|| split_image_and_chunks(payload, image))?
}

/// Returns the lengths of the axes of a payload of `bytes` bytes.
fn payload_axis_lengths(bytes: usize, meaning: Meaning, element: Element, shape: Shape) -> PyResult<Vec<usize>> {
    let stated: &[usize] = match (meaning, shape.axis_lengths()) {
        (Meaning::Image, []) => {
            return Err(RunError::new_err("the run does not state width and height of this source's images"));
        }
        // One channel, if the number of channels is not stated.
        (Meaning::Samples, []) => &[usize::MAX, 1],
        // An array described by its type alone.
        (Meaning::Array, []) => &[usize::MAX],
        (_, stated) => stated,
    };
    let row = stated[1..].iter().try_fold(element.element_bytes(), |row, length| row.checked_mul(*length));
    let first = row.filter(|row| *row > 0 && bytes.is_multiple_of(*row)).map(|row| bytes / row);
    // Samples, and arrays whose axes have no meaning, may be shorter than stated. An image without rows is an
    // explicitly empty fragment.
    match (first, meaning) {
        (Some(first), Meaning::Image) if first == 0 || first == stated[0] => Ok([&[first], &stated[1..]].concat()),
        (Some(first), Meaning::Samples | Meaning::Array) if first <= stated[0] => Ok([&[first], &stated[1..]].concat()),
        _ => Err(misfit_error(bytes, meaning, element, stated)),
    }
}

fn misfit_error(bytes: usize, meaning: Meaning, element: Element, stated: &[usize]) -> PyErr {
    let bits = element.number_bytes() * 8;
    let expected = match (meaning, stated) {
        (Meaning::Samples, &[_, channels]) => format!("{bits}-bit samples of {channels} channels ({element})"),
        (Meaning::Image, &[height, width]) => format!("an image of {width} x {height} pixels of {element}"),
        (_, &[usize::MAX, ..]) => format!("an array of {element}"),
        (_, stated) => {
            let lengths: Vec<String> = stated.iter().map(usize::to_string).collect();
            format!("an array of up to {} of {element}", lengths.join(" x "))
        }
    };
    RunError::new_err(format!(
        "a payload of {bytes} bytes is not {expected}, as run.json states for its source; .payload has the bytes",
    ))
}

/// Returns `payload` as a read-only array of bytes with `owner` as its base.
///
/// # Safety
/// As for [`typed_array`].
pub(crate) unsafe fn byte_array<'py>(payload: &[u8], owner: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
    // SAFETY: the caller promises that the memory stays valid for as long as `owner`, which becomes the array's base.
    let array = unsafe { PyArray1::borrow_from_array(&ArrayView1::from(payload), owner.clone()) };
    // The mapping is read-only: a write would end the process. The base exports no buffer, so NumPy does not allow the
    // flag to be set again.
    Ok(array.readwrite().make_nonwriteable().as_any().clone())
}

/// Returns NumPy's type of an element. Complex integers, for which NumPy has no type, are pairs with the names `r` and
/// `i`, as in h5py and Digital RF.
pub(crate) fn numpy_descr<'py>(py: Python<'py>, element: Element) -> PyResult<Bound<'py, PyArrayDescr>> {
    static KNOWN: PyOnceLock<Vec<(Element, Py<PyArrayDescr>)>> = PyOnceLock::new();
    let known = KNOWN.get_or_try_init(py, || {
        Element::ALL
            .into_iter()
            .map(|element| Ok((element, create_descr(py, element)?.unbind())))
            .collect::<PyResult<_>>()
    })?;
    match known.iter().find(|(known, _)| *known == element) {
        Some((_, descr)) => Ok(descr.bind(py).clone()),
        None => create_descr(py, element),
    }
}

fn create_descr(py: Python<'_>, element: Element) -> PyResult<Bound<'_, PyArrayDescr>> {
    let kind = match (element.number_kind(), element.is_complex()) {
        (NumberKind::Unsigned, _) => 'u',
        (NumberKind::Signed, _) => 'i',
        (NumberKind::Float, false) => 'f',
        (NumberKind::Float, true) => return PyArrayDescr::new(py, format!("<c{}", element.element_bytes())),
    };
    let number = format!("<{kind}{}", element.number_bytes());
    match element.is_complex() {
        false => PyArrayDescr::new(py, number),
        true => PyArrayDescr::new(py, vec![("r", number.clone()), ("i", number)]),
    }
}
