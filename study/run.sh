#!/usr/bin/env bash
# All runs of the study: data, pilot, two pretraining seeds, depths of the mini-model, little text, word vectors, the
# search for the cheapest step 2, the systems over another body, the tables.
#   bash study/run.sh               all of it, in this order
#   bash study/run.sh data pilot    parts of it: data, pilot, tune, seeds, depths, little, vectors, search, body, tables
# Safe to interrupt and to repeat: what is complete is not done again. runs/study/log.txt tells when each part began and
# ended.
set -euo pipefail
# shellcheck source-path=SCRIPTDIR
source "$(dirname "${BASH_SOURCE[0]}")/../scripts/environment.sh"
source study/runs.sh

work=runs/study
vectors=data/study-vectors
all=(data pilot tune seeds depths little vectors search body tables)
parts=("$@")
[ $# -gt 0 ] || parts=("${all[@]}")

# What the search for the cheapest step 2 tries, one thing at a time; in the end all that was better, together, and what
# registration.md says of `gentle`. A batch of 8 has three times the steps; `together` has a third of those (`brief`).
declare -A tries=(
    [focus]="adapt.initialisation=focus"
    [wechsel]="adapt.initialisation=wechsel"
    [ofa]="adapt.initialisation=ofa"
    [gentle]="adapt.initialisation=ofa adapt.lr=5e-4"
    [lr]="adapt.lr=5e-3"
    [batch]="adapt.batch_size=8 adapt.steps=4500 adapt.warmup_steps=450 adapt.snapshot_every=1500 adapt.snapshot_at=[300,750,2250]"
    [short]="adapt.seq_length=64 adapt.batch_size=48 engine.micro_batch_size=48"
    [positions]="adapt.train_positions=true adapt.train_embedding_norm=true"
    [bias]="adapt.train_output_bias=false"
    [growing]="adapt.depth_schedule=[[1,0.7],[3,0.3]]"
    [finish]="adapt.depth_schedule=[[1,0.9],[9,0.1]]"
    [brief]="adapt.steps=500 adapt.warmup_steps=50 adapt.snapshot_every=250 adapt.snapshot_at=[50,100,375]"
    [together]="adapt.initialisation=wechsel adapt.lr=5e-3 adapt.seq_length=64 adapt.batch_size=16 adapt.snapshot_at=[50,100,250,750]"
)
chosen=batch # by the rule; beside it `fast`: OFA

# What was tried to learn `find`, a task that the recipe has no longer: learning rate x epochs.
tuned=(1e-3x2 3e-4x4 1e-3x4)
best=3e-4x4

# settings_of RUN: the recipe and what a run changes in it, in `settings`. The pilots are BL_BASE in the source language,
# with two steps of adaptation so that there is something to report on; `other` has what was registered first.
settings_of() {
    local one=de other=el pair=${1#*-} try=${1#try-} folder=data/study/tasks/find
    local find="kind: qa, metric: mlqa, max_length: 128, stride: 32, answer_length: 60, train: $folder/train.en.json"
    local in_german="de: $folder/test.de.json"
    settings=()
    case $1 in
        other*) settings=(model.initialisation=random pretrain.steps=7000 pretrain.lr=1e-3
            pretrain.warmup_steps=700) ;;&
        pilot | other | german | other-german | find-* | tested-*)
            settings+=("systems=[bl_base]" "languages.targets=[de]")
            ;;&
        pilot | other | find-* | tested-*) settings+=(adapt.steps=2 adapt.warmup_steps=0 adapt.snapshot_every=null
            "adapt.snapshot_at=[]") ;;&
        pilot | other | german | other-german)
            settings+=("finetune.tasks.find={$find, test: {en: $folder/test.en.json, $in_german}}")
            ;;
        find-*) settings+=("finetune.tasks={find: {$find, test: {en: $folder/dev.en.json}}}") ;;&
        tested-*) settings+=("finetune.tasks={find: {$find, test: {en: $folder/test.en.json}}}") ;;&
        find-* | tested-*) settings+=(finetune.seeds=1 finetune.lr="${pair%x*}" finetune.epochs="${pair#*x}") ;;
        seed-11) settings=(seed=11) ;;
        depth-*) settings=("mini.depth=${1#depth-}") ;;&
        chosen) try=$chosen ;;&
        fast*) try=ofa ;;&
        try-* | chosen | fast*) IFS=' ' read -ra settings <<< "mini.depth=1 ${tries[$try]}" ;;&
        chosen | fast*) one=fr other=ru ;;&
        depth-* | try-* | chosen | fast*)
            settings+=("languages.targets=[$one, $other]" finetune.seeds=2)
            ;;&
        fast-deep) settings+=(mini.depth=9) ;;&
        fast-base) settings+=("systems=[bl_base]") ;;
        depth-* | try-* | chosen | fast*) settings+=("systems=[multijoint]") ;;
        little) settings=("languages.targets=[de, el]" data.text.de=data/study-tenth/de.txt
            data.text.el=data/study-tenth/el.txt) ;;
    esac
    if [[ ${settings[*]} =~ initialisation=(wechsel|ofa) ]]; then
        settings+=("adapt.word_vectors={en: $vectors/en.vec, $one: $vectors/$one.vec, $other: $vectors/$other.vec}"
            "adapt.dictionaries={$one: $vectors/$one.pairs.txt, $other: $vectors/$other.pairs.txt}")
    fi
    settings=(study/study.yaml workdir=$work/"$1" "${settings[@]}")
}

