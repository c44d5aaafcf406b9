#!/usr/bin/env bash
# DeepSeek-V4 with DSpark: a small draft model proposes a block of tokens in one pass.
#
#   scripts/recipes/dspark.sh MODEL [--block N] [--draft DIR] [--tp N] [SGLANG FLAGS...]
#
#   --block N    tokens that the draft proposes (4)
#   --draft DIR  where the draft's weights are, if neither the checkpoint itself nor its folder `dspark` holds them
#   --tp N       GPUs (2)
#
# For checkpoints with a DSpark draft: V4-Flash-0731, V4.1-Flash (SGLang 0.5.21 and later) and conversions that kept it.
# Untested on SM120.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

tp=2
block=4
draft=
recipe_option() {
  case $1 in
    --tp) need_number "$1" "${2-}"; tp=$2; taken=2 ;;
    --block) need_number "$1" "${2-}"; block=$2; taken=2 ;;
    --draft) [ -d "${2-}" ] || usage_error "--draft is '${2-}'; expected a directory"; draft=$2; taken=2 ;;
  esac
}
parse_command_line "$@"

flags+=(
  --tp "$tp"
  --speculative-algorithm DSPARK
  # The target verifies N + 1 tokens. A checkpoint made for blocks of 5 would verify 6, the one number for which users
  # on SM120 report corrupted text (sgl-project/sglang#33800: 4, 5, 7 and 8 were clean).
  --speculative-dspark-block-size "$block"
  --enable-metrics
)
[ -z "$draft" ] || flags+=(--speculative-draft-model-path "$draft")
# SGLang gives a DSpark draft the target's runner and does not read --speculative-moe-runner-backend. With the overlay
# the draft of a hybrid checkpoint runs on `sm120_triton`, or on what that flag says.
launch
