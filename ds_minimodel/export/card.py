"""The model card of an export: README.md with YAML front matter, made from manifests and the run's
report.

Base and license come from the manifest of the imported model, text and verdict from the workdir
that the pack lies in. What is not known is left out.
"""

from __future__ import annotations

import re
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


class _Origin(Stored):
    """The keys of a model's manifest that say where it comes from."""

    imported_from: str | None = None
    base_model: str | None = None
    license: Annotated[str, Field(pattern=LICENSE)] | None = None


class _Text(Manifest):
    """The keys of a token store's manifest that a card shows."""

    text: list[str]
    tokens: Count


def model_card(pack: Path, model: Path, class_name: str, num_layers: int, task: str | None) -> str:
    """Return README.md of the export of a model, mini-model or task model with a language pack,
    perhaps its own.

    class_name: of transformers. task: name of the task in the recipe.
    """
    facts: ModelManifest | AdaptationManifest
    own = facts = read_artifact(model, ModelManifest)
    if not is_model(pack):
        facts = read_artifact(pack, AdaptationManifest)
    origin = as_model(
        own.model_dump(exclude={"body"}), _Origin, model / MANIFEST, "put it back from a copy"
    )
    language, place = facts.language, _Place.of(pack)
    trains_body = facts is not own and not facts.files.keys().isdisjoint({ADAPTER, UPDATE})
    training: dict[str, Any] = {"system": place.system} if place else {}
    training |= {"steps": facts.steps, "eflops": float(f"{facts.eflops:.3g}")}
    training |= {"embedding_space": own.body.space, "layers": num_layers}
    front = ModelCardData(
        language=language
        if re.fullmatch(LANGUAGE_CODE, language) and language != UNKNOWN_LANGUAGE
        else None,
        license=origin.license,
        base_model=hub_name(origin.base_model),
        library_name="transformers",
        tags=["mini-model-adaptation"] if facts.steps and not trains_body else None,
        ds_minimodel=training,
    )
    table = {
        "language": "not known" if language == UNKNOWN_LANGUAGE else language,
        "base": hub_name(origin.base_model) or origin.imported_from or "not known",
        "license of the base": origin.license or "not known",
        "text": (place and place.text(language)) or "not known",
        **{name.replace("_", " "): value for name, value in training.items()},
    }
    made = (
        "by mini-model adaptation (Marchisio et al., ACL 2023)"
        if facts.steps
        else "of a base, not trained,"
    )
    made = (
        "by training token embeddings and the body (a LoRA, or all weights)"
        if trains_body
        else made
    )
    lines = [
        f"# {class_name} with the language pack {escape_markdown(language)}",
        *(place.verdict(facts, task) if place else ()),
        f"\nMade {made} with ds_minimodel.",
        "\n| | |\n|---|---|",
        *(f"| {name} | {escape_markdown(str(value))} |" for name, value in table.items()),
    ]
    load = '.from_pretrained("FOLDER")  # this one, or its name on the Hub'
    lines += ["\n```python", f"from transformers import AutoTokenizer, {class_name}\n"]
    is_causal = class_name.endswith("ForCausalLM")
    lines += [f"tokenizer = AutoTokenizer{load}", f"model = {class_name}{load}"]
    lines += ['tokenizer.padding_side = "left"  # of batches'] * is_causal
    settings = tokenizer_in(pack) / SETTINGS_FILE  # of a tokenizer that was taken over
    of_tokenizer = (
        read_model(settings, dict[str, Any], "put the folder back from a copy")
        if settings.is_file()
        else {}
    )
    chats = is_causal and bool(of_tokenizer.get("chat_template"))
    lines += ['messages = [{"role": "user", "content": "TEXT"}]'] * chats
    options = "add_generation_prompt=True, return_dict=True, "
    call = f"tokenizer.apply_chat_template(messages, {options}" if chats else 'tokenizer("TEXT", '
    lines += [f'inputs = {call}return_tensors="pt")']
    lines += [
        "print(tokenizer.decode(model.generate(**inputs)[0]))"
        if is_causal
        else "print(model(**inputs))",
        "```",
    ]
    return f"---\n{front}\n---\n" + "\n".join(lines) + "\n"


_SENTENCE_TAGS = ["sentence-transformers", "sentence-similarity", "feature-extraction"]


