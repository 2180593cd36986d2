#!/usr/bin/env bash
# Feeds the parsers with bytes made to break them.
#
#   scripts/fuzz.sh          every target for SECONDS_EACH (60), as many at a time as there are processors, beginning with the
#                            inputs in fuzz/corpus; prints how often each was executed, and the path of an input that breaks one
#   scripts/fuzz.sh build    only builds them
#   QUICK=yes                builds without optimisation: for seconds of fuzzing, not for hours
#   scripts/fuzz.sh keep     after a run: keeps in fuzz/corpus the fewest inputs, old and new, that reach as much
set -euo pipefail
cd "$(dirname "$0")/.."

seconds=${SECONDS_EACH:-60}
if ! cargo fuzz --version >/dev/null 2>&1; then
    exec scripts/skip.sh fuzz "cargo-fuzz is not installed (make venv-test installs it into .venv)"
fi
if ! rustup run nightly rustc --version >/dev/null 2>&1; then
    exec scripts/skip.sh fuzz "there is no nightly toolchain (rustup toolchain install nightly)"
fi

# The workspace's own target folder is for another toolchain. Both builds check overflows and memory.
export CARGO_TARGET_DIR=${CARGO_TARGET_DIR:-$PWD/target}/fuzz
options=() folder=release
if [ "${QUICK:-}" = yes ]; then options=(--dev) folder=debug; fi
cargo +nightly fuzz build "${options[@]}"
built=$CARGO_TARGET_DIR/$(rustup run nightly rustc -vV | sed -n 's/^host: //p')/$folder
targets=$(basename -s .rs fuzz/fuzz_targets/*.rs)
work=$CARGO_TARGET_DIR/work

fuzz() {
    local name=$1
    # What is found goes into the first folder; from the second it is only read.
    mkdir -p "$work/$name" "fuzz/corpus/$name" "fuzz/artifacts/$name"
    "$built/$name" "$work/$name" "fuzz/corpus/$name" -artifact_prefix="fuzz/artifacts/$name/" \
        -max_total_time="$seconds" -max_len=65536 -print_final_stats=1 >"$work/$name.log" 2>&1 \
        || { echo "fuzz: $name failed:"; tail -n 60 "$work/$name.log"; return 1; }
}

run() {
    rm -rf "$work"
    echo "fuzz: $seconds s for each target"
    export -f fuzz
    export built work seconds
    local failed=0 name
    xargs -P "$(nproc)" -I '{}' bash -euc 'fuzz {}' <<<"$targets" || failed=1
    for name in $targets; do
        echo "fuzz: $name: $(sed -n 's/^stat::number_of_executed_units: *//p' "$work/$name.log") executions"
    done
    return "$failed"
}

keep() {
    local name
    for name in $targets; do
        mkdir -p "$work/kept"
        "$built/$name" -set_cover_merge=1 "$work/kept" "fuzz/corpus/$name" "$work/$name" >"$work/$name.log" 2>&1
        rm -rf "fuzz/corpus/$name"
        mv "$work/kept" "fuzz/corpus/$name"
    done
    du -s -h --apparent-size fuzz/corpus
}

case "${1:-run}" in
    build) ;;
    run | keep) "${1:-run}" ;;
    *) echo "usage: scripts/fuzz.sh [build|keep]" >&2; exit 2 ;;
esac
