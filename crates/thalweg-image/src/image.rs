//! Images as a camera delivers them: rows of pixels, a region of interest, millimetres, white.

use crate::Failure;
use crate::math::{load_vector, splat, vectorised, whole_vectors};
use fearless_simd::prelude::*;
use std::fmt;
use std::ops::Range;
use thiserror::Error;

/// Pixels, row by row, from the first row on the left to the last on the right.
#[derive(Debug, Clone, Copy)]
pub enum Pixels<'a> {
    /// Pixels of 8 bits.
    U8(&'a [u8]),
    /// Pixels of up to 16 bits; 10 and 12 bits are in the lower bits.
    U16(&'a [u16]),
    /// Single-precision pixels, for corrected or averaged images.
    F32(&'a [f32]),
    /// Double-precision pixels, for corrected or averaged images.
    F64(&'a [f64]),
}

macro_rules! each {
    ($pixels:expr, $p:ident => $do:expr) => {
        match $pixels {
            Pixels::U8($p) => $do,
            Pixels::U16($p) => $do,
            Pixels::F32($p) => $do,
            Pixels::F64($p) => $do,
        }
    };
}

impl Pixels<'_> {
    /// Returns the number of pixels.
    pub fn len(&self) -> usize {
        each!(self, p => p.len())
    }

    /// Returns whether there are no pixels.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Copies the pixels from number `at` on into `out`, filling it.
    #[inline(always)]
    #[expect(clippy::useless_conversion, reason = "of one kind of pixel in four")]
    fn load_pixels(&self, at: usize, out: &mut [f64]) {
        let end = at + out.len();
        each!(self, p => {
            for (out, pixel) in out.iter_mut().zip(&p[at..end]) {
                *out = f64::from(*pixel);
            }
        });
    }
}

macro_rules! from {
    ($($kind:ty => $name:ident),*) => {$(
        impl<'a> From<&'a [$kind]> for Pixels<'a> {
            fn from(pixels: &'a [$kind]) -> Self {
                Self::$name(pixels)
            }
        }
        impl<'a> From<&'a Vec<$kind>> for Pixels<'a> {
            fn from(pixels: &'a Vec<$kind>) -> Self {
                Self::$name(pixels)
            }
        }
    )*};
}
from!(u8 => U8, u16 => U16, f32 => F32, f64 => F64);

/// A rectangle of an image, in pixels.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Region {
    /// First column.
    pub x: usize,
    /// First row.
    pub y: usize,
    /// Number of columns.
    pub width: usize,
    /// Number of rows.
    pub height: usize,
}

impl fmt::Display for Region {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { x, y, width, height } = self;
        write!(f, "{width} × {height} pixels from ({x}, {y}) on")
    }
}

/// Size of a pixel at the light's origin, in millimetres.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Calibration {
    /// Distance from column to column, in millimetres.
    pub x: f64,
    /// Distance from row to row, in millimetres.
    pub y: f64,
}

/// Reason why an image cannot be as described.
#[derive(Debug, Clone, Copy, PartialEq, Error)]
pub enum ImageError {
    /// The number of pixels does not match the shape.
    #[error("an image of {height} rows of {width} pixels has {} pixels, not {pixels}", width * height)]
    Shape {
        /// Number of columns.
        width: usize,
        /// Number of rows.
        height: usize,
        /// Number of pixels given.
        pixels: usize,
    },
    /// The image has no pixels.
    #[error("an image of {height} rows of {width} pixels has none")]
    Empty {
        /// Number of columns.
        width: usize,
        /// Number of rows.
        height: usize,
    },
    /// The region is not within the image, or has no pixels.
    #[error("{region} are not inside an image of {height} rows of {width} pixels")]
    Region {
        /// Region requested.
        region: Region,
        /// Number of columns.
        width: usize,
        /// Number of rows.
        height: usize,
    },
    /// The size of a pixel is not positive and finite.
    #[error("a pixel of {} × {} mm is invalid: both sizes must be above 0", .0.x, .0.y)]
    Calibration(Calibration),
}

