#!/usr/bin/env bash
# All runs of the second study, as registration.md has them.
#   bash study/second/run.sh                  all of it, in this order
#   bash study/second/run.sh tune gate        parts of it: data, tune, gate, rate, main, fault, compare_rates, stage,
#                                             others, modern, tables
# Safe to interrupt and to repeat: what is complete is not done again, and an hour lost costs the steps since the last
# checkpoint. Parts may run beside each other where neither needs what the other makes. runs/second/log.txt tells when
# each began and ended.
set -euo pipefail
# shellcheck source-path=SCRIPTDIR
source "$(dirname "${BASH_SOURCE[0]}")/../../scripts/environment.sh"
source study/runs.sh

work=runs/second
text=data/second
all=(data tune gate rate main fault compare_rates stage others modern tables)
recipe=study/second/recipe.yaml
parts=("$@")
[ $# -gt 0 ] || parts=("${all[@]}")
export OMP_NUM_THREADS=${OMP_NUM_THREADS:-1} # one core a run

# settings_of KIND: what a kind of body changes in the recipe.
settings_of() {
    case $1 in
        llama) settings=() ;;
        modernbert) settings=("model={kind: modernbert, num_layers: 9, hidden_size: 128, num_heads: 4, ffn_size: 352,
            max_positions: 128, window: 16}") ;;
        random | neighbours) settings=("model={kind: roberta, num_layers: 9, hidden_size: 128, num_heads: 4,
            ffn_size: 512, max_positions: 128, dropout: 0.0, attention_dropout: 0.0, initialisation: $1}") ;;
    esac
    [ "$1" = llama ] || settings+=("finetune.tasks={}" "pretrain={steps: 4900, batch_size: 24, seq_length: 128,
        warmup_steps: 200, clip: 1.0, mask_prob: 0.3, held_out_every: 2450}")
}

# step COMMAND NAME OVERRIDE…: one command of ds-minimodel for the run NAME, to its end.
step() {
    local command=$1 name=$2
    shift 2
    ds-minimodel "$command" $recipe workdir=$work/"$name" "$@"
    [ "$command" != run ] || check_finished $recipe workdir=$work/"$name" "$@"
}

# text_of KIND: vocabularies and tokens of a kind, made once, of which `share` gives a run its own.
text_of() {
    local settings command
    settings_of "$1"
    for command in tokenizer prepare; do step $command "text-$1" "${settings[@]}"; done
}

# body KIND SYSTEM NAME OVERRIDE…: pretrain a body of BL_BASE's or BL_SMALL's depth.
body() {
    local settings kind=$1 system=$2 name=$3
    shift 3
    settings_of "$kind"
    share "text-$kind" "$name" tokenizer tokens
    step pretrain "$name" "${settings[@]}" "systems=[$system]" "$@"
}

losses() { python study/second/losses.py "$work" "$@"; }

# tune_body KIND SYSTEM: the rates that registration.md names; `losses next` prints one more to try, where there is one.
tune_body() {
    local lr
    text_of "$1"
    for lr in 1.5e-3 3e-3 6e-3; do try_rate "$1" "$2" $lr; done
    lr=$(losses next "tune-$1-$2")
    [ -z "$lr" ] || try_rate "$1" "$2" "$lr"
}

try_rate() {
    body "$1" "$2" "tune-$1-$2-$3" seed=21 pretrain.lr="$3" pretrain.steps=1200 pretrain.held_out_every=1200
}

# length_of MILLIONS: pretraining on so many million tokens, in `length`; a step has 24 x 128.
length_of() { length=("pretrain.steps=$(($1 / 15 * 4900))" "pretrain.held_out_every=$(($1 / 15 * 2450))"); }

# bodies KIND SYSTEM MILLIONS SEED…: bodies at the best rate, of so many million tokens.
bodies() {
    local kind=$1 system=$2 millions=$3 seed length
    shift 3
    length_of "$millions"
    for seed in "$@"; do
        body "$kind" "$system" "gate$millions-$kind-$system-$seed" seed="$seed" "${length[@]}" \
            pretrain.lr="$(losses best "tune-$kind-$system")"
    done
}

