#!/usr/bin/env bash
# Kills training and saving at random, damages checkpoints, and counts what is lost (must be 0):
#   scripts/faults.sh [MINUTES [SEED]]
set -euo pipefail
cd "$(dirname "$0")/.."
source scripts/environment.sh
prepare_environment report,sample,zstd,test
export DS_ACCELERATOR=cpu OMP_NUM_THREADS=1
python scripts/faults.py "$@"
