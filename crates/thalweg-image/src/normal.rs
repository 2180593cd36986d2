//! The normal equations JᵀJ δ = Jᵀr of an image's fit, summed pixel by pixel without keeping J.
//!
//! J, the derivatives of the model by its N parameters at each pixel, would be N times the image in 64 bits: 17 MB for
//! seven parameters and VGA, written and read again in each step. Here it exists for [`CHUNK_PIXELS`] pixels of a row
//! at a time, in the nearest cache, beside the residuals. All their products with each other are summed at once: JᵀJ,
//! Jᵀr and the sum of squares.

use crate::Image;
use crate::math::{lane_indices, load_vector, splat, vectorised};
use fearless_simd::prelude::*;

/// Number of pixels of a row that are processed together.
pub(crate) const CHUNK_PIXELS: usize = 128;

/// Derivatives by each of N parameters, and last the model's value, for each pixel of a chunk. M is N + 1.
pub(crate) type Columns<const M: usize> = [[f64; CHUNK_PIXELS]; M];

/// Model of an image: a background, which is the first parameter, and light on it.
pub(crate) trait Model<const N: usize, const M: usize> {
    /// Returns the derivatives and the value of pixels at these `x` of row `y` with these parameters.
    fn derivative_columns<S: Simd>(&self, simd: S, parameters: &[f64; N], x: S::f64s, y: f64) -> [S::f64s; M];

    /// Returns whether the `CHUNK_PIXELS` pixels from `x` on have no light with these parameters.
    fn is_dark_chunk(&self, _parameters: &[f64; N], _x: f64, _y: f64) -> bool {
        false
    }

    /// Returns whether the parameters are possible for this model.
    fn allows_parameters(&self, parameters: &[f64; N]) -> bool;

    /// Returns the normal equations over every `step`th row of the image.
    fn normal_equations(&self, image: &Image<'_>, step: usize, parameters: &[f64; N]) -> Normal<N>
    where
        Self: Sized,
    {
        Normal::sum_over_image(image, step, self, parameters)
    }
}

/// The normal equations at one set of parameters.
#[derive(Debug, Clone)]
pub(crate) struct Normal<const N: usize> {
    /// Matrix JᵀJ.
    pub(crate) matrix: [[f64; N]; N],
    /// Vector Jᵀr, where r is pixel − model.
    pub(crate) gradient: [f64; N],
    /// Sum of squares rᵀr.
    pub(crate) squares: f64,
    /// Number of pixels in the sums.
    pub(crate) pixels: usize,
}

impl<const N: usize> Normal<N> {
    /// Sums over every `step`th row of the image.
    pub(crate) fn sum_over_image<const M: usize>(
        image: &Image<'_>,
        step: usize,
        model: &impl Model<N, M>,
        parameters: &[f64; N],
    ) -> Self {
        assert_eq!(N + 1, M, "a column for each parameter, and one for the residuals");
        let gram = vectorised!(simd => column_products(simd, image, step, model, parameters));
        let rows = image.row_count().div_ceil(step);
        Self {
            matrix: std::array::from_fn(|i| std::array::from_fn(|j| gram[i.min(j)][i.max(j)])),
            gradient: std::array::from_fn(|i| gram[i][N]),
            squares: gram[N][N],
            pixels: image.column_count() * rows,
        }
    }
}

#[inline(always)]
fn column_products<S: Simd, const N: usize, const M: usize>(
    simd: S,
    image: &Image<'_>,
    step: usize,
    model: &impl Model<N, M>,
    parameters: &[f64; N],
) -> [[f64; M]; M] {
    let seen = image.selected_region();
    let mut columns: Box<Columns<M>> = Box::new([[0.0; CHUNK_PIXELS]; M]);
    let mut pixels = [0.0; CHUNK_PIXELS];
    let mut sums = [[0.0; M]; M];
    for y in (0..seen.height).step_by(step) {
        for x in (0..seen.width).step_by(CHUNK_PIXELS) {
            let here = CHUNK_PIXELS.min(seen.width - x);
            image.load_row_part(x, y, &mut pixels[..here]);
            let (at_x, at_y) = ((seen.x + x) as f64, (seen.y + y) as f64);
            if model.is_dark_chunk(parameters, at_x, at_y) {
                let (mut residuals, mut squares) = (0.0, 0.0);
                for pixel in &pixels[..here] {
                    let residual = pixel - parameters[0];
                    residuals += residual;
                    squares += residual * residual;
                }
                sums[0][0] += here as f64;
                sums[0][N] += residuals;
                sums[N][N] += squares;
                continue;
            }
            for lane in (0..CHUNK_PIXELS).step_by(S::f64s::LEN) {
                let mut vectors =
                    model.derivative_columns(simd, parameters, lane_indices(simd) + (at_x + lane as f64), at_y);
                vectors[N] = load_vector(simd, &pixels, lane) - vectors[N];
                for k in 0..M {
                    vectors[k].store_slice(&mut columns[k][lane..lane + S::f64s::LEN]);
                }
            }
            if here < CHUNK_PIXELS {
                columns.iter_mut().for_each(|column| column[here..].fill(0.0));
            }
            add_chunk_products(simd, &columns, &mut sums);
        }
    }
    sums
}

/// Adds the products of every column with every later one, two by four of them at a time: their eight sums stay in
/// registers, and each loaded value is used several times.
#[inline(always)]
fn add_chunk_products<S: Simd, const M: usize>(simd: S, columns: &Columns<M>, sums: &mut [[f64; M]; M]) {
    let last = M - 1;
    for i in (0..M).step_by(2) {
        for j in (i..M).step_by(4) {
            let left = [&columns[i], &columns[(i + 1).min(last)]];
            let right = std::array::from_fn(|k| &columns[(j + k).min(last)]);
            let tile = tile_products(simd, left, right);
            for (a, row) in tile.iter().enumerate() {
                for (b, sum) in row.iter().enumerate() {
                    if i + a <= j + b && i + a <= last && j + b <= last {
                        sums[i + a][j + b] += sum;
                    }
                }
            }
        }
    }
}

#[inline(always)]
fn tile_products<S: Simd>(simd: S, left: [&[f64; CHUNK_PIXELS]; 2], right: [&[f64; CHUNK_PIXELS]; 4]) -> [[f64; 4]; 2] {
    let mut sums = [[splat(simd, 0.0); 4]; 2];
    for at in (0..CHUNK_PIXELS).step_by(S::f64s::LEN) {
        let (a, b) = (load_vector(simd, left[0], at), load_vector(simd, left[1], at));
        for k in 0..4 {
            let right = load_vector(simd, right[k], at);
            sums[0][k] = a.mul_add(right, sums[0][k]);
            sums[1][k] = b.mul_add(right, sums[1][k]);
        }
    }
    let mut totals = [[0.0; 4]; 2];
    for a in 0..2 {
        for b in 0..4 {
            totals[a][b] = sums[a][b].reduce_sum();
        }
    }
    totals
}

#[cfg(test)]
mod tests {
    use super::*;

