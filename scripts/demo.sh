#!/usr/bin/env bash
# The overlay on real SGLang, from a checkpoint on disk to the draft layer's numbers. No GPU is needed.
# Arguments go to scripts/layers/demo.py; with --model DIR on a machine with an SM12x GPU it goes on to launch the server.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/env/environment.sh"
ensure_environment
exec "$PYTHON" "$root/scripts/layers/demo.py" "$@"
