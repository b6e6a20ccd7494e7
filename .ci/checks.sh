#!/usr/bin/env bash
# Runs every check. Lint, types and import contracts run beside the tests, whose output is shown as it comes; theirs follows
# in the end. Exits with 1 if anything failed.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

said="$(mktemp)"
make --keep-going lint types imports >"$said" 2>&1 &
beside=$!
trap 'kill "$beside" 2>/dev/null || true; rm -f "$said"' EXIT

failed=()
make unit || failed+=("the tests")
wait "$beside" || failed+=("lint, types or imports")
cat "$said"
if ((${#failed[@]})); then
    printf 'error: %s failed\n' "${failed[@]}" >&2
    exit 1
fi
