//! Real beams have the diameters that the Python package `laserbeamsize` finds (2.5.0, `beam_size` with its defaults).
//!
//! The twelve whole images are those of its documentation (`docs/images/caustic-*mm.pgm`, a HeNe beam after a lens):
//! `THALWEG_BEAMS` names a folder that contains them. Two excerpts are in `thalweg-device`.

use std::path::{Path, PathBuf};
use thalweg_image::{Beam, Failure, Image, MomentOptions, beam_moments};

/// Returns the pixels in a row, and the pixels, of a binary PGM file with 8 bits.
fn pgm(path: &Path) -> (usize, Vec<u8>) {
    let bytes = std::fs::read(path).unwrap();
    let mut fields = bytes.splitn(4, u8::is_ascii_whitespace);
    let mut number = || std::str::from_utf8(fields.next().unwrap()).unwrap().to_owned();
    let (kind, width, height) = (number(), number(), number());
    assert_eq!(kind, "P5");
    let (width, height): (usize, usize) = (width.parse().unwrap(), height.parse().unwrap());
    (width, bytes[bytes.len() - width * height..].to_vec())
}

fn taken(path: &Path) -> Result<Beam, Failure> {
    let (width, pixels) = pgm(path);
    let image = Image::new(width, pixels.len() / width, &pixels).unwrap();
    beam_moments(&image, &MomentOptions::default()).map(|got| got.beam)
}

/// Asserts diameters within 1 %, and angles within 0.01 rad where the beam is not round.
fn check(path: &Path, [x, y, d_major, d_minor, angle]: [f64; 5]) {
    let got = taken(path).unwrap_or_else(|failure| panic!("{}: {failure}", path.display()));
    let shown = format!("{}: {got:?}", path.display());
    assert!((got.x - x).abs() < 0.01 * d_major && (got.y - y).abs() < 0.01 * d_major, "{shown}");
    assert!((got.d_major / d_major - 1.0).abs() < 0.01 && (got.d_minor / d_minor - 1.0).abs() < 0.01, "{shown}");
    assert!(d_major / d_minor < 1.2 || (got.angle - angle).sin().abs() < 0.01, "{shown}");
}

#[test]
fn pieces_of_two_beams_have_their_diameters() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../thalweg-device/recordings/beam");
    check(&folder.join("caustic-168mm.pgm"), [97.2272, 63.7243, 159.1059, 124.6545, 0.0069]);
    check(&folder.join("caustic-520mm.pgm"), [125.7033, 69.3006, 125.6765, 112.1113, 1.4919]);
}

#[test]
fn twelve_beams_have_their_diameters() {
    let Some(folder) = std::env::var_os("THALWEG_BEAMS").map(PathBuf::from) else {
        return thalweg_testing::skip::skipped(
            "THALWEG_BEAMS names no folder of the images of laserbeamsize's documentation",
        );
    };
    let beams = [
        ("210", [592.1185, 333.3291, 213.1448, 201.5951, -0.5441]),
        ("280", [514.8260, 430.4258, 269.2897, 179.0987, -0.4243]),
        ("348", [474.7818, 306.5707, 178.8390, 148.4775, -1.2223]),
        ("414", [480.5337, 388.1244, 148.0739, 137.1814, -1.2171]),
        ("480", [331.0788, 360.2125, 333.4999, 118.7050, 1.5705]),
        ("495", [436.0003, 547.8348, 129.8121, 116.2352, -1.1948]),
        ("510", [452.3660, 335.3346, 351.5600, 108.6390, 1.5687]),
        ("520", [485.5628, 327.0580, 350.0966, 111.5135, 1.5673]),
        ("580", [581.3716, 340.0827, 121.8950, 113.0041, 1.3984]),
        ("666", [479.9126, 542.3603, 115.8629, 110.3736, 0.2790]),
        ("770", [484.6219, 376.8101, 137.9244, 128.7448, 0.8288]),
    ];
    for (distance, beam) in beams {
        check(&folder.join(format!("caustic-{distance}mm.pgm")), beam);
    }
    // Noise outweighs the light there: laserbeamsize has no minor diameter either.
    assert_eq!(taken(&folder.join("caustic-168mm.pgm")), Err(Failure::Undetermined));
}
