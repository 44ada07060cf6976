#!/usr/bin/env bash
# Environment, then the tests, three files at a time. Arguments go to pytest: bash scripts/test.sh -k resume
#   --fast   leaves out what trains, installs or looks at the whole tree (marked slow)
#   --all    runs what is random or long, too (marked long), and installs CUDA's compiler for it
set -euo pipefail
# shellcheck source-path=SCRIPTDIR
source "$(dirname "${BASH_SOURCE[0]}")/environment.sh"

device_code=no
for argument; do
    case $argument in
        --fast) ;;
        --all) device_code=yes ;;
    esac
done

start=$SECONDS
prepare_environment report,sample,zstd,test
# Not beside a CUDA build of torch: it would displace the compiler that torch brings.
if [ $device_code = yes ] \
    && python -c 'from importlib.metadata import version; exit(not version("torch").endswith("+cpu"))'; then
    prepare_environment device-code
fi
echo "environment ready after $((SECONDS - start)) s" >&2

python -m compileall -q ds_minimodel benchmarks examples study  # once, even where PYTHONDONTWRITEBYTECODE is set
export OMP_NUM_THREADS=1
if ! has_driver; then
    export DS_ACCELERATOR=cpu
fi
# Three for two cores: some tests wait for processes (425 s, 427 with four, 2026-11-26).
python -m pytest -q -n 3 --dist loadfile --no-loadscope-reorder --durations=10 tests "$@"
