#!/usr/bin/env bash
# Says that a step cannot be done here, as crates/thalweg-testing does for a test: scripts/skip.sh STEP REASON
set -euo pipefail
printf 'skipped: %s: %s\n' "$1" "$2" >&2
if [ -n "${THALWEG_SKIPPED:-}" ]; then printf 'make %s\t%s\n' "$1" "$2" >>"$THALWEG_SKIPPED"; fi
