# shellcheck shell=bash
# Sourced by the other scripts: `prepare_environment EXTRAS` leaves a shell whose python has ds_minimodel,
# its compiled kernels where they can be built, and the named extras ("report,sample").
#
# Where it installs: the active virtual environment, else .venv in the repository. If the python that makes
# .venv has a new enough torch already (a CUDA build, say), .venv uses that one and does not replace it.
#
# What can be set:
#   PYTHON           the python that makes .venv                  (python3)
#   DSMM_TORCH_SPEC  what pip installs where there is no torch; options may follow it, such as
#                    "torch==2.13.0 --index-url URL" with PyTorch's index of CPU or older CUDA builds
#                    (torch==2.13.0; without an NVIDIA driver its CPU build, where install_torch below finds one)
#   DSMM_GPU         lowest compute capability to install for, such as 7.0 for a V100, where no GPU is at hand: on a
#                    cluster's login node, in an image   (what nvidia-smi says)
#   DSMM_PIP_ARGS    options for every pip call, such as "--no-index --find-links FOLDER"
#   DSMM_INSTALLER   pip, or uv, which takes a quarter of the time and reads none of pip's settings   (pip)
#   DSMM_BUILD_OPS   compiled kernels: auto, 0 (none), cpu, 1 (a failure to build is fatal)   (auto)

set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
cd "$root"

fail() {
    echo "error: $*" >&2
    exit 2
}

# Does python $1 have the torch that pyproject.toml asks for? Reads metadata: importing torch takes seconds.
has_torch() {
    "$1" - <<'END'
import importlib.metadata, re, sys, tomllib
numbers = lambda text: tuple(int(n) for n in re.findall(r"\d+", text)[:2])
dependencies = tomllib.load(open("pyproject.toml", "rb"))["project"]["dependencies"]
needed = next(line for line in dependencies if line.startswith("torch>="))
try:
    sys.exit(numbers(importlib.metadata.version("torch")) < numbers(needed))
except importlib.metadata.PackageNotFoundError:
    sys.exit(1)
END
}

check_version() {
    "$1" -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
        || fail "$1 is $("$1" --version 2>&1): ds_minimodel needs Python 3.11 or newer; set PYTHON to one"
}

enter_virtual_environment() {
    local python=${PYTHON:-python3} options=()
    if [ -z "${VIRTUAL_ENV:-}" ]; then
        command -v "$python" >/dev/null || fail "$python not found: install Python 3.11 or newer, or set PYTHON"
        check_version "$python"
        VIRTUAL_ENV=$root/.venv
        # One that a killed run left unfinished, or whose python has gone, is made anew.
        if ! "$VIRTUAL_ENV/bin/python" -m pip --version >/dev/null 2>&1; then
            if has_torch "$python"; then
                options=(--system-site-packages)
            fi
            "$python" -m venv --clear "${options[@]}" "$VIRTUAL_ENV" \
                || fail "$python cannot make a virtual environment: install its venv module (Debian: python3-venv)"
        fi
    fi
    # Nothing is installed outside a virtual environment.
    "$VIRTUAL_ENV/bin/python" -c 'import sys; sys.exit(sys.prefix == sys.base_prefix)' 2>/dev/null \
        || fail "VIRTUAL_ENV is $VIRTUAL_ENV, which is no virtual environment: unset it"
    export VIRTUAL_ENV PATH="$VIRTUAL_ENV/bin:$PATH"
    unset PYTHONHOME
    check_version python
    python -m pip --version >/dev/null 2>&1 || fail "no pip in $VIRTUAL_ENV: run python -m ensurepip there"
}

# Hash of all that decides what gets installed and compiled.
installation_hash() {
    {
        echo "$root $1 ${DSMM_BUILD_OPS:-auto}"
        python -c 'import importlib.metadata as m, sys; print(sys.version, m.version("torch"))'
        find pyproject.toml ds_minimodel/__init__.py setup.py csrc -type f -print0 | sort -z | xargs -0 sha256sum
    } | sha256sum | cut -d' ' -f1
}

try_pip() {
    # shellcheck disable=SC2086
    python -m pip install -qq --disable-pip-version-check ${DSMM_PIP_ARGS:-} "$@"
}

pip_install() {
    try_pip "$@" || fail "pip could not install: $* (its own message is above)"
}

has_driver() {
    [ -e /dev/nvidiactl ] || [ -e /proc/driver/nvidia/version ] || command -v nvidia-smi >/dev/null
}

# Path of a uv: the one that is there, else one that pip installs; none where pip is kept from its index.
find_uv() {
    [[ " ${DSMM_PIP_ARGS:-} " != *" --no-index "* ]] || return
    command -v uv || { try_pip uv 2>/dev/null && command -v uv; }
}

# Install this project with extras $1, by uv where DSMM_INSTALLER says so and it can: it sees no packages outside the
# virtual environment.
install_project() {
    local uv project=(--no-build-isolation --editable ".[$1]")
    if [ "${DSMM_INSTALLER:-pip}" = uv ] && uv=$(find_uv) \
        && grep -q 'include-system-site-packages = false' "$VIRTUAL_ENV/pyvenv.cfg" \
        && "$uv" pip install -q --python "$VIRTUAL_ENV" --compile-bytecode "${project[@]}" 2>/dev/null; then
        return
    fi
    try_pip "${project[@]}"
}

