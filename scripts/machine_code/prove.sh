#!/usr/bin/env bash
# SM120's code on an SM90, all that can be proven in ten minutes: every tile against float64 on every Triton given, then
# compute-sanitizer's tools over every tile. Exit status 1 when anything is red or was not finished.
#
#   scripts/machine_code/prove.sh OUT [--lean] [--triton DIR ...]
#
# Writes OUT/h200-sm120-code.json and OUT/h200-sanitizer.json. Uses the `python3` in PATH, which has torch and Triton.
set -uo pipefail
root="$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)"
out="${1:?usage: prove.sh OUT [--lean] [--triton DIR ...]}"
shift
mkdir -p "$out"
export PYTHONPATH="$root/overlay${PYTHONPATH:+:$PYTHONPATH}"
status=0
# One after the other: the sanitizer's tools hold the GPU for so long that the proof beside them takes twice its time.
python3 -m sglang_sm120 selftest --sm120-code --minutes 5 --receipt "$out/h200-sm120-code.json" "$@" || status=1
python3 "$root/scripts/machine_code/sanitize.py" --minutes 4.5 --out "$out/h200-sanitizer.json" || status=1
exit "$status"
