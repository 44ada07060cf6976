"""The model card of an export: README.md with YAML front matter, of what manifests and the run say.

Base and license are those that an import has kept; text and verdict are read from the workdir that the pack lies in.
What is not known is left out.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from huggingface_hub import ModelCardData, metadata_load
from pydantic import Field

from ds_minimodel.common.errors import escape_markdown
from ds_minimodel.common.files import MANIFEST, Count, Manifest, Stored, as_model, read_artifact, read_model
from ds_minimodel.common.vocabulary import UNKNOWN_LANGUAGE
from ds_minimodel.data.tokenizer import SETTINGS_FILE
from ds_minimodel.jobs.layout import ADAPT, FINETUNE, PRETRAIN, REPORT, TOKENS
from ds_minimodel.models.artifacts import BodyManifest, PackManifest
from ds_minimodel.recipe.systems import SYSTEMS
from ds_minimodel.report.verdict import VERDICTS_FILE, Verdict

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


class _Text(Manifest):
    """Of a text's tokens."""

    text: list[str]
    tokens: Count


def license_of(folder: Path) -> str | None:
    """The license that the model card in a Hugging Face folder names, None where there is none to be read."""
    path = folder / CARD
    try:
        card = metadata_load(path) if path.is_file() else None
    except Exception:  # of any kind that YAML of a stranger's brings forth
        return None
    return license_name((card or {}).get("license"))


def license_name(value: object) -> str | None:
    """`value` where it has the form of a license's name, such as apache-2.0."""
    return value if isinstance(value, str) and re.fullmatch(_LICENSE, value) else None


def hub_name(value: object) -> str | None:
    """`value` where it has the form of a model's name on the Hub, such as roberta-base or FacebookAI/roberta-base."""
    return value if isinstance(value, str) and _HUB_NAME.fullmatch(value) else None


def model_card(pack: Path, artifact: Path, class_name: str, num_layers: int, task: str | None) -> str:
    """README.md of the export of a body or task model `artifact` with a language pack.

    class_name: of transformers. task: its name in the recipe.
    """
    facts, place = read_artifact(pack, PackManifest), _Place.of(pack)
    origin = _origin([artifact, pack, *place.bodies])
    language = facts.language
    training: dict[str, Any] = {"system": place.system} if place.system else {}
    training |= {"steps": facts.steps, "eflops": float(f"{facts.eflops:.3g}")}
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
        "text": place.text(language),
        **{name.replace("_", " "): value for name, value in training.items()},
    }
    made = (
        "by mini-model adaptation (Marchisio et al., ACL 2023)" if facts.steps else "of an imported model, not trained,"
    )
    lines = [
        f"# {class_name} with the language pack {escape_markdown(language)}",
        *place.verdict(facts, task),
        f"\nMade {made} with ds_minimodel.",
        "\n| | |\n|---|---|",
        *(f"| {name} | {escape_markdown(str(value))} |" for name, value in table.items()),
    ]
    load = '.from_pretrained("FOLDER")  # this one, or its name on the Hub'
    lines += ["\n```python", f"from transformers import AutoTokenizer, {class_name}\n"]
    is_causal = class_name.endswith("ForCausalLM")
    lines += [f"tokenizer = AutoTokenizer{load}", f"model = {class_name}{load}"]
    lines += ['tokenizer.padding_side = "left"  # of batches'] * is_causal
    chats = is_causal and bool(_settings(pack).get("chat_template"))
    lines += ['messages = [{"role": "user", "content": "TEXT"}]'] * chats
    options = "add_generation_prompt=True, return_dict=True, "
    call = f"tokenizer.apply_chat_template(messages, {options}" if chats else 'tokenizer("TEXT", '
    lines += [f'inputs = {call}return_tensors="pt")']
    lines += ["print(tokenizer.decode(model.generate(**inputs)[0]))" if is_causal else "print(model(**inputs))", "```"]
    return f"---\n{front}\n---\n" + "\n".join(lines) + "\n"


def _settings(pack: Path) -> dict[str, Any]:
    """Those of an imported tokenizer."""
    path = pack / SETTINGS_FILE
    return read_model(path, dict[str, Any], "put the pack back from a copy") if path.is_file() else {}


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
            if parent.name in (ADAPT, PRETRAIN) and system in SYSTEMS:
                return cls(parent.parent, system, parent.name == ADAPT)
        return cls()

    @property
    def bodies(self) -> list[Path]:
        """Bodies of the workdir, which may be imported ones."""
        return sorted(self.root.glob(f"{PRETRAIN}/*/body")) if self.root else []

    def verdict(self, pack: PackManifest, task: str | None) -> list[str]:
        """What the report says of the pack, of the task that is named or of those that the body is asked as it is."""
        path = self.root / REPORT / VERDICTS_FILE if self.root and self.is_adapted else None
        if self.root is None or path is None or not path.is_file():
            return []
        for own in read_model(path, list[Verdict], "run the step `report` again"):
            if (own.system, own.language, own.steps) == (self.system, pack.language, pack.steps):
                finetuned = {name for name in own.clauses if any(self.root.glob(f"{FINETUNE}/*/{name}"))}
                tasks = own.clauses.keys() & ({task} if task else own.clauses.keys() - finetuned)
                return [f"\n{escape_markdown(own.sentence(tasks))}"] if tasks else []
        return []

    def text(self, language: str) -> str:
        """Names of the text that the pack was trained on, and its tokens."""
        folder = self.root / TOKENS / language if self.root and self.is_adapted else None
        if folder is None or not (folder / MANIFEST).is_file():
            return "not known"
        facts = read_artifact(folder, _Text)
        return f"{', '.join(facts.text)} ({facts.tokens:,} tokens)"
