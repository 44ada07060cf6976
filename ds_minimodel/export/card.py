"""Model cards of exports: README.md with YAML front matter.

Base and license come from the manifest of the imported model, text and verdict from the workdir
that the pack lies in. What is not known is left out.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from huggingface_hub import ModelCardData
from pydantic import Field

from ds_minimodel.artifacts.adaptation import ADAPTER, UPDATE, AdaptationManifest
from ds_minimodel.artifacts.models import ModelManifest, is_model
from ds_minimodel.common.files import (
    MANIFEST,
    Count,
    Manifest,
    Stored,
    as_model,
    read_artifact,
    read_model,
)
from ds_minimodel.common.names import LANGUAGE_CODE
from ds_minimodel.common.vocabulary import UNKNOWN_LANGUAGE
from ds_minimodel.config.systems import SYSTEMS
from ds_minimodel.hf.source import LICENSE, hub_name
from ds_minimodel.models.heads import FinishedHead, SentenceHead
from ds_minimodel.pipeline.layout import ADAPT, FINETUNE, REPORT, TOKENS, WorkdirLayout
from ds_minimodel.pipeline.pairs import PairsManifest
from ds_minimodel.report.render import escape_markdown
from ds_minimodel.report.verdict import VERDICTS_FILE, Verdict
from ds_minimodel.tokenizers.tokenizer import SETTINGS_FILE, tokenizer_in

NOT_KNOWN = "not known"


class _Origin(Stored):
    """Keys of a model's manifest that say where it comes from."""

    imported_from: str | None = None
    base_model: str | None = None
    revision: str | None = None
    license: Annotated[str, Field(pattern=LICENSE)] | None = None


class _Text(Manifest):
    """Keys of a token store's manifest that a card shows."""

    text: list[str]
    tokens: Count


def base_of(model: Path) -> dict[str, str | None]:
    """Return the keys of PEFT's configuration that name the base.

    They are its name and commit where it came from the Hub, else its folder, or the name in its
    configuration.
    """
    about = _About.of(model, model)
    name = hub_name(about.origin.base_model)
    source = about.model.source
    if source is not None and about.origin.revision is None and Path(source.path).is_dir():
        name = source.path
    return {"base_model_name_or_path": name, "revision": about.origin.revision}


def model_card(
    pack: Path,
    model: Path,
    class_name: str,
    num_layers: int,
    task: str | None,
    text_license: str | None = None,
) -> str:
    """Return README.md of the export of a model with a language pack.

    Args:
        pack: Folder of the language pack, or the model.
        model: Folder of the model, mini-model or task model.
        class_name: Of transformers.
        num_layers: Of the exported body.
        task: Name of the task in the recipe; None for a language model.
        text_license: Of the text that the pack was trained on, where it is known.
    """
    about = _About.of(pack, model)
    facts = about.facts
    training: dict[str, Any] = {}
    if about.place:
        training["system"] = about.place.system
    training["steps"] = facts.steps
    training["eflops"] = float(f"{facts.eflops:.3g}")
    training["embedding_space"] = about.model.body.space
    training["layers"] = num_layers
    front = ModelCardData(
        **about.front,
        library_name="transformers",
        tags=["mini-model-adaptation"] if facts.steps and not about.trains_body else None,
        ds_minimodel=training,
    )
    table = about.table | {
        "text": about.text,
        "license of the text": text_license or "not stated",
        **{name.replace("_", " "): value for name, value in training.items()},
    }
    if about.trains_body:
        made = "by training token embeddings and the body (a LoRA, or all weights)"
    elif facts.steps:
        made = "by mini-model adaptation (Marchisio et al., ACL 2023)"
    else:
        made = "of a base, not trained,"
    lines = [
        f"# {class_name} with the language pack {escape_markdown(facts.language)}",
        *about.verdict(task),
        f"\nMade {made} with ds_minimodel.",
        *_rows(table),
        *about.limits,
        *_example(pack, class_name),
    ]
    return _page(front, lines)


def _example(pack: Path, class_name: str) -> list[str]:
    """Return lines of Python that load an export with transformers and run it on a text."""
    load = '.from_pretrained("FOLDER")  # this one, or its name on the Hub'
    lines = ["\n```python", f"from transformers import AutoTokenizer, {class_name}\n"]
    is_causal = class_name.endswith("ForCausalLM")
    lines += [f"tokenizer = AutoTokenizer{load}", f"model = {class_name}{load}"]
    if is_causal:
        lines.append('tokenizer.padding_side = "left"  # of batches')
    # Only a tokenizer that was taken over has settings, and perhaps a chat template.
    settings_path = tokenizer_in(pack) / SETTINGS_FILE
    settings: dict[str, Any] = {}
    if settings_path.is_file():
        settings = read_model(settings_path, dict[str, Any], "put the folder back from a copy")
    call = 'tokenizer("TEXT", '
    if is_causal and settings.get("chat_template"):
        lines.append('messages = [{"role": "user", "content": "TEXT"}]')
        options = "add_generation_prompt=True, return_dict=True, "
        call = f"tokenizer.apply_chat_template(messages, {options}"
    lines.append(f'inputs = {call}return_tensors="pt")')
    if is_causal:
        lines.append("print(tokenizer.decode(model.generate(**inputs)[0]))")
    else:
        lines.append("print(model(**inputs))")
    return [*lines, "```"]


