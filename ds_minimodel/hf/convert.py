"""Import of Hugging Face's language models as a body and a pack, and export as a folder for `from_pretrained`.

transformers is the reader of a foreign folder: it says what config.json, the tensors' names and the tokenizer's files
mean, and an import is what computes the same. What it makes something of is looked at before, by headers (foreign.py).
"""

from __future__ import annotations

import contextlib
import fnmatch
import math
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import transformers
from pydantic import ValidationError
from safetensors.torch import save_file
from torch import Tensor

from ds_minimodel.common.errors import UserError, one_line, reason_of
from ds_minimodel.common.files import atomic_folder, read_artifact, refuse_existing, write_json, write_manifest
from ds_minimodel.common.hub import hub_api
from ds_minimodel.common.names import check_name
from ds_minimodel.common.vocabulary import UNKNOWN_LANGUAGE, Vocabulary, VocabularyManifest
from ds_minimodel.hf import ARCHITECTURES
from ds_minimodel.hf.architecture import Architecture
from ds_minimodel.hf.card import CARD, hub_name, model_card
from ds_minimodel.hf.foreign import ADAPTER, INDEX, SAFETENSORS, WEIGHTS, Folder, Source, generation_settings
from ds_minimodel.hf.gguf import GgufFile
from ds_minimodel.hf.vocabularies import GENERATION_FILE, TOKENIZER_FILES, keep_tokenizer, token_ids, write_tokenizer
from ds_minimodel.models import BODIES, BodyConfig
from ds_minimodel.models.artifacts import (
    PACK_WEIGHTS,
    BodyArtifact,
    PackArtifact,
    check_fit,
    load_body,
    load_pack,
    save_body,
    space_of,
    whole_pack,
)
from ds_minimodel.models.objectives import OBJECTIVES
from ds_minimodel.models.trainable import LanguageModel, encode, tensors_under
from ds_minimodel.ops.precision import DTYPES
from ds_minimodel.tasks import task_of


def import_model(
    model: str | Path, out: str | Path, language: str = UNKNOWN_LANGUAGE, revision: str | None = None
) -> None:
    """Import a folder, a GGUF file or, where neither is there, a model of the Hub, as import_hf does.

    revision: of a model of the Hub.
    """
    path = Path(model)
    if path.exists():
        if revision is not None:
            kind = "folder" if path.is_dir() else "file"
            raise UserError(f"--revision {revision}: {model} is a {kind} here; leave the option out")
        import_hf(path, out, language)
    else:
        with _looked_for(model):
            import_hf_from_hub(str(model), out, language, revision)


@contextlib.contextmanager
def _looked_for(model: str | Path) -> Iterator[None]:
    """Say in a UserError why it is of a Hub."""
    try:
        yield
    except UserError as error:
        raise UserError(f"{error} ({model} is no folder here, so it was looked for on the Hub)") from None


def import_hf_from_hub(
    name: str, out: str | Path, language: str = UNKNOWN_LANGUAGE, revision: str | None = None
) -> None:
    """Import a model of the Hub, as import_hf does, by the files that it needs; these stay in huggingface_hub's cache.

    name: MODEL or OWNER/MODEL. revision: a branch, tag or commit; default main. The commit is recorded.
    """
    refuse_existing(out)
    with hub_api(name) as api:
        info = api.model_info(name, revision=revision)
        there = [file.rfilename for file in info.siblings or []]
        if not {"config.json", ADAPTER} & {*there}:
            raise UserError(f"{name} on {api.endpoint}: no config.json, so no model of transformers")
        weights = next((name for name in WEIGHTS if name in there), "")
        stem, suffix = os.path.splitext(weights.removesuffix(INDEX))
        files = {"config.json", ADAPTER, GENERATION_FILE, CARD, weights, *TOKENIZER_FILES}
        parts = fnmatch.filter(there, f"{stem}-*-of-*{suffix}") if weights.endswith(INDEX) else []
        folder = api.snapshot_download(name, revision=info.sha, allow_patterns=[*files, *parts])
    import_hf(folder, out, language, name, info.sha)


