"""Models in GGUF files, as llama.cpp writes them.

Metadata become a configuration and a tokenizer, and tensors are known by their headers. What a file
says is taken over or refused, and nothing beside it is read.
"""

from __future__ import annotations

import re
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers
from torch import Tensor

from ds_minimodel.common.errors import UserError, one_line
from ds_minimodel.common.extras import import_extra
from ds_minimodel.hf.lazy import DTYPES, Lazy
from ds_minimodel.hf.names.architecture import Architecture
from ds_minimodel.hf.names.modern import rope_parameters
from ds_minimodel.hf.source import Source, hub_name, license_name, tokenizer_of
from ds_minimodel.models import BodyConfig
from ds_minimodel.models.modern import Rotation
from ds_minimodel.models.modern.model import waves

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

# The tensor of factors by which Llama 3.1's waves are slowed down.
_FREQUENCIES = "rope_freqs.weight"
# general.architecture -> transformers' model_type.
_MODEL_TYPES = {"llama": "llama", "qwen2": "qwen2", "qwen3": "qwen3", "gemma3": "gemma3_text"}
# Metadata, after the name of the architecture -> key of config.json.
_KEYS = {
    "context_length": "max_position_embeddings",
    "block_count": "num_hidden_layers",
    "embedding_length": "hidden_size",
    "feed_forward_length": "intermediate_size",
    "attention.head_count": "num_attention_heads",
}
# Role of a special token in transformers -> in a file.
_ROLES = {"bos": "bos", "eos": "eos", "unk": "unknown", "pad": "padding"}
# Values of tokenizer.ggml.token_type: special tokens, and others that are found whole in a text.
_SPECIAL = 3
_USER_DEFINED = 4
# Of metadata what changes nothing that is computed here, or is read with the tokenizer.
_IGNORED = re.compile(
    r"GGUF\.|general\.|split\.|quantize\.|\w+\.tensor_data_layout$|tokenizer\.chat_template"
    r"|tokenizer\.ggml\.(model|pre|add_space_prefix|add_[be]os_token)$"
    r"|tokenizer\.ggml\.(\w+_token_id|tokens|scores|token_type|merges)$"
    r"|\w+\.rope\.scaling\.(finetuned|original_context_length)$"
)


def _split(digits: str) -> list[Any]:
    """Return Llama 3's cut of a text into words, with `digits` as the pattern of numbers."""
    pattern = (
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|"
        + digits
        + r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
    )
    return [
        pre_tokenizers.Split(Regex(pattern), "isolated"),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
    ]


