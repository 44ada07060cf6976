#!/usr/bin/env bash
# Everything that needs a GPU, in one command, on a bare machine with CUDA torch and no network (CONTRIBUTING.md):
#   bash scripts/gpu_check.sh [--cpu | --dry-run] [--out FOLDER] [--carried FOLDER] [--seconds N] [PART…]
# Parts, in this order: environment build kernels table extend pipeline resume losses stages benchmark profile
# (default: these), and sanitizer, which takes ten minutes
#   --out      gpu_check.json and a log of each part go there   ($OUT, else ./gpu-check)
#   --carried  what scripts/gpu_bundle.sh has made for a machine that lacks it   (.carried)
#   --seconds  of all parts together   (840)
#   --cpu      the same on a machine without a GPU, at small sizes
#   --dry-run  CUDA's build on a machine without a GPU, up to the first call that needs one: environment, build, kernels;
#              and the limits of the others
# The order is that of value. A part takes at most its own limit, which is a GPU's, and leaves each part after it the
# least that is to be its. A part that fails or runs out of time does not stop the others. Exits with 1 if any failed.
set -uo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
cd "$root" || exit 1

all=(environment build kernels table extend pipeline resume losses stages benchmark profile)
# Seconds of a part: the least that those before leave it, in shares of 840, and the most.
declare -A least=([environment]=10 [build]=5 [kernels]=60 [table]=150 [extend]=150 [pipeline]=80 [resume]=45
    [losses]=45 [stages]=90 [benchmark]=60 [profile]=25 [sanitizer]=0)
declare -A most=([environment]=60 [build]=100 [kernels]=160 [table]=360 [extend]=200 [pipeline]=120 [resume]=90
    [losses]=90 [stages]=150 [benchmark]=120 [profile]=60 [sanitizer]=800)
cpu=0 dry=0 out=${OUT:-$root/gpu-check} carried=$root/.carried seconds=840 parts=()
while [ $# -gt 0 ]; do
    case $1 in
        --cpu) cpu=1 ;;
        --dry-run) dry=1 ;;
        --out) out=$2; shift ;;
        --carried) carried=$2; shift ;;
        --seconds) seconds=$2; shift ;;
        *)
            [ -n "${least[$1]:-}" ] || { echo "gpu_check.sh: unknown argument $1; its first lines say which there are" >&2; exit 2; }
            parts+=("$1")
            ;;
    esac
    shift
