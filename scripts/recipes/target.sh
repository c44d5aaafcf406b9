#!/usr/bin/env bash
# DeepSeek-V4 without speculative decoding on one host.
#
#   scripts/recipes/target.sh MODEL [--tp N] [SGLANG FLAGS...]
#
#   --tp N   GPUs (2). A hybrid FP8+NVFP4 V4-Flash does not fit one card of 96 GB: docs/MEMORY.md
#
# Start here: it is the smallest launch, so a fault in it is none of the draft's.
# Untested on SM120. Which kernels it gets is what the dry run shows.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

tp=2
recipe_option() {
  case $1 in
    --tp) need_number "$1" "${2-}"; tp=$2; taken=2 ;;
  esac
}
parse_command_line "$@"

flags+=(
  --tp "$tp"       # weights and heads are split over N GPUs
  --enable-metrics # /metrics, where the overlay's own metrics are too
)
# No --moe-runner-backend: the overlay's choice for `auto` has kernels for SM120; a name given here wins over it.
# No --trust-remote-code: SGLang has the model's code itself, and that flag would run Python from the checkpoint.
launch
