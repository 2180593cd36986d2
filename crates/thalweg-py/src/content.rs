//! Content of pushed fragments: the declared form, and the check of each object against it.

use crate::RunError;
use crate::array::{self, MAX_AXES};
use numpy::{PyArrayDescr, PyArrayDescrMethods, PyUntypedArray, PyUntypedArrayMethods};
use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::PyBytes;
use serde_json::{Value, json};
use std::fmt;
use thalweg_wire::{Element, Meaning, NumberKind, PayloadType};

/// Largest payload in bytes: a slot of 1 GiB, less a header and the padding after the payload.
const MAX_PAYLOAD_BYTES: usize = (1 << 30) - 128;

/// Declared form of all fragments of a source.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Content {
    /// Bytes of this type, at most `most` of them.
    Bytes { payload_type: PayloadType, most: usize },
    /// Arrays of this type; the first axis of one may be shorter, unless they are images.
    Arrays { meaning: Meaning, element: Element, shape: Vec<usize> },
}

impl Content {
    /// Returns the form that the arguments of `Source` declare.
    pub(crate) fn from_arguments(
        dtype: Option<&Bound<'_, PyAny>>,
        shape: Option<&Bound<'_, PyAny>>,
        max_bytes: Option<usize>,
        payload_type: Option<&str>,
    ) -> PyResult<Self> {
        let content = match (dtype, shape, max_bytes) {
            (Some(dtype), Some(shape), None) => {
                if payload_type.is_some() {
                    return Err(PyTypeError::new_err(
                        "payload_type: it follows from dtype and shape; use it with \
                        max_bytes only",
                    ));
                }
                Self::from_array_arguments(dtype, shape)?
            }
            (None, None, Some(most)) => {
                Self::Bytes { payload_type: payload_type.map_or(Ok(PayloadType::RAW), bytes_type_by_name)?, most }
            }
            _ => {
                return Err(PyTypeError::new_err(
                    "set what will be pushed: dtype= and shape= of the largest array, or max_bytes= for bytes",
                ));
            }
        };
        match content.checked_bytes() {
            Some(1..=MAX_PAYLOAD_BYTES) => Ok(content),
            _ => Err(PyValueError::new_err(format!(
                "a fragment of {content}: it must have 1 to {MAX_PAYLOAD_BYTES} bytes"
            ))),
        }
    }

    fn from_array_arguments(asked: &Bound<'_, PyAny>, shape: &Bound<'_, PyAny>) -> PyResult<Self> {
        let element = match complex_by_name(asked) {
            Some(element) => Some(element),
            None => element_of(&PyArrayDescr::new(asked.py(), asked.clone())?)?,
        };
        let given: Vec<i128> = match shape.extract::<i128>() {
            Ok(one) => vec![one],
            Err(_) => shape.extract().map_err(|_| PyTypeError::new_err("shape: a whole number, or a tuple of them"))?,
        };
        let counts = given.iter().map(|count| usize::try_from(*count).ok());
        let mut shape: Vec<usize> = counts
            .collect::<Option<_>>()
            .ok_or_else(|| PyValueError::new_err(format!("shape={shape}: its numbers must be 0 or more")))?;
        match (element, &shape[..]) {
            (Some(Element::U8), &[most]) => Ok(Self::Bytes { payload_type: PayloadType::RAW, most }),
            (Some(element), [_, ..]) if shape.len() <= MAX_AXES => {
                let meaning = PayloadType::for_array(element, shape.len())
                    .meaning_and_element()
                    .map_or(Meaning::Array, |parts| parts.0);
                if meaning == Meaning::Samples && shape.len() == 1 {
                    shape.push(1);
                }
                Ok(Self::Arrays { meaning, element, shape })
            }
            _ => Err(PyTypeError::new_err(format!("arrays of {asked} with shape {shape:?}: {POSSIBLE}"))),
        }
    }

    /// Returns the size of the largest payload in bytes.
    pub(crate) fn max_bytes(&self) -> usize {
        self.checked_bytes().unwrap_or(usize::MAX)
    }

    fn checked_bytes(&self) -> Option<usize> {
        match self {
            Self::Bytes { most, .. } => Some(*most),
            Self::Arrays { element, shape, .. } => {
                shape.iter().try_fold(element.element_bytes(), |bytes, length| bytes.checked_mul(*length))
            }
        }
    }

