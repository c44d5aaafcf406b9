#!/usr/bin/env bash
# Set up if needed, then lint, type check, check the generated documents, and run the tests. Arguments go to pytest.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/env/environment.sh"
ensure_environment
cd "$root"
export PATH="$PATH:$TOOLS"
"$PYTHON" -m ruff check .
"$PYTHON" -m ruff format --check .
"$PYTHON" -m mypy
"$PYTHON" scripts/docs.py --check
# Two workers, a file on one of them: most tests wait for one child process that imports SGLang.
"$PYTHON" -m pytest -n 2 --dist loadfile --durations=15 "$@"
