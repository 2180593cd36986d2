//! The type of a payload: its elements, and the meaning of its axes.
//!
//! Both are in the header's payload type. The lengths of the axes are in the source's description (`shape`), since they
//! are the same for all fragments of a source.

use std::fmt;
use std::str::FromStr;
use thiserror::Error;

/// Type of a payload. A number that this version does not know is carried through unchanged.
///
/// Numbers from 256 on are a [`Meaning`] in the upper byte and an [`Element`]'s code in the lower. Numbers 1 to 3 have
/// stood for three of these since the format's beginning, and are the ones written for them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct PayloadType(pub u16);

impl PayloadType {
    /// Bytes without a stated meaning.
    pub const RAW: Self = Self(0);
    /// Signed 16-bit little-endian samples; several channels are interleaved sample by sample.
    pub const SAMPLES_I16: Self = Self(1);
    /// Unsigned 8-bit pixels, row by row.
    pub const IMAGE_U8: Self = Self(2);
    /// Unsigned 16-bit little-endian pixels, row by row.
    pub const IMAGE_U16: Self = Self(3);
    /// One VDIF data frame with its header (VDIF specification 1.1.1).
    pub const VDIF: Self = Self(4);

    /// Returns the type for elements of this type in an array of this meaning.
    pub fn new(meaning: Meaning, element: Element) -> Self {
        match (meaning, element) {
            (Meaning::Samples, Element::I16) => Self::SAMPLES_I16,
            (Meaning::Image, Element::U8) => Self::IMAGE_U8,
            (Meaning::Image, Element::U16) => Self::IMAGE_U16,
            _ => Self((meaning as u16) << 8 | u16::from(element.0)),
        }
    }

    /// Returns the type for an array whose meaning is not stated: two axes of unsigned bytes or 16-bit numbers are an
    /// image; one or two of signed 16-bit or complex numbers are samples; any other is an array.
    pub fn for_array(element: Element, axes: usize) -> Self {
        let meaning = match (element, axes) {
            (Element::U8 | Element::U16, 2) => Meaning::Image,
            (Element::I16, 1 | 2) => Meaning::Samples,
            (element, 1 | 2) if element.is_complex() => Meaning::Samples,
            _ => Meaning::Array,
        };
        Self::new(meaning, element)
    }

    /// Returns the meaning of the axes and the type of the elements; `None` if the payload is not an array.
    pub fn meaning_and_element(self) -> Option<(Meaning, Element)> {
        match self {
            Self::SAMPLES_I16 => Some((Meaning::Samples, Element::I16)),
            Self::IMAGE_U8 => Some((Meaning::Image, Element::U8)),
            Self::IMAGE_U16 => Some((Meaning::Image, Element::U16)),
            Self(number) => {
                let [meaning, code] = number.to_be_bytes();
                let meaning = Meaning::ALL.into_iter().find(|known| *known as u8 == meaning)?;
                Some((meaning, Element::ALL.into_iter().find(|known| known.0 == code)?))
            }
        }
    }

    /// Returns the name used on the command line and in `run.json`.
    pub fn type_name(self) -> &'static str {
        match (self, self.meaning_and_element()) {
            (Self::RAW, _) => "raw",
            (Self::VDIF, _) => "vdif",
            (_, Some((meaning, element))) => element.names()[meaning as usize],
            (_, None) => "unknown",
        }
    }
}

/// Meaning of the axes of an array.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Meaning {
    /// Sample by channel, channels interleaved. The first axis of a fragment may be shorter than stated.
    Samples = 1,
    /// Row by column, and by colour where there is a third axis.
    Image = 2,
    /// Axes that this format does not name. The first axis of a fragment may be shorter than stated.
    Array = 3,
}

impl Meaning {
    /// All meanings.
    pub const ALL: [Self; 3] = [Self::Samples, Self::Image, Self::Array];
}

/// The type of an array's elements: little-endian numbers, or pairs of them that make a complex number.
///
/// The code holds log₂ of a number's bytes in bits 0 and 1; 0 unsigned, 1 signed, 2 floating-point (IEEE 754) in bits 2
/// and 3; and 1 in bit 4 where two numbers, real part first, are one element.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Element(u8);

/// Kind of the numbers of an element.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NumberKind {
    /// An unsigned integer.
    Unsigned,
    /// A signed integer in two's complement.
    Signed,
    /// A floating-point number as in IEEE 754.
    Float,
}

/// Error for a text that is not an [`Element`].
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error(
    "'{0}' is not a type: write one of u8, u16, u32, u64, i8, i16, i32, i64, f32 and f64 (bits), or ci16, cf32, … for \
     complex numbers"
)]
pub struct ElementError(pub String);

