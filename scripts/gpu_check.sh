#!/usr/bin/env bash
# Everything that needs a GPU, in one command, on a bare machine with CUDA torch and no network (docs/launch.md):
#   bash scripts/gpu_check.sh [--cpu | --dry-run] [--out FOLDER] [--wheels FOLDER] [--seconds N] [PART…]
# Parts, in this order: environment build kernels pipeline benchmark stages   (default: all)
#   --out      gpu_check.json and a log of each part go there   ($OUT, else ./gpu-check)
#   --wheels   packages that the machine lacks                  (.whl)
#   --seconds  of all parts together   (570)
#   --cpu      the same on a machine without a GPU, at small sizes
#   --dry-run  CUDA's build on a machine without a GPU, up to the first call that needs one: environment, build, kernels
# The order is that of value: a part may take all the time left but the least that each part after it is to have, so what
# one does not use is the next ones'. A part that fails or runs out of time does not stop the others. Exits with 1 if
# any failed.
set -uo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
cd "$root" || exit 1

cpu=0 dry=0 out=${OUT:-$root/gpu-check} wheels=$root/.whl seconds=570 parts=()
while [ $# -gt 0 ]; do
    case $1 in
        --cpu) cpu=1 ;;
        --dry-run) dry=1 ;;
        --out) out=$2; shift ;;
        --wheels) wheels=$2; shift ;;
        --seconds) seconds=$2; shift ;;
        environment | build | kernels | pipeline | stages | benchmark) parts+=("$1") ;;
        *) echo "gpu_check.sh: unknown argument $1; its first lines say which there are" >&2; exit 2 ;;
    esac
    shift
