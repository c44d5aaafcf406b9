# shellcheck shell=bash
# Sourced by scripts/{test.sh,python,demo.sh}: `ensure_environment` sets PYTHON to an interpreter that has SGLang and this checkout,
# and TOOLS to the directory of the other programs.
#
# Two layers under ${SGLANG_SM120_HOME:-~/.cache/sglang-sm120}, both outside the checkout:
#   env-<hash of the requirement files>   SGLang and its stack (about 11 GB), shared by all checkouts
#   checkout-<hash of path and env>       a thin environment on top of it with this checkout installed for editing
# A layer without its marker file was interrupted and is built again.

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
home=${SGLANG_SM120_HOME:-${HOME:-~}/.cache/sglang-sm120}
needed_gb=15

say() { printf '%s\n' "$*" >&2; }
fail() { say "error: $*"; exit 1; }

find_python() { # the newest Python >= 3.11 that can make environments
  local name
  for name in python3.13 python3.12 python3.11 python3; do
    if command -v "$name" >/dev/null && "$name" -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
      printf '%s' "$name"
      return
    fi
  done
  fail "no Python 3.11 or newer with the venv module; install one (Debian: python3 python3-venv)"
}

hash_of() { cat "$@" | sha256sum | cut -c1-12; }

run_long() { # TITLE LOG COMMAND...: a line every 20 s while it runs; on failure the end of its log
  local title=$1 log=$2 started=$SECONDS status pid
  shift 2
  say "$title"
  "$@" >"$log" 2>&1 &
  pid=$!
  trap 'kill "$pid" 2>/dev/null; exit 130' INT TERM
  while kill -0 "$pid" 2>/dev/null; do
    sleep 1
    if [ $(((SECONDS - started) % 20)) -eq 19 ]; then
      say "  $((SECONDS - started)) s: $(tr '\r' '\n' <"$log" | grep -E '^(Collecting|Downloading|Installing|Processing)' | tail -n 1 | cut -c1-90)"
    fi
  done
  status=0
  wait "$pid" || status=$?
  trap - INT TERM
  if [ "$status" -ne 0 ]; then
    tail -n 15 "$log" >&2
    if grep -qE 'NewConnectionError|ConnectTimeout|Temporary failure in name resolution|No matching distribution' "$log"; then
      fail "pip could not get the packages; is there a network, and a package index that has them? Log: $log"
    fi
    fail "this step failed with status $status. Log: $log"
  fi
}

build_base() { # DIRECTORY
  local dir=$1 free
  free=$(df -Pk "$home" | awk 'NR == 2 {print int($4 / 1048576)}')
  [ "$free" -ge "$needed_gb" ] || fail "$home has $free GB free; the environment needs $needed_gb GB. Set SGLANG_SM120_HOME to another disk"
  rm -rf "$dir"
  "$(find_python)" -m venv "$dir" || fail "cannot create an environment in $dir"
  run_long "Installing SGLang and its stack into $dir (once; about 11 GB, 5 to 15 minutes)" "$dir.log" \
    "$dir/bin/python" -m pip install --disable-pip-version-check -r "$root/scripts/env/requirements.txt" -r "$root/scripts/env/requirements-test.txt"
  touch "$dir/complete"
}

build_checkout() { # DIRECTORY BASE
  local dir=$1 base=$2 packages
  rm -rf "$dir"
  "$base/bin/python" -m venv --without-pip "$dir" || fail "cannot create an environment in $dir"
  packages=$("$base/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
  # addsitedir, not a plain path line: the packages' own .pth files count too.
  printf 'import site; site.addsitedir("%s")\n' "$packages" >"$("$dir/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/base.pth"
  run_long "Installing this checkout into $dir" "$dir.log" \
    "$dir/bin/python" -m pip install --disable-pip-version-check --no-deps --no-build-isolation -e "$root"
  printf '%s\n' "$root" >"$dir/complete"
}

ensure_environment() {
  mkdir -p "$home" 2>/dev/null || fail "cannot write to $home; set SGLANG_SM120_HOME to a directory that can be written"
  local base checkout
  base=$home/env-$(hash_of "$root/scripts/env/requirements.txt" "$root/scripts/env/requirements-test.txt")
  checkout=$home/checkout-$(printf '%s\n%s\n' "$root" "$base" | cat - "$root/pyproject.toml" | sha256sum | cut -c1-12)
  PYTHON=$checkout/bin/python
  TOOLS=$base/bin # ruff, shellcheck, hadolint
  [ -e "$base/complete" ] && [ -e "$checkout/complete" ] && return
  exec 9>"$home/lock"
  command -v flock >/dev/null && { flock -n 9 || { say "Waiting for another set-up in $home"; flock 9; }; }
  [ -e "$base/complete" ] || build_base "$base"
  [ -e "$checkout/complete" ] || build_checkout "$checkout" "$base"
  exec 9>&-
}