/// An image whose pixels are borrowed.
///
/// Column `x` of row `y` is at (x, y): coordinates are those of pixels' centres, begin at 0 on the upper left, and stay
/// those of the whole image if a [`region`](Self::region) is selected. In millimetres they are these times the
/// [`calibration`](Self::with_calibration).
#[derive(Debug, Clone, Copy)]
pub struct Image<'a> {
    pixels: Pixels<'a>,
    /// Number of pixels from row to row.
    width: usize,
    height: usize,
    region: Region,
    calibration: Option<Calibration>,
    white: Option<f64>,
}

impl<'a> Image<'a> {
    /// Creates an image of `height` rows of `width` pixels.
    ///
    /// # Errors
    /// The number of pixels does not match, or is zero.
    pub fn new(width: usize, height: usize, pixels: impl Into<Pixels<'a>>) -> Result<Self, ImageError> {
        let pixels = pixels.into();
        if width.checked_mul(height) != Some(pixels.len()) {
            // The product in the message must not overflow either.
            let (width, height) = if width.checked_mul(height).is_some() { (width, height) } else { (usize::MAX, 1) };
            return Err(ImageError::Shape { width, height, pixels: pixels.len() });
        }
        if pixels.is_empty() {
            return Err(ImageError::Empty { width, height });
        }
        let region = Region { x: 0, y: 0, width, height };
        Ok(Self { pixels, width, height, region, calibration: None, white: None })
    }

    /// Selects a part of the image.
    ///
    /// # Errors
    /// The region is not within the image, or is empty.
    pub fn with_region(self, region: Region) -> Result<Self, ImageError> {
        let (width, height) = (self.width, self.height);
        let mut sides = [(region.x, region.width, width), (region.y, region.height, height)].into_iter();
        match sides.all(|(from, length, all)| length > 0 && from.checked_add(length).is_some_and(|end| end <= all)) {
            true => Ok(Self { region, ..self }),
            false => Err(ImageError::Region { region, width, height }),
        }
    }

    /// Sets the size of a pixel: results then come in millimetres as well.
    ///
    /// # Errors
    /// A size is not positive.
    pub fn with_calibration(self, calibration: Calibration) -> Result<Self, ImageError> {
        match [calibration.x, calibration.y].iter().all(|mm| mm.is_finite() && *mm > 0.0) {
            true => Ok(Self { calibration: Some(calibration), ..self }),
            false => Err(ImageError::Calibration(calibration)),
        }
    }

    /// Sets the highest value that pixels can have: an image that has two such pixels side by side in a row is
    /// [`Failure::Saturated`]. (A single one may be a pixel that is always white.)
    #[must_use]
    pub fn saturating_at(self, white: f64) -> Self {
        Self { white: Some(white), ..self }
    }

    /// Returns whether there is a value that pixels cannot exceed.
    pub(crate) fn may_saturate(&self) -> bool {
        self.white.is_some()
    }

    /// Returns the size of a pixel, if it is known.
    pub fn calibration(&self) -> Option<Calibration> {
        self.calibration
    }

    /// Returns the selected region.
    pub fn selected_region(&self) -> Region {
        self.region
    }

    /// Returns the number of columns of the selected region.
    pub(crate) fn column_count(&self) -> usize {
        self.region.width
    }

    /// Returns the number of rows of the selected region.
    pub(crate) fn row_count(&self) -> usize {
        self.region.height
    }

    /// Copies pixels of row `y` from column `x` on into `out`, both counted within the region.
    #[inline(always)]
    pub(crate) fn load_row_part(&self, x: usize, y: usize, out: &mut [f64]) {
        self.pixels.load_pixels((self.region.y + y) * self.width + self.region.x + x, out);
    }