# How a byte-level vocabulary cuts a text, by its tokenizer.ggml.pre.
_LLAMA3 = ("llama3", "llama-v3", "llama-bpe")
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
    """A model in a GGUF file.

    Args:
        path: of the file.

    Raises:
        UserError: it is no such file, a part of a model, or of a kind that is not served.
    """

    def __init__(self, path: Path):
        self.name = path.stem
        self.path = path
        self.config_path = path
        self.facts, self.tensors = _read(path)
        self.kind = self._take("general.architecture", str)
        if self.kind not in _MODEL_TYPES:
            known = ", ".join(_MODEL_TYPES)
            raise UserError(f"{path}: general.architecture {self.kind:.40}; there are {known}")
        if self._take("split.count", int, 1) > 1:
            raise UserError(f"{path}: a part of a model; join them by llama-gguf-split --merge")

    def _take(self, key: str, kind: type, default: Any = None) -> Any:
        """Return the value of `key`, which thereby is used.

        Raises:
            UserError: it is of another type, or is missing and there is no default.
        """
        value = self.facts.pop(key, default)
        if isinstance(value, float):
            # In fp32 1e-5 is another number; the shortest that rounds to it is what is meant.
            value = float(str(np.float32(value)))
        if not isinstance(value, kind):
            raise UserError(
                f"{self.path}: {key} {value!r:.60}, where a value of type {kind.__name__} is to be"
            )
        return value

    def config(self) -> dict[str, Any]:
        """Return the file's metadata as the content of a config.json.

        Raises:
            UserError: one is missing, or would change what is computed and is not served.
        """

        def take(key: str, kind: type, default: Any = None) -> Any:
            return self._take(f"{self.kind}.{key}", kind, default)

        values = {hf_key: take(key, int) for key, hf_key in _KEYS.items()}
        hidden_size = values["hidden_size"]
        heads = values["num_attention_heads"]
        width = take("attention.key_length", int, hidden_size // max(heads, 1))
        for key in ("attention.value_length", "rope.dimension_count"):
            if take(key, int, width) != width:
                raise UserError(
                    f"{self.path}: {self.kind}.{key} is not the width of a head, {width}"
                )
        rotary_base = take("rope.freq_base", float, 10_000.0)
        scaling = take("rope.scaling.type", str, "linear")
        factor = take("rope.scaling.factor", float, 1.0)
        angles = rope_parameters(rotary_base)
        if _FREQUENCIES in self.tensors:
            angles = self._slowed_down(Rotation(rotary_base), width)
        elif scaling != "none" and factor not in (0, 1):
            angles |= {"rope_type": scaling, "factor": factor}
        tokens = self.facts.get("tokenizer.ggml.tokens")
        values |= {
            "model_type": _MODEL_TYPES[self.kind],
            "num_key_value_heads": take("attention.head_count_kv", int, heads),
            "head_dim": width,
            "rms_norm_eps": take("attention.layer_norm_rms_epsilon", float),
            "vocab_size": take("vocab_size", int, tokens and len(tokens)),
            "tie_word_embeddings": "output.weight" not in self.tensors,
            "rope_parameters": angles,
        }
        for role, name in _ROLES.items():
            values[f"{role}_token_id"] = self.facts.get(f"tokenizer.ggml.{name}_token_id")
        if self.kind == "gemma3":
            local_angles = rope_parameters(take("rope.freq_base_swa", float, 10_000.0))
            values["rope_parameters"] = {
                "full_attention": angles,
                "sliding_attention": local_angles,
            }
            values["sliding_window"] = take("attention.sliding_window", int)
            # No key says what scores are divided by; llama.cpp tells the 27B by its layers.
            is_27b = values["num_hidden_layers"] == 62
            values["query_pre_attn_scalar"] = hidden_size // heads if is_27b else width
        # What is left was not asked for. It must change nothing, as a token that is not added.
        for key, value in self.facts.items():
            is_off = value is False and key.startswith("tokenizer.ggml.add_")
            if not is_off and not _IGNORED.match(key):
                raise UserError(
                    f"{self.path}: {key} {value!r:.60} is a setting that is not computed here"
                )
        return values

    def _slowed_down(self, plain: Rotation, width: int) -> dict[str, Any]:
        """Return Llama 3.1's settings of angles.

        Raises:
            UserError: the file's factors are not those that the settings make.
        """
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
        return rope_parameters(*slow)

    def headers(
        self, architecture: Architecture, config: BodyConfig
    ) -> tuple[dict[str, Lazy], Path]:
        """Return ({name in transformers: tensor}, the file)."""
        import gguf

        # A model of more layers than there are tensors is refused by what has called this.
        layers = range(min(config.num_layers, len(self.tensors)))
        gguf_names = gguf.get_tensor_name_map(gguf.MODEL_ARCH[self.kind.upper()], len(layers))
        hf_modules = [architecture.tokens, architecture.output, *architecture.head.values()]
        for parts in architecture.layer.values():
            hf_modules += [f"{architecture.layers}.{n}.{part}" for n in layers for part in parts]
        hf_module_of = {gguf_names.get_name(hf_module): hf_module for hf_module in hf_modules}
        headers = {}
        for name, lazy in self.tensors.items():
            module, _, ending = name.rpartition(".")
            hf_module = hf_module_of.get(module, module)
            headers[f"{hf_module}.{ending}"] = self._as_in_transformers(module, lazy, config)
        return headers, self.path

    def _as_in_transformers(self, module: str, lazy: Lazy, config: BodyConfig) -> Lazy:
        """Return a tensor of a module of the file as transformers' model has it."""
        heads = {"attn_q": config.num_heads, "attn_k": config.num_key_heads}
        count = heads.get(module.rpartition(".")[2])
        if self.kind == "llama" and count:
            # The two halves of a head's rows, which rotary positions mix, lie there in pairs.
            return lazy.map(
                lambda rows: rows.unflatten(0, (count, -1, 2)).transpose(1, 2).flatten(0, 2)
            )
        if self.kind == "gemma3" and module.endswith("norm"):
            # The file has 1 + weight.
            return lazy.map(lambda weight: weight - 1)
        return lazy

    def tokenizer(self, config: Any) -> PreTrainedTokenizerBase:
        """Return the tokenizer of the file's vocabulary.

        Raises:
            UserError: it is of a kind that is not served, or damaged.
        """
        model = self._take("tokenizer.ggml.model", str)
        cut = self._take("tokenizer.ggml.pre", str, "none")
        is_spaced = model == "llama" and self.kind != "gemma3"
        if model not in ("gpt2", "llama"):
            raise UserError(
                f"{self.path}: tokenizer.ggml.model {model:.40}; there are gpt2 and llama"
            )
        if self._take("tokenizer.ggml.add_space_prefix", bool, is_spaced) != is_spaced:
            raise UserError(
                f"{self.path}: tokenizer.ggml.add_space_prefix {not is_spaced} is not served for "
                "such a model"
            )
        if model == "llama":
            # In a folder of its own, where transformers finds nothing beside it.
            with tempfile.TemporaryDirectory() as folder:
                (Path(folder) / self.path.name).symlink_to(self.path.absolute())
                return tokenizer_of(Path(folder), gguf_file=self.path.name)
        if cut not in _CUTS:
            raise UserError(
                f"{self.path}: tokenizer.ggml.pre {cut:.40} says how text is cut, which is not "
                f"known here; there are {', '.join(_CUTS)}"
            )
        with one_line(self.path, "its tokenizer cannot be made"):
            return self._byte_level(cut)

    def _byte_level(self, cut: str) -> PreTrainedTokenizerBase:
        """Return a tokenizer that cuts as tokenizer.ggml.pre says.

        Transformers' reader of such files knows few of them, and adds tokens that a file has not.
        """
        from transformers import PreTrainedTokenizerFast

        facts = {key.rpartition(".")[2]: value for key, value in self.facts.items()}
        tokens = facts["tokens"]
        ids = {token: id for id, token in enumerate(tokens)}
        merges = [tuple(merge.split(" ")) for merge in facts["merges"]]
        # Llama 3 looks a word up before it merges its bytes.
        is_llama3 = cut in _LLAMA3
        tokenizer = Tokenizer(models.BPE(ids, merges, ignore_merges=is_llama3))
        tokenizer.normalizer = normalizers.NFC() if cut == "qwen2" else None
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence(_CUTS[cut])
        tokenizer.decoder = decoders.ByteLevel()
        for token, kind in zip(tokens, facts.get("token_type", ()), strict=False):
            if kind in (_SPECIAL, _USER_DEFINED):
                added = AddedToken(token, normalized=False, special=kind == _SPECIAL)
                tokenizer.add_tokens([added])
        special = {}
        for role, name in _ROLES.items():
            id = facts.get(f"{name}_token_id")
            if id is not None:
                special[f"{role}_token"] = tokens[id]
        return PreTrainedTokenizerFast(
            tokenizer_object=tokenizer,
            add_bos_token=facts.get("add_bos_token", is_llama3),
            add_eos_token=facts.get("add_eos_token", False),
            chat_template=facts.get("chat_template"),
            **special,
        )

    def weight_files(self) -> list[Path]:
        """Return the file, which holds the configuration too."""
        return [self.path]

    def license(self) -> str | None:
        """Return the license that the metadata name."""
        return license_name(self.facts.get("general.license"))

    def hub_name(self) -> str | None:
        """Return the name on the Hub of what the file was made from, where the metadata have it."""
        for key in _ORIGINS:
            value = str(self.facts.get(f"general.{key}", ""))
            name = hub_name(value.removeprefix("https://huggingface.co/").rstrip("/"))
            if name is not None:
                return name
        return None


def _read(path: Path) -> tuple[dict[str, Any], dict[str, Lazy]]:
    """Return (metadata, tensors by their headers) of a file; UserError where it is damaged."""
    gguf = import_extra("gguf", "gguf")

    class Reader(gguf.GGUFReader):  # type: ignore[name-defined]
        """Reads by numpy's `frombuffer`: in a quarter of the time, and not behind the end."""

        def _get(self, offset: int, dtype: Any, count: Any = 1, **_: Any) -> Any:
            return np.frombuffer(self.data, dtype, int(count), int(offset))

    def header(tensor: Any) -> Lazy:
        # Quantised weights become bf16, whose rounding is small beside that of the file.
        dtype = DTYPES.get(tensor.tensor_type.name, torch.bfloat16)

        def read() -> Tensor:
            with one_line(path, "a tensor cannot be read"):
                values = gguf.dequantize(np.array(tensor.data), tensor.tensor_type)
                return torch.from_numpy(values).to(dtype)

        return Lazy(tuple(map(int, reversed(tensor.shape))), dtype, read)

    with one_line(path, "not a GGUF file, or damaged; download it again"):
        reader = Reader(path)
        facts = {name: field.contents() for name, field in reader.fields.items()}
        return facts, {tensor.name: header(tensor) for tensor in reader.tensors}
