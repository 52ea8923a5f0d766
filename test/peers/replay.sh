#!/usr/bin/env bash
# The arrivals of a simulation over real sockets, through each gateway to four mock replicas of its own: P95 and hits beside the simulated ones.
# Settings: SCALE=4 (stretches time), LOAD=0.25, SPAN=20s, WORKLOAD=rag, ONLY="names". Run setup.sh and make build first.
set -euo pipefail
HOME_DIR=${PEERS_HOME:-$HOME/.cache/warmpath-peers}
bin=$(cd "$(dirname "$0")/../../bin" && pwd)
for tool in "$bin/bench" "$bin/mockvllm" "$bin/gateway"; do [ -x "$tool" ] || { echo "replay: no $tool: make build first" >&2; exit 1; }; done
[ -x "$HOME_DIR/bin/vllm-router" ] || { echo "replay: no peers in $HOME_DIR: run setup.sh first" >&2; exit 1; }
base=${BASE:-8210} scale=${SCALE:-4}
work=$(mktemp -d)
started=()
stop() { kill "${started[@]}" 2>/dev/null || true; wait "${started[@]}" 2>/dev/null || true; started=(); }
trap 'stop; rm -rf "$work"' EXIT
start() { "$@" >>"$work/log" 2>&1 & started+=($!); }

# name:form of prompts:policy of the simulation that is the gateway's. sglang-router takes no lists of token ids.
for run in warmpath:tokens:prefix warmpath:chat:prefix round-robin:tokens:round-robin least-tokens:tokens:least-tokens vllm-router:tokens:sglang sglang-router:chat:sglang; do
  IFS=: read -r name form policy <<<"$run"
  [[ -z "${ONLY:-}" || " $ONLY " == *" $name "* ]] || continue
  urls=()
  for i in 0 1 2 3; do
    start "$bin/mockvllm" -preset 8b -time-scale "$scale" -listen "127.0.0.1:$((base + i))"
    urls+=("http://127.0.0.1:$((base + i))")
  done
  port=$((base + 4)) aside=$((base + 5))
  case $name in
    sglang-router) start "$HOME_DIR/bin/python" -m sglang_router.launch_router --host 127.0.0.1 --port $port --policy cache_aware --worker-urls "${urls[@]}" --prometheus-port $aside --log-level error ;;
    vllm-router) start "$HOME_DIR/bin/vllm-router" --port $port --policy cache_aware --worker-urls "${urls[@]}" --prometheus-port $aside --log-level error ;;
    *) start "$bin/gateway" -listen 127.0.0.1:$port -admin 127.0.0.1:$aside -policy "$policy" $(printf -- '-replica %s ' "${urls[@]}") -log-level warn ;;
  esac
  sleep "${WARM:-12}"
  echo "$name, prompts as $form, simulated as $policy"
  "$bin/bench" replay -endpoint http://127.0.0.1:$port -as "$form" -workload "${WORKLOAD:-rag}" -load "${LOAD:-0.25}" -span "${SPAN:-20s}" -time-scale "$scale" -simulate "$policy" -replicas 4
  stop
done
