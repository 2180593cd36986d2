#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| thalweg_world::fuzz::service_latest::run(bytes));
