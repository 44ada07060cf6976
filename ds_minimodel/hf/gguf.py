"""Models in GGUF files, as llama.cpp has them: metadata as a configuration and a tokenizer, tensors
by their headers.

What a file says is taken over or refused, and nothing beside it is read. The format:
https://github.com/ggml-org/ggml/blob/master/docs/gguf.md
"""

from __future__ import annotations

import importlib.util
import math
import re
import struct
import tempfile
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers
from torch import Tensor

from ds_minimodel.common.errors import UserError, one_line
from ds_minimodel.hf.lazy import Lazy
from ds_minimodel.hf.names.architecture import Architecture
from ds_minimodel.hf.source import Source, license_name, tokenizer_of
from ds_minimodel.models import BodyConfig
from ds_minimodel.models.modern import Rotation
from ds_minimodel.models.modern.model import waves

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

MAGIC, _VERSIONS = b"GGUF", (2, 3)
_NUMBERS = {
    0: "B",
    1: "b",
    2: "H",
    3: "h",
    4: "I",
    5: "i",
    6: "f",
    7: "?",
    10: "Q",
    11: "q",
    12: "d",
}
_TEXT = 8  # else a list
_PART = re.compile(r"(.*)-\d{5}-of-\d{5}\.gguf")
_FREQUENCIES = "rope_freqs.weight"  # by which Llama 3.1's waves are slowed down
_ORIGINALS = [
    1 << power for power in range(4, 22)
]  # positions before that, of which one must give the factors


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
_SPECIAL, _OF_USER = 3, 4  # kinds of tokens that are found whole in a text
# Of metadata what changes nothing that is computed here.
_IGNORED = re.compile(
    r"general\.|split\.|quantize\.|tokenizer\.chat_template|tokenizer\.ggml\.\w+_token_id$|\w+\.tensor_data_layout$"
    r"|\w+\.rope\.scaling\.(finetuned|original_context_length)$"
)


class _Words(NamedTuple):
    """How a byte-level vocabulary cuts a text, by its tokenizer.ggml.pre, and what goes with that.

    steps: before bytes are spelt, which by themselves cut as GPT-2's do where `by_bytes`. whole: a
    word that is a piece is that piece, whatever the merges. bos: whether one stands before a text
    where the file does not say.
    """

    steps: list[Any]
    by_bytes: bool = True
    composed: bool = False
    whole: bool = False
    bos: bool = False


def _split(numbers: str) -> list[Any]:
    """Llama 3's words, with other numbers."""
    pattern = (
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|"
        + numbers
        + r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
    )
    return [pre_tokenizers.Split(Regex(pattern), "isolated")]


_LLAMA3 = _Words(_split(r"\p{N}{1,3}"), by_bytes=False, whole=True, bos=True)
_WORDS = {
    "gpt-2": _Words([]),
    "smollm": _Words([pre_tokenizers.Digits(individual_digits=True)]),
    "qwen2": _Words(_split(r"\p{N}"), by_bytes=False, composed=True),
    **dict.fromkeys(("llama3", "llama-v3", "llama-bpe"), _LLAMA3),
}


