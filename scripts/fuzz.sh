#!/usr/bin/env bash
# Runs every fuzz target for SECONDS (60), or says why it cannot.
set -euo pipefail
cd "$(dirname "$0")/.."

seconds=${SECONDS_EACH:-60}
if ! cargo fuzz --version >/dev/null 2>&1; then
    echo "skipped: fuzzing: cargo-fuzz is not installed (cargo install --locked cargo-fuzz)"
    exit 0
fi
if ! rustup run nightly rustc --version >/dev/null 2>&1; then
    echo "skipped: fuzzing: there is no nightly toolchain (rustup toolchain install nightly)"
    exit 0
fi
for target in fuzz/fuzz_targets/*.rs; do
    name=$(basename "$target" .rs)
    echo "fuzz: $name for $seconds s"
    # The workspace's own target folder is for another toolchain.
    CARGO_TARGET_DIR=${CARGO_TARGET_DIR:-$PWD/target}/fuzz cargo +nightly fuzz run "$name" -- \
        -max_total_time="$seconds" -max_len=65536 -print_final_stats=0
done