    /// Returns the payload's type, or an error if the payload does not have the declared form.
    pub(crate) fn check_payload(&self, payload: &Payload<'_>) -> PyResult<PayloadType> {
        let bytes = payload.payload_bytes().len();
        // Every source may send empty fragments.
        if bytes == 0 {
            return Ok(self.declared_type());
        }
        match (self, &payload.shape[..]) {
            (Self::Bytes { most, .. }, [_]) if payload.element == Element::U8 => {
                if bytes > *most {
                    return Err(RunError::new_err(format!(
                        "a payload of {bytes} bytes is too long: this source was created for at most {most}"
                    )));
                }
            }
            (Self::Arrays { meaning, element, shape }, &[first, ref rest @ ..])
                if payload.element == *element
                    && (*rest == shape[1..] || (rest.is_empty() && *meaning == Meaning::Samples && shape[1] == 1))
                    && (*meaning != Meaning::Image || first == shape[0]) =>
            {
                if first > shape[0] {
                    let what = if *meaning == Meaning::Samples { "samples" } else { "rows" };
                    return Err(RunError::new_err(format!(
                        "{first} {what} are too many: this source was created for at most {}",
                        shape[0]
                    )));
                }
            }
            (_, pushed) => {
                let element = numpy_name(payload.owner.py(), payload.element);
                return Err(PyTypeError::new_err(format!(
                    "pushed {element} of shape {pushed:?} into a source of {self}"
                )));
            }
        }
        Ok(self.declared_type())
    }

    fn declared_type(&self) -> PayloadType {
        match self {
            Self::Bytes { payload_type, .. } => *payload_type,
            Self::Arrays { meaning, element, .. } => PayloadType::new(*meaning, *element),
        }
    }

    /// Returns the description by which readers interpret the payloads.
    pub(crate) fn describe_payloads(&self) -> Value {
        let mut described =
            json!({ "payload_type": self.declared_type().type_name(), "record_bytes": self.max_bytes() });
        if let Self::Arrays { meaning, shape, .. } = self {
            described["shape"] = json!(shape);
            match (meaning, &shape[..]) {
                (Meaning::Samples, &[samples, channels]) => {
                    (described["samples"], described["channels"]) = (json!(samples), json!(channels));
                }
                (Meaning::Image, &[height, width]) => {
                    (described["width"], described["height"]) = (json!(width), json!(height));
                }
                _ => {}
            }
        }
        described
    }
}

impl fmt::Display for Content {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = self.declared_type().type_name();
        match self {
            Self::Bytes { most, .. } => write!(f, "{name}, up to {most} bytes"),
            Self::Arrays { meaning, shape, .. } => match (meaning, &shape[..]) {
                (Meaning::Samples, [samples, channels]) => {
                    write!(f, "{name}, up to {samples} samples of {channels} channels")
                }
                (Meaning::Image, [height, width]) => write!(f, "{name}, {height} rows of {width} pixels"),
                _ => write!(f, "{name}, up to {shape:?}"),
            },
        }
    }
}

/// Memory of an object that was pushed; it stays valid while this value lives.
pub(crate) struct Payload<'py> {
    owner: Bound<'py, PyAny>,
    start: *const u8,
    length: usize,
    element: Element,
    shape: Vec<usize>,
}