macro_rules! elements {
    ($($constant:ident = $code:literal $name:literal,)*) => {
        impl Element {
            $(#[doc = concat!("`", $name, "`")] pub const $constant: Self = Self($code);)*
            /// All element types.
            pub const ALL: [Self; 20] = [$(Self($code),)*];

            /// Returns the element's own name, and the names of arrays of each meaning.
            fn names(self) -> [&'static str; 4] {
                match self.0 {
                    $($code => [
                        $name,
                        concat!("samples-", $name),
                        concat!("image-", $name),
                        concat!("array-", $name),
                    ],)*
                    _ => ["unknown"; 4],
                }
            }
        }
    };
}

elements! {
    U8 = 0 "u8",
    U16 = 1 "u16",
    U32 = 2 "u32",
    U64 = 3 "u64",
    I8 = 4 "i8",
    I16 = 5 "i16",
    I32 = 6 "i32",
    I64 = 7 "i64",
    F32 = 10 "f32",
    F64 = 11 "f64",
    CU8 = 16 "cu8",
    CU16 = 17 "cu16",
    CU32 = 18 "cu32",
    CU64 = 19 "cu64",
    CI8 = 20 "ci8",
    CI16 = 21 "ci16",
    CI32 = 22 "ci32",
    CI64 = 23 "ci64",
    CF32 = 26 "cf32",
    CF64 = 27 "cf64",
}

impl Element {
    /// Returns the name as in `type = "i16"`.
    pub fn element_name(self) -> &'static str {
        self.names()[0]
    }

    /// Returns the number of bytes in one element.
    pub fn element_bytes(self) -> usize {
        self.number_bytes() * if self.is_complex() { 2 } else { 1 }
    }

    /// Returns the number of bytes in one number of the element.
    pub fn number_bytes(self) -> usize {
        1 << (self.0 & 3)
    }

    /// Returns whether the element is two numbers: the real part and the imaginary part.
    pub fn is_complex(self) -> bool {
        self.0 & 16 != 0
    }

    /// Returns the kind of the element's numbers.
    pub fn number_kind(self) -> NumberKind {
        match self.0 >> 2 & 3 {
            0 => NumberKind::Unsigned,
            1 => NumberKind::Signed,
            _ => NumberKind::Float,
        }
    }

    /// Returns the number of bytes in an array of this shape; `None` if it does not fit in 64 bits.
    pub fn array_bytes(self, shape: &[u64]) -> Option<u64> {
        // An axis of length 0 makes the array empty, however long the others are.
        if shape.contains(&0) {
            return Some(0);
        }
        shape.iter().try_fold(self.element_bytes() as u64, |bytes, length| bytes.checked_mul(*length))
    }
}

impl fmt::Display for Element {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.element_name())
    }
}

impl fmt::Debug for Element {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.element_name())
    }
}

impl FromStr for Element {
    type Err = ElementError;

    fn from_str(text: &str) -> Result<Self, ElementError> {
        Self::ALL
            .into_iter()
            .find(|element| element.element_name() == text)
            .ok_or_else(|| ElementError(text.to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// The numbers are the contract with readers in other languages.
    #[test]
    fn numbers_stay_what_they_are() {
        for (number, name) in [
            (0, "raw"),
            (1, "samples-i16"),
            (2, "image-u8"),
            (3, "image-u16"),
            (4, "vdif"),
            (5, "unknown"),
            (0x0115, "samples-ci16"),
            (0x011a, "samples-cf32"),
            (0x0202, "image-u32"),
            (0x030b, "array-f64"),
            (0x0300, "array-u8"),
            (0x0308, "unknown"),
            (0x0400, "unknown"),
        ] {
            assert_eq!(PayloadType(number).type_name(), name, "{number:#06x}");
        }
    }

    #[test]
    fn the_code_says_the_size_and_the_kind() {
        use NumberKind::{Float, Signed, Unsigned};
        for (element, size, kind, complex) in [
            (Element::U8, 1, Unsigned, false),
            (Element::I64, 8, Signed, false),
            (Element::F32, 4, Float, false),
            (Element::CI16, 4, Signed, true),
            (Element::CF64, 16, Float, true),
        ] {
            assert_eq!((element.element_bytes(), element.number_kind(), element.is_complex()), (size, kind, complex));
        }
        assert_eq!(Element::CF32.array_bytes(&[100, 4]), Some(3200));
        assert_eq!(Element::U8.array_bytes(&[u64::MAX, 2]), None);
        assert_eq!(Element::U16.array_bytes(&[u64::MAX, 2, 0]), Some(0));
        assert!("i24".parse::<Element>().unwrap_err().to_string().contains("'i24' is not a type: write one of u8"));
    }

    #[test]
    fn an_array_whose_meaning_nobody_states_is_taken_for_the_likely_thing() {
        for (element, axes, name) in [
            (Element::I16, 1, "samples-i16"),
            (Element::CF32, 2, "samples-cf32"),
            (Element::U16, 2, "image-u16"),
            (Element::U16, 1, "array-u16"),
            (Element::F32, 2, "array-f32"),
            (Element::CI16, 3, "array-ci16"),
        ] {
            assert_eq!(PayloadType::for_array(element, axes).type_name(), name);
        }
    }

    proptest! {
        #[test]
        fn parts_undo_new_and_names_are_unlike(number: u16) {
            let kind = PayloadType(number);
            if let Some((meaning, element)) = kind.meaning_and_element() {
                let written = PayloadType::new(meaning, element);
                prop_assert_eq!(written.meaning_and_element(), Some((meaning, element)));
                prop_assert_eq!(written.type_name(), kind.type_name());
                prop_assert_eq!(element.element_name().parse::<Element>(), Ok(element));
            }
        }
    }
}
