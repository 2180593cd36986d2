#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| thalweg_world::fuzz::rdma_link_channel::run(bytes));
