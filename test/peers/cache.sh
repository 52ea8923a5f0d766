#!/usr/bin/env bash
# The same shared-prefix load through each gateway in turn, in front of the same real vLLM replicas:
#   BLOCKS=44 MAXLEN=2048 test/vllm/fleet.sh up 2 && test/peers/cache.sh [flags of load.py]
# Settings: REPLICAS="url url", MODEL=smol4. Run setup.sh and make build first.
set -euo pipefail
HOME_DIR=${PEERS_HOME:-$HOME/.cache/warmpath-peers}
here=$(cd "$(dirname "$0")" && pwd)
replicas=${REPLICAS:-http://127.0.0.1:8101 http://127.0.0.1:8102}
work=$(mktemp -d)
started=()
trap 'kill "${started[@]}" 2>/dev/null || true; rm -rf "$work"' EXIT
start() { "$@" >>"$work/log" 2>&1 & started+=($!); }
ours=()
for url in $replicas; do ours+=(-replica "$url"); done

start "$HOME_DIR/bin/vllm-router" --port 9191 --policy round_robin --worker-urls $replicas --prometheus-port 29191 --log-level error
start "$HOME_DIR/bin/vllm-router" --port 9192 --policy cache_aware --worker-urls $replicas --prometheus-port 29192 --log-level error
start "$HOME_DIR/bin/python" -m sglang_router.launch_router --host 127.0.0.1 --port 9193 --policy cache_aware --worker-urls $replicas --prometheus-port 29193 --log-level error
start "$here/../../bin/gateway" -listen 127.0.0.1:9180 -admin 127.0.0.1:9189 "${ours[@]}"
sleep "${WARM:-12}"
python3 "$here/load.py" --model "${MODEL:-smol4}" "$@" \
  round-robin=http://127.0.0.1:9191 vllm-router=http://127.0.0.1:9192 sglang-router=http://127.0.0.1:9193 warmpath=http://127.0.0.1:9180
