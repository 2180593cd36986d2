//! Results of the paper.

/// Delays of the paper's table, in its order.
pub(super) const DELAYS: [&str; 6] = ["0.1ms", "0.5ms", "1ms", "5ms", "10ms", "50ms"];
pub(super) const INTERVALS: [&str; 6] = DELAYS;
pub(super) const SENDERS: [&str; 5] = ["1", "2", "3", "5", "10"];

/// Vegas minus BIC in Mbit/s with 3 senders (the paper's table 1): rows are intervals, columns delays.
pub(super) const VEGAS_MINUS_BIC: [[f64; 6]; 6] = [
    [-115.27, -16.29, 0.16, -180.68, -450.56, -240.74],
    [-471.62, -386.29, -112.80, -643.64, -689.92, -43.50],
    [-688.97, -513.32, -403.83, -135.26, -84.24, -5.45],
    [-166.05, -54.04, -46.79, -1.98, 2.45, 4.90],
    [-82.92, -27.16, -23.62, 1.83, 3.55, 4.56],
    [-14.14, -3.38, -2.93, -2.69, -2.70, 2.79],
];

pub(super) const SIGN: &str = "The paper's caption says that positive means BIC is ahead; its conclusions say the opposite (Vegas ahead where delay and interval are both long, BIC ahead overall). The sign here follows the conclusions: positive means Vegas is ahead.";