# Every hundredth document is test text.
data() {
    local language part
    [ -e data/study/tasks ] || ds-minimodel fetch-sample --set study --out data/study
    mkdir -p $text
    for language in en de ru; do
        for part in test. ""; do
            awk -v RS= -v ORS='\n\n' "NR % 100 $([ "$part" ] && echo '==' || echo '!=') 1" \
                data/study/text/$language.txt > $text/$part$language.part
            cmp -s $text/$part$language.part $text/$part$language.txt \
                || mv $text/$part$language.part $text/$part$language.txt
        done
    done
}

tune() { for system in bl_base bl_small; do tune_body llama $system; done; }
gate() {
    local system
    for system in bl_base bl_small; do
        bodies llama $system 15 1
        bodies llama $system 30 1 2
    done
}

# The gate of the other kinds.
others() {
    local kind system
    for kind in modernbert random neighbours; do
        for system in bl_base bl_small; do
            tune_body $kind $system
            bodies $kind $system 15 1 2
        done
    done
}

# Three systems over ModernBERT's kind of body in German. How often they are evaluated makes their held-out samples the
# same (steps/held_out.py shares them out by cost).
modern() {
    adapt_modern bl_base bl_base 300
    adapt_modern bl_base minijoint 1500
    adapt_modern bl_small bl_small 300
}

# adapt_modern BODY SYSTEM EVERY: step 2 over a body of the gate, or over MiniJoint's at the same rate.
adapt_modern() {
    local body=$1 system=$2 every=$3 name=modern_$1-1 settings length
    settings_of modernbert
    length_of 15
    settings+=("${length[@]}" "systems=[$system]" "languages.targets=[de]" seed=1
        pretrain.lr="$(losses best "tune-modernbert-$body")")
    share "gate15-modernbert-$body-1" "$name" tokenizer tokens pretrain
    step pretrain "$name" "${settings[@]}"
    step adapt "$name" "${settings[@]}" adapt.mask_prob=0.3 adapt.lr="$(losses best rate)" adapt.held_out_every="$every" \
        adapt.snapshot_every=null "adapt.snapshot_at=[]"
}

# Step 2's rate, over BL_BASE's body in German.
rate() { for lr in 3e-3 6e-3 1.2e-2; do adapt_briefly gate30-llama-bl_base-1 bl_base rate $lr; done; }

# adapt_briefly FROM SYSTEM NAME RATE: 500 steps of step 2 in German over what the run FROM has trained.
adapt_briefly() {
    local name=$3-$4 length lr
    length_of 30
    case $2 in bl_small) lr=$(losses best tune-llama-bl_small) ;; *) lr=$(losses best tune-llama-bl_base) ;; esac
    share "$1" "$name" tokenizer tokens pretrain build-mini
    step adapt "$name" "systems=[$2]" "languages.targets=[de]" seed=1 adapt.lr="$4" adapt.steps=500 "${length[@]}" \
        pretrain.lr="$lr" build_mini.lr="$lr" adapt.warmup_steps=50 adapt.held_out_every=500 \
        adapt.snapshot_every=null "adapt.snapshot_at=[]"
}

# rates_of SYSTEM: the length of pretraining and the learning rates of a system's runs, in `rates`.
rates_of() {
    local of_body length
    length_of 30
    of_body=$(losses best "tune-llama-$1")
    rates=("${length[@]}" pretrain.lr="$of_body" build_mini.lr="$of_body" adapt.lr="$(losses best rate)")
}

# BL_SMALL is a run of its own, as its learning rate may be another one.
main() {
    local seed rates
    for seed in 1 2 3; do
        bodies llama bl_base 30 $seed
        bodies llama bl_small 30 $seed
        share gate30-llama-bl_base-$seed main-$seed tokenizer tokens pretrain/bl_base pretrain/bl_base.job.json
        rates_of bl_base
        step run main-$seed seed=$seed "systems=[bl_base, minijoint, minipost]" "${rates[@]}"
        share gate30-llama-bl_small-$seed small-$seed tokenizer tokens pretrain/bl_small pretrain/bl_small.job.json
        rates_of bl_small
        step run small-$seed seed=$seed "systems=[bl_small]" "${rates[@]}"
    done
}

