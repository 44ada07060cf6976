#!/usr/bin/env bash
# Bad inputs, damaged files and swaps at random for some minutes: bash scripts/torture.sh MINUTES [--seed N]
# Counts what was held and prints what was not, with exit code 1.
set -euo pipefail
# shellcheck source-path=SCRIPTDIR
source "$(dirname "${BASH_SOURCE[0]}")/environment.sh"
prepare_environment report,test
OMP_NUM_THREADS=1 DS_ACCELERATOR=cpu exec python -m tests.torture.run "$@"