    /// b + a·x + c·x·y.
    struct Plane;

    impl Model<3, 4> for Plane {
        fn derivative_columns<S: Simd>(&self, simd: S, [b, a, c]: &[f64; 3], x: S::f64s, y: f64) -> [S::f64s; 4] {
            let one = S::f64s::splat(simd, 1.0);
            [one, x, x * y, one * *b + x * *a + x * (c * y)]
        }

        fn allows_parameters(&self, _: &[f64; 3]) -> bool {
            true
        }
    }

    #[test]
    fn the_sums_are_those_over_all_pixels_of_any_width() {
        for width in [1, 5, 127, 128, 129, 300] {
            let pixels: Vec<f64> = (0..width * 3).map(|n| (n * n % 31) as f64).collect();
            let image = Image::new(width, 3, &pixels).unwrap();
            let parameters = [3.0, 0.5, -0.25];
            let normal = Normal::sum_over_image(&image, 1, &Plane, &parameters);
            let (mut matrix, mut gradient, mut squares) = ([[0.0; 3]; 3], [0.0; 3], 0.0);
            for (n, pixel) in pixels.iter().enumerate() {
                let (x, y) = ((n % width) as f64, (n / width) as f64);
                let derivatives = [1.0, x, x * y];
                let residual = pixel - (0..3).map(|k| parameters[k] * derivatives[k]).sum::<f64>();
                for i in 0..3 {
                    for j in 0..3 {
                        matrix[i][j] += derivatives[i] * derivatives[j];
                    }
                    gradient[i] += derivatives[i] * residual;
                }
                squares += residual * residual;
            }
            let close = |a: f64, b: f64| (a - b).abs() <= 1e-12 * squares;
            for i in 0..3 {
                assert!(close(normal.gradient[i], gradient[i]), "{width}");
                assert!((0..3).all(|j| close(normal.matrix[i][j], matrix[i][j])), "{width}");
            }
            assert!(close(normal.squares, squares), "{width}");
        }
    }
}
