#!/usr/bin/env bash
# Environment, real text in English and German, the whole pipeline, results.
# Arguments override the recipe: bash scripts/quickstart.sh seed=2 workdir=runs/second
# Safe to interrupt and to repeat: what is complete is not done again.
set -euo pipefail
# shellcheck source-path=SCRIPTDIR
source "$(dirname "${BASH_SOURCE[0]}")/environment.sh"

echo "quickstart: 6 to 13 minutes on 2 cores, after downloads (about 300 MB with a CPU build of torch)" >&2
prepare_environment report,sample

ds-minimodel fetch-sample --set quickstart --out data/sample
ds-minimodel run quickstart "$@"

overrides=()
for argument in "$@"; do
    case $argument in
        -*) ;;
        *=*) overrides+=("$argument") ;;
    esac
done
check_finished quickstart "${overrides[@]}"
workdir=$(python - "${overrides[@]}" <<'END'
import sys
from ds_minimodel.recipe.reading import load_recipe
print(load_recipe("quickstart", sys.argv[1:]).workdir)
END
)
cat "$workdir/report/report.md"
echo "tables and plots: $workdir/report" >&2
