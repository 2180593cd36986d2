//! Pixel formats by the names and numbers that cameras give them (GenICam Pixel Format Naming Convention, version 2.x).

use thalweg_wire::{Element, Meaning, PayloadType};

/// Contents of a frame of a format.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Pixels {
    /// Payload type in the fragment's header.
    pub payload: PayloadType,
    /// Number of values in a pixel.
    pub colours: u64,
    /// Number of significant bits of a value, if a value has bytes of its own.
    pub bits: Option<u32>,
}

/// Returns a format by its name: `Mono8`, `BayerRG12`, `RGB8`. Formats packed across byte boundaries are bytes without
/// a stated meaning.
pub(crate) fn pixels_by_name(name: &str) -> Pixels {
    const COLOURS: [(&str, u64); 20] = [
        ("Mono", 1),
        ("BayerGR", 1),
        ("BayerRG", 1),
        ("BayerGB", 1),
        ("BayerBG", 1),
        ("RGBa", 4),
        ("BGRa", 4),
        ("RGB", 3),
        ("BGR", 3),
        ("Coord3D_ABC", 3),
        ("Coord3D_AC", 2),
        ("Coord3D_A", 1),
        ("Coord3D_B", 1),
        ("Coord3D_C", 1),
        ("Confidence", 1),
        ("R", 1),
        ("G", 1),
        ("B", 1),
        ("YUV8_UYV", 3),
        ("YCbCr8_CbYCr", 3),
    ];
    let raw = Pixels { payload: PayloadType::RAW, colours: 1, bits: None };
    for (prefix, colours) in COLOURS {
        let Some(width) = name.strip_prefix(prefix) else { continue };
        let (element, bits) = match width {
            "8" | "" if colours == 3 || width == "8" => (Element::U8, 8),
            "10" => (Element::U16, 10),
            "12" => (Element::U16, 12),
            "14" => (Element::U16, 14),
            "16" => (Element::U16, 16),
            _ => continue,
        };
        return Pixels { payload: PayloadType::new(Meaning::Image, element), colours, bits: Some(bits) };
    }
    raw
}

/// Returns the number of bits of a pixel from the format's number: its second byte.
pub(crate) fn bits_per_pixel(format: u32) -> u32 {
    format >> 16 & 0xff
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn formats_are_known_by_name() {
        let of = |name| {
            let pixels = pixels_by_name(name);
            (pixels.payload.type_name(), pixels.colours, pixels.bits)
        };
        assert_eq!(of("Mono8"), (PayloadType::IMAGE_U8.type_name(), 1, Some(8)));
        assert_eq!(of("Mono12"), (PayloadType::IMAGE_U16.type_name(), 1, Some(12)));
        assert_eq!(of("BayerRG16"), (PayloadType::IMAGE_U16.type_name(), 1, Some(16)));
        assert_eq!(of("RGB8"), (PayloadType::IMAGE_U8.type_name(), 3, Some(8)));
        assert_eq!(of("RGBa8"), (PayloadType::IMAGE_U8.type_name(), 4, Some(8)));
        for packed in ["Mono12p", "Mono12Packed", "Mono10Packed", "BayerRG10p", "YUV422_8", "Mono1p", "Mono", "", "8"] {
            assert_eq!(of(packed), ("raw", 1, None), "{packed}");
        }
        assert_eq!((bits_per_pixel(0x0108_0001), bits_per_pixel(0x0218_0014)), (8, 24));
    }
}
