#!/usr/bin/env bash
# Installs the other gateways (vllm-router and sglang-router from PyPI), nginx and wrk, and builds the instant replica.
set -euo pipefail
HOME_DIR=${PEERS_HOME:-$HOME/.cache/warmpath-peers}
here=$(cd "$(dirname "$0")" && pwd)
missing=()
for tool in nginx wrk; do command -v "$tool" >/dev/null || missing+=("$tool"); done
if [ ${#missing[@]} -gt 0 ]; then
  command -v apt-get >/dev/null || { echo "peers: install ${missing[*]} first" >&2; exit 1; }
  apt-get update -qq
  apt-get install -y -qq "${missing[@]/nginx/nginx-light}" >/dev/null
fi
if [ ! -x "$HOME_DIR/bin/vllm-router" ]; then
  python3 -m venv "$HOME_DIR"
  "$HOME_DIR/bin/pip" install -q --disable-pip-version-check vllm-router==0.1.17 sglang-router==0.3.2
fi
(cd "$here/../.." && go build -o "$HOME_DIR/bin/instant" ./test/peers/instant)
echo "peers: ready in $HOME_DIR"
