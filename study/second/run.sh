#!/usr/bin/env bash
# All runs of the second study, as registration.md has them.
#   bash study/second/run.sh                  all of it, in this order
#   bash study/second/run.sh tune gate        parts of it: data, tune, gate, rate, main, fault, others, tables
# Safe to interrupt and to repeat: what is complete is not done again, and an hour lost costs the steps since the last
# checkpoint. Parts may run beside each other where neither needs what the other makes. runs/second/log.txt tells when
# each began and ended.
set -euo pipefail
# shellcheck source-path=SCRIPTDIR
source "$(dirname "${BASH_SOURCE[0]}")/../../scripts/environment.sh"

work=runs/second
text=data/second
all=(data tune gate rate main fault others tables)
parts=("$@")
[ $# -gt 0 ] || parts=("${all[@]}")
export OMP_NUM_THREADS=${OMP_NUM_THREADS:-1} # one core a run

note() { echo "$(date -u '+%F %T')  $*" >> "$work/log.txt"; }

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
    ds-minimodel "$command" study/second/recipe.yaml workdir=$work/"$name" "$@"
    [ "$command" != run ] || check_finished study/second/recipe.yaml workdir=$work/"$name" "$@"
}

# text_of KIND: vocabularies and tokens of a kind, made once, of which `share` gives a run its own.
text_of() {
    local settings command
    settings_of "$1"
    for command in tokenizer prepare; do step $command "text-$1" "${settings[@]}"; done
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

# body KIND SYSTEM NAME OVERRIDE…: pretrain a body of BL_BASE's or BL_SMALL's depth.
body() {
    local settings kind=$1 system=$2 name=$3
    shift 3
    settings_of "$kind"
    share "text-$kind" "$name" tokenizer tokens
    step pretrain "$name" "${settings[@]}" "systems=[$system]" "$@"
}

losses() { python study/second/losses.py "$work" "$@"; }

# tune_body KIND SYSTEM: the rates that registration.md names; `losses best` prints the next one to try, or the best.
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

# bodies KIND SYSTEM SEED…: bodies at the best rate.
bodies() {
    local kind=$1 system=$2 seed
    shift 2
    for seed in "$@"; do
        body "$kind" "$system" "gate-$kind-$system-$seed" seed="$seed" pretrain.lr="$(losses best "tune-$kind-$system")"
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
gate() { for system in bl_base bl_small; do bodies llama $system 1 2; done; }

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
