"""A model in a GGUF file comes in as the folder does that it was made of, or is refused in one
line.
"""

import json
import shutil

import pytest
import torch
import transformers
from sentencepiece import SentencePieceProcessor, SentencePieceTrainer
from torch.testing import assert_close
from transformers import AutoTokenizer
from transformers.integrations.gguf.gguf_tokenizer_mapping import GGUF_PRE_TOKENIZER_SPLITS
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from ds_minimodel.artifacts.base import refer
from ds_minimodel.artifacts.models import load_model
from ds_minimodel.hf import gguf as reader
from tests.helpers.files import read_json
from tests.helpers.foreign_models import save_llama
from tests.hf.gguf_files import write_gguf

from .conftest import ODD_TEXTS, TEXTS, randomise
from .refusing import change, refused


@pytest.fixture(scope="module")
def folder(text_file, tmp_path_factory):
    """A Llama with digits as SmolLM2's."""
    return save_llama(text_file, tmp_path_factory.mktemp("gguf") / "theirs", "$A")


def comes_in_as(folder, path, out):
    """The folder of the vocabulary of the file, whose body and language are the folder's to the
    bit.
    """
    refer(path, out / "new/of-file")
    refer(folder, out / "of-folder")
    one, rows = load_model(out / "new/of-file")
    other, other_rows = load_model(out / "of-folder")
    assert one.config == other.config
    assert_close(dict(one.tensors), dict(other.tensors), rtol=0, atol=0)
    assert_close(dict(rows.embeddings), dict(other_rows.embeddings), rtol=0, atol=0)
    return out / "new/of-file/tokenizer"


def test_it_comes_in_as_its_folder_does(folder, text_file, tmp_path):
    pack = comes_in_as(folder, write_gguf(folder, tmp_path / "tiny.gguf"), tmp_path)
    manifest = read_json(pack.parent / "manifest.json")
    assert manifest["imported_from"] == "tiny"
    assert "base_model" not in manifest, "a file's name is none on the Hub"
    one = AutoTokenizer.from_pretrained(pack)
    other = AutoTokenizer.from_pretrained(folder)
    for text in (text_file.read_text()[:300], "a  1", *TEXTS, *ODD_TEXTS):
        assert one(text)["input_ids"] == other(text)["input_ids"], text


@pytest.mark.parametrize("kind", ["qwen2", "qwen3", "gemma3"])
def test_other_families(folder, tmp_path, kind):
    sizes = dict(
        vocab_size=331,
        hidden_size=16,
        intermediate_size=24,
        num_hidden_layers=7,
        max_position_embeddings=64,
    )
    heads = dict(
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=8,
        tie_word_embeddings=kind != "qwen2",
    )
    of_kind = {"query_pre_attn_scalar": 8, "sliding_window": 16} if kind == "gemma3" else {}
    theirs = tmp_path / "theirs"
    config = transformers.AutoConfig.for_model(
        kind if kind != "gemma3" else "gemma3_text", **sizes, **heads, **of_kind
    )
    randomise(transformers.AutoModelForCausalLM.from_config(config)).save_pretrained(theirs)
    AutoTokenizer.from_pretrained(folder).save_pretrained(theirs)
    comes_in_as(theirs, write_gguf(theirs, tmp_path / "tiny.gguf"), tmp_path)