# What is asked of MiniJoint's body, which is that of a MultiJoint with its two heads: step 2 over all of its layers,
# over them in the last tenth of the steps, and English as a target of its own, over the mini-model and over the whole.
fault() {
    local rates joint=(pretrain/minijoint=pretrain/multijoint pretrain/minijoint.job.json=pretrain/multijoint.job.json)
    local english=("languages.targets=[en-again]" adapt.initialisation=random
        "data.text={en: $text/en.txt, en-again: $text/en.txt}"
        "finetune.tasks.text.test={en: $text/test.en.txt, en-again: $text/test.en.txt}")
    rates_of bl_base
    rates+=(seed=1 "systems=[multijoint]" "mini.depths=[3, 9]")
    share main-1 whole-1 tokenizer tokens "${joint[@]}"
    step run whole-1 "${rates[@]}" mini.depth=9 "languages.targets=[de]"
    share main-1 finish-1 tokenizer tokens "${joint[@]}"
    step run finish-1 "${rates[@]}" mini.depth=3 "adapt.depth_schedule=[[3, 0.9], [9, 0.1]]"
    joint+=(tokenizer/en tokenizer/en.job.json tokens/en tokens/en.job.json)
    share main-1 english-1 "${joint[@]}"
    step run english-1 "${rates[@]}" mini.depth=3 "${english[@]}"
    share main-1 english_whole-1 "${joint[@]}"
    step run english_whole-1 "${rates[@]}" mini.depth=9 "${english[@]}"
}

# Whether the rate that was chosen over BL_BASE suits the others.
compare_rates() {
    local lr
    for lr in 6e-3 1.2e-2 2.4e-2; do
        for system in minijoint minipost; do adapt_briefly main-1 $system lr-$system $lr; done
        adapt_briefly small-1 bl_small lr-bl_small $lr
    done
    adapt_briefly main-1 bl_base lr-bl_base 2.4e-2
}

# Three systems over the first study's body `neighbours`, stopped where `random` had come to; and MiniJoint over one that
# has come as far as BL_BASE's has there.
stage() {
    local recipe=study/study.yaml settings=("languages.targets=[de, ru]" finetune.seeds=2 data.held_out=0.01)
    for command in tokenizer prepare; do step $command text-stage "${settings[@]}"; done
    stopped_near 5.6 early bl_base "[bl_base, bl_small, minijoint]" 250 500 1000
    stopped_near 5.0 early_joint minijoint "[minijoint]" 1500 2000
}

# stopped_near LOSS NAME SYSTEM SYSTEMS STEPS…: of these numbers of steps the one that brings SYSTEM's body nearest to a
# loss, and with it the run NAME.
stopped_near() {
    local loss=$1 name=$2 system=$3 systems=$4 steps length
    shift 4
    for steps in "$@"; do
        length_of_stage "$steps"
        share text-stage "$name-$steps" tokenizer tokens
        step pretrain "$name-$steps" "${settings[@]}" "${length[@]}" "systems=[$system]"
    done
    steps=$(losses best "$name" --to "$loss")
    length_of_stage "$steps"
    share "$name-$steps" "$name" tokenizer tokens pretrain
    step run "$name" "${settings[@]}" "${length[@]}" "systems=$systems"
}

length_of_stage() { length=("pretrain.steps=$1" "pretrain.warmup_steps=$(($1 / 10))" "pretrain.held_out_every=$1"); }

tables() { python study/second/tables.py $work; }

for part in "${parts[@]}"; do
    grep -xF -e "$part" <<< "$(printf '%s\n' "${all[@]}")" > /dev/null || fail "$part is no part of it: ${all[*]}"
done
mkdir -p "$work"
note "start: ${parts[*]}, commit $(git rev-parse --short HEAD 2>/dev/null || echo unknown)"
trap 'note "end of ${parts[*]}, exit code $?"' EXIT
trap 'exit 130' INT TERM HUP
prepare_environment report,sample
for part in "${parts[@]}"; do
    note "$part: begun"
    "$part"
    note "$part: done"
done
