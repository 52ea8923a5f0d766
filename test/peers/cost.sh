#!/usr/bin/env bash
# What a proxy costs in front of two instant replicas, side by side: CPU (its own, user and system) a request, latency, memory.
# Settings: SECONDS_EACH=5, ROUNDS=1, CASES="KB:connections:stream …", ONLY="names". Run setup.sh and make build first.
set -euo pipefail
HOME_DIR=${PEERS_HOME:-$HOME/.cache/warmpath-peers}
here=$(cd "$(dirname "$0")" && pwd)
gateway=$here/../../bin/gateway
[ -x "$gateway" ] || { echo "cost: no bin/gateway: make build first" >&2; exit 1; }
[ -x "$HOME_DIR/bin/instant" ] || { echo "cost: no peers in $HOME_DIR: run setup.sh first" >&2; exit 1; }
work=$(mktemp -d)
started=()
trap 'kill "${started[@]}" 2>/dev/null || true; rm -rf "$work"' EXIT
start() { "$@" >>"$work/log" 2>&1 & started+=($!); }

one=http://127.0.0.1:8201 two=http://127.0.0.1:8202
start "$HOME_DIR/bin/instant" -listen 127.0.0.1:8201
start "$HOME_DIR/bin/instant" -listen 127.0.0.1:8202
cat >"$work/nginx.conf" <<N
worker_processes 2; daemon off; pid $work/nginx.pid; error_log $work/nginx.log;
events { worker_connections 1024; }
http { access_log off; client_body_buffer_size 1m; client_max_body_size 16m;
  upstream replicas { server 127.0.0.1:8201; server 127.0.0.1:8202; keepalive 64; }
  server { listen 127.0.0.1:9181; location / { proxy_pass http://replicas; proxy_http_version 1.1; proxy_set_header Connection ""; proxy_buffering off; } } }
N
start nginx -c "$work/nginx.conf"
start "$HOME_DIR/bin/instant" -listen 127.0.0.1:9182 -proxy $one,$two
start "$HOME_DIR/bin/vllm-router" --port 9183 --policy cache_aware --worker-urls $one $two --prometheus-port 29183 --log-level error
start "$HOME_DIR/bin/python" -m sglang_router.launch_router --host 127.0.0.1 --port 9184 --policy cache_aware --worker-urls $one $two --prometheus-port 29184 --log-level error
start "$gateway" -listen 127.0.0.1:9180 -admin 127.0.0.1:9189 -replica $one -replica $two
start env OTEL_EXPORTER_OTLP_ENDPOINT=$one "$gateway" -listen 127.0.0.1:9185 -admin 127.0.0.1:9188 -replica $one -replica $two
sleep "${WARM:-12}"

pids_on() { ss -ltnpH "sport = :$1" | grep -oP 'pid=\K[0-9]+' | sort -u || true; }
ticks() { awk '{sub(/.*\) /, ""); split($0, f, " "); sum += f[12] + f[13]} END {print sum + 0}' $(printf '/proc/%s/stat ' $1); }
resident() { awk '/VmRSS/ {sum += $2} END {print int(sum / 1024)}' $(printf '/proc/%s/status ' $1); }
hz=$(getconf CLK_TCK)
printf '%-14s %4s %5s %6s %8s %7s %8s %8s %6s %7s %6s\n' proxy KB conns stream requests rps p50_ms p99_ms errors cpu_us rss_MB
for _ in $(seq "${ROUNDS:-1}"); do
  for case in ${CASES:-4:1:true 4:16:true 64:16:true 512:1:true 4:16:false}; do
    IFS=: read -r kb conns stream <<<"$case"
    for proxy in direct:8201 nginx:9181 reverseproxy:9182 vllm-router:9183 sglang-router:9184 warmpath:9180 traced:9185; do
      name=${proxy%:*} port=${proxy#*:}
      [[ -z "${ONLY:-}" || " $ONLY " == *" $name "* ]] || continue
      pids=$(pids_on "$port")
      [ -n "$pids" ] || { echo "$name: nothing listens on $port" >&2; tail -3 "$work/log" >&2; continue; }
      before=$(ticks "$pids")
      read -r _ requests rps p50 p99 errors < <(KB=$kb STREAM=$stream wrk -t1 -c"$conns" -d"${SECONDS_EACH:-5}s" -s "$here/chat.lua" "http://127.0.0.1:$port" | grep RESULT)
      cpu=$((($(ticks "$pids") - before) * 1000000 / hz / (requests > 0 ? requests : 1)))
      printf '%-14s %4s %5s %6s %8s %7s %8s %8s %6s %7s %6s\n' "$name" "$kb" "$conns" "$stream" "$requests" "$rps" "$p50" "$p99" "$errors" "$cpu" "$(resident "$pids")"
    done
  done
done
