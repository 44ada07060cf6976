"""The model card of an export: README.md with YAML front matter, of what manifests and the run say.

Base and license are those that an import has kept; scores are read from the workdir that the pack lies in. What is not
known is left out.
"""

from __future__ import annotations

import re
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Annotated, Any

from huggingface_hub import ModelCardData, metadata_load
from pydantic import Field

from ds_minimodel.common.errors import escape_markdown
from ds_minimodel.common.files import MANIFEST, Stored, as_model, read_artifact, read_manifest, read_model
from ds_minimodel.common.vocabulary import UNKNOWN_LANGUAGE
from ds_minimodel.models.artifacts import BodyManifest, PackManifest
from ds_minimodel.recipe.systems import SYSTEMS
from ds_minimodel.report.curves import OF_SOURCE, SCORES_FILE, ScoreRow, shown_score
from ds_minimodel.report.tables import PERCENT, SCALES

CARD = "README.md"
# A folder that transformers' Trainer made, such as out/checkpoint-500, is none.
_HUB_NAME = re.compile(r"(?!.*checkpoint-[0-9]+$)[A-Za-z0-9][\w.-]{0,95}(/[A-Za-z0-9][\w.-]{0,95})?", re.ASCII)
_LICENSE = r"^[A-Za-z0-9][A-Za-z0-9_.+-]{0,60}$"
_LANGUAGE_CODE = re.compile("[a-z]{2,3}")  # of ISO 639, which the Hub takes in a card's front matter


class _Origin(Stored):
    """Of a body's manifest where it comes from, of a pack's too."""

    imported_from: str | None = None
    base_model: str | None = None
    license: Annotated[str, Field(pattern=_LICENSE)] | None = None


def license_of(folder: Path) -> str | None:
    """The license that the model card in a Hugging Face folder names, None where there is none to be read."""
    path = folder / CARD
    try:
        card = metadata_load(path) if path.is_file() else None
    except Exception:  # of any kind that YAML of a stranger's brings forth
        return None
    found = (card or {}).get("license")
    return found if isinstance(found, str) and re.fullmatch(_LICENSE, found) else None


def hub_name(value: object) -> str | None:
    """`value` where it has the form of a model's name on the Hub, such as roberta-base or FacebookAI/roberta-base."""
    return value if isinstance(value, str) and _HUB_NAME.fullmatch(value) else None


def model_card(pack: Path, artifact: Path, class_name: str, num_layers: int, task: str | None) -> str:
    """README.md of the export of a body or task model `artifact` with a language pack.

    class_name: of transformers. task: its name in the recipe.
    """
    facts, place = read_artifact(pack, PackManifest), _Place.of(pack)
    origin = _origin([artifact, pack, *place.bodies])
    scores = place.scores(facts, task)
    language = facts.language
    training: dict[str, Any] = {"system": place.system} if place.system else {}
    training |= {"steps": facts.steps, "eflops": facts.eflops}
    training |= {"embedding_space": facts.space, "layers": num_layers}
    front = ModelCardData(
        language=language if _LANGUAGE_CODE.fullmatch(language) and language != UNKNOWN_LANGUAGE else None,
        license=origin.license,
        base_model=hub_name(origin.base_model),
        library_name="transformers",
        tags=["mini-model-adaptation"] if facts.steps else None,
        ds_minimodel=training,
    )
    table = {
        "language": "not known" if language == UNKNOWN_LANGUAGE else language,
        "base": hub_name(origin.base_model) or origin.imported_from or "not known",
        "license of the base": origin.license or "not known",
        **{name.replace("_", " "): value for name, value in training.items()},
    }
    made = (
        "by mini-model adaptation (Marchisio et al., ACL 2023)" if facts.steps else "of an imported model, not trained,"
    )
    lines = [
        f"# {class_name} with the language pack {escape_markdown(language)}",
        f"\nMade {made} with ds_minimodel.",
        "\n| | |\n|---|---|",
        *(f"| {name} | {escape_markdown(str(value))} |" for name, value in table.items()),
    ]
    load = '.from_pretrained("FOLDER")  # this one, or its name on the Hub'
    lines += ["\n```python", f"from transformers import AutoTokenizer, {class_name}\n"]
    lines += [f"tokenizer = AutoTokenizer{load}", f"model = {class_name}{load}", "```"]
    if scores:
        lines += [f"\nScores of the run in {escape_markdown(language)}, as means over the models of a task."]
        lines += ["\n| task | metric | the model as it came | this model | models |\n|---|---|---|---|---|"]
        lines += [
            f"| {escape_markdown(task)} | {escape_markdown(metric)} | {_mean(rows, column, OF_SOURCE)} "
            f"| {_mean(rows, column)} | {len(rows)} |"
            for (task, metric, column), rows in scores.items()
        ]
    return f"---\n{front}\n---\n" + "\n".join(lines) + "\n"


def _mean(rows: list[dict[str, Any]], column: str, of: str = "") -> str:
    """Of a column, or of that with `of` before its name."""
    form, name = SCALES.get(column, PERCENT).form, of + column
    return form.format(fmean(row[name] for row in rows)) if name in rows[0] else "–"


def _origin(folders: list[Path]) -> _Origin:
    """Of the first of these artifacts that says where it was imported from."""
    for folder in folders:
        manifest = read_artifact(folder, BodyManifest if (folder / "config.json").is_file() else PackManifest)
        origin = as_model(manifest.model_dump(), _Origin, folder / MANIFEST, "put it back from a copy")
        if origin.imported_from is not None:
            return origin
    return _Origin()


@dataclass(frozen=True)
class _Place:
    """Where a pack lies in a workdir, as jobs/layout.py lays it out; `root` None where it lies elsewhere."""

    root: Path | None = None
    system: str | None = None
    is_adapted: bool = False

    @classmethod
    def of(cls, pack: Path) -> _Place:
        folder = pack.resolve()
        for parent in folder.parents:
            system = folder.relative_to(parent).parts[0]
            if parent.name in ("adapt", "pretrain") and system in SYSTEMS:
                return cls(parent.parent, system, parent.name == "adapt")
        return cls()

    @property
    def bodies(self) -> list[Path]:
        """Bodies of the workdir, which may be imported ones."""
        return sorted(self.root.glob("pretrain/*/body")) if self.root else []

    def scores(self, pack: PackManifest, task: str | None) -> dict[tuple[str, str, str], list[dict[str, Any]]]:
        """{(task, metric, its column): rows of each model}: of the pack on the task that is named, or as a body."""
        found: dict[tuple[str, str, str], list[dict[str, Any]]] = defaultdict(list)
        for path in sorted(self.root.glob(f"evaluate/{self.system}/*/*/*/{SCORES_FILE}")) if self.root else ():
            metric = read_manifest(path.parent)["metric"]
            for row in read_model(path, list[ScoreRow], "run the step `evaluate` again"):
                is_own = row.language == pack.language and row.step == (pack.steps if self.is_adapted else 0)
                is_finetuned = any(self.root.glob(f"finetune/*/{row.task}")) if self.root else False
                if is_own and (row.task == task or (task is None and not is_finetuned)):
                    values = row.model_dump()
                    column, of_column = shown_score(values, metric)
                    found[row.task, of_column, column].append(values)
        return found
