#!/usr/bin/env bash
# Makes the packages in dist/: scripts/dist.sh release|dev. A release is built for glibc 2.28 and later (wheel) and for
# Debian 12 and later (.deb), and optimised; `dev` packs the program as tests build it, to try the packages themselves.
set -euo pipefail
cd "$(dirname "$0")/.."

kind=$1
target=$(realpath -m "${CARGO_TARGET_DIR:-target}")
python=$PWD/.venv/bin/python
dist=$PWD/dist
rm -rf "$dist"
mkdir -p "$dist"
say() { printf 'dist: %s\n' "$*"; }

# The program without its debug information, which goes into a file of its own.
stripped() { # FROM TO
    objcopy --only-keep-debug --compress-debug-sections "$1" "$dist/$(basename "$2").debug"
    objcopy --strip-all --add-gnu-debuglink="$dist/$(basename "$2").debug" "$1" "$2"
    chmod 755 "$2"
}

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

case "$kind" in
    release)
        cargo build --release --locked -p thalweg
        stripped "$target/release/thalweg" "$work/thalweg"
        ;;
    dev)
        # Built by itself it would have other features, and so would all that it depends on.
        stripped "$target/debug/thalweg" "$work/thalweg"
        ;;
    *)
        say "usage: scripts/dist.sh release|dev" >&2
        exit 2
        ;;
esac

say "the .deb"
# Where crates/thalweg/Cargo.toml has it.
root=$dist/root
scripts/install.sh "$work/thalweg" "$root" /usr
find "$root/usr/share/man" -type f -exec gzip -9n {} +
cargo deb --locked --no-build --no-strip -p thalweg -o "$dist/" >/dev/null
rm -rf "$root"

say "the wheel"
options=(--release --locked --out "$work/wheel")
wheel_program=$work/thalweg
if [ "$kind" = release ]; then
    # zig links against the glibc that is asked for: that of RHEL 8 and Debian 10.
    "$python" -m pip install --quiet --disable-pip-version-check 'ziglang>=0.13,<0.16' 'cargo-zigbuild>=0.20,<1'
    export PATH=$PWD/.venv/bin:$PATH
    # What needs libelf and zlib of the system is left out of what runs on any.
    cargo zigbuild --release --locked -p thalweg --no-default-features --target x86_64-unknown-linux-gnu.2.28
    wheel_program=$work/for-wheel/thalweg
    mkdir -p "$work/for-wheel"
    objcopy --strip-all "$target/x86_64-unknown-linux-gnu/release/thalweg" "$wheel_program"
    options+=(--zig --target x86_64-unknown-linux-gnu --compatibility manylinux_2_28)
else
    options+=(--compatibility linux)
fi
PATH=$PWD/.venv/bin:$PATH maturin build "${options[@]}" >/dev/null
# maturin packs the extension module; the program goes beside it as a script.
"$python" -m wheel unpack --dest "$work/unpacked" "$work"/wheel/*.whl >/dev/null
for unpacked in "$work"/unpacked/*; do
    install -D -m 755 "$wheel_program" "$unpacked/$(basename "$unpacked").data/scripts/thalweg"
    "$python" -m wheel pack --dest-dir "$dist" "$unpacked" >/dev/null
done

(cd "$dist" && sha256sum -- * >SHA256SUMS)
ls -l "$dist"
