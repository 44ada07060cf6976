#!/usr/bin/env bash
# One step on the hosts of a file through torchrun. Run the same command on every host:
#   bash scripts/launch/torchrun.sh HOSTFILE STEP RECIPE [key=value …]
# NODE_RANK says which line of the file this host is (from 0), where its hostname is not the name there.
# shellcheck source-path=SCRIPTDIR
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"
[ -n "$hosts" ] || fail "$hostfile: no such file, or no line of it reads HOST slots=N"

number=0
while read -r name slots; do
    master=${master:-$name}
    if [ "$number" = "${NODE_RANK:-}" ] || { [ -z "${NODE_RANK:-}" ] && [ "$name" = "$(hostname)" ]; }; then
        here=$number
        slots_here=$slots
    fi
    number=$((number + 1))
done <<< "$hosts"
[ -n "${here:-}" ] || fail "$hostfile names no $(hostname): set NODE_RANK to this host's line, from 0"

exec "$python" -m torch.distributed.run \
    --nnodes "$number" --node_rank "$here" --nproc_per_node "$slots_here" \
    --master_addr "${MASTER_ADDR:-$master}" --master_port "${MASTER_PORT:-29500}" \
    -m ds_minimodel "${arguments[@]}"
