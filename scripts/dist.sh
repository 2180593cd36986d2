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

# A program without its debug information, which goes into a file of its own.
stripped() { # FROM TO
    objcopy --only-keep-debug "${compressed[@]}" "$1" "$dist/$(basename "$2").debug"
    objcopy --strip-all --add-gnu-debuglink="$dist/$(basename "$2").debug" "$1" "$2"
    chmod 755 "$2"
}

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# Crates of the packages, and their files: programs, and the libraries that `thalweg rdma run` loads into programs.
crates=(-p thalweg -p thalweg-lab -p thalweg-control -p thalweg-verbs-provider -p thalweg-verbs-preload)
programs=(thalweg thalweg-lab thalweg-control)
libraries=(libthalweg_verbs_provider.so libthalweg_verbs_preload.so)

case "$kind" in
    release)
        compressed=(--compress-debug-sections) packed=(-Zxz)
        cargo build --release --locked "${crates[@]}"
        for file in "${programs[@]}" "${libraries[@]}"; do stripped "$target/release/$file" "$work/$file"; done
        ;;
    dev)
        # Unpacked once, here: not worth a minute of xz.
        compressed=() packed=(-Zgzip -z1)
        for file in "${programs[@]}" "${libraries[@]}"; do stripped "$target/debug/$file" "$work/$file"; done
        ;;
    *)
        say "usage: scripts/dist.sh release|dev" >&2
        exit 2
        ;;
esac

say "the .deb"
root=$work/root
scripts/install.sh "$work/thalweg" "$root" /usr
# The wheel has the man pages, too, and the examples; not the site, which is most of what the .deb installs besides.
mkdir -p "$work/data/share/doc/thalweg"
cp -r "$root/usr/share/man" "$work/data/share/"
cp -r "$root/usr/share/doc/thalweg/examples" "$work/data/share/doc/thalweg/"
find "$root/usr/share/man" -type f -exec gzip -9n {} +
install -D -m 644 LICENSE-MIT "$root/usr/share/doc/thalweg/copyright"
# dpkg-shlibdeps looks for a source package around it.
mkdir -p "$work/source/debian"
printf 'Source: thalweg\n' >"$work/source/debian/control"
depends=$(cd "$work/source" && dpkg-shlibdeps -O "$root"/usr/bin/thalweg{,-lab,-control} "$root"/usr/lib/thalweg/*.so | sed -n 's/^shlibs:Depends=//p')
version=$(sed -n 's/^version = "\(.*\)"/\1/p' Cargo.toml | head -n 1)
architecture=$(dpkg --print-architecture)
mkdir "$root/DEBIAN"
sed -e "s/@VERSION@/$version/; s/@ARCHITECTURE@/$architecture/; s/@DEPENDS@/$depends/" \
    -e "s/@SIZE@/$(du -sk "$root" | cut -f 1)/" packaging/debian/control >"$root/DEBIAN/control"
install -m 755 packaging/debian/postinst packaging/debian/prerm packaging/debian/postrm "$root/DEBIAN/"
dpkg-deb "${packed[@]}" --root-owner-group --build "$root" "$dist/thalweg_$version-1_$architecture.deb" >/dev/null

say "the wheel"
wheel=$work/wheel
mkdir "$wheel"
export PATH=$PATH:$PWD/.venv/bin
if [ "$kind" = release ]; then
    # zig links against the glibc that is asked for: that of RHEL 8 and Debian 10.
    "$python" -m pip install --quiet --disable-pip-version-check 'ziglang>=0.13,<0.16' 'cargo-zigbuild>=0.20,<1'
    # What needs libelf and zlib of the system is left out of what runs on any.
    cargo zigbuild --release --locked "${crates[@]}" --no-default-features --target x86_64-unknown-linux-gnu.2.28
    mkdir "$work/programs"
    for file in "${programs[@]}" "${libraries[@]}"; do
        objcopy --strip-all "$target/x86_64-unknown-linux-gnu/release/$file" "$work/programs/$file"
    done
    maturin build --release --locked --zig --target x86_64-unknown-linux-gnu --compatibility manylinux_2_28 \
        --out "$work/built" >/dev/null
    "$python" -m wheel unpack --dest "$wheel" "$work"/built/*.whl >/dev/null
    unpacked=$(echo "$wheel"/*)
else
    # Compiled already, beside the program: maturin by itself would compile all of it again.
    mkdir "$work/programs"
    (cd "$work" && cp "${programs[@]}" "${libraries[@]}" programs/)
    unpacked=$wheel/thalweg-$version
    mkdir "$unpacked"
    maturin pep517 write-dist-info --metadata-directory "$unpacked" --interpreter "$python" >/dev/null
    mkdir "$unpacked/thalweg"
    cp python/thalweg/*.py python/thalweg/*.pyi python/thalweg/py.typed "$unpacked/thalweg/"
    objcopy --strip-all "$target/debug/lib_thalweg.so" "$unpacked/thalweg/_thalweg.abi3.so"
fi
# The programs go beside the module, as scripts.
for program in "${programs[@]}"; do
    install -D -m 755 "$work/programs/$program" "$unpacked/$(basename "$unpacked").data/scripts/$program"
done
# The libraries where the programs look for them.
install -D -m 644 "$work/programs/libthalweg_verbs_provider.so" "$work/data/lib/thalweg/libthalweg-rdmav34.so"
install -D -m 644 "$work/programs/libthalweg_verbs_preload.so" "$work/data/lib/thalweg/libthalweg-rdma-preload.so"
mkdir -p "$unpacked/$(basename "$unpacked").data"
cp -r "$work/data" "$unpacked/$(basename "$unpacked").data/data"
"$python" -m wheel pack --dest-dir "$dist" "$unpacked" >/dev/null

(cd "$dist" && sha256sum -- * >SHA256SUMS)
ls -l "$dist"
