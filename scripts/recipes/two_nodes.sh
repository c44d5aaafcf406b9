#!/usr/bin/env bash
# One model over two hosts or more: DGX Sparks (--gb10) or workstations. With EAGLE of one step, or DSpark.
#
#   scripts/recipes/two_nodes.sh MODEL --rank R --head ADDRESS[:PORT] [--nodes N] [--tp N] [--interface NAME]
#                              [--dspark | --no-draft | --stages] [--block N] [--draft DIR] [SGLANG FLAGS...]
#
#   --rank R           0 on the host that clients talk to, 1 and up on the others; start all, in any order
#   --head ADDRESS     host 0 as the others reach it over the fast link; PORT is 25000 unless given
#   --nodes N          hosts (2)
#   --tp N             GPUs of all hosts together (one a host)
#   --interface NAME   network interface of the fast link on this host, if NCCL and Gloo pick another one
#   --dspark           a DSpark draft: V4-Flash-0731, V4.1-Flash and conversions that kept it
#   --block N          tokens that the DSpark draft proposes (4)
#   --draft DIR        where the DSpark draft's weights are, as for scripts/recipes/dspark.sh
#   --no-draft         without speculative decoding
#   --stages           one pipeline stage a host in place of tensor parallelism; SGLang takes no draft with it
#
# Two and four hosts share a layer (--tp 2, --tp 4). Three do not: neither DeepSeek-V4's 64 heads nor its 8 groups of
# outputs have a third. Three hosts run three --stages without a draft, or two of them run --tp 2 with one.
# Install the same SGLang and the same sglang-sm120 on all hosts, and have the checkpoint on all under the same path.
# On DGX Spark give a container --shm-size 10g: shared memory is the GPU's memory too.
# Untested on SM120 and SM121.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

nodes=2
tp=
rank=
head=
kind=eagle
block=4
draft=
recipe_option() {
  case $1 in
    --nodes) need_number "$1" "${2-}"; nodes=$2; taken=2 ;;
    --tp) need_number "$1" "${2-}"; tp=$2; taken=2 ;;
    --rank) rank=${2-}; taken=2 ;;
    --head) head=${2-}; taken=2 ;;
    --interface)
      [ -n "${2-}" ] || usage_error "--interface needs a name; ip -br link lists them"
      # The hosts may name the same cable differently, so each sets its own.
      environment+=("NCCL_SOCKET_IFNAME=$2" "GLOO_SOCKET_IFNAME=$2")
      taken=2
      ;;
    --dspark) kind=dspark; taken=1 ;;
    --no-draft) kind=none; taken=1 ;;
    --stages) kind=stages; taken=1 ;;
    --block) need_number "$1" "${2-}"; block=$2; taken=2 ;;
    --draft) [ -d "${2-}" ] || usage_error "--draft is '${2-}'; expected a directory"; draft=$2; taken=2 ;;
  esac
}
parse_command_line "$@"
[[ $rank =~ ^[0-9]+$ && $rank -lt $nodes ]] || usage_error "--rank is '$rank'; expected 0 to $((nodes - 1))"
[ -n "$head" ] || usage_error "--head is missing: the address of host 0"
[[ $head == *:* ]] || head=$head:25000
{ [ -n "${head%:*}" ] && is_port "${head##*:}"; } ||
  usage_error "--head is '$head'; expected ADDRESS or ADDRESS:PORT with a port of 1 to 65535"
[ -n "$tp" ] || tp=$nodes
[ $((tp % nodes)) -eq 0 ] || usage_error "--tp is $tp; $nodes hosts need a multiple of $nodes"
[ "$kind" = stages ] || [ $((tp % 3)) -ne 0 ] ||
  usage_error "--tp is $tp; DeepSeek-V4's heads have no third: --stages, or two of the hosts"

if [ "$kind" = stages ]; then
  flags+=(--tp "$((tp / nodes))" --pp-size "$nodes")
else
  flags+=(--tp "$tp")
fi
flags+=(
  --nnodes "$nodes"
  --node-rank "$rank"
  --dist-init-addr "$head" # where the ranks find each other
  --enable-metrics
)
case $kind in
  eagle)
    flags+=(
      --speculative-algorithm EAGLE # as in scripts/recipes/eagle.sh
      --speculative-num-steps 1
      --speculative-eagle-topk 1
      --speculative-num-draft-tokens 2
    )
    ;;
  dspark)
    flags+=(--speculative-algorithm DSPARK --speculative-dspark-block-size "$block") # as in scripts/recipes/dspark.sh
    [ -z "$draft" ] || flags+=(--speculative-draft-model-path "$draft")
    ;;
esac
launch
