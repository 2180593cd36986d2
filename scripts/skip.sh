#!/usr/bin/env bash
# Reports that a step is skipped on this machine, as crates/thalweg-testing does for a test: scripts/skip.sh STEP REASON
set -euo pipefail
printf 'skipped: %s: %s\n' "$1" "$2" >&2
if [ -n "${THALWEG_SKIPPED:-}" ]; then printf 'make %s\t%s\n' "$1" "$2" >>"$THALWEG_SKIPPED"; fi
