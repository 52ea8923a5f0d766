#!/usr/bin/env bash
# The same arrivals over 1, 2, 4 and 8 gateways that share over a Redis of the script's own, on eight mock replicas; with 4 also with one
# channel alone and with none. Hits, P95 and the busiest replica must not get worse with their number: the table at the end has their
# ratios to the first run.
# Settings: SCALE=4 (stretches time), LOAD=0.25, SPAN=20s, WORKLOAD=rag, or TRACE=file with LIMIT=2000 requests; PRESET=8b (of engines;
# 70b suits the trace), RUNS="1:both 4:load …". Run make build first. A row whose client was late says nothing: stretch time more.
set -euo pipefail
bin=${BIN:-$(cd "$(dirname "$0")/../../bin" && pwd)}
for tool in "$bin/bench" "$bin/mockvllm" "$bin/gateway"; do [ -x "$tool" ] || { echo "gateways: no $tool: make build first" >&2; exit 1; }; done
for tool in redis-server python3; do command -v $tool >/dev/null || { echo "gateways: no $tool: apt-get install $tool" >&2; exit 1; }; done
base=${BASE:-8310} scale=${SCALE:-4}
work=$(mktemp -d)
started=()
stop() { kill "${started[@]}" 2>/dev/null || true; wait "${started[@]}" 2>/dev/null || true; started=(); }
trap 'stop; rm -rf "$work"' EXIT
start() { "$@" >>"$work/log" 2>&1 & started+=($!); }

arrivals=(-workload "${WORKLOAD:-rag}" -span "${SPAN:-20s}")
[ -z "${TRACE:-}" ] || arrivals=(-trace "$TRACE" -limit "${LIMIT:-2000}")
for run in ${RUNS:-1:both 2:both 4:both 8:both 4:load 4:prefix 4:none}; do
  IFS=: read -r count channels <<<"$run"
  replicas=() redis=() urls=()
  start redis-server --port $base --bind 127.0.0.1 --save "" --dir "$work"
  for i in 1 2 3 4 5 6 7 8; do
    start "$bin/mockvllm" -preset "${PRESET:-8b}" -time-scale "$scale" -listen "127.0.0.1:$((base + i))"
    replicas+=(-replica "http://127.0.0.1:$((base + i))")
  done
  [ "$channels" = none ] || redis=(-redis "redis://127.0.0.1:$base" -redis-channels "$channels")
  for ((g = 0; g < count; g++)); do
    port=$((base + 10 + 2 * g))
    start "$bin/gateway" -listen 127.0.0.1:$port -admin 127.0.0.1:$((port + 1)) "${replicas[@]}" "${redis[@]}" -log-level warn
    urls+=("http://127.0.0.1:$port")
  done
  sleep "${WARM:-6}"
  echo "$count gateways, shared: $channels"
  "$bin/bench" replay -endpoint "$(IFS=+; echo "${urls[*]}")" "${arrivals[@]}" -load "${LOAD:-0.25}" -time-scale "$scale" -replicas 8 -json | sed "s/^{/{\"run\":\"$run\",/" >>"$work/rows"
  tail -n 1 "$work/rows"
  if [ "$channels" != none ]; then
    for ((g = 0; g < count; g++)); do curl -s "http://127.0.0.1:$((base + 11 + 2 * g))/metrics"; done |
      awk '/^warmpath_share_sent_bytes_total.*load/ {load += $2} /^warmpath_share_sent_bytes_total.*prefix/ {prefix += $2}
           /^warmpath_share_lag_seconds_sum/ {sum += $2} /^warmpath_share_lag_seconds_count/ {n += $2}
           /^warmpath_requests_total/ {requests += $2} /^warmpath_share_gaps_total/ {gaps += $2}
           END {printf "  sent %.0f bytes of load and %.0f of prefixes a request, mean lag %.1f ms, gaps %d\n", load / requests, prefix / requests, n ? 1000 * sum / n : 0, gaps}'
    redis-cli -p $base info commandstats | tr -d '\r' | awk -F'[:=,]' '/cmdstat/ {printf "  %s %s", substr($1, 9), $3} END {print ""}'
  fi
  stop
done
python3 - "$work/rows" <<'P'
import json, sys
rows = [json.loads(line) for line in open(sys.argv[1])]
print(f"\n{'gateways:shared':16} {'requests':>8} {'failed':>6} {'cached':>7} {'apart':>7} {'P95 s':>7} {'ratio':>6} {'busiest':>7} {'ratio':>6} {'late P99':>9}")
one = rows[0]
for r in rows:
    print(f"{r['run']:16} {r['requests']:8} {r['failed']:6} {r['hit']:7.3f} {r['hit'] - one['hit']:+7.3f} {r['ttft_p95']:7.3f} {r['ttft_p95'] / one['ttft_p95']:6.2f}"
          f" {r['imbalance']:7.2f} {r['imbalance'] / one['imbalance']:6.2f} {1000 * r['late_p99']:6.0f} ms")
P
