//! Rate at which the model ADC writes: `cargo run --release -p thalweg-device --example adc_rate`.
//!
//! The buffer is written repeatedly, so the processor limits the rate for small sizes, and memory that for large ones.

use std::time::Instant;
use thalweg_device::model_adc;
use thalweg_wire::SourceId;

fn main() {
    for size in [1 << 10, 16 << 10, 256 << 10, 4 << 20] {
        let mut payload = vec![0; size];
        let events = (1u64 << 30) / size as u64;
        let began = Instant::now();
        for event in 0..events {
            model_adc(1, SourceId(0), event, std::hint::black_box(&mut payload));
        }
        let seconds = began.elapsed().as_secs_f64();
        println!("{:>5} KiB  {:.2} GB/s", size >> 10, (events * size as u64) as f64 / seconds / 1e9);
    }
}
