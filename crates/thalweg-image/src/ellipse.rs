//! Second moments as an ellipse: its axes and their direction.

use std::f64::consts::{FRAC_PI_2, PI};

/// Variances along x and y, and the covariance of both; y goes down.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Spread {
    pub(crate) xx: f64,
    pub(crate) xy: f64,
    pub(crate) yy: f64,
}

/// Variances along the principal axes, and the angle of the first.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Axes {
    pub(crate) major: f64,
    /// Variance along the shorter axis. Negative if noise outweighs the light.
    pub(crate) minor: f64,
    /// Angle of the longer axis, counter-clockwise from x as the image is seen, with y going down; above −π/2 and up to
    /// π/2.
    pub(crate) angle: f64,
}

impl Spread {
    /// Returns the elements xx, xy and yy of the inverse matrix.
    pub(crate) fn inverse_elements(self) -> [f64; 3] {
        let Self { xx, xy, yy } = self;
        let determinant = xx * yy - xy * xy;
        [yy / determinant, -xy / determinant, xx / determinant]
    }

    /// Returns the variances with pixels of this size.
    pub(crate) fn scaled_by(self, x: f64, y: f64) -> Self {
        Self { xx: self.xx * x * x, xy: self.xy * x * y, yy: self.yy * y * y }
    }

    /// Returns the principal axes, and the derivatives of major, minor and angle by xx, xy and yy. For a circle the
    /// derivatives of the angle are infinite.
    pub(crate) fn principal_axes(self) -> (Axes, [[f64; 3]; 3]) {
        let (mean, half) = ((self.xx + self.yy) / 2.0, (self.xx - self.yy) / 2.0);
        let apart = half.hypot(self.xy);
        let (along, across) = if apart > 0.0 { (half / apart, self.xy / apart) } else { (1.0, 0.0) };
        let angle = -0.5 * self.xy.atan2(half);
        let angle = if angle <= -FRAC_PI_2 { angle + PI } else { angle };
        let turn = -0.5 / apart;
        let derivatives = [
            [0.5 + 0.5 * along, across, 0.5 - 0.5 * along],
            [0.5 - 0.5 * along, -across, 0.5 + 0.5 * along],
            [-0.5 * across * turn, along * turn, 0.5 * across * turn],
        ];
        (Axes { major: mean + apart, minor: mean - apart, angle }, derivatives)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn derivatives_are_those_that_small_steps_have(xx in 1.0..9.0f64, yy in 1.0..9.0f64, correlation in 0.1..0.9f64) {
            let spread = Spread { xx, xy: correlation * (xx * yy).sqrt(), yy };
            let (at, derivatives) = spread.principal_axes();
            let step = 1e-7;
            for (k, (dxx, dxy, dyy)) in [(step, 0.0, 0.0), (0.0, step, 0.0), (0.0, 0.0, step)].into_iter().enumerate() {
                let (near, _) = Spread { xx: xx + dxx, xy: spread.xy + dxy, yy: yy + dyy }.principal_axes();
                let changes = [near.major - at.major, near.minor - at.minor, near.angle - at.angle];
                for (change, derivative) in changes.iter().zip(derivatives) {
                    prop_assert!((change / step - derivative[k]).abs() < 1e-4, "{k}: {change} {derivative:?}");
                }
            }
        }
    }

    #[test]
    fn the_angle_is_counter_clockwise_as_it_is_seen() {
        let angle = |xx, xy, yy| Spread { xx, xy, yy }.principal_axes().0.angle;
        assert_eq!(angle(4.0, 0.0, 1.0), 0.0);
        assert_eq!(angle(1.0, 0.0, 4.0), FRAC_PI_2);
        // Light from the lower left to the upper right: y falls as x rises.
        assert!((angle(2.0, -1.0, 2.0) - PI / 4.0).abs() < 1e-15);
    }
}