def import_hf(
    folder: str | Path,
    out: str | Path,
    language: str = UNKNOWN_LANGUAGE,
    name: str | None = None,
    revision: str | None = None,
) -> None:
    """Read a language model of a family that a kind of body serves -> out/body and out/pack, in fp32.

    folder: as `from_pretrained` takes it, with model.safetensors or pytorch_model.bin, whole or in parts with an index;
    or a GGUF file, whose weights are dequantised. What is written has the logits of transformers' model on the same
    ids, and its tokenizer is transformers' own. name, revision: of a model that came from the Hub. Raises UserError
    where a file is missing or damaged, or holds a model that no kind of body computes. It takes the memory of two
    copies of the model in fp32.
    """
    refuse_existing(out)
    try:
        check_name(language)
    except ValueError as error:
        raise UserError(f"--language {error}") from None
    foreign = read_config(folder)
    source = foreign.source
    tokenizer, generation = source.tokenizer(foreign.theirs), source.generation()
    ours = _our_model(foreign, _their_model(foreign))
    state = ours.state_dict()
    of_body, of_pack = tensors_under(state, "body."), tensors_under(state, "pack.")
    body = BodyArtifact(
        foreign.config, ours.body.head_depths, of_body, space_of(of_body, of_pack), objective=foreign.objective
    )
    origin = {"license": source.license(), "base_model": name or foreign.name, "revision": revision}
    facts: dict[str, Any] = {"imported_from": name or source.name, "steps": 0, "eflops": 0.0}
    facts |= {key: value for key, value in origin.items() if value is not None}
    with atomic_folder(out, is_new=True) as both:
        save_body(both / "body", body, "body", **facts)
        pack = both / "pack"
        pack.mkdir()
        vocabulary = keep_tokenizer(source.path, tokenizer, pack, foreign.theirs, foreign.config)
        if generation is not None:
            write_json(pack / GENERATION_FILE, generation)
        save_file(of_pack, pack / PACK_WEIGHTS)
        facts |= {"space": body.space, "rows": len(of_pack["tokens"]), **vocabulary.facts()}
        write_manifest(pack, kind="language-pack", language=language, **facts)


# config.json.

# The largest of the sizes that a configuration makes something of; all others are compared with the tensors.
_MOST = {"num_hidden_layers": 10_000, "num_labels": 10_000}


@dataclass(frozen=True)
class Foreign:
    """A model's files and configuration, transformers' and ours. name: the model's on the Hub."""

    source: Source
    architecture: Architecture
    theirs: Any
    config: BodyConfig
    name: str | None

    @property
    def objective(self) -> str:
        """What such a body is trained with."""
        return BODIES[self.config.kind].objective


def config_of(model: str | Path) -> Foreign:
    """The Foreign of a folder or GGUF file or, where there is none, of a model of the Hub: nothing else is fetched."""
    if Path(model).exists():
        return read_config(model)
    with _looked_for(model), hub_api(str(model)) as api:
        return read_config(api.snapshot_download(str(model), allow_patterns=["config.json"]))


def read_config(model: str | Path) -> Foreign:
    """The configuration of a folder or GGUF file; UserError where no kind of body is such a model."""
    source = GgufFile(Path(model)) if Path(model).is_file() else Folder(Path(model))
    path, values = source.config_path, source.config()
    served = {own.model_type: own for architectures in ARCHITECTURES.values() for own in architectures}
    model_type = values.get("model_type") if isinstance(values, dict) else None
    if not isinstance(model_type, str) or model_type not in served:
        *first, last = served
        raise UserError(f"{path}: model_type {model_type!s:.40}; import-hf takes {', '.join(first)} and {last}")
    if values.get("quantization_config") is not None:
        raise UserError(f"{path}: quantization_config: quantised weights are not taken; import the model they are of")
    for key, most in _MOST.items():
        if not isinstance(values.get(key, 0), int) or not 0 <= values.get(key, 0) <= most:
            raise UserError(f"{path}: {key}: {values[key]!s:.40} is not a number up to {most:,}")
    with one_line(path, "transformers does not take it"):
        theirs = transformers.CONFIG_MAPPING[model_type].from_dict(dict(values))
    try:
        config = served[model_type].config(theirs)
    except ValidationError as error:
        fault = error.errors()[0]
        raise UserError(f"{path}: {': '.join([*map(str, fault['loc']), reason_of(fault)])}") from None
    except (ValueError, KeyError, TypeError, AttributeError, ArithmeticError) as error:
        raise UserError(f"{path}: {error}") from None
    return Foreign(source, served[model_type], theirs, config, hub_name(values.get("_name_or_path")))


# The model.

