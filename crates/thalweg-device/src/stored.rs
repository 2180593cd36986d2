//! Array elements in the byte order of a file; in a fragment they are always little-endian.

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};
use std::fmt;
use std::path::Path;
use std::str::FromStr;
use thalweg_wire::{Element, ElementError, Meaning, PayloadType};

/// A type of elements and their byte order, written `i16` or `i16_le`, and `i16_be`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StoredType {
    /// Type of the elements.
    pub element: Element,
    /// True if the most significant byte comes first.
    pub big_endian: bool,
}

impl StoredType {
    /// Returns the type of a payload with these axes, and its axes: samples have a channel axis even where there is one
    /// channel.
    pub(crate) fn payload_layout(self, mut shape: Vec<u64>) -> (PayloadType, Vec<u64>) {
        let payload_type = PayloadType::for_array(self.element, shape.len());
        if shape.len() == 1
            && payload_type.meaning_and_element().is_some_and(|(meaning, _)| meaning == Meaning::Samples)
        {
            shape.push(1);
        }
        (payload_type, shape)
    }

    /// Converts elements from a file to the byte order of fragments, little-endian.
    pub(crate) fn to_little_endian(self, bytes: &mut [u8]) {
        if !self.big_endian {
            return;
        }
        // Swapping with lengths known at compile time becomes byte-swap instructions.
        match self.element.number_bytes() {
            2 => bytes.as_chunks_mut::<2>().0.iter_mut().for_each(|number| number.reverse()),
            4 => bytes.as_chunks_mut::<4>().0.iter_mut().for_each(|number| number.reverse()),
            8 => bytes.as_chunks_mut::<8>().0.iter_mut().for_each(|number| number.reverse()),
            _ => {}
        }
    }

    /// Returns a note for the user if fragments have another byte order than the file.
    pub(crate) fn byte_order_note(self, file: &Path) -> Option<String> {
        let swapped = self.big_endian && self.element.number_bytes() > 1;
        swapped.then(|| format!("{}: {} is big-endian; fragments have it little-endian", file.display(), self.element))
    }
}

impl FromStr for StoredType {
    type Err = ElementError;

    fn from_str(text: &str) -> Result<Self, ElementError> {
        let (name, big_endian) = match text.rsplit_once('_') {
            Some((name, "be")) => (name, true),
            Some((name, "le")) => (name, false),
            _ => (text, false),
        };
        let element = name.parse().map_err(|_| ElementError(text.to_owned()))?;
        Ok(Self { element, big_endian })
    }
}

impl fmt::Display for StoredType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}", self.element, if self.big_endian { "_be" } else { "" })
    }
}

impl Serialize for StoredType {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for StoredType {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Visitor;
        impl de::Visitor<'_> for Visitor {
            type Value = StoredType;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a type of elements, such as \"i16\", or \"i16_be\" where they are big-endian")
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<StoredType, E> {
                text.parse().map_err(|error| E::custom(format!("{error}; _be after it means big-endian")))
            }
        }
        deserializer.deserialize_any(Visitor)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_byte_order_stands_behind_the_type() {
        for (text, element, big_endian) in [
            ("i16", Element::I16, false),
            ("i16_le", Element::I16, false),
            ("cf32_be", Element::CF32, true),
            ("u8", Element::U8, false),
        ] {
            assert_eq!(text.parse(), Ok(StoredType { element, big_endian }));
        }
        for text in ["", "int16", "i16_xe", "_be", "i16_be_be", "<i2"] {
            assert!(text.parse::<StoredType>().unwrap_err().to_string().contains(&format!("'{text}'")));
        }
    }

    #[test]
    fn samples_have_a_channel_axis_though_there_be_one() {
        let array = |text: &str, shape: &[u64]| {
            let (payload_type, shape) = text.parse::<StoredType>().unwrap().payload_layout(shape.to_vec());
            (payload_type.type_name(), shape)
        };
        assert_eq!(array("ci16", &[5]), ("samples-ci16", vec![5, 1]));
        assert_eq!(array("i16", &[5, 2]), ("samples-i16", vec![5, 2]));
        assert_eq!(array("f32", &[5]), ("array-f32", vec![5]));
    }

    #[test]
    fn each_number_is_turned_and_each_pair_keeps_its_order() {
        let turned = |text: &str, bytes: &[u8]| {
            let mut bytes = bytes.to_vec();
            text.parse::<StoredType>().unwrap().to_little_endian(&mut bytes);
            bytes
        };
        let bytes = [1, 2, 3, 4, 5, 6, 7, 8];
        assert_eq!(turned("u8_be", &bytes), bytes);
        assert_eq!(turned("f64", &bytes), bytes);
        assert_eq!(turned("ci16_be", &bytes), [2, 1, 4, 3, 6, 5, 8, 7]);
        assert_eq!(turned("f32_be", &bytes), [4, 3, 2, 1, 8, 7, 6, 5]);
        assert_eq!(turned("i64_be", &bytes), [8, 7, 6, 5, 4, 3, 2, 1]);
    }
}
