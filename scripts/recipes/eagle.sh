#!/usr/bin/env bash
# DeepSeek-V4 with EAGLE: the checkpoint's own MTP layer (NextN) proposes tokens, the target verifies them.
#
#   scripts/recipes/eagle.sh MODEL [--steps N] [--tp N] [SGLANG FLAGS...]
#
#   --steps N   tokens that the draft proposes each round (1). More steps pay off where most proposals are accepted:
#               read the acceptance length in the server's log before you go from 1 to 3
#   --tp N      GPUs (2)
#
# For checkpoints that have `mtp.0` weights: V4-Flash and V4-Pro and NVIDIA's NVFP4 conversions of them. V4-Flash-0731
# has none, and V4.1 takes DSpark only: scripts/recipes/dspark.sh.
# Untested on SM120. The draft's experts run on `sm120_triton`; the dry run says so.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

tp=2
steps=1
recipe_option() {
  case $1 in
    --tp) need_number "$1" "${2-}"; tp=$2; taken=2 ;;
    --steps) need_number "$1" "${2-}"; steps=$2; taken=2 ;;
  esac
}
parse_command_line "$@"

flags+=(
  --tp "$tp"
  --speculative-algorithm EAGLE                     # EAGLE with the checkpoint's NextN layer as the draft
  --speculative-num-steps "$steps"                  # the NextN layer runs once for each proposed token
  --speculative-eagle-topk 1                        # one chain; SGLang refuses trees for DeepSeek-V4
  --speculative-num-draft-tokens "$((steps + 1))"   # a chain of N proposals is verified with one token more
  --enable-metrics
)
# No --speculative-moe-runner-backend: `auto` means `sm120_triton` here. `marlin` and `flashinfer_mxfp4` work too.
launch