    /// Visits every pixel once, and returns the range and the scatter of the values.
    ///
    /// # Errors
    /// No light, saturated, not numbers.
    pub(crate) fn survey_pixels(&self) -> Result<Survey, Failure> {
        let white = self.white.unwrap_or(f64::INFINITY);
        let survey = vectorised!(simd => self.survey_rows(simd, white));
        let Survey { darkest, brightest, squares, .. } = survey;
        if survey.white_pairs > 0 {
            return Err(Failure::Saturated);
        }
        if !(darkest.is_finite() && brightest.is_finite() && squares.is_finite()) {
            return Err(Failure::NotNumbers);
        }
        match darkest < brightest {
            true => Ok(survey),
            false => Err(Failure::NoLight),
        }
    }

    #[inline(always)]
    fn survey_rows<S: Simd>(&self, simd: S, white: f64) -> Survey {
        let (columns, rows) = (self.column_count(), self.row_count());
        // Sums are of differences from this value, to lose little precision when they are subtracted from each other.
        let mut pivot = [0.0];
        self.load_row_part(0, 0, &mut pivot);
        let [pivot] = pivot;
        // Padding of the last vector of a row is this pixel, which adds nothing to the sums.
        let mut row = vec![pivot; whole_vectors(columns)];
        let (mut darkest, mut brightest) = (splat(simd, f64::INFINITY), splat(simd, f64::NEG_INFINITY));
        let (mut sum, mut squares) = (splat(simd, 0.0), splat(simd, 0.0));
        let mut white_pairs = 0;
        for y in 0..rows {
            self.load_row_part(0, y, &mut row[..columns]);
            for at in (0..row.len()).step_by(S::f64s::LEN) {
                let values = load_vector(simd, &row, at);
                let over = values - pivot;
                darkest = darkest.min(values);
                brightest = brightest.max(values);
                sum += over;
                squares = over.mul_add(over, squares);
            }
            if white < f64::INFINITY {
                white_pairs += row[..columns].windows(2).filter(|pair| pair[0] >= white && pair[1] >= white).count();
            }
        }
        let pixels = (columns * rows) as f64;
        let (sum, squares) = (sum.reduce_sum(), squares.reduce_sum());
        Survey {
            darkest: darkest.reduce_min(),
            brightest: brightest.reduce_max(),
            // NaN may be neither the darkest nor the brightest, but stays in the sums.
            squares: squares - sum * (sum / pixels),
            white_pairs,
        }
    }

    /// Returns the average row, and the average column.
    pub(crate) fn average_profiles(&self) -> (Vec<f64>, Vec<f64>) {
        vectorised!(simd => self.average_rows(simd))
    }

    #[inline(always)]
    fn average_rows<S: Simd>(&self, simd: S) -> (Vec<f64>, Vec<f64>) {
        let (columns, rows) = (self.column_count(), self.row_count());
        let mut across = vec![0.0; whole_vectors(columns)];
        let (mut row, mut down) = (across.clone(), Vec::with_capacity(rows));
        for y in 0..rows {
            self.load_row_part(0, y, &mut row[..columns]);
            let mut light = splat(simd, 0.0);
            for at in (0..row.len()).step_by(S::f64s::LEN) {
                let values = load_vector(simd, &row, at);
                light += values;
                (load_vector(simd, &across, at) + values).store_slice(&mut across[at..at + S::f64s::LEN]);
            }
            down.push(light.reduce_sum() / columns as f64);
        }
        across.truncate(columns);
        across.iter_mut().for_each(|sum| *sum /= rows as f64);
        (across, down)
    }

    /// Returns whether a place lies between the centres of the selected region's outermost pixels.
    pub(crate) fn contains_place(&self, x: f64, y: f64) -> bool {
        let Region { x: left, y: top, width, height } = self.region;
        (left as f64..=(left + width - 1) as f64).contains(&x) && (top as f64..=(top + height - 1) as f64).contains(&y)
    }

