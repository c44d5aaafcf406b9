#!/usr/bin/env bash
# Tensor parallelism over 2, 4 or 8 GPUs that have PCIe and no NVLink (RTX PRO 6000, RTX 5090), with EAGLE of one step.
#
#   scripts/recipes/pcie.sh MODEL --tp 2|4|8 [--ep] [--no-draft] [SGLANG FLAGS...]
#
#   --tp N       GPUs
#   --ep         split the experts over the GPUs instead of every expert's columns (--ep-size N)
#   --no-draft   without speculative decoding
#
# What to expect of the links: SGLang's own all-reduce serves two GPUs, or more of them with NVLink. Over PCIe, more
# than two GPUs reduce through NCCL, and the log says that custom allreduce is disabled. Not worth trying there: MSCCL++
# (--enable-mscclpp) and FlashInfer's fused all-reduce do not start on such cards (sgl-project/sglang#40877). SGLang
# turns the latter on by itself on SM90 and SM100 only.
# V4.1 takes no EAGLE: scripts/recipes/dspark.sh MODEL --tp N. Its flags may follow MODEL here too, with --no-draft.
# Untested on SM120.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

tp=
ep=0
draft=1
recipe_option() {
  case $1 in
    --tp) need_number "$1" "${2-}"; tp=$2; taken=2 ;;
    --ep) ep=1; taken=1 ;;
    --no-draft) draft=0; taken=1 ;;
  esac
}
parse_command_line "$@"
case $tp in
  2 | 4 | 8) ;;
  *) usage_error "--tp is '$tp'; expected 2, 4 or 8" ;;
esac

flags+=(--tp "$tp")
# Expert parallelism keeps each expert whole, so the kernels see its full width: V4.1-Flash (2304 columns, of which a
# rank would have 576 at TP4 and 288 at TP8) keeps SGLang's own MXFP4 kernel. FlashInfer CUTLASS takes 1 or N only.
[ "$ep" -eq 0 ] || flags+=(--ep-size "$tp")
[ "$draft" -eq 0 ] || flags+=(
  --speculative-algorithm EAGLE # as in scripts/recipes/eagle.sh
  --speculative-num-steps 1
  --speculative-eagle-topk 1
  --speculative-num-draft-tokens 2
)
flags+=(--enable-metrics)
# If two GPUs stop with "peer access is not supported between these two devices" add --disable-custom-all-reduce. If the
# first all-reduce hangs, NCCL_P2P_DISABLE=1 makes NCCL go through host memory, and two GPUs need that flag too; the
# cause and the cure: docs/TROUBLESHOOTING.md
launch