def finished_card(pack: Path, model: Path, class_name: str, head: FinishedHead) -> str:
    """Return README.md of the export of a model with a finished head.

    Args:
        pack: folder of an adaptation, or the model.
        model: reference to the base.
        class_name: of transformers.
        head: of the model.
    """
    own = read_artifact(model, ModelManifest)
    facts: ModelManifest | AdaptationManifest = own
    if not is_model(pack):
        facts = read_artifact(pack, AdaptationManifest)
    origin = as_model(
        own.model_dump(exclude={"body"}), _Origin, model / MANIFEST, "put it back from a copy"
    )
    place = _Place.of(pack)
    languages = [own.language, *facts.language.split("+")]
    known = [name for name in dict.fromkeys(languages) if name != UNKNOWN_LANGUAGE]
    gives_vectors = isinstance(head, SentenceHead)
    training: dict[str, Any] = {"steps": facts.steps, "embedding_space": own.body.space}
    front = ModelCardData(
        language=[name for name in known if re.fullmatch(LANGUAGE_CODE, name)] or None,
        license=origin.license,
        base_model=hub_name(origin.base_model),
        library_name="sentence-transformers" if gives_vectors else "transformers",
        pipeline_tag="sentence-similarity" if gives_vectors else "text-classification",
        tags=_SENTENCE_TAGS if gives_vectors else None,
        ds_minimodel=training,
    )
    learned = "aligned" if not facts.steps else f"aligned, and trained for {facts.steps:,} steps"
    table = {
        "languages": ", ".join(known) or "not known",
        "base": hub_name(origin.base_model) or origin.imported_from or "not known",
        "license of the base": origin.license or "not known",
        "pairs": (place and place.pairs(facts.language)) or "not known",
        "token embeddings": f"{facts.rows:,}, {learned}" if facts is not own else "the base's",
    }
    lines = [
        f"# {hub_name(origin.base_model) or origin.imported_from or class_name} in "
        f"{escape_markdown(' and '.join(known) or 'an unknown language')}",
        *(place.verdict(facts, None) if place else ()),
        "\nMade with ds_minimodel. Texts that are cut into the base's own tokens have the base's "
        f"{'vectors' if gives_vectors else 'scores'}."
        * (facts is own or facts.files.keys().isdisjoint({ADAPTER, UPDATE})),
        "\n| | |\n|---|---|",
        *(f"| {name} | {escape_markdown(str(value))} |" for name, value in table.items()),
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
    return f"---\n{front}\n---\n" + "\n".join([*lines, "```"]) + "\n"


@dataclass(frozen=True)
class _Place:
    """Where an adaptation lies in a workdir, as pipeline/layout.py lays it out."""

    root: Path
    system: str

    @classmethod
    def of(cls, pack: Path) -> _Place | None:
        """None where it lies elsewhere."""
        folder = pack.resolve()
        for parent in folder.parents:
            system = folder.relative_to(parent).parts[0]
            if parent.name == ADAPT and system in SYSTEMS:
                return cls(parent.parent, system)
        return None

    def verdict(self, pack: ModelManifest | AdaptationManifest, task: str | None) -> list[str]:
        """Sentences of the report on the pack: on `task`, or without one on all tasks that are not
        finetuned.
        """
        path = self.root / REPORT / VERDICTS_FILE
        for own in (
            read_model(path, list[Verdict], "run the step `report` again") if path.is_file() else ()
        ):
            if (own.system, own.language, own.steps) == (self.system, pack.language, pack.steps):
                finetuned = {
                    name for name in own.clauses if any(self.root.glob(f"{FINETUNE}/*/{name}"))
                }
                tasks = own.clauses.keys() & ({task} if task else own.clauses.keys() - finetuned)
                lines = [own.sentence(tasks), *own.kept, *own.worse]
                return [f"\n{escape_markdown(line)}" for line in lines] if tasks else []
        return []

    def text(self, language: str) -> str | None:
        """Names of the text that the pack was trained on, and its tokens; None where that is
        gone.
        """
        folder = self.root / TOKENS / language
        if not (folder / MANIFEST).is_file():
            return None
        facts = read_artifact(folder, _Text)
        return f"{', '.join(facts.text)} ({facts.tokens:,} tokens)"

    def pairs(self, language: str) -> str | None:
        """Names of the kinds of text whose pairs were learned from, with their numbers; None where
        they are gone.
        """
        folder = WorkdirLayout(self.root).pairs(language)
        if not (folder / MANIFEST).is_file():
            return None
        texts = read_artifact(folder, PairsManifest).texts
        return ", ".join(f"{text.name} ({text.training:,})" for text in texts if text.training)
