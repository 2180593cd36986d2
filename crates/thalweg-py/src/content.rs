//! What a Python program pushes: what it said it would, and what it has in hand.

use crate::RunError;
use numpy::{PyArrayDescr, PyArrayDescrMethods, PyUntypedArray, PyUntypedArrayMethods, dtype};
use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::PyBytes;
use serde_json::{Value, json};
use std::fmt;
use thalweg_wire::PayloadType;

/// The longest payload: what a slot of 1 GiB has room for, with a header in front and padding behind.
const MOST: usize = (1 << 30) - 128;

/// What all fragments of a source are made of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Content {
    /// Bytes of this type, at most so many.
    Bytes { payload_type: PayloadType, most: usize },
    /// 16-bit samples, `(samples, channels)`, at most so many samples.
    Samples { samples: usize, channels: usize },
    /// Images of one size, with pixels of this type.
    Images { payload_type: PayloadType, height: usize, width: usize },
}

impl Content {
    /// What the arguments of `Source` say.
    pub(crate) fn declared(
        dtype: Option<&Bound<'_, PyAny>>,
        shape: Option<&Bound<'_, PyAny>>,
        max_bytes: Option<usize>,
        payload_type: Option<&str>,
    ) -> PyResult<Self> {
        let content = match (dtype, shape, max_bytes) {
            (Some(dtype), Some(shape), None) => {
                if payload_type.is_some() {
                    return Err(PyTypeError::new_err("payload_type: dtype and shape say it; it goes with max_bytes"));
                }
                Self::of_array(dtype, shape)?
            }
            (None, None, Some(most)) => {
                Self::Bytes { payload_type: payload_type.map_or(Ok(PayloadType::RAW), named)?, most }
            }
            _ => {
                return Err(PyTypeError::new_err(
                    "say what will be pushed: dtype= and shape= of the largest array, or max_bytes= where it is bytes",
                ));
            }
        };
        match content.checked_bytes() {
            Some(1..=MOST) => Ok(content),
            _ => Err(PyValueError::new_err(format!("a fragment of {content}: 1 to {MOST} bytes are possible"))),
        }
    }

    fn of_array(asked: &Bound<'_, PyAny>, shape: &Bound<'_, PyAny>) -> PyResult<Self> {
        let element = Element::of(&PyArrayDescr::new(asked.py(), asked.clone())?);
        let shape: Vec<usize> = match shape.extract::<usize>() {
            Ok(one) => vec![one],
            Err(_) => shape.extract().map_err(|_| PyTypeError::new_err("shape: a whole number, or a tuple of them"))?,
        };
        match (element, &shape[..]) {
            (Some(Element::I16), &[samples]) => Ok(Self::Samples { samples, channels: 1 }),
            (Some(Element::I16), &[samples, channels]) => Ok(Self::Samples { samples, channels }),
            (Some(Element::U8), &[most]) => Ok(Self::Bytes { payload_type: PayloadType::RAW, most }),
            (Some(Element::U8), &[height, width]) => {
                Ok(Self::Images { payload_type: PayloadType::IMAGE_U8, height, width })
            }
            (Some(Element::U16), &[height, width]) => {
                Ok(Self::Images { payload_type: PayloadType::IMAGE_U16, height, width })
            }
            _ => Err(PyTypeError::new_err(format!("arrays of {} with shape {shape:?}: {POSSIBLE}", asked.str()?))),
        }
    }

    /// The longest payload.
    pub(crate) fn max_bytes(self) -> usize {
        self.checked_bytes().unwrap_or(usize::MAX)
    }

    fn checked_bytes(self) -> Option<usize> {
        match self {
            Self::Bytes { most, .. } => Some(most),
            Self::Samples { samples, channels } => samples.checked_mul(channels)?.checked_mul(2),
            Self::Images { payload_type, height, width } => {
                height.checked_mul(width)?.checked_mul(if payload_type == PayloadType::IMAGE_U8 { 1 } else { 2 })
            }
        }
    }

    /// The payload's type, where it is what was declared.
    pub(crate) fn check(self, payload: &Payload<'_>) -> PyResult<PayloadType> {
        let bytes = payload.bytes().len();
        match (self, payload.element, &payload.shape[..]) {
            // Whatever a source sends, it may have nothing to say.
            _ if bytes == 0 => Ok(self.payload_type()),
            (Self::Bytes { payload_type, most }, Element::U8, [_]) => {
                if bytes > most {
                    return Err(RunError::new_err(format!(
                        "a payload of {bytes} bytes is too long: this source was made for at most {most}"
                    )));
                }
                Ok(payload_type)
            }
            (Self::Samples { samples, channels }, Element::I16, &[pushed, ref rest @ ..])
                if rest == [channels] || (rest.is_empty() && channels == 1) =>
            {
                if pushed > samples {
                    return Err(RunError::new_err(format!(
                        "{pushed} samples are too many: this source was made for at most {samples}"
                    )));
                }
                Ok(PayloadType::SAMPLES_I16)
            }
            (Self::Images { payload_type, height, width }, element, shape)
                if shape == [height, width]
                    && element == if payload_type == PayloadType::IMAGE_U8 { Element::U8 } else { Element::U16 } =>
            {
                Ok(payload_type)
            }
            (_, element, shape) => {
                Err(PyTypeError::new_err(format!("pushed {element} of shape {shape:?} into a source of {self}")))
            }
        }
    }