done
if [ ${#parts[@]} = 0 ]; then
    parts=("${all[@]}")
    [ "$dry" = 1 ] && parts=(environment build kernels)
fi

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
    if compgen -G "$carried/whl/*.whl" >/dev/null; then
        "$python" -m pip install -q --no-index --no-deps --no-compile --upgrade --target "$site" "$carried"/whl/*.whl \
            || return
    fi
    if [ -f "$carried/kernels.txz" ]; then tar xJf "$carried/kernels.txz" -C ds_minimodel || return; fi
    if [ "$cpu" = 0 ] && [ "$dry" = 0 ]; then
        nvidia-smi || return
        "$python" -c 'import torch; assert torch.cuda.is_available(), "this torch sees no GPU"' || return
    fi
    "$python" -m ds_minimodel doctor
}

# Whether compiled kernels serve; they say so.
serves() {
    "$python" - "$cpu" <<'END'
import sys
import torch
from ds_minimodel.ops import backend
from ds_minimodel.ops.loading import OPS
device = "cuda" if torch.version.cuda and sys.argv[1:] != ["1"] else "cpu"
serving = {op: backend(op, device) for op in OPS if device == "cpu" or "attention" not in op}  # torch's on GPUs
print(serving)
sys.exit(not all(text.startswith("compiled") for text in serving.values()))
END
}

# Those that were carried where they load, else built for this card alone.
build() {
    if [ "$dry" = 0 ] && serves; then return; fi
    local mode=1 card
    [ "$cpu" = 1 ] && mode=cpu
    card=$(nvidia-smi --query-gpu=compute_cap --format=csv,noheader 2>/dev/null | head -n 1)
    export TORCH_CUDA_ARCH_LIST=${card:-${TORCH_CUDA_ARCH_LIST:-9.0}}  # without a card, an H100's
    DSMM_BUILD_OPS=$mode "$python" setup.py -q build_ext --inplace && serves
}

kernels() {
    serves || return
    "$python" -m pytest -q tests/ops/test_device.py tests/ops/test_registration.py tests/ops/test_attention.py
}

smollm2="{kind: llama, num_layers: 30, hidden_size: 576, num_heads: 9, num_kv_heads: 3, ffn_size: 1536}"
llama1b="{kind: llama, num_layers: 18, hidden_size: 2048, num_heads: 32, num_kv_heads: 8, ffn_size: 8192}"
small="{kind: llama, num_layers: 3, hidden_size: 64, num_heads: 4, num_kv_heads: 2, ffn_size: 128, max_positions: 512}"

# lora NAME SHAPE TOKENS LENGTH [OPTION…]: a table of LoRA's steps in $out/NAME, ours and those of --against.
lora() {
    local name=$1 model=$2 tokens=$3 length=$4 precision=bf16
    [ "$cpu" = 1 ] && model=$small tokens=128 length=64 precision=fp32
    "$python" -m benchmarks steps --apart --steps adapt-lora --precision "$precision" --tokens "$tokens" \
        --seq-length "$length" --out "$out/$name" --time-limit $((120 + 480 * cpu)) "${@:5}" \
        --set "model=$model" 'pretrain={}' 'build_mini={}' 'adapt={rank: 16}' 'mini={depth: 1, new_layers: 1}' \
        tokenizer.vocab_size=$([ "$cpu" = 1 ] && echo 500 || echo 51152)
}

# Ours, plain and with each layer compiled, beside peft, plain and compiled: at the largest micro-batch, at 1,024 tokens,
# and with 1.2 billion weights; and RoBERTa's steps beside Hugging Face's compiled ones.
table() {
    local code=0 rounds=12 roberta=()
    [ "$cpu" = 1 ] && rounds=2 roberta=(--tokens 128 --seq-length 64 --set model.num_layers=2 model.hidden_size=64
        model.num_heads=2 model.ffn_size=128 mini.depth=1 mini.new_layers=1 tokenizer.vocab_size=500)
    lora smollm2-32768 "$smollm2" 32768 1024 --against hf --repeats "$rounds" || code=$?
    lora smollm2-1024 "$smollm2" 1024 128 --against hf --repeats "$rounds" || code=$?
    lora llama1b-16384 "$llama1b" 16384 1024 --against hf --repeats "$rounds" || code=$?
    # 30 layers are long in compiling.
    lora smollm2-32768-compiled "$smollm2" 32768 1024 --against compiled hf-compiled --repeats "$rounds" \
        --time-limit $((200 + 400 * cpu)) || code=$?
    "$python" -m benchmarks steps --apart --steps adapt-mini finetune --against hf-compiled --repeats "$rounds" \
        --out "$out/roberta" --time-limit $((120 + 480 * cpu)) "${roberta[@]}" || code=$?
    return "$code"
}

# A real model, by text of 3.5 MB; where none was carried (and with --cpu) a tiny one.
extend() {
    local from=$carried/extend tokens=4M
    [ "$cpu" = 1 ] && from='' tokens=20k
    if [ ! -d "$from/model" ]; then
        from=$out/extend tokens=20k
        rm -rf "$from"
        mkdir -p "$from"
        "$python" - "$from" <<'END' || return
import sys
from pathlib import Path
from tests.helpers.foreign_models import save_llama
from tests.pipeline.conftest import make_world
folder = Path(sys.argv[1])
make_world(folder)
for language in ("en", "xx"):
    path = folder / f"{language}.txt"
    path.write_text(path.read_text() * 4)
save_llama(folder / "en.txt", folder / "model", "$A")
(folder / "xx.txt").rename(folder / "de.txt")
END
    fi
    # The paths are those of gpu_bundle.sh, which has begun it.
    cd "$from" && "$python" -m ds_minimodel extend model de.txt --language de --source-text en.txt --tokens "$tokens" \
        --out work && cat work/run/report/report.md
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
    "$python" -m ds_minimodel run "$recipe" "engine.precision=$precision" engine.deterministic=true
}

# A training that was killed after a checkpoint goes on to the bits of the pipeline's undisturbed one.
resume() {
    local world=$out/pipeline killed=$out/pipeline/killed precision=auto job=pretrain/bl_base
    [ "$cpu" = 1 ] && precision=fp32
    local settings=("$world/recipe.yaml" "workdir=$killed" "engine.precision=$precision" engine.deterministic=true)
    rm -rf "$killed"
    "$python" -m ds_minimodel run "${settings[@]}" &
    until compgen -G "$killed/$job/run/checkpoints/step-*" >/dev/null; do
        kill -0 $! || return
        sleep 0.02
    done
    kill -KILL $!
    "$python" -m ds_minimodel pretrain "${settings[@]}" && cmp "$world/run/$job/model/model.safetensors" \
        "$killed/$job/model/model.safetensors"
}

# The first losses are a CPU's, and the same bits in a second run.
losses() {
    rm -f "$out/losses.json"
    DS_ACCELERATOR=cpu CUDA_VISIBLE_DEVICES='' "$python" -m benchmarks.losses "$out/losses.json" &&
        NVIDIA_TF32_OVERRIDE=0 "$python" -m benchmarks.losses "$out/losses.json"
}

# Every ZeRO stage with 1.2 billion weights; their losses are the same.
stages() {
    lora stages "$llama1b" 8192 1024 --against --zero 0 1 2 3 --repeats 3 && "$python" - "$out/stages/steps.jsonl" <<'END'
import json, sys
from pathlib import Path
rows = json.loads(Path(sys.argv[1]).read_text().splitlines()[-1])["rows"]
losses = [row["contestants"]["ds_minimodel"]["loss"] for row in rows]
print("losses", losses)
sys.exit(max(losses) - min(losses) > 2e-2)
END
}

benchmark() {
    local kernels=(--repeats 5)
    [ "$cpu" = 1 ] && kernels=(--ops dropout --repeats 2 --no-compiled)
    "$python" -m benchmarks kernels "${kernels[@]}" --out "$out/benchmark" --time-limit 60
}

profile() {
    MASTER_ADDR=127.0.0.1 MASTER_PORT=29531 "$python" - "$cpu" "$smollm2" "$small" <<'END'
import sys
from benchmarks.training import profiled, start, take_steps
cpu, model, small = sys.argv[1:]
sizes = {"tokens": 128, "seq_length": 64} if cpu == "1" else {"tokens": 32768, "seq_length": 1024}
vocabulary, precision = (500, "fp32") if cpu == "1" else (51152, "bf16")
sections = ["pretrain={}", "build_mini={}", "adapt={rank: 16}", "mini={depth: 1, new_layers: 1}"]
overrides = [f"model={small if cpu == '1' else model}", *sections, f"tokenizer.vocab_size={vocabulary}"]
start("ds_minimodel", "paper", overrides, precision, 1, step="adapt-lora", shortest=None, **sizes)
take_steps(5, "wall")
print(profiled(3))
END
}

sanitizer() {
    local tool
    for tool in memcheck racecheck; do
        compute-sanitizer --tool "$tool" --error-exitcode 1 "$python" -m pytest -q tests/ops/test_device.py \
            -k "kernel_equals_reference and float16" || return
    done
}

# record PART RC SECONDS: adds the part to gpu_check.json, with the end of its log and the tables that there are so far.
record() {
    "$python" - "$out" "$@" <<'END'
import json, platform, sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
out, part, code, seconds = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
path = out / "gpu_check.json"
found = json.loads(path.read_text()) if path.exists() else {"parts": {}}
found["python"] = platform.python_version()
for package in ("torch", "deepspeed", "transformers", "peft"):
    try:
        found[package] = version(package)
    except PackageNotFoundError:
        found[package] = None
log = (out / f"{part}.log").read_text(errors="replace").splitlines()
found["parts"][part] = {"ok": code == 0, "exit_code": code, "timed_out": code in (124, 137), "seconds": seconds,
                        "log": log[-60:]}
for record in out.glob("*/*.jsonl"):
    if record.stem in ("steps", "kernels"):
        found[f"{record.parent.name} {record.stem}"] = json.loads(record.read_text().splitlines()[-1])
path.write_text(json.dumps(found, indent=1) + "\n")
END
}

export -f "${all[@]}" serves lora sanitizer
export python cpu dry out carried site smollm2 llama1b small
if command -v nvidia-smi >/dev/null && [ "$cpu" = 0 ]; then
    nvidia-smi --query-gpu=timestamp,clocks.sm,clocks.mem,power.draw,temperature.gpu,memory.used --format=csv -l 2 \
        > "$out/clocks.csv" &
    trap 'kill %1' EXIT
fi
failed=0 start=$SECONDS
for index in "${!parts[@]}"; do
    part=${parts[$index]} reserved=0
    for later in "${parts[@]:index+1}"; do reserved=$((reserved + least[$later] * seconds / 840)); done
    limit=$((seconds - (SECONDS - start) - reserved))
    cap=$((most[$part] * (seconds > 840 ? seconds : 840) / 840))
    [ "$cpu" = 0 ] && [ "$limit" -gt "$cap" ] && limit=$cap
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
if [ "$dry" = 1 ]; then
    echo "on a GPU, in $seconds seconds:"
    for part in "${all[@]}"; do echo "  $part: ${least[$part]} to ${most[$part]} s"; done
fi
echo "$out/gpu_check.json"
exit "$failed"
