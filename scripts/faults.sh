#!/usr/bin/env bash
# Kills training and saving at random, damages checkpoints, and counts what is lost (must be 0).
# Usage: scripts/faults.sh [MINUTES [SEED]]; the report goes to benchmarks/faults.json.
set -euo pipefail
cd "$(dirname "$0")/.."
source scripts/environment.sh
export DS_ACCELERATOR=cpu OMP_NUM_THREADS=1
python tests/faults/harness.py --minutes "${1:-15}" --seed "${2:-1}" --report benchmarks/faults.json