_UNUSED = re.compile(r"\.pooler\.|position_ids$|^cls\.seq_relationship\.|rotary_emb\.inv_freq$")  # by a language model
_TAKEN = torch.float32, torch.bfloat16, torch.float16
_SMALL = 1_000_000  # numbers, of which anything may be made
_TOKENS = 48  # of the longer of the two texts whose logits are compared
_LIMITS = {  # control groups' controller -> folder, and files and key of the limit, what is taken and what can go of it
    "": ("sys/fs/cgroup", "memory.max", "memory.current", "inactive_file"),
    "memory": ("sys/fs/cgroup/memory", "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
}
_TOLERANCE = 1e-4  # of the largest logit; fp32 leaves some 1e-6


def _their_model(foreign: Foreign) -> Any:
    """transformers' model, in fp32; UserError where configuration and tensors disagree, by headers."""
    path, says = foreign.source.path, foreign.source.config_path.name
    headers, where = foreign.source.headers(foreign.architecture, foreign.config)
    if foreign.config.num_layers > len(headers):
        raise UserError(f"{where}: {len(headers)} tensors, where {says} has {foreign.config.num_layers} layers")
    numbers = sum(math.prod(header.shape) for header in headers.values())
    own = getattr(transformers, foreign.architecture.classes + OBJECTIVES[foreign.objective].hugging_face_class)
    with one_line(path, "transformers cannot read it"), torch.device("meta"):
        expected = sum(parameter.numel() for parameter in own(foreign.theirs).parameters())
    if expected > 2 * numbers + _SMALL:  # of a model for something else the message below says which tensor is missing
        raise UserError(f"{where}: {numbers:,} numbers, where {says} describes a model of {expected:,}")
    needed, free = 8 * expected, _free_memory()
    if needed > free:
        raise UserError(
            f"{path}: two copies in fp32 take {needed / 2**30:.1f} GiB of memory, {free / 2**30:.1f} GiB are free; "
            "import it on a larger machine"
        )
    with one_line(path, "transformers cannot read it"):
        empty = {name: torch.empty(header.shape, device="meta") for name, header in headers.items()}
    _, found = _loaded(own, foreign, empty, device_map={"": "meta"})
    for name in sorted(found["missing_keys"]):
        raise UserError(f"{where}: no tensor {name}; it must hold a {own.__name__}")
    for name, shape, wanted in sorted(found["mismatched_keys"]):
        raise UserError(f"{where}: {name} has shape {tuple(shape)}, by {says} {tuple(wanted)}")
    for name in sorted(name for name in found["unexpected_keys"] if not _UNUSED.search(name)):
        raise UserError(f"{where}: {name!r:.120} is nothing that a {own.__name__} by {says} has")
    tensors = {name: header.read() for name, header in headers.items() if not _UNUSED.search(name)}
    for name, tensor in tensors.items():
        if tensor.dtype not in _TAKEN:
            raise UserError(f"{where}: {name!r:.80} is {tensor.dtype}; weights in fp32, bf16 or fp16 are taken")
    model, _ = _loaded(own, foreign, tensors)
    for name, tensor in model.named_parameters():
        if not tensor.isfinite().all():
            raise UserError(f"{where}: {name} holds NaN or infinite numbers; the model that it was made of diverged")
    return model.eval().requires_grad_(False)


def _loaded(own: Any, foreign: Foreign, tensors: dict[str, Tensor], **settings: Any) -> Any:
    """(transformers' model with `tensors`, by the names that any version has given them; what of these does not fit)"""
    with one_line(foreign.source.path, "transformers cannot read it"):
        return own.from_pretrained(
            None,
            config=foreign.theirs,
            state_dict=tensors,
            dtype=torch.float32,
            attn_implementation="eager",
            ignore_mismatched_sizes=True,
            output_loading_info=True,
            **settings,
        )


def _our_model(foreign: Foreign, theirs: Any) -> LanguageModel:
    """The same as a model of ours; UserError where it has other logits of random ids, padded or not."""
    config, vocab_size = foreign.config, foreign.theirs.vocab_size
    with torch.device("meta"):
        ours = LanguageModel(config, vocab_size, (config.num_layers,), OBJECTIVES[foreign.objective])
    path = foreign.source.config_path
    with one_line(path, "has what ds_minimodel has not"):
        tensors = foreign.architecture.from_theirs(theirs.state_dict(), config, [*ours.state_dict()])
        ours.load_state_dict(tensors, assign=True)
    draw, length = torch.Generator().manual_seed(0), min(config.max_positions, _TOKENS)
    tokens = torch.randint(vocab_size, (2, length), generator=draw)
    tokens[tokens == foreign.theirs.pad_token_id] += 1 if foreign.theirs.pad_token_id == 0 else -1
    lengths = torch.tensor([length, length // 3], dtype=torch.int32)
    real = torch.arange(length) < lengths[:, None]
    with torch.inference_mode(), one_line(path, "it cannot be computed"):
        expected = theirs(input_ids=tokens, attention_mask=real.long()).logits[real]
        (x_BSH,), table = encode(ours.eval().pack, ours.body, {"tokens": tokens, "lengths": lengths})
        found = ours.pack.logits(ours.body.heads[str(config.num_layers)](x_BSH[real]), table)
    differ, most = (found - expected).abs().max(), expected.abs().max()
    if not differ <= _TOLERANCE * most:
        raise UserError(
            f"{path}: has a setting by which transformers computes what {config.kind} here does not: "
            f"logits of up to {most:.3g} differ by {differ:.2g}"
        )
    return ours


def _free_memory(root: Path = Path("/")) -> int:
    """Bytes that can be had without swapping, by the machine and by the limits of this process's control groups."""
    found = re.search(r"^MemAvailable: +(\d+) kB", (root / "proc/meminfo").read_text(), re.MULTILINE)
    free = 1024 * int(found[1]) if found else os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    for line in (root / "proc/self/cgroup").read_text().splitlines():
        _, controller, place = line.split(":", 2)
        top, most, used, cached = _LIMITS.get(controller, _LIMITS[""])
        for group in (own := root / top / place.strip("/"), *own.parents) if controller in _LIMITS else ():
            with contextlib.suppress(OSError, ValueError):  # not there, or no number where there is no limit
                taken = int((group / used).read_text())
                given_back = re.search(rf"^{cached} (\d+)", (group / "memory.stat").read_text(), re.MULTILINE)
                free = min(free, int((group / most).read_text()) - taken + int(given_back[1] if given_back else 0))
    return free


# Export.


def export_hf(
    artifact: str | Path,
    out: str | Path,
    pack: str | Path | None = None,
    depth: int | None = None,
    dtype: str = "fp32",
    suppress_new: bool = False,
    pool: str | None = None,
) -> None:
    """Write a body, mini-model or task model with a language pack as a Hugging Face folder.

    A body becomes RobertaForMaskedLM, or BertForMaskedLM where it is BERT's, with its head of `depth` (default:
    the deepest) and the layers below it; a task model the class of its kind (tasks/), such as
    RobertaForSequenceClassification. pack: default the folder `pack` beside the artifact. dtype: of the weights, as in
    ops/precision.py. suppress_new: whether generation leaves out the pieces that the pack adds to its base's. pool:
    "mean" or "first", by which sentence-transformers makes vectors of length 1 of an encoder's last states. Raises
    UserError where a part is missing or does not fit, or that library has no such bodies.
    """
    artifact, out = Path(artifact), Path(out)
    refuse_existing(out)
    body, pack = load_body(artifact), Path(pack or artifact.parent / "pack")
    if not pack.is_dir():
        raise UserError(f"{pack}: no such language pack; give one with --pack")
    added = load_pack(pack, body.space)
    language = whole_pack(added, pack, artifact)
    check_fit(pack, language, body)
    vocabulary = read_artifact(pack, VocabularyManifest).vocabulary(pack)
    if suppress_new and (body.task is not None or not body.config.causal):
        raise UserError(f"{artifact}: generates no text; leave --suppress-new out")
    if suppress_new and not added.kept:
        raise UserError(f"{pack}: adds no pieces to a base's vocabulary that generation could leave out")
    if pool and body.config.causal:
        raise UserError(f"{artifact}: a decoder; --pool is for vectors of an encoder")
    model = exported(artifact, body, language, vocabulary, depth)
    with atomic_folder(out, is_new=True) as temporary:
        config = body.config.with_layers(model.num_layers)
        ids = write_tokenizer(pack, temporary, config, is_task=body.task is not None)
        as_type = DTYPES[dtype]
        write_json(temporary / "config.json", {**model.config, **ids, "dtype": str(as_type).removeprefix("torch.")})
        tensors = {name: tensor.to(as_type) for name, tensor in model.tensors.items()}
        for name, tensor in tensors.items():
            if not tensor.isfinite().all():
                raise UserError(f"{artifact}: {name} has numbers larger than {dtype} has; give --dtype bf16")
        save_file(tensors, temporary / SAFETENSORS, metadata={"format": "pt"})
        if suppress_new:
            path = temporary / GENERATION_FILE
            settings = generation_settings(path) or {}
            own, new = settings.get("suppress_tokens") or [], range(added.kept, len(language.tensors["tokens"]))
            write_json(path, {**settings, "suppress_tokens": [*own, *new]})
        if pool:
            _write_pooling(temporary, config, pool)
        card = model_card(pack, artifact, model.class_name, model.num_layers, (body.task or {}).get("name"))
        (temporary / CARD).write_text(card, encoding="utf-8")


def _write_pooling(folder: Path, config: BodyConfig, pool: str) -> None:
    """Write what makes of a folder of transformers a model of sentence-transformers."""
    parts = {"Transformer": "", "Pooling": "1_Pooling", "Normalize": "2_Normalize"}
    modules = [
        {"idx": place, "name": str(place), "path": path, "type": f"sentence_transformers.models.{name}"}
        for place, (name, path) in enumerate(parts.items())
    ]
    write_json(folder / "modules.json", modules)
    write_json(folder / "sentence_bert_config.json", {"max_seq_length": config.max_positions})
    reads = {"pooling_mode_mean_tokens": pool == "mean", "pooling_mode_cls_token": pool == "first"}
    write_json(folder / parts["Pooling"] / "config.json", {"word_embedding_dimension": config.hidden_size, **reads})


@dataclass(frozen=True)
class Exported:
    """A model in Hugging Face's terms. config: of config.json."""

    class_name: str
    num_layers: int
    config: dict[str, Any]
    tensors: dict[str, Tensor]

    def module(self, dtype: torch.dtype = torch.float32) -> Any:
        """The module of transformers, its weights of a dtype; what rotates positions stays in fp32 there."""
        transformers.utils.logging.disable_progress_bar()
        own = getattr(transformers, self.class_name)
        config = own.config_class.from_dict(self.config)
        return own.from_pretrained(None, config=config, state_dict=self.tensors, dtype=dtype)


def exported(
    artifact: str | Path, body: BodyArtifact, language: PackArtifact, vocabulary: Vocabulary, depth: int | None = None
) -> Exported:
    """The model of the folder `artifact`, whose content is `body`, with a pack that fits it; depth: as of export_hf."""
    architectures = ARCHITECTURES.get(body.config.kind)
    if architectures is None:
        raise UserError(f"{artifact}: Hugging Face's library has no bodies of kind {body.config.kind}")
    architecture, num_layers, extra = architectures[0], body.config.num_layers, {}
    if body.task is not None:
        if depth is not None:
            raise UserError(f"{artifact}: a task model has no language-model head of depth {depth}; leave --depth out")
        kind, labels = task_of(artifact, body)
        ending, extra = kind.hugging_face_class, kind.hugging_face_config(labels)
        head, tensors = architecture.task_head(body.config, kind.head_names), dict(body.tensors)
    else:
        num_layers = max(body.head_depths, default=0) if depth is None else depth
        if num_layers not in body.head_depths:
            has = list(body.head_depths)
            raise UserError(f"{artifact}: no language-model head of depth {num_layers}; it has heads of {has}")
        ending, head = OBJECTIVES[body.objective].hugging_face_class, architecture.language_model_head(num_layers)
        tensors = {f"body.{name}": tensor for name, tensor in body.tensors.items()}
    for name, tensor in language.tensors.items():
        tensors[name if name.startswith("body.") else f"pack.{name}"] = tensor
    class_name = architecture.classes + ending
    if ending not in architecture.endings:
        raise UserError(f"{artifact}: Hugging Face's library has no {class_name} that computes what this model does")
    config = body.config.with_layers(num_layers)
    facts = {
        "architectures": [class_name],
        **architecture.config_json(config, len(language.tensors["tokens"])),
        **token_ids(vocabulary),
        "dtype": "float32",
        **extra,
    }
    return Exported(class_name, num_layers, facts, architecture.to_theirs(tensors, config, head))
