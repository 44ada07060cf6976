"""Byte-pair tokenizers that spell by bytes what they have no token for."""

import json

from tokenizers import (
    Regex,
    Tokenizer,
    models,
    pre_tokenizers,
    trainers,
)

BYTES = [f"<0x{byte:02X}>" for byte in range(256)]
SPACES = {"type": "Replace", "pattern": {"String": "▁"}, "content": " "}
STRIP = {"type": "Strip", "content": " ", "start": 1, "stop": 0}
OF_BYTES = [SPACES, {"type": "ByteFallback"}, {"type": "Fuse"}, STRIP]


def bpe(lines, **settings):
    """As Llama 2's and Gemma's, without digits side by side or letters beside signs."""
    made = Tokenizer(models.BPE(unk_token="<unk>", byte_fallback=True))
    splits = [pre_tokenizers.Split(Regex(signs), "isolated") for signs in (r"\d", r"[^\p{L}▁\d]")]
    made.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Metaspace(prepend_scheme="always"), *splits]
    )
    special = ["<s>", "</s>", "<unk>", *BYTES]
    made.train_from_iterator(lines, trainers.BpeTrainer(vocab_size=330, special_tokens=special))
    before = [
        {"type": "Prepend", "prepend": "▁"},
        {**SPACES, "pattern": {"String": " "}, "content": "▁"},
    ]
    parts = {"normalizer": {"type": "Sequence", "normalizers": before}, "pre_tokenizer": None}
    return of_bytes(made, **(settings or parts))


def of_bytes(made, **settings):
    content = json.loads(made.to_str())
    content["model"] |= {"byte_fallback": True}
    content |= {
        "added_tokens": content["added_tokens"][:3],
        "decoder": {"type": "Sequence", "decoders": OF_BYTES},
    }
    return Tokenizer.from_str(json.dumps({**content, **settings}))
