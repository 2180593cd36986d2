//! What the paper says.

/// How the paper measured.
pub(super) const METHOD: &str = "\
Measured: three computers send to one through a switch with a buffer of 340 KB, over 1 Gbit/s, for 60 s, with messages of 1 byte to 128 KB, under Scientific Linux CERN 5.7 (Linux 2.6.18) with ten congestion controls, to a fast server (Athlon 64 X2) and to a slow one (Celeron, 1.2 GHz).

Simulated (ns-2): 1, 2, 3, 5 and 10 senders, 1000 Mbit/s, delays and send intervals of 0.1 to 50 ms, all senders at the same time, BIC against Vegas.";

/// How it is measured here.
pub(super) const HERE: &str = "\
The same network in the laboratory: senders are Thalweg's sources, the receiver is its builder, each message is a fragment with a header of 64 bytes. Under a congestion control alone the builder asks for everything at once, and the senders send when they have something, as the paper's do; under credit it asks for what its switch port can take. A modern kernel is not that of 2006: fewer losses become timeouts.

The paper does not say how much is sent at each interval of its simulation. Here it is 64 KiB of every sender; where that is more than the port carries, senders always have more. The buffer is that of its switch in all cells.

The last part is beyond the paper: credits in every cell against the best control of that cell, and the classic experiment on incast (Phanishayee and others, FAST 2008; Vasudevan and others, SIGCOMM 2009): one event at a time, loss recovery as it was then, a retransmission timer of at least 200 ms.";

/// Of the paper's table, in its order.
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
