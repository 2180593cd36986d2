//! Least squares: the Levenberg-Marquardt search for the smallest sum of squares.
//!
//! K. Levenberg, *Quarterly of Applied Mathematics* 2 (1944) 164; D. W. Marquardt, *SIAM Journal on Applied
//! Mathematics* 11 (1963) 431. The normal equations are solved after scaling every parameter to the same weight (their
//! diagonal is one), as MINPACK does.
//!
//! MINPACK (`scipy.optimize.curve_fit`, and in Rust the crate `levenberg-marquardt`) keeps J and decomposes it (QR),
//! which is exact to more digits if parameters have nearly the same effect. The cost is to have all of J in memory. The
//! fits here have 4 to 13 parameters with different effects, and end in the same minimum: tests compare.

use crate::Failure;
use crate::normal::Normal;

/// Maximum number of steps: more than any converging fit has needed.
const MAX_ITERATIONS: usize = 200;

/// Parameters at which the sum of squares is smallest.
#[derive(Debug, Clone)]
pub(crate) struct Minimum<const N: usize> {
    pub(crate) parameters: [f64; N],
    /// Covariance matrix, (JᵀJ)⁻¹ times the reduced χ²: 0 for fixed parameters.
    pub(crate) covariance: [[f64; N]; N],
    /// Smallest sum of squares.
    pub(crate) squares: f64,
    pub(crate) pixels: usize,
    /// Number of parameters that were searched for.
    pub(crate) free: usize,
    /// Number of steps of the search, those included that were not taken.
    pub(crate) iterations: usize,
}

impl<const N: usize> Minimum<N> {
    /// Returns the standard deviation of a quantity with these derivatives by the parameters.
    pub(crate) fn std_deviation_of(&self, by: &[f64; N]) -> f64 {
        let variance: f64 = (0..N).map(|i| (0..N).map(|j| by[i] * self.covariance[i][j] * by[j]).sum::<f64>()).sum();
        variance.max(0.0).sqrt()
    }
}

/// Conditions that end a search.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Precision {
    /// Last step, in standard deviations of the parameters, squared.
    pub(crate) sigmas: f64,
    /// For data almost without noise: the change of the model by the last step, squared, over Σ (pixel − mean)².
    pub(crate) relative: f64,
}

/// Precision of a final search: a step of a millionth of a standard deviation, or of 10⁻¹¹ of the light.
pub(crate) const FINE: Precision = Precision { sigmas: 1e-12, relative: 1e-22 };
/// Precision of a search whose result is a start for another.
pub(crate) const COARSE: Precision = Precision { sigmas: 1e-2, relative: 1e-8 };

/// Searches for the minimum from `start` on. `total` is Σ (pixel − mean)²; parameters that are `fixed` keep their
/// values.
pub(crate) fn minimise_squares<const N: usize>(
    start: [f64; N],
    fixed: [bool; N],
    total: f64,
    precision: Precision,
    allowed: impl Fn(&[f64; N]) -> bool,
    normal: impl Fn(&[f64; N]) -> Normal<N>,
) -> Result<Minimum<N>, Failure> {
    let free = fixed.iter().filter(|fixed| !**fixed).count();
    let mut parameters = start;
    let mut here = normal(&parameters);
    if here.pixels <= free {
        return Err(Failure::TooFewPixels { pixels: here.pixels, needed: free + 1 });
    }
    let degrees = (here.pixels - free) as f64;
    let mut damping = 1e-3;
    for iterations in 1..=MAX_ITERATIONS {
        let Some(step) = solve_step(&here, &fixed, damping) else {
            damping = raise_damping(damping, iterations)?;
            continue;
        };
        let mut change = 0.0;
        for i in (0..N).filter(|i| !fixed[*i]) {
            for j in (0..N).filter(|j| !fixed[*j]) {
                change += step[i] * here.matrix[i][j] * step[j];
            }
        }
        let small = change <= (precision.sigmas * here.squares / degrees).max(precision.relative * total);
        let next: [f64; N] = std::array::from_fn(|i| parameters[i] + step[i]);
        if !next.iter().all(|parameter| parameter.is_finite()) || !allowed(&next) {
            damping = raise_damping(damping, iterations)?;
            continue;
        }
        let there = normal(&next);
        let better = there.squares <= here.squares;
        if better {
            (parameters, here) = (next, there);
        }
        // A damped step is short anywhere.
        if small && (damping <= 1e-3 || !better) {
            let variance = here.squares / degrees;
            let covariance = invert_matrix(&here, &fixed)?.map(|row| row.map(|element| element * variance));
            let Normal { squares, pixels, .. } = here;
            return Ok(Minimum { parameters, covariance, squares, pixels, free, iterations });
        }
        damping = if better { (damping / 10.0).max(1e-15) } else { raise_damping(damping, iterations)? };
    }
    Err(Failure::NotConverged { iterations: MAX_ITERATIONS })
}

/// Raises the damping: steps get shorter and closer to the steepest descent. Fails when they have become too short.
fn raise_damping(damping: f64, iterations: usize) -> Result<f64, Failure> {
    match damping < 1e15 {
        true => Ok(damping * 10.0),
        false => Err(Failure::NotConverged { iterations }),
    }
}

/// Returns the factors that make the diagonal one; `None` if a parameter has no effect.
fn diagonal_scales<const N: usize>(normal: &Normal<N>, fixed: &[bool; N]) -> Option<[f64; N]> {
    let scales: [f64; N] = std::array::from_fn(|i| if fixed[i] { 1.0 } else { 1.0 / normal.matrix[i][i].sqrt() });
    scales.iter().all(|scale| scale.is_finite()).then_some(scales)
}

