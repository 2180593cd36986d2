#!/usr/bin/env bash
# Finds what is missing to build and test Thalweg on Debian 12, 13 or Ubuntu 24.04. It changes nothing of the system: it
# names what is missing, with the command that installs it. With --install it runs that command.
#
#   scripts/setup.sh build       a Rust toolchain (asked for, never installed) and a C compiler; clang, libelf and zlib for
#                                the congestion controls and AF_XDP, which are left out of the build where these are not
#   scripts/setup.sh venv SET    .venv with the packages of python/requirements/SET.txt: demo, shift, test or site
#   scripts/setup.sh module FILE the Python package in .venv: the source tree, with the extension module FILE
#   scripts/setup.sh clients     programs that the data server is tested with; tests skip without them
#   scripts/setup.sh features    prints the cargo options that leave out what cannot be built here
#
# A second run costs little: it only looks.
set -euo pipefail
cd "$(dirname "$0")/.."

RUST_WANTED=$(sed -n 's/^rust-version = "\(.*\)"/\1/p' Cargo.toml)

say() { printf 'setup: %s\n' "$*"; }
stop() {
    printf 'setup: %s\n' "$@" >&2
    exit 1
}

version_at_least() { [ "$(printf '%s\n%s\n' "$1" "$2" | sort -V | head -n 1)" = "$2" ]; }

need_cargo() {
    command -v cargo >/dev/null 2>&1 || stop \
        "no Rust toolchain found (cargo). Install one, then run this again:" \
        "    curl --proto '=https' --tlsv1.2 -sSf https://sh.rustup.rs | sh" \
        "(no curl? apt-get install curl ca-certificates; other ways: https://rust-lang.org/tools/install)"
    local found
    found=$(cargo --version | cut -d ' ' -f 2)
    version_at_least "${found%%-*}" "$RUST_WANTED" || stop \
        "cargo is version $found; Thalweg needs $RUST_WANTED or newer. With rustup: rustup update stable" \
        "(the cargo packaged by Debian 12 and Ubuntu 24.04 is too old: install rustup, see https://rustup.rs)"
    # A minimal toolchain lacks these; where they cannot be added, the checks that want them say 'skipped'.
    if command -v rustup >/dev/null 2>&1; then
        cargo fmt --version >/dev/null 2>&1 || rustup component add rustfmt
        cargo clippy --version >/dev/null 2>&1 || rustup component add clippy
    fi
}

# Whether packages may be installed.
install=no
if [ "${1:-}" = --install ]; then
    install=yes
    shift
fi

# Debian packages that are needed: installed where that was asked for, else named.
packages() {
    local command="apt-get install -y --no-install-recommends $*" as=()
    command -v apt-get >/dev/null 2>&1 || stop "missing: $*" "(names of Debian packages; there is no apt-get here, please install their like)"
    [ "$install" = yes ] || stop "missing: $*" "make setup INSTALL=yes installs that, as root or with sudo. It runs:" \
        "    apt-get update && $command"
    if [ "$(id -u)" -ne 0 ]; then
        command -v sudo >/dev/null 2>&1 || stop "missing: $*. Run this as root:" "    apt-get update && $command"
        as=(sudo)
    fi
    say "installing $*"
    "${as[@]}" apt-get update -qq
    # shellcheck disable=SC2086
    "${as[@]}" env DEBIAN_FRONTEND=noninteractive $command
}

# Packages that something is left out without: `wanted LEFT_OUT PACKAGE...`
wanted() {
    local left_out=$1
    shift
    if [ "$install" = yes ]; then
        packages "$@"
    else
        say "without $*: $left_out. To have it: apt-get install -y --no-install-recommends $*"
    fi
}

need_compiler() {
    # cargo links with cc; a compiler without the C library's files cannot.
    if ! command -v cc >/dev/null 2>&1 || ! echo 'int main(void){return 0;}' | cc -x c -o /dev/null - 2>/dev/null; then
        packages gcc libc6-dev
    fi
}

