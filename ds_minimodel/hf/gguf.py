"""Models in GGUF files, as llama.cpp has them: metadata as a configuration and a tokenizer, tensors
by their headers.

What a file says is taken over or refused, and nothing beside it is read.
"""

from __future__ import annotations

import re
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers
from torch import Tensor

from ds_minimodel.common.errors import UserError, one_line
from ds_minimodel.common.extras import import_extra
from ds_minimodel.hf.lazy import Lazy
from ds_minimodel.hf.names.architecture import Architecture
from ds_minimodel.hf.source import Source, hub_name, license_name, tokenizer_of
from ds_minimodel.models import BodyConfig
from ds_minimodel.models.modern import Rotation
from ds_minimodel.models.modern.model import waves

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

_FREQUENCIES = "rope_freqs.weight"  # by which Llama 3.1's waves are slowed down


class _Family(NamedTuple):
    """How a general.architecture is called by transformers, and how its tensors differ in a file.

    paired: whether rows of queries and keys are interleaved in pairs instead of in halves (rotary
    positions). shifted: whether norms are stored as 1 + weight.
    """

    model_type: str
    paired: bool = False
    shifted: bool = False


_FAMILIES = {
    "llama": _Family("llama", paired=True),
    "qwen2": _Family("qwen2"),
    "qwen3": _Family("qwen3"),
    "gemma3": _Family("gemma3_text", shifted=True),
}
_KEYS = {
    "context_length": "max_position_embeddings",
    "block_count": "num_hidden_layers",
    "embedding_length": "hidden_size",
    "feed_forward_length": "intermediate_size",
    "attention.head_count": "num_attention_heads",
}
_ROLES = {"bos": "bos", "eos": "eos", "unk": "unknown", "pad": "padding"}
# Kinds of tokens that are found whole in a text
_SPECIAL = 3
_OF_USER = 4
# Of metadata what changes nothing that is computed here, or is read by transformers.
_IGNORED = re.compile(
    r"GGUF\.|general\.|split\.|quantize\.|\w+\.tensor_data_layout$|tokenizer\.chat_template"
    r"|tokenizer\.ggml\.(\w+_token_id|tokens|scores|token_type|merges|add_[be]os_token)$"
    r"|\w+\.rope\.scaling\.(finetuned|original_context_length)$"
)


def _split(numbers: str) -> list[Any]:
    """Llama 3's words, with other numbers."""
    pattern = (
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|"
        + numbers
        + r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
    )
    return [
        pre_tokenizers.Split(Regex(pattern), "isolated"),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
    ]


# How a byte-level vocabulary cuts a text, by its tokenizer.ggml.pre.
_LLAMA3 = "llama3", "llama-v3", "llama-bpe"
_GPT2 = pre_tokenizers.ByteLevel(add_prefix_space=False)
_CUTS: dict[str, list[Any]] = {
    "gpt-2": [_GPT2],
    "smollm": [pre_tokenizers.Digits(individual_digits=True), _GPT2],
    "qwen2": _split(r"\p{N}"),
    **dict.fromkeys(_LLAMA3, _split(r"\p{N}{1,3}")),
}


# Metadata that name what a file was made from, or what that was trained from, nearest first.
_ORIGINS = (
    "source.huggingface.repository",
    "source.repo_url",
    "repo_url",
    "base_model.0.repo_url",
)