done
if [ ${#parts[@]} = 0 ]; then
    parts=(environment build kernels pipeline benchmark stages)
    [ "$dry" = 1 ] && parts=(environment build kernels)
fi
# Seconds that the parts before a part leave it, in shares of all.
declare -A least=([environment]=10 [build]=90 [kernels]=60 [pipeline]=90 [benchmark]=150 [stages]=60)

mkdir -p "$out"
out=$(cd "$out" && pwd)
python=$(command -v python3 || command -v python)
# A Python's own: wheels of one do not load in another.
site=${TMPDIR:-/tmp}/ds-minimodel-site-$("$python" -c 'import sys; print(sys.implementation.cache_tag)')
export PYTHONPATH=$root:$site${PYTHONPATH:+:$PYTHONPATH} PYTHONUNBUFFERED=1 HF_HUB_OFFLINE=1 MPLBACKEND=agg
if [ "$cpu" = 1 ]; then
    export DS_ACCELERATOR=cpu OMP_NUM_THREADS=1 CUDA_VISIBLE_DEVICES=
fi

environment() {
    if compgen -G "$wheels/*.whl" >/dev/null; then
        "$python" -m pip install -q --no-index --no-deps --no-compile --upgrade --target "$site" "$wheels"/*.whl \
            || return
    fi
    if [ "$cpu" = 0 ] && [ "$dry" = 0 ]; then
        nvidia-smi || return
        "$python" -c 'import torch; assert torch.cuda.is_available(), "this torch sees no GPU"' || return
    fi
    "$python" -m ds_minimodel doctor
}

build() {
    local mode=1
    [ "$cpu" = 1 ] && mode=cpu
    DSMM_BUILD_OPS=$mode "$python" setup.py -q build_ext --inplace && "$python" -m ds_minimodel doctor | grep '^op ' \
        && "$python" - "$cpu" <<'END'
import sys
import torch
from ds_minimodel.ops import backend
from ds_minimodel.ops.loading import OPS
device = "cuda" if torch.version.cuda and sys.argv[1:] != ["1"] else "cpu"
serving = {op: backend(op, device) for op in OPS}
if device == "cuda":
    del serving["attention"]    # torch's flash kernel, or two products around masked_softmax
assert all(text.startswith("compiled") for text in serving.values()), serving
END
}

kernels() {
    "$python" - "$cpu" <<'END' || return
import sys
from ds_minimodel.ops import backend
device = "cpu" if sys.argv[1] == "1" else "cuda"
assert backend("bias_gelu", device).startswith("compiled"), f"not the kernels: {backend('bias_gelu', device)}"
END
    "$python" -m pytest -q tests/ops/test_device.py tests/ops/test_registration.py tests/ops/test_attention.py
}

pipeline() {
    local world=$out/pipeline precision=auto recipe
    [ "$cpu" = 1 ] && precision=fp32
    rm -rf "$world"
    mkdir -p "$world"
    recipe=$("$python" - "$world" <<'END'
import sys
from pathlib import Path
from tests.pipeline.conftest import make_world
print(make_world(Path(sys.argv[1])))
END
    ) || return
    "$python" -m ds_minimodel run "$recipe" "engine.precision=$precision"
}

# Every ZeRO stage and precision through steps 1 and 2, on the tokens of the pipeline.
stages() {
    local world=$out/pipeline precisions="bf16 fp16" folder
    [ "$cpu" = 1 ] && precisions=fp32
    for precision in $precisions; do
        for stage in 0 1 2 3; do
            folder=$world/$precision-$stage
            rm -rf "$folder"
            mkdir -p "$folder"
            cp -r "$world/run/tokenizer" "$world/run/tokens" "$folder" || return
            for step in pretrain adapt; do
                "$python" -m ds_minimodel "$step" "$world/recipe.yaml" "systems=[minijoint]" "workdir=$folder" \
                    "engine.precision=$precision" "engine.zero_stage=$stage" || return
            done
        done
    done
}

benchmark() {
    local steps=() kernels=() code=0 common=(--out "$out/benchmark" --time-limit "$((limit > 90 ? limit - 45 : 45))")
    if [ "$cpu" = 1 ]; then
        steps=(--set model.hidden_size=64 model.num_heads=2 model.ffn_size=128 tokenizer.vocab_size=500
               model.num_layers=3 mini.depth=1 mini.new_layers=1 --tokens 128 --seq-length 64 --repeats 2
               --steps adapt-mini --against reference)
        kernels=(--ops dropout --repeats 2 --no-compiled)
    fi
    rm -rf "$out/benchmark"
    "$python" -m benchmarks steps "${steps[@]}" "${common[@]}" || code=$?
    "$python" -m benchmarks kernels "${kernels[@]}" "${common[@]}" || code=$?
    return "$code"
}

# record PART RC SECONDS: adds the part to gpu_check.json, with the end of its log and what the benchmark has so far.
record() {
    "$python" - "$out" "$@" <<'END'
import json, platform, sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
out, part, code, seconds = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
path = out / "gpu_check.json"
found = json.loads(path.read_text()) if path.exists() else {"parts": {}}
found["python"] = platform.python_version()
for package in ("torch", "deepspeed", "transformers"):
    try:
        found[package] = version(package)
    except PackageNotFoundError:
        found[package] = None
log = (out / f"{part}.log").read_text(errors="replace").splitlines()
found["parts"][part] = {"ok": code == 0, "exit_code": code, "timed_out": code in (124, 137), "seconds": seconds,
                        "log": log[-60:]}
for record in (out / "benchmark").glob("*.jsonl"):
    found[record.stem] = json.loads(record.read_text().splitlines()[-1])
path.write_text(json.dumps(found, indent=1) + "\n")
END
}

export -f environment build kernels pipeline stages benchmark
export python cpu dry out wheels site limit
failed=0 start=$SECONDS
for index in "${!parts[@]}"; do
    part=${parts[$index]} reserved=0
    for later in "${parts[@]:index+1}"; do reserved=$((reserved + least[$later] * seconds / 570)); done
    limit=$((seconds - (SECONDS - start) - reserved))
    began=$SECONDS code=124
    : > "$out/$part.log"
    if [ "$limit" -gt 5 ]; then
        timeout --kill-after=10 "$limit" bash -c "$part" > "$out/$part.log" 2>&1
        code=$?
    else
        echo "no time left for this part" > "$out/$part.log"
    fi
    [ "$code" = 0 ] || failed=1
    echo "$part: exit code $code after $((SECONDS - began)) s (limit $limit s)"
    [ "$code" = 0 ] || tail -n 15 "$out/$part.log"
    record "$part" "$code" $((SECONDS - began))
done
echo "$out/gpu_check.json"
exit "$failed"