# What the programs in bpf/ (congestion controls, AF_XDP) are compiled with, and what loads them into the kernel.
missing_for_bpf() {
    command -v "${CLANG:-clang}" >/dev/null 2>&1 || echo clang
    # Headers and libraries alike: what the compiler does not find is not there.
    echo '#include <libelf.h>' | cc -E -x c -o /dev/null - 2>/dev/null || echo libelf-dev
    echo '#include <zlib.h>' | cc -E -x c -o /dev/null - 2>/dev/null || echo zlib1g-dev
    # libbpf is built with make, and asks pkg-config for the two.
    command -v make >/dev/null 2>&1 || echo make
    command -v pkg-config >/dev/null 2>&1 || echo pkg-config
}

want_bpf() {
    local missing
    mapfile -t missing < <(missing_for_bpf)
    [ "${#missing[@]}" -eq 0 ] || wanted "no congestion controls and no AF_XDP in the build" "${missing[@]}"
}

# What people fetch and mount served runs with, and another program's camera. Tests do without those that are not there.
want_clients() {
    local missing=() pair
    for pair in curl:curl wget:wget aria2c:aria2 fusermount3:fuse3 arv-fake-gv-camera-0.8:aravis-tools; do
        command -v "${pair%%:*}" >/dev/null 2>&1 || missing+=("${pair#*:}")
    done
    [ "${#missing[@]}" -eq 0 ] || (wanted "some tests are skipped" "${missing[@]}") || say "some tests are skipped"
}

need_python() {
    local ready='import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 10))'
    if ! python3 -c "$ready" 2>/dev/null; then
        packages python3 python3-venv
        python3 -c "$ready" || stop "python3 is $(python3 --version 2>&1); 3.10 or newer with venv is needed"
    fi
}

# Returns whether the file $1 records that the step with the key $2 was done.
done_already() { [ -f "$1" ] && [ "$(cat "$1")" = "$2" ]; }

need_venv() {
    local set=$1 python requirements wanted
    python=$(python3 -c 'import sys; print(sys.executable, sys.version_info[:2])')
    # Another Python needs another .venv.
    if ! done_already .venv/.python "$python" || ! .venv/bin/python -c '' 2>/dev/null; then
        # What --clear removes is not ours where the link leads.
        [ ! -L .venv ] || stop ".venv is a link to $(readlink .venv), which another Python has made: remove the link"
        python3 -m venv --clear .venv
        printf '%s' "$python" >.venv/.python
    fi
    requirements=python/requirements/$set.txt
    wanted=$(cat python/requirements/demo.txt "$requirements" | sha256sum | cut -d ' ' -f 1)
    if ! done_already ".venv/.$set" "$wanted"; then
        say "installing $requirements into .venv"
        .venv/bin/python -m pip install --quiet --disable-pip-version-check -r "$requirements"
        printf '%s' "$wanted" >".venv/.$set"
    fi
}

# Python takes the package from the source tree, as an editable install does.
link_module() {
    local built=$1 module=python/thalweg/_thalweg.abi3.so packages
    packages=$(.venv/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
    printf '%s\n' "$PWD/python" >"$packages/thalweg.pth"
    # Renamed into place: a process that has the former module mapped keeps it.
    cmp --silent "$built" "$module" || { cp "$built" "$module.new" && mv "$module.new" "$module"; }
}

if [ "${1:-}" = features ]; then
    [ -z "$(missing_for_bpf)" ] || echo "--no-default-features"
    exit
fi
case "${1:-}" in
    build)
        need_cargo
        need_compiler
        want_bpf
        ;;
    venv)
        [ -f "python/requirements/${2:-}.txt" ] || stop "usage: scripts/setup.sh venv demo|shift|test|site"
        need_python
        need_venv "$2"
        ;;
    module) link_module "$2" ;;
    clients) want_clients ;;
    *) stop "usage: scripts/setup.sh [--install] build|venv SET|module FILE|clients|features" ;;
esac
