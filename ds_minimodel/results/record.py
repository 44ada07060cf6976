"""What one run says of itself in its report folder, for reports over several: run.json beside scores.json.

The folder is enough: it can be copied away from the machine that the run was made on.
"""

from dataclasses import asdict, dataclass, fields
from pathlib import Path

from ds_minimodel.common.errors import UserError
from ds_minimodel.common.files import read_json, sha256_of_json, write_json

RUN, SCORES = "run.json", "scores.json"
REPORT = "report"  # folder of a workdir


@dataclass(frozen=True)
class Run:
    """The results of one recipe in one workdir.

    name     what it is called on the page
    recipe   the recipe as JSON
    data     {what: identity} of base (None: pretrained), text and training data: what else decides results
    tests    {task: {"metric": name of its score, "files": {language: identity of the test data}}}
    scores   rows of curves.py, all languages, the source language too
    costs    rows of flops.recipe_costs
    baselines  rows {"baseline", "task", "language", "score"}
    losses   rows of losses.py
    facts    {label: text} about device and versions
    records  {path below the workdir: hash} of the records of all jobs that this was made from
    """

    name: str
    recipe: dict
    data: dict
    tests: dict
    scores: list
    costs: list
    baselines: list
    losses: list
    facts: dict
    records: dict

    @property
    def source(self):
        return self.recipe["languages"]["source"]

    @property
    def target_scores(self):
        return [row for row in self.scores if row["language"] != self.source]

    @property
    def source_scores(self):
        return [row for row in self.scores if row["language"] == self.source]


def write_run(run, folder):
    write_json(folder / RUN, {key: value for key, value in asdict(run).items() if key != "name"})


def read_run(workdir, name):
    """The run in `workdir`; UserError where it has no finished report, or one older than its results."""
    workdir = Path(workdir)
    path = workdir / REPORT / RUN
    if not path.is_file():
        raise UserError(
            f"{workdir}: no finished run ({path} is missing); finish it with `ds-minimodel run`, "
            "or make its report with `ds-minimodel report`"
        )
    values, expected = read_json(path), {field.name for field in fields(Run)} - {"name"}
    if not isinstance(values, dict) or values.keys() != expected:
        raise UserError(f"{path}: written by another version; make the report again with `ds-minimodel report`")
    for record, digest in values["records"].items():
        if (workdir / record).is_file() and sha256_of_json(read_json(workdir / record)) != digest:
            raise UserError(
                f"{workdir}: its report is older than its results ({record} has changed since); "
                "bring it up to date with `ds-minimodel run` or `ds-minimodel report`"
            )
    return Run(name, **values)