class GgufFile(Source):
    """A file, with the others where it is of a model in parts; UserError where it is none or one is
    missing.
    """

    def __init__(self, path: Path):
        if importlib.util.find_spec("gguf") is None:
            raise UserError(
                f"{path}: a GGUF file is read with the package gguf; pip install "
                "'ds_minimodel[gguf]'"
            )
        self.name, self.path, self.config_path = path.stem, path, path
        self.facts, self.tensors = _read(path)
        self.parts = [path]
        count = self._take("split.count", int, 1)
        if count > 1:
            self.parts, self.tensors = [], {}
        for number in range(1, count + 1 if count > 1 else 1):
            named, ending = _PART.fullmatch(path.name), f"-{number:05}-of-{count:05}.gguf"
            part = path.with_name(f"{named[1] if named else path.stem}{ending}")
            if not part.is_file():
                raise UserError(
                    f"{path}: one of {count:,} parts of a model; {part} must be beside it"
                )
            facts, tensors = _read(part)
            if (facts.get("split.no"), facts.get("split.count")) != (number - 1, count):
                raise UserError(
                    f"{part}: not part {number} of {count:,}, by its split.no; download it again"
                )
            self.parts.append(part)
            self.facts = facts if number == 1 else self.facts
            self.tensors = tensors | self.tensors
        if len(self.tensors) != self._take("split.tensors.count", int, len(self.tensors)):
            raise UserError(
                f"{path}: its parts have {len(self.tensors):,} tensors together; "
                "split.tensors.count differs"
            )
        self.kind = self._take("general.architecture", str)
        if self.kind not in _FAMILIES:
            raise UserError(
                f"{path}: general.architecture {self.kind:.40}; there are {', '.join(_FAMILIES)}"
            )
        self.family = _FAMILIES[self.kind]

    def _take(self, key: str, kind: type, default: Any = None) -> Any:
        """The value of `key`, which thereby is used; UserError where it is of another type, or
        there is no default.
        """
        value = self.facts.pop(key, default)
        if not isinstance(value, kind):
            raise UserError(
                f"{self.path}: {key} {value!r:.60}, where a value of type {kind.__name__} is to be"
            )
        return value

    def _refuse_rest(self, of_tokenizer: bool) -> None:
        """UserError for metadata that is not used, and may change what is computed."""
        for key, value in self.facts.items():
            is_off = value is False and key.startswith("tokenizer.ggml.add_")
            if (
                key.startswith("tokenizer.") == of_tokenizer
                and not _IGNORED.match(key)
                and not is_off
            ):
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
        scaling, factor = (
            take("rope.scaling.type", str, "linear"),
            take("rope.scaling.factor", float, 1.0),
        )
        angles: dict[str, Any] = {"rope_type": "default", "rope_theta": base}
        if scaling != "none" and factor not in (0, 1):
            angles |= {"rope_type": scaling, "factor": factor}
        if _FREQUENCIES in self.tensors:
            angles |= self._slowed_down(Rotation(base), width, angles["rope_type"])
        tokens = self.facts.get("tokenizer.ggml.tokens")
        values |= {
            "model_type": self.family.model_type,
            "num_key_value_heads": take("attention.head_count_kv", int, heads),
            "head_dim": width,
            "rms_norm_eps": take("attention.layer_norm_rms_epsilon", float),
            "vocab_size": take(
                "vocab_size", int, len(tokens) if isinstance(tokens, list) else None
            ),
            "tie_word_embeddings": "output.weight" not in self.tensors,
            "rope_parameters": angles,
            **{
                f"{role}_token_id": self.facts.get(f"tokenizer.ggml.{key}_token_id")
                for role, key in _ROLES.items()
            },
        }
        if self.family.shifted:
            local = {
                "rope_type": "default",
                "rope_theta": take("rope.freq_base_swa", float, 10_000.0),
            }
            values["rope_parameters"] = {"full_attention": angles, "sliding_attention": local}
            values["sliding_window"] = take("attention.sliding_window", int)
            is_27b = values["num_hidden_layers"] == 62  # as llama.cpp tells it: no key says so
            values["query_pre_attn_scalar"] = (
                values["hidden_size"] // max(heads, 1) if is_27b else width
            )
        self._refuse_rest(of_tokenizer=False)
        return values

    def _slowed_down(self, plain: Rotation, width: int, scaling: str) -> dict[str, Any]:
        """Llama 3.1's settings by the factors that the file has of them."""
        factors = self.tensors.pop(_FREQUENCIES).read()
        factor, cpu = float(factors.max()), torch.device("cpu")
        for original in (
            _ORIGINALS if scaling == "default" and factors.shape == (width // 2,) else ()
        ):
            slow = plain._replace(factor=factor, original=original)
            if torch.allclose(
                waves(slow, width, cpu) * factors, waves(plain, width, cpu), rtol=1e-4, atol=0
            ):
                values = {
                    "factor": factor,
                    "low_freq_factor": slow.low,
                    "high_freq_factor": slow.high,
                }
                return values | {
                    "rope_type": "llama3",
                    "original_max_position_embeddings": original,
                }
        raise UserError(
            f"{self.path}: {_FREQUENCIES} has factors that are not Llama 3.1's; other ones are not "
            "computed here"
        )

    def headers(
        self, architecture: Architecture, config: BodyConfig
    ) -> tuple[dict[str, Lazy], Path]:
        import gguf

        layers = range(
            min(config.num_layers, len(self.tensors))
        )  # of more it is refused by what has called this
        kinds = {name: kind for kind, name in gguf.MODEL_ARCH_NAMES.items()}
        names = gguf.get_tensor_name_map(kinds[self.kind], len(layers))
        parts = [part for parts in architecture.layer.values() for part in parts]
        modules = [architecture.tokens, architecture.output, *architecture.head.values()]
        modules += [f"{architecture.layers}.{index}.{part}" for index in layers for part in parts]
        called = {names.get_name(module): module for module in modules}
        heads = (
            {"attn_q": config.num_heads, "attn_k": config.num_key_heads}
            if self.family.paired
            else {}
        )
        headers = {}
        for name, header in self.tensors.items():
            module, _, kind = name.rpartition(".")
            part = module.rpartition(".")[2]

            def read(header: Lazy = header, part: str = part) -> Tensor:
                numbers = header.read()
                if part in heads:  # whose two halves lie there in pairs
                    return numbers.unflatten(0, (heads[part], -1, 2)).transpose(1, 2).flatten(0, 2)
                return numbers - 1 if self.family.shifted and part.endswith("norm") else numbers

            headers[f"{called[module]}.{kind}" if module in called else name] = Lazy(
                header.shape, header.dtype, read
            )
        return headers, self.path

    def tokenizer(self, config: Any) -> PreTrainedTokenizerBase:
        model, pre = (
            self._take("tokenizer.ggml.model", str),
            self._take("tokenizer.ggml.pre", str, "none"),
        )
        spaced = model == "llama" and not self.family.shifted
        if model not in ("gpt2", "llama"):
            raise UserError(
                f"{self.path}: tokenizer.ggml.model {model:.40}; there are gpt2 and llama"
            )
        if self._take("tokenizer.ggml.add_space_prefix", bool, spaced) != spaced:
            raise UserError(
                f"{self.path}: tokenizer.ggml.add_space_prefix {not spaced} is not served for such "
                "a model"
            )
        if model == "llama":
            for key in (
                "tokens",
                "scores",
                "token_type",
                "merges",
                "add_bos_token",
                "add_eos_token",
            ):  # that it takes
                self.facts.pop(f"tokenizer.ggml.{key}", None)
            self._refuse_rest(of_tokenizer=True)
            with tempfile.TemporaryDirectory() as alone:  # in which nothing beside it is found
                (Path(alone) / self.path.name).symlink_to(self.path.absolute())
                return tokenizer_of(Path(alone), gguf_file=self.path.name)
        if pre not in _WORDS:
            raise UserError(
                f"{self.path}: tokenizer.ggml.pre {pre:.40} says how text is cut, which is not "
                "known here; there are "
                f"{', '.join(_WORDS)}"
            )
        with one_line(self.path, "its tokenizer cannot be made"):
            return self._byte_level(_WORDS[pre])

    def _byte_level(self, words: _Words) -> PreTrainedTokenizerBase:
        tokens = self._take("tokenizer.ggml.tokens", list)
        kinds = self._take("tokenizer.ggml.token_type", list, [0] * len(tokens))
        merges = [tuple(merge.split(" ")) for merge in self._take("tokenizer.ggml.merges", list)]
        vocabulary = {token: id for id, token in enumerate(tokens)}
        tokenizer = Tokenizer(models.BPE(vocabulary, merges, ignore_merges=words.whole))
        tokenizer.normalizer = normalizers.NFC() if words.composed else None
        by_bytes = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=words.by_bytes)
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence([*words.steps, by_bytes])
        tokenizer.decoder = decoders.ByteLevel()
        whole = [
            (token, kind)
            for token, kind in zip(tokens, kinds, strict=True)
            if kind in (_SPECIAL, _OF_USER)
        ]
        tokenizer.add_tokens(
            [AddedToken(token, normalized=False, special=kind == _SPECIAL) for token, kind in whole]
        )
        ids = {
            role: self.facts.get(f"tokenizer.ggml.{key}_token_id") for role, key in _ROLES.items()
        }
        settings = {
            "add_bos_token": self._take("tokenizer.ggml.add_bos_token", bool, words.bos),
            "add_eos_token": self._take("tokenizer.ggml.add_eos_token", bool, False),
            "chat_template": self.facts.get("tokenizer.chat_template"),
            **{f"{role}_token": tokens[id] for role, id in ids.items() if id is not None},
        }
        self._refuse_rest(of_tokenizer=True)
        from transformers import PreTrainedTokenizerFast

        return PreTrainedTokenizerFast(tokenizer_object=tokenizer, **settings)

    def weight_files(self) -> list[Path]:
        return self.parts

    def license(self) -> str | None:
        return license_name(self.facts.get("general.license"))