@pytest.mark.parametrize(
    "changes, words",
    [
        ({"tensors": {"blk.1.ffn_up.weight": None}}, "no tensor model.layers.1.mlp.up_proj.weight"),
        (
            {"tensors": {"blk.0.attn_q.bias": [0.0] * 16}},
            "q_proj.bias' is nothing that a LlamaForCausalLM",
        ),
        ({"facts": {"llama.block_count": 9_999}}, "20 tensors, where"),
        ({"facts": {"llama.block_count": None}}, "llama.block_count"),
        (
            {"facts": {"llama.rope.dimension_count": 4}},
            "llama.rope.dimension_count is not the width of a head, 8",
        ),
        (
            {"facts": {"llama.logit_scale": 2.0}},
            "llama.logit_scale 2.0 is a setting that is not computed here",
        ),
        ({"facts": {"tokenizer.ggml.add_sep_token": True}}, "add_sep_token True is a setting"),
        (
            {"tensors": {"rope_freqs.weight": [1.0, 2.0, 7.0, 8.0]}},
            "rope_freqs.weight has factors that are not Llama 3.1's",
        ),
        ({"facts": {"tokenizer.ggml.pre": "tekken"}}, "tokenizer.ggml.pre tekken"),
        ({"facts": {"tokenizer.ggml.model": "bert"}}, "tokenizer.ggml.model bert"),
        (
            {"facts": {"tokenizer.ggml.add_space_prefix": True}},
            "tokenizer.ggml.add_space_prefix True",
        ),
        ({"facts": {"tokenizer.ggml.merges": ["a b c"]}}, "its tokenizer cannot be made"),
        ({"facts": {"general.architecture": "mamba"}}, "general.architecture mamba"),
    ],
)
def test_what_is_not_taken_over(folder, tmp_path, changes, words):
    refused(write_gguf(folder, tmp_path / "tiny.gguf", **changes), tmp_path / "out", words)


SCALED = {
    "linear": {"factor": 4.0},
    "llama3": {
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    },
}


@pytest.mark.parametrize("kind", SCALED)
def test_angles_are_scaled_as_it_says(folder, tmp_path, kind):
    """Llama 3.1's by a factor for each wave."""
    theirs = shutil.copytree(folder, tmp_path / "theirs")
    change(
        theirs / "config.json",
        rope_parameters={"rope_type": kind, "rope_theta": 500_000.0, **SCALED[kind]},
    )
    facts = {"type": "linear", "factor": 4.0, "original_context_length": 16}
    changes = {"facts": {f"llama.rope.scaling.{key}": value for key, value in facts.items()}}
    if kind == "llama3":
        slow, _ = ROPE_INIT_FUNCTIONS[kind](transformers.AutoConfig.from_pretrained(theirs), "cpu")
        changes = {
            "tensors": {"rope_freqs.weight": 500_000.0 ** -(torch.arange(0, 8, 2) / 8) / slow}
        }
    comes_in_as(theirs, write_gguf(theirs, tmp_path / "tiny.gguf", **changes), tmp_path)


def test_a_part_of_a_model(folder, tmp_path):
    write_gguf(folder, tmp_path / "tiny.gguf", split=8)
    first, *_ = sorted(tmp_path.glob("*.gguf"))
    refused(first, tmp_path / "out", "a part of a model; join them by llama-gguf-split --merge")


def by_split(pattern_of):
    """GPT-2's kind, with the words that transformers knows for a kind of files."""

    def made(vocab, merges):
        tokenizer = transformers.GPT2Tokenizer(vocab=vocab, merges=merges)
        backend = tokenizer.backend_tokenizer
        steps = json.loads(backend.to_str())
        split = {
            "type": "Split",
            "pattern": {"Regex": GGUF_PRE_TOKENIZER_SPLITS[pattern_of]},
            "behavior": "Isolated",
        }
        by_bytes = {
            "type": "ByteLevel",
            "add_prefix_space": False,
            "trim_offsets": True,
            "use_regex": False,
        }
        steps["pre_tokenizer"] = {
            "type": "Sequence",
            "pretokenizers": [{**split, "invert": False}, by_bytes],
        }
        steps["model"]["ignore_merges"] = True
        return backend.from_str(json.dumps(steps))

    return made


