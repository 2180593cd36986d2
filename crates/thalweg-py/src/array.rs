//! NumPy arrays over bytes that something else owns.

use crate::RunError;
use numpy::ndarray::{ArrayView, Dimension, IntoDimension};
use numpy::{Element, PyArray, PyArrayMethods};
use pyo3::prelude::*;
use serde_json::Value;
use thalweg_wire::PayloadType;

/// The dimensions that a source states for its payloads, as far as it states any.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Shape {
    channels: Option<usize>,
    width: Option<usize>,
    height: Option<usize>,
}

impl Shape {
    /// Takes them out of a source's description in `run.json`.
    pub(crate) fn of(description: &Value) -> Self {
        let number = |key: &str| description.get(key)?.as_u64().and_then(|n| usize::try_from(n).ok());
        Self { channels: number("channels"), width: number("width"), height: number("height") }
    }
}

/// A [`Shape`] as Python keeps it: channels, width, height.
pub(crate) type Dimensions = (Option<usize>, Option<usize>, Option<usize>);

impl From<Dimensions> for Shape {
    fn from((channels, width, height): Dimensions) -> Self {
        Self { channels, width, height }
    }
}

impl From<Shape> for Dimensions {
    fn from(shape: Shape) -> Self {
        (shape.channels, shape.width, shape.height)
    }
}

/// `payload` as what its type says it is: a read-only array whose base is `owner`.
///
/// # Safety
/// `payload` stays where it is, and unchanged, for as long as `owner` lives.
pub(crate) unsafe fn typed<'py>(
    payload: &[u8],
    payload_type: PayloadType,
    shape: Shape,
    owner: &Bound<'py, PyAny>,
) -> PyResult<Bound<'py, PyAny>> {
    match payload_type {
        PayloadType::SAMPLES_I16 => {
            let channels = shape.channels.unwrap_or(1);
            let samples = rows(payload.len(), 2, channels)
                .ok_or_else(|| misfit(payload, format_args!("16-bit samples of {channels} channels")))?;
            // SAFETY: the caller's promise; `samples * channels` numbers are there.
            unsafe { view::<i16, _>(payload, [samples, channels], owner) }
        }
        PayloadType::IMAGE_U8 | PayloadType::IMAGE_U16 => {
            let bytes = if payload_type == PayloadType::IMAGE_U8 { 1 } else { 2 };
            let (Some(width), Some(height)) = (shape.width, shape.height) else {
                return Err(RunError::new_err("the run does not state width and height of this source's images"));
            };
            // A source that has nothing to say sends an image without rows.
            let rows =
                rows(payload.len(), bytes, width).filter(|rows| [0, height].contains(rows)).ok_or_else(|| {
                    misfit(payload, format_args!("an image of {width} x {height} pixels of {bytes} bytes"))
                })?;
            if bytes == 1 {
                // SAFETY: the caller's promise; `rows * width` bytes are there.
                unsafe { view::<u8, _>(payload, [rows, width], owner) }
            } else {
                // SAFETY: the caller's promise; `rows * width` numbers are there.
                unsafe { view::<u16, _>(payload, [rows, width], owner) }
            }
        }
        // SAFETY: the caller's promise.
        _ => unsafe { bytes(payload, owner) },
    }
}

/// `payload` as it is: a read-only array of bytes whose base is `owner`.
///
/// # Safety
/// As for [`typed`].
pub(crate) unsafe fn bytes<'py>(payload: &[u8], owner: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
    // SAFETY: the caller's promise; the dimension is the slice's own.
    unsafe { view::<u8, _>(payload, [payload.len()], owner) }
}

/// How many rows of `columns` elements of `size` bytes make `length` bytes, where they make it without a rest.
fn rows(length: usize, size: usize, columns: usize) -> Option<usize> {
    let row = size.checked_mul(columns).filter(|row| *row > 0)?;
    length.is_multiple_of(row).then(|| length / row)
}

fn misfit(payload: &[u8], expected: std::fmt::Arguments<'_>) -> PyErr {
    RunError::new_err(format!(
        "a payload of {} bytes is not {expected}, as run.json states for its source; .payload has the bytes",
        payload.len()
    ))
}

/// # Safety
/// As for [`typed`], and `shape` has no more elements than `payload` holds.
unsafe fn view<'py, T: Element, D: IntoDimension>(
    payload: &[u8],
    shape: D,
    owner: &Bound<'py, PyAny>,
) -> PyResult<Bound<'py, PyAny>> {
    let shape = shape.into_dimension();
    debug_assert!(shape.size() * size_of::<T>() <= payload.len());
    // ndarray asks for aligned elements; records lie at multiples of 64 bytes in a mapping, so this does not fail.
    let start = payload.as_ptr().cast::<T>();
    if !start.is_aligned() {
        return Err(RunError::new_err("the payload does not begin at a multiple of its element's size"));
    }
    // SAFETY: aligned, inside the payload, and any bits are a number of the types used here; `payload` outlives the
    // view.
    let array = unsafe { ArrayView::from_shape_ptr(shape, start) };
    // SAFETY: the caller promises that the memory stays for as long as `owner`, which becomes the array's base.
    let array = unsafe { PyArray::borrow_from_array(&array, owner.clone()) };
    // The mapping is read-only: a write would end the process. The base exports no buffer, so NumPy lets nobody
    // set the flag again.
    Ok(array.readwrite().make_nonwriteable().as_any().clone())
}
