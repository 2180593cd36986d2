//! Images in one dimension: the average row, or the average column.

use crate::{Failure, Image};

/// A direction in an image.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Axis {
    /// Along the rows: x.
    X,
    /// From row to row: y.
    Y,
}

/// Values along a line, one pixel apart.
#[derive(Debug, Clone, PartialEq)]
pub struct Profile {
    values: Vec<f64>,
    from: usize,
    calibration: Option<f64>,
}

impl Profile {
    /// Creates a profile with these values, at 0, 1, 2, …
    pub fn new(values: Vec<f64>) -> Self {
        Self { values, from: 0, calibration: None }
    }

    /// Sets the step from value to value, in millimetres.
    #[must_use]
    pub fn with_calibration(self, millimetres: f64) -> Self {
        Self { calibration: Some(millimetres), ..self }
    }

    /// Averages an image's rows to one ([`Axis::X`]), or its columns ([`Axis::Y`]), in the pixels' unit. Coordinates
    /// stay those of the image.
    ///
    /// # Errors
    /// Saturated, not numbers.
    pub fn along_axis(image: &Image<'_>, axis: Axis) -> Result<Self, Failure> {
        // Other problems of pixels are found in the profile.
        if image.may_saturate() {
            image.survey_pixels()?;
        }
        let [x, y] = Self::along_both_axes(image);
        let profile = match axis {
            Axis::X => x,
            Axis::Y => y,
        };
        match profile.values.iter().all(|value| value.is_finite()) {
            true => Ok(profile),
            false => Err(Failure::NotNumbers),
        }
    }

    /// Returns the profiles along x and along y.
    pub(crate) fn along_both_axes(image: &Image<'_>) -> [Self; 2] {
        let (across, down) = image.average_profiles();
        let (seen, size) = (image.selected_region(), image.calibration());
        [
            Self { values: across, from: seen.x, calibration: size.map(|size| size.x) },
            Self { values: down, from: seen.y, calibration: size.map(|size| size.y) },
        ]
    }

    /// Returns the values.
    pub fn values(&self) -> &[f64] {
        &self.values
    }

    /// Returns the coordinate of the first value, in pixels.
    pub fn first_coordinate(&self) -> usize {
        self.from
    }

    /// Returns the distance from value to value in millimetres, if it is known.
    pub fn calibration(&self) -> Option<f64> {
        self.calibration
    }

    /// Returns the profile as an image of one row, at 0, 1, 2, …
    pub(crate) fn as_image(&self) -> Image<'_> {
        Image::new(self.values.len(), 1, &self.values).expect("one row")
    }

    /// Returns the same profile with other values.
    pub(crate) fn with_values(&self, values: Vec<f64>) -> Self {
        Self { values, ..*self }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Calibration, Region};

    #[test]
    fn a_profile_is_the_average_of_rows_or_of_columns() {
        let pixels: Vec<u8> = vec![1, 2, 3, 5, 6, 7];
        let image = Image::new(3, 2, &pixels).unwrap();
        assert_eq!(Profile::along_axis(&image, Axis::X).unwrap().values(), [3.0, 4.0, 5.0]);
        assert_eq!(Profile::along_axis(&image, Axis::Y).unwrap().values(), [2.0, 6.0]);
    }

    #[test]
    fn a_profile_of_a_region_knows_where_it_is() {
        let pixels: Vec<u16> = (0..20).collect();
        let image = Image::new(5, 4, &pixels).unwrap().with_calibration(Calibration { x: 0.5, y: 2.0 }).unwrap();
        let image = image.with_region(Region { x: 2, y: 1, width: 3, height: 2 }).unwrap();
        let [x, y] = [Axis::X, Axis::Y].map(|axis| Profile::along_axis(&image, axis).unwrap());
        assert_eq!((x.values(), x.first_coordinate(), x.calibration()), (&[9.5, 10.5, 11.5][..], 2, Some(0.5)));
        assert_eq!((y.values(), y.first_coordinate(), y.calibration()), (&[8.0, 13.0][..], 1, Some(2.0)));
    }
}
