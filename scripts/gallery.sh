#!/bin/sh
# Draws the pictures of docs/gallery.md again: runs each command in it, with the programs of a directory.
#
#     scripts/gallery.sh target/release
set -eu

programs=$(realpath "$1")
cd "$(dirname "$0")/../docs"
sed -n 's/^\$ \(thalweg .*\)/\1/p' gallery.md | while read -r line; do
    echo "$line"
    # The program's name is as in the document; standard input belongs to the list.
    PATH="$programs:$PATH" sh -c "$line" > /dev/null < /dev/null
done