impl<'py> Payload<'py> {
    /// Accesses the memory of bytes, an array, or any other object with the buffer protocol. No bytes are copied.
    pub(crate) fn from_object(data: &Bound<'py, PyAny>) -> PyResult<Self> {
        let py = data.py();
        if let Ok(bytes) = data.cast::<PyBytes>() {
            let bytes = bytes.as_bytes();
            let (start, length) = (bytes.as_ptr(), bytes.len());
            return Ok(Self { owner: data.clone(), start, length, element: Element::U8, shape: vec![length] });
        }
        let array = match data.cast::<PyUntypedArray>() {
            // The mask would be ignored.
            Ok(array) if array.hasattr("mask")? => {
                return Err(PyTypeError::new_err(
                    "a masked array cannot be pushed, since payloads have no mask: push array.filled(value), or \
                     array.data",
                ));
            }
            Ok(array) => array.clone(),
            Err(_) => {
                // The view keeps a bytearray from being resized meanwhile.
                let view = py.import("builtins")?.call_method1("memoryview", (data,)).map_err(|_| {
                    let kind = data.get_type().name().map(|name| name.to_string()).unwrap_or_default();
                    PyTypeError::new_err(format!("{kind} cannot be pushed: {POSSIBLE}"))
                })?;
                py.import("numpy")?.call_method1("asarray", (view,))?.cast_into::<PyUntypedArray>()?
            }
        };
        let descr = array.dtype();
        let element = element_of(&descr)?.ok_or_else(|| {
            let order = descr.byteorder() == b'>';
            let hint = if order { "; array.astype(array.dtype.newbyteorder('<')) turns its bytes" } else { "" };
            PyTypeError::new_err(format!("arrays of {descr} cannot be pushed: {POSSIBLE}{hint}"))
        })?;
        if !array.is_c_contiguous() {
            return Err(PyValueError::new_err(
                "the array is not contiguous (C order): push numpy.ascontiguousarray(array)",
            ));
        }
        let (length, shape) = (array.len() * descr.itemsize(), array.shape().to_vec());
        // SAFETY: the array is alive and has the fields that NumPy's header declares.
        let start = unsafe { (*array.as_array_ptr()).data }.cast_const().cast::<u8>();
        Ok(Self { owner: array.into_any(), start, length, element, shape })
    }

    /// Returns the bytes of the object.
    pub(crate) fn payload_bytes(&self) -> &[u8] {
        if self.length == 0 {
            return &[];
        }
        let _ = &self.owner;
        // SAFETY: `length` contiguous bytes lie at `start` for as long as the owner lives, and `self` keeps it alive.
        // They are only copied from; a program that writes to them meanwhile from another thread gets some of the old
        // and some of the new, as with any write from a buffer, and the checksum is computed from the copy.
        unsafe { std::slice::from_raw_parts(self.start, self.length) }
    }
}

/// Returns the element of arrays of this type, or `None` for a type that payloads cannot have. The error for a type of
/// another byte order says how to convert it.
fn element_of(descr: &Bound<'_, PyArrayDescr>) -> PyResult<Option<Element>> {
    let py = descr.py();
    for element in Element::ALL {
        if descr.is_equiv_to(&array::numpy_descr(py, element)?) {
            return Ok(Some(element));
        }
    }
    // Complex integers with other names for their parts.
    let Ok(fields) = descr.getattr("descr")?.extract::<Vec<(String, String)>>() else { return Ok(None) };
    let [(_, real), (_, imaginary)] = &fields[..] else { return Ok(None) };
    for element in Element::ALL.into_iter().filter(|element| element.is_complex()) {
        let ours = array::numpy_descr(py, element)?.getattr("descr")?.extract::<Vec<(String, String)>>()?;
        if ours.iter().map(|(_, number)| number).eq([real, imaginary]) {
            return Ok(Some(element));
        }
    }
    Ok(None)
}

/// Returns the complex integer type with one of our names, such as `ci16`, since NumPy has no name for these.
fn complex_by_name(asked: &Bound<'_, PyAny>) -> Option<Element> {
    let element: Element = asked.extract::<&str>().ok()?.parse().ok()?;
    (element.is_complex() && element.number_kind() != NumberKind::Float).then_some(element)
}

/// Returns an element's name for messages: NumPy's, or ours if NumPy has none.
fn numpy_name(py: Python<'_>, element: Element) -> String {
    let whole = element.is_complex() && element.number_kind() != NumberKind::Float;
    match array::numpy_descr(py, element) {
        Ok(descr) if !whole => descr.to_string(),
        _ => element.to_string(),
    }
}

const POSSIBLE: &str = "supported are arrays of 1 to 8 axes of int8 to int64, uint8 to uint64, float32, float64, \
                        complex64, complex128, or of complex whole numbers, dtype='ci16' or [('r', '<i2'), ('i', \
                        '<i2')], \
                        little-endian; and bytes";

fn bytes_type_by_name(name: &str) -> PyResult<PayloadType> {
    // Other types have dimensions, which only dtype and shape declare.
    [PayloadType::RAW, PayloadType::VDIF].into_iter().find(|known| known.type_name() == name).ok_or_else(|| {
        PyValueError::new_err(format!(
            "payload_type='{name}': bytes are 'raw' or 'vdif'; for samples and images, set dtype= and shape= instead"
        ))
    })
}
