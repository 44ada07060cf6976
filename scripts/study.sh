#!/usr/bin/env bash
# The study of docs/study.md: data, pilot, two pretraining seeds, depths of the mini-model, little text, one page.
#   bash scripts/study.sh               all of it, in this order
#   bash scripts/study.sh data pilot    parts of it: data, pilot, seeds, depths, little, page
# Safe to interrupt and to repeat: what is complete is not done again. runs/study/log.txt tells when a part began, when
# it was interrupted and went on, and how much CPU time it took.
set -euo pipefail
# shellcheck source-path=SCRIPTDIR
source "$(dirname "${BASH_SOURCE[0]}")/environment.sh"

work=runs/study
log=$work/log.txt
parts=("$@")
[ $# -gt 0 ] || parts=(data pilot seeds depths little page)

note() { echo "$(date -u '+%F %T')  $*" >> "$log"; }

# The CPU time, user and system, of all that was started here and has ended. A subshell would count its own.
note_with_time() {
    times > "$work/cpu-time.txt"
    note "$1, CPU time since the start: $(tail -n 1 "$work/cpu-time.txt")"
}

runs=(seed-1 seed-11 depth-1 depth-3 depth-6 depth-9 little) # what the page joins; the pilot has its own table

# study COMMAND RUN: ds-minimodel's COMMAND on the recipe with the settings of a run, and no more of the script where a
# `run` was stopped. The pilot is BL_BASE in the source language, with two steps of adaptation so that there is something
# to report on.
study() {
    local settings=()
    case $2 in
        pilot) settings=("systems=[bl_base]" "languages.targets=[de]" adapt.steps=2 adapt.warmup_steps=0
            adapt.snapshot_every=null "adapt.snapshot_at=[]") ;;
        seed-11) settings=(seed=11) ;;
        depth-*) settings=("mini.depth=${2#depth-}" "systems=[multijoint]" "languages.targets=[de, el]"
            finetune.seeds=2) ;;
        little) settings=("languages.targets=[de, el]" data.text.de=data/study-tenth/de.txt
            data.text.el=data/study-tenth/el.txt) ;;
    esac
    settings=(recipes/study.yaml workdir=$work/"$2" "${settings[@]}")
    ds-minimodel "$1" "${settings[@]}"
    if [ "$1" = run ]; then
        check_finished "${settings[@]}"
    fi
}

# share FROM TO NAME…: the workdir TO has these folders of FROM, if it has none of its own.
share() {
    local from=$work/$1 to=$work/$2 name
    shift 2
    for name in "$@"; do
        if [ -e "$from/$name" ] && [ ! -e "$to/$name" ]; then
            mkdir -p "$(dirname "$to/$name")"
            rm -rf "$to/$name.part"
            cp -r "$from/$name" "$to/$name.part"
            mv "$to/$name.part" "$to/$name"
        fi
    done
}

data() { ds-minimodel fetch-sample --set study --out data/study; }

pilot() { study run pilot; }

seeds() {
    share pilot seed-1 tokenizer tokens pretrain finetune
    study run seed-1
    share seed-1 seed-11 tokenizer tokens
    study run seed-11
}

# One body with heads at all depths; embeddings trained over 1, 3, 6 and 9 layers of it.
depths() {
    local depth
    share seed-1 depth-1 tokenizer tokens
    for depth in 1 3 6 9; do
        share depth-1 depth-$depth tokenizer tokens pretrain finetune
        study run depth-$depth
    done
}

# Every tenth document of two languages, over the bodies and task models of the first seed.
little() {
    local language
    mkdir -p data/study-tenth
    for language in de el; do
        awk -v RS= -v ORS='\n\n' 'NR % 10 == 1' data/study/text/$language.txt > data/study-tenth/$language.part
        cmp -s data/study-tenth/$language.part data/study-tenth/$language.txt \
            || mv data/study-tenth/$language.part data/study-tenth/$language.txt
    done
    share seed-1 little tokenizer/en tokenizer/en.job.json pretrain build-mini finetune
    study run little
}

# Each run's own report first: it may have been written before reports held all that this page shows.
page() {
    local run others=()
    for run in pilot "${runs[@]}"; do
        study report "$run"
    done
    for run in "${runs[@]:1}"; do
        others+=(--with "$work/$run")
    done
    ds-minimodel report recipes/study.yaml workdir=$work/"${runs[0]}" "${others[@]}"
    python scripts/study_page.py $work "${runs[@]}"
}

for part in "${parts[@]}"; do
    case $part in
        data | pilot | seeds | depths | little | page) ;;
        *) fail "$part is no part of the study: data, pilot, seeds, depths, little, page" ;;
    esac
done
mkdir -p "$work"
exec 9> "$work/study.lock"
flock -n 9 || fail "the study is running already: $work/study.lock is held"
# A start whose end is not in the log was killed, or its machine stopped.
if [ -s "$log" ] && ! tail -n 1 "$log" | grep -q "  end"; then
    newest=$(find "$work/" -type f ! -name study.lock -printf '%T@ %TF %TT\n' | sort -n | tail -n 1)
    newest=$(cut -d' ' -f2- <<< "$newest" | cut -d. -f1)
    note "interrupted: killed, or the machine stopped; the newest file was of $newest"
fi
note "start: ${parts[*]}, commit $(git rev-parse --short HEAD 2>/dev/null || echo unknown)"
trap 'note_with_time "end, exit code $?"' EXIT
trap 'exit 130' INT TERM HUP
prepare_environment report,sample
for part in "${parts[@]}"; do
    note "$part: begun"
    "$part"
    note_with_time "$part: done"
done
