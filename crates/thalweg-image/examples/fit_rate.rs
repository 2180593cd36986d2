//! Number of images that one core analyses in a second: `cargo run --release -p thalweg-image --example fit_rate`.
//!
//! The images are simulated: 12 bits, with noise of 1 % of the light. `scripts/image_fits.py` measures the same
//! together with the usual Python packages.

use std::f64::consts::TAU;
use std::time::Instant;
use thalweg_image::{
    Axis, Envelope, Fringes2dOptions, Image, MomentOptions, Profile, Slits, beam_moments, fit_fringes, fit_fringes_2d,
    fit_gaussian, fit_gaussian_2d,
};

fn main() {
    let mut state = 1u64;
    let mut noise = || {
        let mut draw = || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) as f64 / (1u64 << 31) as f64
        };
        30.0 * ((0..12).map(|_| draw()).sum::<f64>() - 6.0)
    };
    let mut simulate = |width: usize, height: usize, light: &dyn Fn(f64, f64) -> f64| -> Vec<u16> {
        let at = |n: usize| light((n % width) as f64, (n / width) as f64);
        (0..width * height).map(|n| (200.0 + 3000.0 * at(n) + noise()).round() as u16).collect()
    };
    let spot = simulate(640, 480, &|x, y| {
        let (dx, dy) = (x - 310.4, y - 250.7);
        let (u, v) = (0.8 * dx - 0.6 * dy, 0.6 * dx + 0.8 * dy);
        (-0.5 * ((u / 60.0).powi(2) + (v / 40.0).powi(2))).exp()
    });
    let spot = Image::new(640, 480, &spot).unwrap();
    let rate = |name: &str, fit: &mut dyn FnMut() -> usize| {
        let mut seconds = Vec::new();
        let mut iterations = 0;
        for _ in 0..41 {
            let began = Instant::now();
            iterations = fit();
            seconds.push(began.elapsed().as_secs_f64());
        }
        seconds.sort_by(f64::total_cmp);
        let (median, best) = (seconds[20], seconds[0]);
        println!(
            "{name:36} {:8.2} ms  {:8.0} /s  (best {:.2} ms; {iterations} iterations)",
            1e3 * median,
            1.0 / median,
            1e3 * best
        );
    };
    let along = |image: &Image<'_>, axis| Profile::along_axis(image, axis).unwrap();
    rate("Gaussian, 1-D, both axes, VGA", &mut || {
        [Axis::X, Axis::Y].map(|axis| fit_gaussian(&along(&spot, axis)).unwrap().quality.iterations)[0]
    });
    rate("Gaussian, 2-D, VGA", &mut || fit_gaussian_2d(&spot).unwrap().quality.iterations);
    for (name, envelope) in [("Gaussian", Envelope::Gaussian), ("sinc²", Envelope::Sinc2)] {
        for (slits, angle) in [(Slits::Double(Axis::X), 0.0), (Slits::Four, 0.0), (Slits::Double(Axis::X), 0.1)] {
            let pixels = simulate(640, 480, &|x, y| {
                let (sin, cos) = f64::sin_cos(angle);
                let (dx, dy) = (x - 322.0, y - 236.0);
                let (u, v) = (dx * cos - dy * sin, dx * sin + dy * cos);
                let e = |u: f64, width: f64| match envelope {
                    Envelope::Gaussian => (-0.5 * (u / width).powi(2)).exp(),
                    Envelope::Sinc2 => (2.0 * u / width).sin().powi(2) / (2.0 * u / width).powi(2).max(1e-9),
                };
                let v_wave = if slits == Slits::Four { 1.0 + 0.5 * (TAU * v / 23.0).cos() } else { 1.0 };
                0.4 * e(u, 90.0) * e(v, 70.0) * (1.0 + 0.6 * (TAU * u / 31.0 + 0.5).cos()) * v_wave
            });
            let image = Image::new(640, 480, &pixels).unwrap();
            if angle == 0.0 {
                rate(&format!("fringes, 1-D, {name}"), &mut || {
                    fit_fringes(&along(&image, Axis::X), envelope).unwrap().quality.iterations
                });
            }
            let options = Fringes2dOptions { envelope, slits, turned: angle != 0.0 };
            rate(&format!("fringes, 2-D, {name}, {slits:?}, {angle}"), &mut || {
                fit_fringes_2d(&image, &options).unwrap().quality.iterations
            });
        }
    }
    let beam =
        simulate(1024, 1024, &|x, y| (-0.5 * (((x - 500.0) / 80.0).powi(2) + ((y - 540.0) / 60.0).powi(2))).exp());
    let floats: Vec<f32> = beam.iter().map(|pixel| f32::from(*pixel)).collect();
    for (name, image) in [("u16", Image::new(1024, 1024, &beam)), ("f32", Image::new(1024, 1024, &floats))] {
        let image = image.unwrap();
        rate(&format!("moments, 1024², {name}"), &mut || {
            beam_moments(&image, &MomentOptions::default()).unwrap().iterations
        });
    }
}