def adapter_card(
    pack: Path, model: Path, class_name: str, base: str | None, text_license: str | None = None
) -> str:
    """Return README.md of an adapter for PEFT.

    Args:
        pack: Folder of the adaptation.
        model: Reference to the base.
        class_name: Of transformers, such as AutoModelForCausalLM.
        base: What `from_pretrained` takes for the base; None where it is not known.
        text_license: As of `model_card`.
    """
    about = _About.of(pack, model)
    language = about.facts.language
    front = ModelCardData(**about.front, library_name="peft")
    table = about.table | {
        "text": about.text,
        "license of the text": text_license or "not stated",
    }
    lines = [
        f"# Adapter of {escape_markdown(about.base)} for {escape_markdown(language)}",
        *about.verdict(),
        "\nA LoRA and new token embeddings, made with ds_minimodel.",
        *_rows(table),
        *about.limits,
        "\n```python",
        "from peft import PeftModel",
        f"from transformers import {class_name}, AutoTokenizer\n",
        'tokenizer = AutoTokenizer.from_pretrained("FOLDER")  # this one, or its name on the Hub',
        f"base = {class_name}.from_pretrained({json.dumps(base or 'BASE')})",
        "base.resize_token_embeddings(len(tokenizer))",
        'model = PeftModel.from_pretrained(base, "FOLDER")',
        "```",
    ]
    return _page(front, lines)


_SENTENCE_TAGS = ["sentence-transformers", "sentence-similarity", "feature-extraction"]


def finished_card(pack: Path, model: Path, class_name: str, head: FinishedHead) -> str:
    """Return README.md of the export of a model with a finished head.

    Args:
        pack: Folder of an adaptation, or the model.
        model: Reference to the base.
        class_name: Of transformers.
        head: Of the model.
    """
    about = _About.of(pack, model)
    facts = about.facts
    gives_vectors = isinstance(head, SentenceHead)
    training: dict[str, Any] = {"steps": facts.steps, "embedding_space": about.model.body.space}
    front = ModelCardData(
        **about.front,
        library_name="sentence-transformers" if gives_vectors else "transformers",
        pipeline_tag="sentence-similarity" if gives_vectors else "text-classification",
        tags=_SENTENCE_TAGS if gives_vectors else None,
        ds_minimodel=training,
    )
    learned = "aligned" if not facts.steps else f"aligned, and trained for {facts.steps:,} steps"
    is_base = facts is about.model
    table = about.table | {
        "pairs": about.pairs,
        "token embeddings": "the base's" if is_base else f"{facts.rows:,}, {learned}",
    }
    title = class_name if about.base == NOT_KNOWN else about.base
    languages = " and ".join(about.languages) or "an unknown language"
    unchanged = ""
    if not about.trains_body:
        gives = "vectors" if gives_vectors else "scores"
        unchanged = (
            "\nMade with ds_minimodel. Texts that are cut into the base's tokens alone have the "
            f"base's {gives}."
        )
    lines = [
        f"# {escape_markdown(title)} in {escape_markdown(languages)}",
        *about.verdict(),
        unchanged,
        *_rows(table),
        *about.limits,
        "\n```python",
    ]
    if gives_vectors:
        lines += [
            "from sentence_transformers import SentenceTransformer\n",
            'model = SentenceTransformer("FOLDER")  # this one, or its name on the Hub',
            'print(model.encode(["TEXT"]))',
        ]
    else:
        lines += [
            "from transformers import pipeline\n",
            'classify = pipeline("text-classification", "FOLDER")  # or its name on the Hub',
            'print(classify("TEXT"))',
        ]
    return _page(front, [*lines, "```"])


def _rows(table: Mapping[str, Any]) -> list[str]:
    rows = [f"| {name} | {escape_markdown(str(value))} |" for name, value in table.items()]
    return ["\n| | |\n|---|---|", *rows]


def _page(front: ModelCardData, lines: Iterable[str]) -> str:
    return f"---\n{front}\n---\n" + "\n".join(lines) + "\n"


