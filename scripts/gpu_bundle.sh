#!/usr/bin/env bash
# What scripts/gpu_check.sh needs on a machine with a GPU, Python 3.12, torch 2.11.0+cu130 and no network:
#   bash scripts/gpu_bundle.sh FOLDER [MODEL DE.txt EN.txt]     with nvcc 13 and a python3.12 in the PATH (PY312=… another)
# FOLDER/whl         packages that the machine lacks (25 MB)
# FOLDER/kernels.txz kernels for ARCH (9.0)
# FOLDER/extend      MODEL and texts, and `extend` of them up to its first training step
# FOLDER/env         an environment like that machine's: PYTHONPATH=.:FOLDER/site rehearses the check in it
set -euo pipefail
out=$(mkdir -p "$1" && cd "$1" && pwd) py=${PY312:-python3.12}
[ $# -lt 4 ] || set -- "$1" "$(realpath "$2")" "$(realpath "$3")" "$(realpath "$4")"
cd "$(dirname "${BASH_SOURCE[0]}")/.."
platforms=(--platform manylinux_2_28_x86_64 --platform manylinux_2_27_x86_64 --platform manylinux_2_17_x86_64
    --platform manylinux2014_x86_64 --platform manylinux1_x86_64)
"$py" -m venv "$out/env"
"$out/env/bin/pip" download -q --no-deps --only-binary=:all: "${platforms[@]}" -d "$out/whl" hjson pydantic==2.14.4 \
    pydantic_core==2.50.5 annotated_types typing_inspection typing_extensions ruamel.yaml sentencepiece==0.2.3 \
    tokenizers==0.23.3 transformers==5.24.0 peft==0.21.2 gguf==0.19.0 psutil==7.2.2 py3langid==0.4.0 tqdm==4.70.1
"$out/env/bin/pip" install -q torch==2.11.0 numpy pandas jinja2 tensorboard scikit-learn matplotlib pytest pytest-timeout \
    pytest-xdist regex accelerate==1.15.0 ninja py-cpuinfo msgpack einops nvidia-ml-py setuptools wheel pyyaml \
    safetensors huggingface_hub==1.33.0
"$out/env/bin/pip" wheel -q --no-deps --no-build-isolation --no-binary deepspeed -w "$out/whl" deepspeed==0.19.8
"$out/env/bin/pip" install -q --no-index --no-deps --upgrade --target "$out/site" "$out"/whl/*.whl
rm -rf "$out/tree" && mkdir "$out/tree"
git archive --format=tar HEAD | tar x -C "$out/tree"
export PATH=$out/env/bin:$PATH PYTHONPATH=$out/tree:$out/site
(cd "$out/tree" && TORCH_CUDA_ARCH_LIST=${ARCH:-9.0} DSMM_BUILD_OPS=1 python setup.py -q build_ext --inplace)
(cd "$out/tree/ds_minimodel" && tar cJf "$out/kernels.txz" _kernels_*.so)
if [ $# -gt 1 ]; then
    rm -rf "$out/extend" && mkdir "$out/extend"
    cp -r "$2" "$out/extend/model"
    cp "$3" "$out/extend/de.txt"
    cp "$4" "$out/extend/en.txt"
    find "$out/extend" -exec touch -d 2026-01-01 {} +  # records hold times, of which tar keeps whole seconds
    cd "$out/extend"
    DS_ACCELERATOR=cpu python -m ds_minimodel extend model de.txt --language de --source-text en.txt --tokens 4M \
        --out work &
    until compgen -G "work/run/adapt/*/*/run/metrics.jsonl" >/dev/null || ! kill -0 $! 2>/dev/null; do sleep 1; done
    kill -TERM $! 2>/dev/null || true
    wait $! || true
fi
du -sh "$out/whl" "$out/kernels.txz"
