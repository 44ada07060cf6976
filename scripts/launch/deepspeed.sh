#!/usr/bin/env bash
# One step on the hosts of a file through DeepSpeed's own launcher, which reaches them with pdsh and ssh:
#   bash scripts/launch/deepspeed.sh HOSTFILE STEP RECIPE [key=value …]
# Run it on one of the hosts. `ds-minimodel STEP RECIPE --hostfile HOSTFILE` does the same without pdsh.
# shellcheck source-path=SCRIPTDIR
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"
need pdsh "install it (Debian: apt-get install pdsh), or use ds-minimodel … --hostfile $hostfile"
"$python" -m ds_minimodel hosts "$hostfile" >&2

# A host that is lost must be noticed: without these ssh waits for it for hours.
PDSH_SSH_ARGS_APPEND+=" -o BatchMode=yes -o ServerAliveInterval=5 -o ServerAliveCountMax=3"
export PDSH_SSH_ARGS_APPEND

# DeepSpeed takes few variables to the other hosts; those named in this file besides. The user's own
# .deepspeed_env, which it would read instead, goes in front.
DS_ENV_FILE=$(mktemp)
trap 'rm -f "$DS_ENV_FILE"' EXIT
cat ~/.deepspeed_env .deepspeed_env 2>/dev/null | grep = > "$DS_ENV_FILE" || true
env | grep -E '^(DS_ACCELERATOR|OMP_NUM_THREADS|DSMM_[A-Z_]*|GLOO_[A-Z_]*|TORCH_[A-Z_]*|LD_LIBRARY_PATH)=' \
    >> "$DS_ENV_FILE" || true
export DS_ENV_FILE

run_launcher "$python" -m deepspeed.launcher.runner --hostfile "$hostfile" --force_multi \
    ${MASTER_ADDR:+--master_addr "$MASTER_ADDR"} ${MASTER_PORT:+--master_port "$MASTER_PORT"} \
    --module ds_minimodel "${arguments[@]}"
