#!/usr/bin/env bash
# Puts the programs and what belongs to them into a tree: scripts/install.sh PROGRAM ROOT PREFIX, where thalweg-lab is
# beside PROGRAM, and ROOT is "" or a directory that stands for /. With --remove in front, takes away what was put there.
set -euo pipefail
here=$(cd "$(dirname "$0")/.." && pwd)

remove=no
if [ "${1:-}" = --remove ]; then
    remove=yes
    shift
fi
program=$1 root=$2 prefix=$3
lab=$(dirname "$program")/thalweg-lab
share=$(mktemp -d)
trap 'rm -rf "$share"' EXIT
"$program" generate "$share"
"$lab" generate "$share"

# Each file: where it comes from, where it goes, and with which rights.
files() {
    printf '%s\t%s\t755\n' "$program" "$prefix/bin/thalweg"
    printf '%s\t%s\t755\n' "$lab" "$prefix/bin/thalweg-lab"
    (cd "$share" && find . -type f -printf '%P\n') | while read -r name; do
        printf '%s\t%s\t644\n' "$share/$name" "$prefix/share/$name"
    done
    local unit
    for unit in "$here"/packaging/systemd/*; do
        printf '%s\t%s\t644\n' "$unit" "$prefix/lib/systemd/system/${unit##*/}"
    done
    for name in README.md CHANGELOG.md LICENSE-MIT LICENSE-APACHE examples/one-host.toml examples/many-hosts.toml; do
        printf '%s\t%s\t644\n' "$here/$name" "$prefix/share/doc/thalweg/${name#examples/}"
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
