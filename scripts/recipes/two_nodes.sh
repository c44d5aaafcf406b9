#!/usr/bin/env bash
# One model over two hosts, with EAGLE of one step: two DGX Sparks (--gb10), or two workstations.
#
#   scripts/recipes/two_nodes.sh MODEL --rank 0|1 --head ADDRESS[:PORT] [--tp N] [--interface NAME] [--no-draft]
#                              [SGLANG FLAGS...]
#
#   --rank R           0 on the host that clients talk to, 1 on the other; start both, in any order
#   --head ADDRESS     host 0 as the other one reaches it over the fast link; PORT is 25000 unless given
#   --tp N             GPUs of both hosts together (2)
#   --interface NAME   network interface of the fast link on this host, if NCCL and Gloo pick another one
#   --no-draft         without speculative decoding
#
# Install the same SGLang and the same sglang-sm120 on both hosts, and have the checkpoint on both under the same path.
# Untested on SM120 and SM121.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

tp=2
rank=
head=
draft=1
recipe_option() {
  case $1 in
    --tp) need_number "$1" "${2-}"; tp=$2; taken=2 ;;
    --rank) rank=${2-}; taken=2 ;;
    --head) head=${2-}; taken=2 ;;
    --interface)
      [ -n "${2-}" ] || usage_error "--interface needs a name; ip -br link lists them"
      # The two hosts may name the same cable differently, so each sets its own.
      environment+=("NCCL_SOCKET_IFNAME=$2" "GLOO_SOCKET_IFNAME=$2")
      taken=2
      ;;
    --no-draft) draft=0; taken=1 ;;
  esac
}
parse_command_line "$@"
[[ $rank =~ ^[01]$ ]] || usage_error "--rank is '$rank'; expected 0 or 1"
[ -n "$head" ] || usage_error "--head is missing: the address of host 0"
[[ $head == *:* ]] || head=$head:25000
{ [ -n "${head%:*}" ] && is_port "${head##*:}"; } ||
  usage_error "--head is '$head'; expected ADDRESS or ADDRESS:PORT with a port of 1 to 65535"
[ $((tp % 2)) -eq 0 ] || usage_error "--tp is $tp; two hosts need an even number of GPUs"

flags+=(
  --tp "$tp"
  --nnodes 2
  --node-rank "$rank"
  --dist-init-addr "$head" # where the ranks find each other
  --enable-metrics
)
[ "$draft" -eq 0 ] || flags+=(
  --speculative-algorithm EAGLE # as in scripts/recipes/eagle.sh
  --speculative-num-steps 1
  --speculative-eagle-topk 1
  --speculative-num-draft-tokens 2
)
launch