    /// Returns whether a rectangle with this centre and half of these sides lies within the outer edges of the selected
    /// region's pixels.
    pub(crate) fn encloses_rectangle(&self, [x, y]: [f64; 2], [half_x, half_y]: [f64; 2]) -> bool {
        let (left, top) = (self.region.x as f64 - 0.5, self.region.y as f64 - 0.5);
        x - half_x >= left
            && y - half_y >= top
            && x + half_x <= left + self.column_count() as f64
            && y + half_y <= top + self.row_count() as f64
    }

    /// Returns the columns between two coordinates of the image, both inclusive, as a range within the region.
    pub(crate) fn columns_between(&self, from: f64, to: f64) -> Range<usize> {
        let (offset, end) = (self.region.x as f64, self.column_count() as f64);
        // Casts of floats saturate, and NaN is 0.
        let from = (from - offset).ceil().clamp(0.0, end) as usize;
        let to = ((to - offset).floor() + 1.0).clamp(0.0, end) as usize;
        from..to.max(from)
    }
}

/// Properties of an image found in one pass over its pixels.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Survey {
    pub(crate) darkest: f64,
    pub(crate) brightest: f64,
    /// Σ (pixel − mean)².
    pub(crate) squares: f64,
    white_pairs: usize,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_image_is_what_its_shape_says() {
        let pixels = vec![0u8; 12];
        assert!(Image::new(4, 3, &pixels).is_ok());
        let error = Image::new(4, 4, &pixels).unwrap_err();
        assert_eq!(error.to_string(), "an image of 4 rows of 4 pixels has 16 pixels, not 12");
        assert!(Image::new(usize::MAX, 2, &pixels).unwrap_err().to_string().contains("not 12"));
    }

    #[test]
    fn a_region_is_within_the_image() {
        let pixels = vec![0u16; 12];
        let image = Image::new(4, 3, &pixels).unwrap();
        assert!(image.with_region(Region { x: 1, y: 1, width: 3, height: 2 }).is_ok());
        for (x, width) in [(1, 4), (4, 1), (0, 0), (usize::MAX, 2)] {
            assert!(image.with_region(Region { x, y: 0, width, height: 1 }).is_err(), "{width} from {x}");
        }
    }

    #[test]
    fn two_white_pixels_side_by_side_are_saturated_and_one_is_not() {
        let mut pixels = vec![7u8; 12];
        pixels[5] = 255;
        let survey =
            |pixels: &Vec<u8>| Image::new(4, 3, pixels).unwrap().saturating_at(255.0).survey_pixels().map(|_| ());
        assert_eq!(survey(&pixels), Ok(()));
        pixels[8] = 255;
        assert_eq!(survey(&pixels), Ok(()), "they are in different rows");
        pixels[6] = 255;
        assert_eq!(survey(&pixels), Err(Failure::Saturated));
    }

    #[test]
    fn what_is_no_number_is_found_wherever_it_stands() {
        for bad in [f32::NAN, f32::INFINITY] {
            for at in 0..33 {
                let mut pixels: Vec<f32> = (0..33).map(|n| n as f32).collect();
                pixels[at] = bad;
                assert_eq!(
                    Image::new(11, 3, &pixels).unwrap().survey_pixels().unwrap_err(),
                    Failure::NotNumbers,
                    "{bad} {at}"
                );
            }
        }
    }

    #[test]
    fn a_survey_has_the_squares_about_the_mean() {
        let pixels: Vec<u16> = (0..35).map(|n| 1000 + n * n % 17).collect();
        let survey = Image::new(7, 5, &pixels).unwrap().survey_pixels().unwrap();
        let mean = pixels.iter().map(|p| f64::from(*p)).sum::<f64>() / 35.0;
        let squares: f64 = pixels.iter().map(|p| (f64::from(*p) - mean).powi(2)).sum();
        assert!((survey.squares - squares).abs() < 1e-9);
    }
}
