#!/usr/bin/env bash
# Kills training and saving at random, damages checkpoints, and counts what is lost (must be 0):
#   scripts/faults.sh [MINUTES [SEED]]          one training run after another; runs/faults.json
#   scripts/faults.sh --ends [MINUTES [BUSY]]   ends of two ranks beside BUSY busy processes
set -euo pipefail
cd "$(dirname "$0")/.."
source scripts/environment.sh
prepare_environment report,sample,zstd,test
export DS_ACCELERATOR=cpu OMP_NUM_THREADS=1
case "${1:-}" in
    --ends) python -m tests.faults.ends "${2:-5}" "${3:-8}" ;;
    *) python tests/faults/harness.py --minutes "${1:-15}" --seed "${2:-1}" --report runs/faults.json ;;
esac