    fn payload_type(self) -> PayloadType {
        match self {
            Self::Bytes { payload_type, .. } | Self::Images { payload_type, .. } => payload_type,
            Self::Samples { .. } => PayloadType::SAMPLES_I16,
        }
    }

    /// What readers go by.
    pub(crate) fn description(self) -> Value {
        let (payload_type, bytes) = (self.payload_type().name(), self.max_bytes());
        match self {
            Self::Bytes { .. } => json!({ "payload_type": payload_type, "record_bytes": bytes }),
            Self::Samples { samples, channels } => json!({
                "payload_type": payload_type, "record_bytes": bytes, "samples": samples, "channels": channels,
            }),
            Self::Images { height, width, .. } => json!({
                "payload_type": payload_type, "record_bytes": bytes, "width": width, "height": height,
            }),
        }
    }
}

impl fmt::Display for Content {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = self.payload_type().name();
        match self {
            Self::Bytes { most, .. } => write!(f, "{name}, up to {most} bytes"),
            Self::Samples { samples, channels } => write!(f, "{name}, up to {samples} samples of {channels} channels"),
            Self::Images { height, width, .. } => write!(f, "{name}, {height} rows of {width} pixels"),
        }
    }
}

/// What is behind an object that was pushed: its memory, which stays where it is while this lives.
pub(crate) struct Payload<'py> {
    owner: Bound<'py, PyAny>,
    start: *const u8,
    length: usize,
    element: Element,
    shape: Vec<usize>,
}

impl<'py> Payload<'py> {
    /// Looks into bytes, an array, or anything else with the buffer protocol. Nothing is copied.
    pub(crate) fn of(data: &Bound<'py, PyAny>) -> PyResult<Self> {
        let py = data.py();
        if let Ok(bytes) = data.cast::<PyBytes>() {
            let bytes = bytes.as_bytes();
            let (start, length) = (bytes.as_ptr(), bytes.len());
            return Ok(Self { owner: data.clone(), start, length, element: Element::U8, shape: vec![length] });
        }
        let array = match data.cast::<PyUntypedArray>() {
            Ok(array) => array.clone(),
            Err(_) => {
                // The view keeps a bytearray from being made longer or shorter meanwhile.
                let view = py.import("builtins")?.call_method1("memoryview", (data,)).map_err(|_| {
                    let kind = data.get_type().name().map(|name| name.to_string()).unwrap_or_default();
                    PyTypeError::new_err(format!("{kind} cannot be pushed: {POSSIBLE}"))
                })?;
                py.import("numpy")?.call_method1("asarray", (view,))?.cast_into::<PyUntypedArray>()?
            }
        };
        let descr = array.dtype();
        let element = Element::of(&descr)
            .ok_or_else(|| PyTypeError::new_err(format!("arrays of {descr} cannot be pushed: {POSSIBLE}")))?;
        if !array.is_c_contiguous() {
            return Err(PyValueError::new_err(
                "the array's elements do not lie one behind the other (C order): push numpy.ascontiguousarray(array)",
            ));
        }
        let (length, shape) = (array.len() * descr.itemsize(), array.shape().to_vec());
        // SAFETY: the array is there, with the fields that NumPy's header gives it.
        let start = unsafe { (*array.as_array_ptr()).data }.cast_const().cast::<u8>();
        Ok(Self { owner: array.into_any(), start, length, element, shape })
    }

    /// Its bytes.
    pub(crate) fn bytes(&self) -> &[u8] {
        if self.length == 0 {
            return &[];
        }
        let _ = &self.owner;
        // SAFETY: so many bytes lie there, one behind the other, for as long as the owner lives, and this keeps it.
        // They are only copied from; a program that writes to them meanwhile from another thread gets some of the old
        // and some of the new, as with any write from a buffer, and the checksum is computed from the copy.
        unsafe { std::slice::from_raw_parts(self.start, self.length) }
    }
}

/// What arrays may be made of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Element {
    U8,
    I16,
    U16,
}

impl Element {
    /// Nothing for any other type, or another byte order than this machine's.
    fn of(descr: &Bound<'_, PyArrayDescr>) -> Option<Self> {
        let py = descr.py();
        [(dtype::<u8>(py), Self::U8), (dtype::<i16>(py), Self::I16), (dtype::<u16>(py), Self::U16)]
            .into_iter()
            .find_map(|(known, element)| descr.is_equiv_to(&known).then_some(element))
    }
}

impl fmt::Display for Element {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::U8 => "uint8",
            Self::I16 => "int16",
            Self::U16 => "uint16",
        })
    }
}

const POSSIBLE: &str = "possible are int16 with shape (samples,) or (samples, channels), uint8 or uint16 with shape \
                        (height, width), and bytes or uint8 with shape (bytes,)";

fn named(name: &str) -> PyResult<PayloadType> {
    // Others have dimensions, which only dtype and shape say.
    [PayloadType::RAW, PayloadType::VDIF].into_iter().find(|known| known.name() == name).ok_or_else(|| {
        PyValueError::new_err(format!(
            "payload_type='{name}': bytes are 'raw' or 'vdif'; for samples and images say dtype= and shape= instead"
        ))
    })
}