@dataclass(frozen=True)
class _About:
    """Facts that every card shows.

    Attributes:
        model: Manifest of the model.
        facts: Manifest of the pack, or of the model where it has the pack.
        origin: Where the model comes from.
        place: Where the pack lies in a workdir.
    """

    model: ModelManifest
    facts: ModelManifest | AdaptationManifest
    origin: _Origin
    place: _Place | None

    @classmethod
    def of(cls, pack: Path, model: Path) -> _About:
        manifest = read_artifact(model, ModelManifest)
        origin = as_model(
            manifest.model_dump(exclude={"body"}),
            _Origin,
            model / MANIFEST,
            "put it back from a copy",
        )
        facts = manifest if is_model(pack) else read_artifact(pack, AdaptationManifest)
        return cls(manifest, facts, origin, _Place.of(pack))

    @property
    def languages(self) -> list[str]:
        """The base's language, and those that were added."""
        names = dict.fromkeys([self.model.language, *self.facts.language.split("+")])
        return [name for name in names if name != UNKNOWN_LANGUAGE]

    @property
    def base(self) -> str:
        return hub_name(self.origin.base_model) or self.origin.imported_from or NOT_KNOWN

    @property
    def trains_body(self) -> bool:
        return not self.facts.files.keys().isdisjoint({ADAPTER, UPDATE})

    @property
    def front(self) -> dict[str, Any]:
        """Keys of the front matter by which a Hub knows the base."""
        codes = [name for name in self.languages if re.fullmatch(LANGUAGE_CODE, name)]
        return {
            "language": codes or None,
            "license": self.origin.license,
            "base_model": hub_name(self.origin.base_model),
        }

    @property
    def table(self) -> dict[str, Any]:
        return {
            "languages": ", ".join(self.languages) or NOT_KNOWN,
            "base": self.base,
            "license of the base": self.origin.license or NOT_KNOWN,
        }

    @property
    def text(self) -> str:
        """The text that the pack was trained on."""
        if self.place is None:
            return NOT_KNOWN
        return self.place.text(self.facts.language) or NOT_KNOWN

    @property
    def pairs(self) -> str:
        """The pairs that were learned from."""
        if self.place is None:
            return NOT_KNOWN
        return self.place.pairs(self.facts.language) or NOT_KNOWN

    def verdict(self, task: str | None = None) -> list[str]:
        """Return the report's sentences on the pack, none where it lies in no workdir."""
        return self.place.verdict(self.facts, task) if self.place else []

    @property
    def limits(self) -> list[str]:
        lines = ["\n## Limits\n", "- What the base gets wrong, or says of people, stays."]
        if self.trains_body:
            lines.append(
                "- The body has changed: what is not scored above, such as other languages, may "
                "have become worse."
            )
        if self.facts.steps:
            lines.append(
                f"- What it has of {escape_markdown(self.facts.language)} is that of the text "
                "above. Scores are of pages of the same kind."
            )
        return lines


@dataclass(frozen=True)
class _Place:
    """Where an adaptation lies in a workdir, as pipeline/layout.py lays it out."""

    root: Path
    system: str

    @classmethod
    def of(cls, pack: Path) -> _Place | None:
        """Return the place of a pack; None where it lies in no workdir."""
        folder = pack.resolve()
        for parent in folder.parents:
            system = folder.relative_to(parent).parts[0]
            if parent.name == ADAPT and system in SYSTEMS:
                return cls(parent.parent, system)
        return None

    def verdict(self, pack: ModelManifest | AdaptationManifest, task: str | None) -> list[str]:
        """Return the report's sentences on the pack.

        They are about `task`, or without one about all tasks that are not finetuned.
        """
        path = self.root / REPORT / VERDICTS_FILE
        if not path.is_file():
            return []
        of_pack = (self.system, pack.language, pack.steps)
        for verdict in read_model(path, list[Verdict], "run the step `report` again"):
            if (verdict.system, verdict.language, verdict.steps) != of_pack:
                continue
            if task:
                tasks = {task} & verdict.clauses.keys()
            else:
                tasks = {
                    name
                    for name in verdict.clauses
                    if not any(self.root.glob(f"{FINETUNE}/*/{name}"))
                }
            lines = [verdict.sentence(tasks), *verdict.kept, *verdict.worse]
            return [f"\n{escape_markdown(line)}" for line in lines] if tasks else []
        return []

    def text(self, language: str) -> str | None:
        """Return the names of the text that the pack was trained on, with its count of tokens.

        None where the text is gone.
        """
        folder = self.root / TOKENS / language
        if not (folder / MANIFEST).is_file():
            return None
        facts = read_artifact(folder, _Text)
        return f"{', '.join(facts.text)} ({facts.tokens:,} tokens)"

    def pairs(self, language: str) -> str | None:
        """Return the names of the texts whose pairs were learned from, with the count of pairs.

        None where they are gone.
        """
        folder = WorkdirLayout(self.root).pairs(language)
        if not (folder / MANIFEST).is_file():
            return None
        texts = read_artifact(folder, PairsManifest).texts
        return ", ".join(f"{text.name} ({text.training:,})" for text in texts if text.training)