class _Values:
    """The values of a file's head one after the other; struct.error where it ends before them."""

    def __init__(self, data: Any):
        self.data, self.at = data, 0

    def numbers(self, form: str) -> tuple[Any, ...]:
        values = struct.unpack_from(f"<{form}", self.data, self.at)
        self.at += struct.calcsize(f"<{form}")
        return values

    def text(self) -> str:
        (length,) = self.numbers("Q")
        return str(self.numbers(f"{length}s")[0], "utf-8")

    def value(self, kind: int) -> Any:
        if kind == _TEXT:
            return self.text()
        if kind in _NUMBERS:
            (value,) = self.numbers(_NUMBERS[kind])
            return (
                float(str(np.float32(value))) if _NUMBERS[kind] == "f" else value
            )  # 1e-5, not the fp32 next to it
        kind, count = self.numbers("IQ")
        if kind in _NUMBERS:
            return [*self.numbers(f"{count}{_NUMBERS[kind]}")]
        return [self.value(kind) for _ in range(count)]


def _read(path: Path) -> tuple[dict[str, Any], dict[str, Lazy]]:
    """(metadata, tensors by their headers) of a file; UserError where it is none, or damaged."""
    import gguf

    with one_line(path, "not a GGUF file, or damaged; download it again"):
        values = _Values(data := np.memmap(path, mode="r"))
        magic, version, num_tensors, num_facts = values.numbers("4sIQQ")
        if magic != MAGIC or version not in _VERSIONS:
            raise ValueError(f"{magic!r}, version {version}")
        facts = {values.text(): values.value(*values.numbers("I")) for _ in range(num_facts)}
        infos = []
        for _ in range(num_tensors):
            name, (dimensions,) = values.text(), values.numbers("I")
            *sizes, kind, offset = values.numbers(f"{dimensions}QIQ")
            infos.append((name, tuple(reversed(sizes)), gguf.GGMLQuantizationType(kind), offset))
        alignment, tensors = facts.get("general.alignment", 32), {}
        start = -(-values.at // alignment) * alignment
        for name, shape, kind, offset in infos:
            numbers, size = gguf.GGML_QUANT_SIZES[kind]
            end = start + offset + math.prod(shape) // numbers * size
            if shape[-1] % numbers or end > len(data) or name in tensors:
                raise ValueError(f"tensor {name:.80}")
            read = partial(_numbers, path, data[start + offset : end], shape, kind)
            tensors[name] = Lazy(shape, _type_of(kind), read)
    return facts, tensors


def _type_of(kind: Any) -> torch.dtype:
    """What the numbers of a tensor become: what they are, or bf16, whose rounding is small beside
    that of 8 bits.
    """
    return {"F32": torch.float32, "F16": torch.float16}.get(kind.name, torch.bfloat16)


def _numbers(path: Path, data: Any, shape: tuple[int, ...], kind: Any) -> Tensor:
    """The numbers of a tensor."""
    import gguf

    with one_line(path, "a tensor cannot be read"):
        rows = np.array(data).reshape(*shape[:-1], -1)
        return torch.from_numpy(gguf.dequantize(rows, kind)).reshape(shape).to(_type_of(kind))