@pytest.mark.parametrize(
    "pre, definition",
    [
        (
            "gpt-2",
            lambda vocab, merges: (
                transformers.GPT2Tokenizer(vocab=vocab, merges=merges).backend_tokenizer
            ),
        ),
        (
            "qwen2",
            lambda vocab, merges: (
                transformers.Qwen2Tokenizer(vocab=vocab, merges=merges).backend_tokenizer
            ),
        ),
        ("llama-bpe", by_split("llama-bpe")),
    ],
)
def test_text_is_cut_as_its_kind_says(folder, tmp_path, pre, definition):
    model = read_json(folder / "tokenizer.json")["model"]
    vocab = model["vocab"] | {"<|endoftext|>": 330}
    merges = [tuple(merge) for merge in model["merges"]]
    file = reader.GgufFile(write_gguf(folder, tmp_path / "tiny.gguf", pre=pre))
    file.config()
    ours = file.tokenizer(None)
    theirs = definition(vocab, merges)
    for text in ["a  1", "12345 1234", "I'LL it's\n\n x\t", "cafe\u0301", *TEXTS, *ODD_TEXTS]:
        assert ours(text, add_special_tokens=False)["input_ids"] == theirs.encode(text).ids, text
    assert ours("a")["input_ids"][0] == 1 or pre != "llama-bpe", (
        "of which llama.cpp begins texts where nothing is said"
    )


def test_sentencepiece_files(text_file, tmp_path):
    """Llama 2's kind: pieces with scores and bytes."""
    theirs = tmp_path / "theirs"
    theirs.mkdir()
    settings = dict(model_type="bpe", vocab_size=500, byte_fallback=True, character_coverage=0.98)
    SentencePieceTrainer.train(
        input=str(text_file), model_prefix=str(theirs / "tokenizer"), **settings
    )
    pieces = SentencePieceProcessor(model_file=str(theirs / "tokenizer.model"))
    ids = range(pieces.vocab_size())
    kinds = [
        2
        if pieces.is_unknown(id)
        else 3
        if pieces.is_control(id)
        else 6
        if pieces.is_byte(id)
        else 1
        for id in ids
    ]
    tokens = {
        "tokens": [pieces.id_to_piece(id) for id in ids],
        "scores": [pieces.get_score(id) for id in ids],
    }
    tokens |= {
        "token_type": kinds,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "unknown_token_id": 0,
        "add_bos_token": False,
        "add_sep_token": False,
    }
    sizes = dict(
        vocab_size=len(ids),
        hidden_size=16,
        intermediate_size=24,
        num_hidden_layers=2,
        num_attention_heads=2,
    )
    randomise(
        transformers.LlamaForCausalLM(transformers.LlamaConfig(max_position_embeddings=64, **sizes))
    ).save_pretrained(theirs)
    transformers.LlamaTokenizer.from_pretrained(theirs).save_pretrained(theirs)
    path = write_gguf(
        theirs, tmp_path / "tiny.gguf", tokens={"model": "llama", "pre": "default", **tokens}
    )
    pack = comes_in_as(theirs, path, tmp_path)
    one = AutoTokenizer.from_pretrained(pack)
    other = AutoTokenizer.from_pretrained(theirs)
    for text in (*TEXTS, *ODD_TEXTS):
        assert one(text)["input_ids"] == other(text)["input_ids"], text
    facts = {"tokenizer.ggml.add_space_prefix": False}
    path = write_gguf(
        theirs, tmp_path / "other.gguf", tokens={"model": "llama", **tokens}, facts=facts
    )
    refused(path, tmp_path / "out", "tokenizer.ggml.add_space_prefix False")


def test_what_is_none_is_refused(folder, tmp_path):
    path = tmp_path / "bad.gguf"
    whole = write_gguf(folder, tmp_path / "tiny.gguf").read_bytes()
    many = (1 << 62).to_bytes(8, "little")
    key = b"tokenizer.ggml.eos_token_id"
    endless = whole.replace(key + bytes([4, 0, 0, 0]), key + bytes([9, 0, 0, 0, 0, 0, 0, 0]) + many)
    assert endless != whole, "a list of more numbers than there are bytes"
    for content in (
        endless,
        b"",
        b"GG",
        b"GGUF" + bytes(20),
        whole[:-4],
        whole[:200],
        whole[:8] + many + whole[16:],
    ):
        path.write_bytes(content)
        refused(path, tmp_path / "out", "not a GGUF file, or damaged; download it again")
    sizes = dict(
        tensors={"rope_freqs.weight": torch.ones(4)}, facts={"llama.attention.key_length": 3 << 30}
    )
    # It is refused before all memory is taken.
    refused(write_gguf(folder, path, **sizes), tmp_path / "out", "rope_freqs")