/// Returns Cholesky's factor of the scaled matrix, with `damping` added to its diagonal.
fn cholesky_factor<const N: usize>(
    normal: &Normal<N>,
    fixed: &[bool; N],
    scales: &[f64; N],
    damping: f64,
) -> Option<[[f64; N]; N]> {
    let mut factor = [[0.0; N]; N];
    for i in 0..N {
        for j in 0..=i {
            let scaled = match (i == j, fixed[i] || fixed[j]) {
                (true, true) => 1.0,
                (true, false) => 1.0 + damping,
                (false, true) => 0.0,
                (false, false) => normal.matrix[i][j] * scales[i] * scales[j],
            };
            let rest = scaled - (0..j).map(|k| factor[i][k] * factor[j][k]).sum::<f64>();
            if i > j {
                factor[i][j] = rest / factor[j][j];
            } else if rest > 1e-15 {
                factor[i][i] = rest.sqrt();
            } else {
                return None;
            }
        }
    }
    Some(factor)
}

/// Solves with a factor, in place.
fn solve_factored<const N: usize>(factor: &[[f64; N]; N], vector: &mut [f64; N]) {
    for i in 0..N {
        let known: f64 = (0..i).map(|k| factor[i][k] * vector[k]).sum();
        vector[i] = (vector[i] - known) / factor[i][i];
    }
    for i in (0..N).rev() {
        let known: f64 = (i + 1..N).map(|k| factor[k][i] * vector[k]).sum();
        vector[i] = (vector[i] - known) / factor[i][i];
    }
}

fn solve_step<const N: usize>(normal: &Normal<N>, fixed: &[bool; N], damping: f64) -> Option<[f64; N]> {
    let scales = diagonal_scales(normal, fixed)?;
    let factor = cholesky_factor(normal, fixed, &scales, damping)?;
    let mut step = std::array::from_fn(|i| if fixed[i] { 0.0 } else { normal.gradient[i] * scales[i] });
    solve_factored(&factor, &mut step);
    Some(std::array::from_fn(|i| step[i] * scales[i]))
}

/// Returns (JᵀJ)⁻¹.
fn invert_matrix<const N: usize>(normal: &Normal<N>, fixed: &[bool; N]) -> Result<[[f64; N]; N], Failure> {
    let scales = diagonal_scales(normal, fixed).ok_or(Failure::Undetermined)?;
    let factor = cholesky_factor(normal, fixed, &scales, 0.0).ok_or(Failure::Undetermined)?;
    let mut inverse = [[0.0; N]; N];
    for i in (0..N).filter(|i| !fixed[*i]) {
        let mut unit = [0.0; N];
        unit[i] = scales[i];
        solve_factored(&factor, &mut unit);
        inverse[i] = std::array::from_fn(|j| unit[j] * scales[j]);
    }
    Ok(inverse)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Rosenbrock's valley, r = (1 − x, 10 (y − x²)), with residuals as pixel − model.
    fn rosenbrock(&[x, y]: &[f64; 2]) -> Normal<2> {
        let residuals = [1.0 - x, 10.0 * (y - x * x)];
        // Derivatives of the model: those of −r.
        let jacobian = [[1.0, 0.0], [20.0 * x, -10.0]];
        let product = |f: &dyn Fn(usize) -> f64| (0..2).map(f).sum::<f64>();
        Normal {
            matrix: std::array::from_fn(|i| std::array::from_fn(|j| product(&|k| jacobian[k][i] * jacobian[k][j]))),
            gradient: std::array::from_fn(|i| product(&|k| jacobian[k][i] * residuals[k])),
            squares: product(&|k| residuals[k] * residuals[k]),
            pixels: 3,
        }
    }

    #[test]
    fn the_bottom_of_a_bent_valley_is_found() {
        let minimum = minimise_squares([-1.2, 1.0], [false; 2], 1.0, FINE, |_| true, rosenbrock).unwrap();
        assert!(minimum.parameters.iter().all(|parameter| (parameter - 1.0).abs() < 1e-10), "{minimum:?}");
    }

    #[test]
    fn what_is_fixed_stays_and_has_no_deviation() {
        let minimum = minimise_squares([0.5, 3.0], [true, false], 1.0, FINE, |_| true, rosenbrock).unwrap();
        assert_eq!((minimum.parameters[0], minimum.free, minimum.covariance[0][0]), (0.5, 1, 0.0));
        assert!((minimum.parameters[1] - 0.25).abs() < 1e-10);
    }

    #[test]
    fn parameters_that_do_the_same_are_not_determined() {
        // r = 1 − (x + y).
        let same = |&[x, y]: &[f64; 2]| Normal {
            matrix: [[3.0; 2]; 2],
            gradient: [3.0 * (1.0 - x - y); 2],
            squares: 3.0 * (1.0 - x - y).powi(2),
            pixels: 3,
        };
        assert_eq!(
            minimise_squares([0.0; 2], [false; 2], 1.0, FINE, |_| true, same).unwrap_err(),
            Failure::Undetermined
        );
    }

    #[test]
    fn a_search_that_may_go_nowhere_says_so() {
        let ended = minimise_squares([-1.2, 1.0], [false; 2], 1.0, FINE, |at| at == &[-1.2, 1.0], rosenbrock);
        assert!(matches!(ended, Err(Failure::NotConverged { .. })), "{ended:?}");
    }

    #[test]
    fn as_many_pixels_as_parameters_are_too_few() {
        let few = |at: &[f64; 2]| Normal { pixels: 2, ..rosenbrock(at) };
        let ended = minimise_squares([0.0; 2], [false; 2], 1.0, FINE, |_| true, few);
        assert_eq!(ended.unwrap_err(), Failure::TooFewPixels { pixels: 2, needed: 3 });
    }
}
