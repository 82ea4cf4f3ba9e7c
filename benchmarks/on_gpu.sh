#!/usr/bin/env bash
# Everything that only a GPU can tell, in one call: the tests marked gpu, then the benchmarks, recorded with hardware,
# versions, date and command.
#
# Usage: benchmarks/on_gpu.sh [FOLDER]      FOLDER: where the records go (default: benchmarks/results)
#
# Needs PyTorch with CUDA and nothing installed beside it: the library is taken from src/. What fails is reported at the
# end, and the rest still runs.
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
export PYTHONPATH="src:widgets${PYTHONPATH:+:$PYTHONPATH}"
python=${PYTHON:-python3}
folder=${1:-benchmarks/results}
mkdir -p "$folder"

gpu=$("$python" -c 'import torch; print(torch.cuda.get_device_name().lower().replace(" ", "-"))') || {
  echo "no CUDA device: nothing to measure here" >&2
  exit 1
}
failed=()
step() {  # step NAME COMMAND…: run it, show how long it took, remember a failure
  local name=$1 start=$SECONDS
  shift
  printf '\n════ %s\n' "$name"
  "$@" || failed+=("$name")
  printf '════ %s: %d s\n' "$name" $((SECONDS - start))
}
bench() { step "bench $1" "$python" -m playbook bench "$@" --record "$folder/$gpu-$1.json"; }

"$python" -m playbook doctor
step "tests marked gpu" "$python" -m pytest -q -m gpu tests
bench memory
bench train --model smollm-135m --micro-batch 8 --seq 2048
bench trainer --model llama3.2-1b --micro-batch 2 --seq 4096 --grad-acc 2
gpus=$("$python" -c 'import torch; print(torch.cuda.device_count())')
if ((gpus > 1)); then
  bench collectives --ranks "$(seq -s, 2 2 "$gpus")"
  # Heads that 2, 4 and 8 GPUs share out evenly, in a model that fits beside its peers; other numbers share out samples.
  groups=data,tensor,context,ring
  if ((gpus & (gpus - 1))); then groups=data,ring; fi
  bench parallel --ranks "$gpus" --only "$groups" --micro-batch 2 --seq 1024 --long-seq 16384 --model '{"layers":12,"hidden":1024,"heads":16,"kv_heads":8,"ffn":2816,"vocab":32768,"max_seq":8192,"gated":true,"activation":"silu","norm":"rmsnorm","positions":"rotary","bias":false,"tied":false}'
  # Two stages on each GPU, large enough that a stage takes longer than its launches.
  bench pipeline --ranks "$gpus" --layers $((4 * gpus)) --micro-batch 2 --seq 1024 --model '{"layers":8,"hidden":1024,"heads":16,"kv_heads":8,"ffn":2816,"vocab":32768,"max_seq":1024,"gated":true,"activation":"silu","norm":"rmsnorm","positions":"rotary","bias":false,"tied":false}'
else
  printf '\n════ bench collectives, parallel and pipeline: left out, this machine has one GPU, and each rank needs its own\n'
fi

if ((${#failed[@]})); then
  printf '\nFAILED: %s\n' "${failed[@]}"
  exit 1
fi
printf '\nall done: records in %s\n' "$folder"
