# shellcheck shell=bash
# Sourced by the scripts beside it, each called as SCRIPT HOSTFILE STEP RECIPE [key=value …].
# Afterwards the hostfile is checked, `arguments` holds STEP RECIPE …, and `python` is the one to use.
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
if [ -z "${VIRTUAL_ENV:-}" ] && [ -x "$root/.venv/bin/python" ]; then
    PATH=$root/.venv/bin:$PATH
fi

fail() {
    echo "error: $*" >&2
    exit 2
}

need() {
    command -v "$1" >/dev/null || fail "$1 not found: $2"
}

# Run a launcher and end with this program's exit codes. Where a host is lost launchers end with others: with ssh's 255
# if that notices before the ranks do, which are killed then and cannot say it.
run_launcher() {
    local code=0
    "$@" || code=$?
    case $code in
        0 | 2) exit $code ;;
        255)
            echo "ds-minimodel: ${1##*/} ended with 255: a host, or the way to it, is lost; the same command goes on" \
                "from the last checkpoint" >&2
            exit 1
            ;;
        *) exit 1 ;;
    esac
}

[ $# -ge 3 ] || fail "usage: $0 HOSTFILE STEP RECIPE [key=value …]"
hostfile=$1
arguments=("${@:2}")
python=$(command -v python) || fail "python not found: activate the environment that has ds_minimodel"
# Each name of a host and its number of slots, a line each.
hosts=$(sed -nE 's/^\s*([^#[:space:]]+)\s+slots=([0-9]+).*/\1 \2/p' "$hostfile" 2>/dev/null || true)
