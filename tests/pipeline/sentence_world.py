"""A world in miniature for embedding models: a small one of sentence-transformers' form that knows
one made-up language, and pairs of its lines and another language's.
"""

import json
import random

import torch
from transformers import BertConfig, BertModel, BertTokenizerFast

from ds_minimodel.common.files import write_json

WORDS = (
    "wave boat fish salt shore wind cow field barn hay seed plough street shop bridge tower market "
    "lamp old new small great near far sees has makes finds with under over house river stone tree"
).split()
RECIPE = """
base: {folder}/base
workdir: {folder}/run
seed: 3
systems: [bl_base]
languages: {{source: en, targets: [xx]}}
tokenizer: {{vocabulary: extend, vocab_size: 90}}
data: {{workers: 1, pairs: {{xx: {folder}/help.tsv}}, test_pairs: {{xx: {folder}/other.tsv}}}}
mini: {{depth: 1, new_layers: 1}}
optimizer: {{clip: 1.0, weight_decay: 0.0}}
build_mini: {{steps: 6, batch_size: 8, seq_length: 32, lr: 2e-3, warmup_steps: 2}}
adapt: {{steps: 6, batch_size: 8, seq_length: 32, lr: 2e-3, warmup_steps: 2, schedule: wsd,
        initialisation: aligned, rank: 2}}
finetune: {{tasks: {{
    found: {{kind: retrieval, max_length: 32, test: {{xx: {folder}/found.jsonl}}}}}}}}
engine: {{zero_stage: 1, precision: fp32, micro_batch_size: 4}}
checkpoint: {{every: 2, keep_last: 2}}
"""


def translated(word):
    """A word of the other language: no letter stays where it was, and no two words share one."""
    return "z" + word[::-1] + "q"


def pairs_of(count, seed):
    """(line, its translation), all different, of 5 to 9 words in the same order."""
    rng = random.Random(seed)
    lines = dict.fromkeys(
        " ".join(rng.choice(WORDS) for _ in range(rng.randint(5, 9))) for _ in range(count)
    )
    return [(line, " ".join(map(translated, line.split()))) for line in lines]


def write_pairs(path, pairs):
    path.write_text("".join("\t".join(pair) + "\n" for pair in pairs))


def save_sentence_model(folder, *, normalises=True, pooling="mean", seed=0, hidden=32):
    """Write a model as sentence-transformers does, with random weights."""
    torch.manual_seed(seed)
    letters = [chr(code) for code in range(ord("a"), ord("z") + 1)]
    pieces = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *letters]
    pieces += [f"##{letter}" for letter in letters] + WORDS
    folder.mkdir(parents=True)
    (folder / "vocab.txt").write_text("\n".join(pieces))
    tokenizer = BertTokenizerFast(str(folder / "vocab.txt"), model_max_length=64)
    tokenizer.save_pretrained(folder)
    sizes = {"hidden_size": hidden, "num_hidden_layers": 3, "num_attention_heads": 2}
    config = BertConfig(
        vocab_size=len(pieces), intermediate_size=64, max_position_embeddings=64, **sizes
    )
    model = BertModel(config, add_pooling_layer=False)
    with torch.no_grad():  # so that lines differ by their words
        model.embeddings.word_embeddings.weight.normal_(0, 0.2)
    model.save_pretrained(folder)
    parts = {"Transformer": "", "Pooling": "1_Pooling"}
    parts |= {"Normalize": "2_Normalize"} if normalises else {}
    kinds = enumerate(parts.items())
    modules = [
        {"idx": n, "name": str(n), "path": path, "type": f"sentence_transformers.models.{kind}"}
        for n, (kind, path) in kinds
    ]
    write_json(folder / "modules.json", modules)
    write_json(folder / "sentence_bert_config.json", {"max_seq_length": 48, "do_lower_case": False})
    (folder / "1_Pooling").mkdir()
    modes = {
        f"pooling_mode_{mode}": mode.startswith(pooling) for mode in ("mean_tokens", "cls_token")
    }
    write_json(folder / "1_Pooling/config.json", {"word_embedding_dimension": hidden, **modes})
    return folder


def make_sentence_world(folder, **options):
    """Write a base, its pairs, a task and a recipe into `folder`; the recipe's path."""
    save_sentence_model(folder / "base", **options)
    write_pairs(folder / "help.tsv", pairs_of(320, seed=1))
    tested = pairs_of(40, seed=2)
    write_pairs(folder / "other.tsv", tested)
    rows = [json.dumps({"query": target, "document": source}) for source, target in tested]
    (folder / "found.jsonl").write_text("\n".join(rows))
    (folder / "recipe.yaml").write_text(RECIPE.format(folder=folder))
    return folder / "recipe.yaml"
