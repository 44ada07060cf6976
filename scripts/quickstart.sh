#!/usr/bin/env bash
# Environment, real text in English and German, the whole pipeline, results.
# Arguments override the recipe: bash scripts/quickstart.sh seed=2 workdir=runs/second
# Safe to interrupt and to repeat: what is complete is not done again.
set -euo pipefail
# shellcheck source-path=SCRIPTDIR
source "$(dirname "${BASH_SOURCE[0]}")/environment.sh"

echo "quickstart: 7 to 12 minutes on 2 idle cores, after downloads (about 300 MB with a CPU build of torch)" >&2
prepare_environment report,sample

ds-minimodel fetch-sample --set quickstart --out data/sample
ds-minimodel run recipes/quickstart.yaml "$@"

workdir=$(python - "$@" <<'END'
import sys
from ds_minimodel.recipe.reading import load_recipe
overrides = [argument for argument in sys.argv[1:] if not argument.startswith("-") and "=" in argument]
print(load_recipe("recipes/quickstart.yaml", overrides).workdir)
END
)
cat "$workdir/report/report.md"
echo "tables and plots: $workdir/report" >&2
