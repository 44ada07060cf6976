#!/usr/bin/env bash
# Build, link and load the kernels with nvcc against releases of torch, without a GPU; keep a table of what came out:
#   bash scripts/build_matrix.sh [--out FILE] [--environments FOLDER] [PYTHON:TORCH…]
#   PYTHON:TORCH     versions, as 3.12:2.11.0; torch may be "newest"   (3.12:2.11.0 3.13:newest)
#   --out            the table   (benchmarks/build_matrix.md)
#   --environments   keep the virtual environments there (6 GB each) and take those that are there; else each goes at once
# torch's CUDA builds come from PyPI, all of CUDA 13 since 2.11; those of CUDA 12 from torch's own index:
#   PIP_INDEX_URL=https://download.pytorch.org/whl/cu126 CUDA_HOME=/usr/local/cuda-12.6 bash scripts/build_matrix.sh …
# Wants nvcc of their CUDA's major version, in $CUDA_HOME or the PATH.
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
cd "$root"

out=$root/benchmarks/build_matrix.md environments= rows=()
while [ $# -gt 0 ]; do
    case $1 in
        --out) out=$2; shift ;;
        --environments) environments=$2; shift ;;
        *:*) rows+=("$1") ;;
        *) echo "build_matrix.sh: unknown argument $1; its first lines say which there are" >&2; exit 2 ;;
    esac
    shift
done
[ ${#rows[@]} -gt 0 ] || rows=(3.12:2.11.0 3.13:newest)
if [ -z "${CUDA_HOME:-}" ]; then
    CUDA_HOME=/usr/local/cuda
    [ -x $CUDA_HOME/bin/nvcc ] || CUDA_HOME=$(dirname "$(dirname "$(readlink -f "$(command -v nvcc)")")")
fi
[ -x "$CUDA_HOME/bin/nvcc" ] || { echo "build_matrix.sh: no nvcc; set CUDA_HOME" >&2; exit 2; }
export CUDA_HOME PIP_DISABLE_PIP_VERSION_CHECK=1
here=$(python3 -c 'import sys; print(sys.executable)')
# With pyenv a python of another version answers only where it is named.
if command -v pyenv >/dev/null; then PYENV_VERSION=$(pyenv versions --bare | paste -sd:); export PYENV_VERSION; fi
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT

version() { grep -oE 'release [0-9.]+' | cut -d' ' -f2; }

# row PYTHON TORCH: one line of the table.
row() {
    local environment=${environments:-$scratch}/$1-$2 tree=$scratch/tree
    local python=$environment/bin/python
    if ! [ -x "$python" ]; then
        "python$1" -m venv "$environment"
        # With what it depends on: torch does not load without CUDA's libraries.
        "$python" -m pip install -q --no-compile "torch${2#newest}" numpy setuptools wheel ninja
    fi
    rm -rf "$tree"
    mkdir "$tree"
    git ls-files setup.py pyproject.toml README.md LICENSE csrc ds_minimodel | tar -cT - | tar -xC "$tree"
    local started=$SECONDS
    (cd "$tree" && PATH=$environment/bin:$PATH DSMM_BUILD_OPS=1 "$python" setup.py -q build_ext --inplace) \
        >"$scratch/log" 2>&1 || { cat "$scratch/log" >&2; return 1; }
    (cd "$tree" && "$python" - "$("$CUDA_HOME/bin/nvcc" --version | version)" "$(g++ -dumpfullversion)" \
        $((SECONDS - started)) "$(grep -ci 'warning:' "$scratch/log" || true)") <<'END'
import platform, sys
from pathlib import Path
import torch
from ds_minimodel.ops.loading import LIBRARIES, load_kernels

nvcc, compiler, seconds, warnings = sys.argv[1:]
for device in LIBRARIES:
    assert load_kernels(device).startswith("compiled"), load_kernels(device)
names = [str(s).split("::")[1].split("(")[0] for s in torch._C._jit_get_all_schemas() if s.name.startswith("dsmm::")]
serves = {key: {name for name in names if torch._C._dispatch_has_kernel_for_dispatch_key(f"dsmm::{name}", key)}
          for key in ("CPU", "CUDA")}
# linear_cross_entropy is made of products and cross_entropy_. Attention is a kernel on the CPU, torch's on GPUs.
cpu = {name for name in names if "attention" in name}
both = set(names) - {"linear_cross_entropy"} - cpu
assert serves == {"CPU": both | cpu, "CUDA": both}, serves
x, bias = torch.randn(3, 40), torch.randn(40)
torch.testing.assert_close(torch.ops.dsmm.bias_gelu(x, bias), torch.ops.dsmm_reference.bias_gelu(x, bias))
devices = [f"sm_{c}" for c in (70, 75, 80, 86, 89, 90, 100, 120) if torch.ops.dsmm_cuda.has_code(*divmod(c, 10))]
(library,) = Path("ds_minimodel").glob(f"{LIBRARIES['cuda']}*.so")
print(f"| {platform.python_version()} | {torch.__version__} | {torch.version.cuda} | {nvcc} | {compiler} | {seconds} s | "
      f"{warnings} | {library.stat().st_size / 2**20:.1f} MiB | {', '.join(devices)} | "
      f"{len(serves['CUDA'])} CUDA, {len(serves['CPU'])} CPU |")
END
    [ -n "$environments" ] || rm -rf "$environment"
}

{
    cat <<END
# Builds of the kernels
\`bash scripts/build_matrix.sh ${rows[*]}\`, $(date -u +%F), $(uname -sm), no GPU. Each release of torch as PyPI has it;
both libraries were compiled, linked and loaded, and the operators that they serve asked of torch's dispatcher.

| Python | torch | its CUDA | nvcc | g++ | build | warnings | CUDA library | runs on | operators |
|---|---|---|---|---|---|---|---|---|---|
END
    for pair in "${rows[@]}"; do row "${pair%%:*}" "$([ "${pair#*:}" = newest ] && echo newest || echo "==${pair#*:}")"; done
    cat <<END

No row of CUDA 12 is here: PyPI has torch 2.11 and newer for CUDA 13 alone, and of CUDA 12's nvcc no more than the
assembler. sm_70 (V100) is known to CUDA 12 alone. NVRTC of CUDA 12.9, which PyPI has, stands in for its device code
(\`csrc/cuda/compile_device_code.py\`; nothing here ran on a GPU):
\`\`\`
$("$here" csrc/cuda/compile_device_code.py sm_70 sm_75 sm_80 sm_90 2>&1)
\`\`\`
END
} >"$scratch/table"
cp "$scratch/table" "$out"
cat "$out"
