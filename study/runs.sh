# shellcheck shell=bash
# Sourced by the run.sh of each study, which sets `work`, the folder of its runs.

note() { echo "$(date -u '+%F %T')  $*" >> "$work/log.txt"; }

# share FROM TO NAME…: the workdir TO has these folders of FROM, if it has none of its own; NAME=OTHER: under that name.
share() {
    local from=$work/$1 to=$work/$2 name source target
    shift 2
    for name in "$@"; do
        source=$from/${name%=*} target=$to/${name#*=}
        if [ -e "$source" ] && [ ! -e "$target" ]; then
            mkdir -p "$(dirname "$target")"
            rm -rf "$target.part"
            cp -r "$source" "$target.part"
            mv "$target.part" "$target"
        fi
    done
}