# run RUN: all of its steps; the script ends where they were stopped.
run() {
    local settings
    settings_of "$1"
    ds-minimodel run "${settings[@]}"
    check_finished "${settings[@]}"
}

data() { ds-minimodel fetch-sample --set study --out data/study; }

# Both bodies that were registered, and BL_BASE in German over each: registration.md tells how one was chosen.
pilot() {
    run pilot
    run other
    share pilot german tokenizer tokens pretrain finetune
    run german
    share other other-german tokenizer tokens pretrain finetune
    run other-german
}

# Settings of `find`, on its development file; the best once on the test file.
tune() {
    local pair
    for pair in "${tuned[@]}"; do
        share pilot find-"$pair" tokenizer tokens pretrain adapt
        run find-"$pair"
    done
    share find-$best tested-$best tokenizer tokens pretrain adapt finetune
    run tested-$best
}

seeds() {
    share pilot seed-1 tokenizer tokens pretrain finetune
    run seed-1
    share seed-1 seed-11 tokenizer tokens
    run seed-11
}

# One body with heads at all depths; embeddings trained over 1, 3, 6 and 9 layers of it.
depths() {
    local depth
    share seed-1 depth-1 tokenizer tokens
    for depth in 1 3 6 9; do
        share depth-1 depth-$depth tokenizer tokens pretrain finetune
        run depth-$depth
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
    run little
}

# What WECHSEL and OFA begin with.
vectors() { python study/word_vectors.py study/study.yaml $vectors; }

# Step 2 over one layer of the body with several heads, varied; what two languages chose is scored in the others.
search() {
    local name
    for name in $(printf 'try-%s\n' "${!tries[@]}" | sort) chosen fast fast-deep; do
        share depth-1 "$name" tokenizer tokens pretrain finetune
        run "$name"
    done
    share seed-1 fast-base tokenizer tokens pretrain finetune
    run fast-base
}

# The four systems over the body that the study did not take.
body() {
    share seed-1 other-seed-1 tokenizer tokens
    share other other-seed-1 pretrain finetune
    run other-seed-1
}

# Each run's scores and losses are in its own report.
tables() {
    local name settings
    python study/tables.py $work
    for name in seed-1 seed-11 depth-1 try-focus try-wechsel try-ofa other-seed-1; do
        settings_of $name
        python study/alignment.py "${settings[@]}" > $work/$name/alignment.md
    done
}

for part in "${parts[@]}"; do
    grep -xF -e "$part" <<< "$(printf '%s\n' "${all[@]}")" > /dev/null || fail "$part is no part of the study: ${all[*]}"
done
mkdir -p "$work"
exec 9> "$work/study.lock"
flock -n 9 || fail "the study is running already: $work/study.lock is held"
note "start: ${parts[*]}, commit $(git rev-parse --short HEAD 2>/dev/null || echo unknown)"
trap 'note "end, exit code $?"' EXIT
trap 'exit 130' INT TERM HUP
prepare_environment report,sample,focus
for part in "${parts[@]}"; do
    note "$part: begun"
    "$part"
    note "$part: done"
done