# Lowest compute capability of the GPUs, as 7.0; nothing where neither DSMM_GPU nor the driver says it.
lowest_capability() {
    if [ -n "${DSMM_GPU:-}" ]; then
        [[ $DSMM_GPU =~ ^[0-9]+\.[0-9]$ ]] || fail "DSMM_GPU=$DSMM_GPU: it is a compute capability, such as 7.0"
        echo "$DSMM_GPU"
    else
        { nvidia-smi --query-gpu=compute_cap --format=csv,noheader 2>/dev/null || true; } \
            | sed -nE '/^[0-9]+\.[0-9]$/p' | sort -V | head -n 1
    fi
}

# Is there an nvcc of CUDA 12 where setup.py looks for one?
has_nvcc_12() {
    { "${CUDA_HOME:+$CUDA_HOME/bin/}nvcc" --version || "${CUDA_HOME:-/usr/local/cuda}/bin/nvcc" --version; } 2>/dev/null \
        | grep -q 'release 12\.'
}

# Install build $2 (cpu, cu126) of torch $1 out of pip's indexes or, by uv, out of PyTorch's own, and say why ($3);
# 1, and nothing but uv is installed, where there is none.
install_build() {
    local torch=$1 build=$2 uv
    if try_pip "$torch+$build" 2>/dev/null; then
        echo "torch: $torch+$build, because $3" >&2
    elif uv=$(find_uv) && uv=("$uv" pip install -q --python "$VIRTUAL_ENV" --no-deps "--torch-backend=$build" "$torch") \
        && UV_HTTP_CONNECT_TIMEOUT=5 UV_HTTP_RETRIES=0 timeout 30 "${uv[@]}" --dry-run 2>/dev/null; then
        echo "torch: $torch+$build out of PyTorch's index, because $3" >&2
        "${uv[@]}" || fail "uv could not install $torch (its own message is above)"
        pip_install "$torch"                                    # what it depends on
    else
        return 1
    fi
}

# What DSMM_TORCH_SPEC says. Else the build for the GPUs: PyPI's is for CUDA 13, which knows compute capability 7.5 and
# newer; the one for CUDA 12.6, which torch has up to 2.14, knows 5.0 to 9.0. Without an NVIDIA driver the CPU build,
# where there is one: PyPI's takes 5 GB.
install_torch() {
    local torch=torch==2.13.0 otherwise="DSMM_TORCH_SPEC chooses another" gpu why kernels=${DSMM_BUILD_OPS:-auto}
    gpu=$(lowest_capability)
    if [ -n "${DSMM_TORCH_SPEC:-}" ]; then
        # shellcheck disable=SC2086
        pip_install $DSMM_TORCH_SPEC
    elif [ -n "$gpu" ] && [ "${gpu/./}" -lt 75 ]; then
        why="of the GPU's compute capability $gpu"
        if [[ $kernels =~ ^(auto|1)$ ]] && ! has_nvcc_12; then
            why+="; its kernels need an nvcc of CUDA 12, which is not here (CUDA_HOME names its folder)"
            [ "$kernels" = auto ] || fail "torch: $torch+cu126, because $why"
        fi
        install_build "$torch" cu126 "$why; $otherwise" \
            || fail "a GPU of compute capability $gpu needs $torch+cu126, which no index here has; DSMM_TORCH_SPEC" \
                "names another source (docs/launch.md)"
    elif [ -n "$gpu" ] || has_driver; then
        why=${gpu:+compute capability $gpu}
        echo "torch: $torch as pip finds it, for ${why:-the NVIDIA driver here}; $otherwise" >&2
        pip_install "$torch"
    elif ! install_build "$torch" cpu "no NVIDIA driver was found; $otherwise"; then
        why="no NVIDIA driver was found, but no index here has a CPU build"
        echo "torch: $torch as pip finds it, 5 GB with CUDA: $why; $otherwise" >&2
        pip_install "$torch"
    fi
}

prepare_environment() {
    local extras=$1 stamp log
    enter_virtual_environment
    log=$VIRTUAL_ENV/kernels.log
    stamp=$VIRTUAL_ENV/ds_minimodel-${extras//,/-}.stamp
    if has_torch python && [ "$(cat "$stamp" 2>/dev/null)" = "$(installation_hash "$extras")" ]; then
        return
    fi
    echo "installing ds_minimodel[$extras] into $VIRTUAL_ENV (a few minutes where much is downloaded)" >&2
    has_torch python || install_torch                           # first: it may end here
    pip_install "setuptools>=77" wheel ninja
    (
        setsid python setup.py -q build_ext --inplace >"$log" 2>&1 &    # beside what is installed, on another core
        kernels=$!
        trap 'kill -- -$kernels 2>/dev/null || true' EXIT
        trap 'exit 130' INT TERM
        DSMM_BUILD_OPS=0 install_project "$extras" || fail "pip could not install .[$extras] (its own message is above)"
        wait $kernels || { tail -n 40 "$log" >&2; fail "the kernels could not be compiled"; }
    ) || exit
    installation_hash "$extras" > "$stamp"
    if [ -s "$log" ] && ! compgen -G "ds_minimodel/_kernels*.so" >/dev/null; then
        echo "no kernels compiled, torch's operators serve ($log says why)" >&2
    fi
}
