#!/usr/bin/env bash
# Prefill and decode as two servers on one host of 8 GPUs, and a router in front of them.
#
#   scripts/recipes/disaggregated.sh MODEL [--prefill-tp N] [--decode-tp N] [--transfer nixl|mooncake_tcp|mooncake]
#                                  [--eagle] [--port P] [SGLANG FLAGS FOR BOTH SERVERS...]
#
#   --prefill-tp N   GPUs of the prefill server, from GPU 0 on (4)
#   --decode-tp N    GPUs of the decode server, after those (4)
#   --transfer NAME  how the KV cache goes from one to the other (nixl)
#   --eagle          speculative decoding of one step, on both servers
#   --port P         the router's port on 127.0.0.1 (8000); the servers take 30000 and 30001, the bootstrap 8998
#
# Why nixl: with its UCX backend a transfer inside a host can go from GPU to GPU, and no network card is involved.
# `mooncake` (SGLang's default) uses RDMA even inside a host (kvcache-ai/Mooncake#1811), so it needs an RDMA card; name
# it with --disaggregation-ib-device. `mooncake_tcp` needs neither and copies through host memory.
# Needs: pip install nixl (or mooncake-transfer-engine), and pip install sglang-router.
# Untested on SM120: no transfer backend was run between such GPUs here. Whether UCX goes over PCIe directly depends on
# peer access between the cards (nvidia-smi topo -p2p r).
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

prefill_tp=4
decode_tp=4
transfer=nixl
eagle=0
port=8000
prefill_port=30000
decode_port=30001
bootstrap_port=8998
recipe_option() {
  case $1 in
    --prefill-tp) need_number "$1" "${2-}"; prefill_tp=$2; taken=2 ;;
    --decode-tp) need_number "$1" "${2-}"; decode_tp=$2; taken=2 ;;
    --transfer) transfer=${2-}; taken=2 ;;
    --eagle) eagle=1; taken=1 ;;
    --port) is_port "${2-}" || usage_error "$1 is '${2-}'; expected a port, 1 to 65535"; port=$2; taken=2 ;;
  esac
}
parse_command_line "$@"
case $transfer in
  nixl | mooncake | mooncake_tcp) ;;
  *) usage_error "--transfer is '$transfer'; expected nixl, mooncake or mooncake_tcp" ;;
esac

flags+=(
  --disaggregation-transfer-backend "$transfer"
  --disaggregation-bootstrap-port "$bootstrap_port" # where the decode server asks the prefill server for its buffers
  --host 127.0.0.1                                  # only the router is talked to from outside
  --enable-metrics
)
# Both servers, because the prefill server also computes the draft's state of the prompt.
[ "$eagle" -eq 0 ] || flags+=(
  --speculative-algorithm EAGLE
  --speculative-num-steps 1
  --speculative-eagle-topk 1
  --speculative-num-draft-tokens 2
)
prefill=(--disaggregation-mode prefill --tp "$prefill_tp" --port "$prefill_port" "${flags[@]}" "${extra[@]}")
# --base-gpu-id: the prefill server has the GPUs before it.
decode=(
  --disaggregation-mode decode --tp "$decode_tp" --base-gpu-id "$prefill_tp" --port "$decode_port"
  "${flags[@]}" "${extra[@]}"
)
set_server
router=(
  "$python" -m sglang_router.launch_router --pd-disaggregation
  --prefill "http://127.0.0.1:$prefill_port" "$bootstrap_port"
  --decode "http://127.0.0.1:$decode_port"
  --host 127.0.0.1 --port "$port"
  --worker-startup-timeout-secs 3600 # 150 GB from a slow disk can take longer than the router's half hour
)

need_router() {
  "$python" -c 'import sglang_router' 2>/dev/null ||
    { say "error: sglang-router is missing: pip install sglang-router"; return 1; }
}

if [ "$dry_run" -eq 1 ]; then
  quoted "${server[@]}" "${prefill[@]}"
  quoted "${server[@]}" "${decode[@]}"
  quoted "${router[@]}"
  status=0
  say "Prefill:"
  plan "${prefill[@]}" || status=$?
  say "Decode:"
  plan "${decode[@]}" || status=$?
  need_router || status=$?
  exit "$status"
fi

need_router

# Each program leads a process group, so that stopping it stops what it started. When one ends, all end.
set -m
running=()
stop_all() {
  trap - EXIT INT TERM
  local pid
  for pid in "${running[@]}"; do kill -TERM -- "-$pid" 2>/dev/null || true; done
  for _ in 1 2 3 4 5 6 7 8 9 10; do
    sleep 1
    any_left || exit "$1"
  done
  for pid in "${running[@]}"; do kill -KILL -- "-$pid" 2>/dev/null || true; done
  exit "$1"
}
any_left() {
  local pid
  for pid in "${running[@]}"; do kill -0 -- "-$pid" 2>/dev/null && return 0; done
  return 1
}
trap 'stop_all 130' INT
trap 'stop_all 143' TERM
trap 'stop_all $?' EXIT

"${server[@]}" "${prefill[@]}" & running+=("$!")
"${server[@]}" "${decode[@]}" & running+=("$!")
"${router[@]}" & running+=("$!")
status=0
wait -n || status=$?
say "One of the three programs ended with status $status; stopping the others"
stop_all "$((status == 0 ? 1 : status))"