class GgufFile(Source):
    """A file; UserError where it is none, or of a kind of model that is not served."""

    def __init__(self, path: Path):
        self.name = path.stem
        self.path = path
        self.config_path = path
        self.facts, self.tensors = _read(path)
        self.kind = self._take("general.architecture", str)
        if self.kind not in _FAMILIES:
            raise UserError(
                f"{path}: general.architecture {self.kind:.40}; there are {', '.join(_FAMILIES)}"
            )
        if self._take("split.count", int, 1) > 1:
            raise UserError(f"{path}: a part of a model; join them by llama-gguf-split --merge")
        self.family = _FAMILIES[self.kind]

    def _take(self, key: str, kind: type, default: Any = None) -> Any:
        """The value of `key`, which thereby is used; UserError where it is of another type, or
        there is no default.
        """
        value = self.facts.pop(key, default)
        if isinstance(value, float):  # 1e-5, not the fp32 next to it
            value = float(str(np.float32(value)))
        if not isinstance(value, kind):
            raise UserError(
                f"{self.path}: {key} {value!r:.60}, where a value of type {kind.__name__} is to be"
            )
        return value

    def _refuse_rest(self, of_tokenizer: bool) -> None:
        """UserError for metadata that is not used, and may change what is computed."""
        for key, value in self.facts.items():
            is_off = value is False and key.startswith("tokenizer.ggml.add_")
            is_needless = is_off or _IGNORED.match(key)
            if key.startswith("tokenizer.") == of_tokenizer and not is_needless:
                raise UserError(
                    f"{self.path}: {key} {value!r:.60} is a setting that is not computed here"
                )

    def config(self) -> dict[str, Any]:
        def take(key: str, kind: type, default: Any = None) -> Any:
            return self._take(f"{self.kind}.{key}", kind, default)

        values = {theirs: take(key, int) for key, theirs in _KEYS.items()}
        heads = values["num_attention_heads"]
        width = take("attention.key_length", int, values["hidden_size"] // max(heads, 1))
        for key in ("attention.value_length", "rope.dimension_count"):
            if take(key, int, width) != width:
                raise UserError(
                    f"{self.path}: {self.kind}.{key} is not the width of a head, {width}"
                )
        base = take("rope.freq_base", float, 10_000.0)
        angles: dict[str, Any] = {"rope_type": "default", "rope_theta": base}
        scaling = take("rope.scaling.type", str, "linear")
        factor = take("rope.scaling.factor", float, 1.0)
        if _FREQUENCIES in self.tensors:
            angles |= self._slowed_down(Rotation(base), width)
        elif scaling != "none" and factor not in (0, 1):
            angles |= {"rope_type": scaling, "factor": factor}
        tokens = self.facts.get("tokenizer.ggml.tokens")
        values |= {
            "model_type": self.family.model_type,
            "num_key_value_heads": take("attention.head_count_kv", int, heads),
            "head_dim": width,
            "rms_norm_eps": take("attention.layer_norm_rms_epsilon", float),
            "vocab_size": take("vocab_size", int, tokens and len(tokens)),
            "tie_word_embeddings": "output.weight" not in self.tensors,
            "rope_parameters": angles,
        }
        for role, key in _ROLES.items():
            values[f"{role}_token_id"] = self.facts.get(f"tokenizer.ggml.{key}_token_id")
        if self.kind == "gemma3":
            base = take("rope.freq_base_swa", float, 10_000.0)
            local = {"rope_type": "default", "rope_theta": base}
            values["rope_parameters"] = {"full_attention": angles, "sliding_attention": local}
            values["sliding_window"] = take("attention.sliding_window", int)
            is_27b = values["num_hidden_layers"] == 62  # as llama.cpp tells it: no key says so
            values["query_pre_attn_scalar"] = values["hidden_size"] // heads if is_27b else width
        self._refuse_rest(of_tokenizer=False)
        return values

    def _slowed_down(self, plain: Rotation, width: int) -> dict[str, Any]:
        """Llama 3.1's settings; UserError where the file's factors are not those that they make."""
        factors = self.tensors.pop(_FREQUENCIES).read()
        slow = plain._replace(factor=float(factors.max()))
        cpu = torch.device("cpu")
        if factors.shape != (width // 2,) or not torch.allclose(
            waves(slow, width, cpu) * factors, waves(plain, width, cpu), rtol=1e-4, atol=0
        ):
            raise UserError(
                f"{self.path}: {_FREQUENCIES} has factors that are not Llama 3.1's; other ones are "
                "not computed here"
            )
        return {
            "rope_type": "llama3",
            "factor": slow.factor,
            "low_freq_factor": slow.low,
            "high_freq_factor": slow.high,
            "original_max_position_embeddings": slow.original,
        }

    def headers(
        self, architecture: Architecture, config: BodyConfig
    ) -> tuple[dict[str, Lazy], Path]:
        import gguf

        # Of more layers than that the model is refused by what has called this.
        layers = range(min(config.num_layers, len(self.tensors)))
        kinds = {name: kind for kind, name in gguf.MODEL_ARCH_NAMES.items()}
        names = gguf.get_tensor_name_map(kinds[self.kind], len(layers))
        modules = [architecture.tokens, architecture.output, *architecture.head.values()]
        for parts in architecture.layer.values():
            modules += [f"{architecture.layers}.{n}.{part}" for n in layers for part in parts]
        called = {names.get_name(module): module for module in modules}
        headers = {}
        for name, header in self.tensors.items():
            module, _, ending = name.rpartition(".")
            theirs = f"{called[module]}.{ending}" if module in called else name
            headers[theirs] = header.map(self._change(module, config))
        return headers, self.path

    def _change(self, module: str, config: BodyConfig) -> Callable[[Tensor], Tensor]:
        """What makes of a tensor of the file what transformers' model has."""
        heads = {"attn_q": config.num_heads, "attn_k": config.num_key_heads}
        count = heads.get(module.rpartition(".")[2])
        if self.family.paired and count:  # two halves of a head's rows lie there in pairs
            return lambda rows: rows.unflatten(0, (count, -1, 2)).transpose(1, 2).flatten(0, 2)
        if self.family.shifted and module.endswith("norm"):
            return lambda numbers: numbers - 1
        return lambda numbers: numbers

    def tokenizer(self, config: Any) -> PreTrainedTokenizerBase:
        model = self._take("tokenizer.ggml.model", str)
        cut = self._take("tokenizer.ggml.pre", str, "none")
        spaced = model == "llama" and self.kind != "gemma3"
        if model not in ("gpt2", "llama"):
            raise UserError(
                f"{self.path}: tokenizer.ggml.model {model:.40}; there are gpt2 and llama"
            )
        if self._take("tokenizer.ggml.add_space_prefix", bool, spaced) != spaced:
            raise UserError(
                f"{self.path}: tokenizer.ggml.add_space_prefix {not spaced} is not served for such "
                "a model"
            )
        self._refuse_rest(of_tokenizer=True)
        if model == "llama":
            with tempfile.TemporaryDirectory() as alone:  # in which nothing beside it is found
                (Path(alone) / self.path.name).symlink_to(self.path.absolute())
                return tokenizer_of(Path(alone), gguf_file=self.path.name)
        if cut not in _CUTS:
            raise UserError(
                f"{self.path}: tokenizer.ggml.pre {cut:.40} says how text is cut, which is not "
                f"known here; there are {', '.join(_CUTS)}"
            )
        with one_line(self.path, "its tokenizer cannot be made"):
            return self._byte_level(cut)

    def _byte_level(self, cut: str) -> PreTrainedTokenizerBase:
        """A tokenizer that cuts as tokenizer.ggml.pre says; transformers' own knows few of them,
        and adds tokens that a file has not.
        """
        from transformers import PreTrainedTokenizerFast

        facts = {key.rpartition(".")[2]: value for key, value in self.facts.items()}
        tokens = facts["tokens"]
        vocabulary = {token: id for id, token in enumerate(tokens)}
        merges = [tuple(merge.split(" ")) for merge in facts["merges"]]
        is_llama3 = cut in _LLAMA3  # where a word that is a token is that token
        tokenizer = Tokenizer(models.BPE(vocabulary, merges, ignore_merges=is_llama3))
        tokenizer.normalizer = normalizers.NFC() if cut == "qwen2" else None
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence(_CUTS[cut])
        tokenizer.decoder = decoders.ByteLevel()
        for token, kind in zip(tokens, facts.get("token_type", ()), strict=False):
            if kind in (_SPECIAL, _OF_USER):
                added = AddedToken(token, normalized=False, special=kind == _SPECIAL)
                tokenizer.add_tokens([added])
        ids = {f"{role}_token": facts.get(f"{key}_token_id") for role, key in _ROLES.items()}
        return PreTrainedTokenizerFast(
            tokenizer_object=tokenizer,
            add_bos_token=facts.get("add_bos_token", is_llama3),
            add_eos_token=facts.get("add_eos_token", False),
            chat_template=facts.get("chat_template"),
            **{role: tokens[id] for role, id in ids.items() if id is not None},
        )

    def weight_files(self) -> list[Path]:
        return [self.path]

    def license(self) -> str | None:
        return license_name(self.facts.get("general.license"))

    def hub_name(self) -> str | None:
        for key in _ORIGINS:
            value = str(self.facts.get(f"general.{key}", ""))
            name = hub_name(value.removeprefix("https://huggingface.co/").rstrip("/"))
            if name is not None:
                return name
        return None


def _read(path: Path) -> tuple[dict[str, Any], dict[str, Lazy]]:
    """(metadata, tensors by their headers) of a file; UserError where it is none, or damaged."""
    gguf = import_extra("gguf", "gguf")

    class Reader(gguf.GGUFReader):  # type: ignore[name-defined]
        """Reads by numpy's `frombuffer`: in a quarter of the time, and not behind the end."""

        def _get(self, offset: int, dtype: Any, count: Any = 1, override_order: Any = None) -> Any:
            return np.frombuffer(self.data, dtype, int(count), int(offset))

    def header(tensor: Any) -> Lazy:
        # What has fewer bits than these becomes bf16, whose rounding is small beside theirs.
        kept = {"F32": torch.float32, "F16": torch.float16}
        dtype = kept.get(tensor.tensor_type.name, torch.bfloat16)

        def read() -> Tensor:
            with one_line(path, "a tensor cannot be read"):
                numbers = gguf.dequantize(np.array(tensor.data), tensor.tensor_type)
                return torch.from_numpy(numbers).to(dtype)

        return Lazy(tuple(map(int, reversed(tensor.shape))), dtype, read)

    with one_line(path, "not a GGUF file, or damaged; download it again"):
        reader = Reader(path)
        facts = {name: field.contents() for name, field in reader.fields.items()}
        return facts, {tensor.name: header(tensor) for tensor in reader.tensors}
