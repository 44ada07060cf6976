"""What a decoder writes by itself, on which it rehearses while a language is added, so that it stays what it was.

Text that a model draws at temperature 1 has the model's own distribution, so the loss on it is least where nothing is
forgotten: it distils without a teacher beside it, and needs no text of anyone (Huang et al., ACL 2024, draw it from
examples). A chat template's beginning alone as a prompt is Magpie's (Xu et al., ICLR 2025).
"""

from pathlib import Path

import numpy as np
import torch
from transformers import AutoTokenizer, GenerationConfig

from ds_minimodel.common.errors import UserError, one_line
from ds_minimodel.common.files import atomic_folder, refuse_existing, write_manifest
from ds_minimodel.common.progress import Progress
from ds_minimodel.data.store import write_shard
from ds_minimodel.data.tokenizer import open_tokenizer
from ds_minimodel.hf.convert import exported
from ds_minimodel.models.artifacts import load_body, load_pack
from ds_minimodel.ops.precision import DTYPES, resolve_precision
from ds_minimodel.recipe.base import REHEARSAL, read_base

TOKENS = 60_000  # in all, where nothing is said
ROWS, LENGTH = 64, 224  # texts at once; tokens of each, after a template's beginning
_QUESTION = "QUESTION"


def rehearse(base: str | Path, tokens: int = TOKENS, seed: int = 1) -> Path:
    """Write at least so many tokens by the model in `base`, as import-hf makes it -> base/rehearsal, a token store.

    They are dialogues from the user's words on where it has a chat template, else texts from its first token on. The
    same seed gives the same ids on a machine with the same versions. UserError where it is there, or no decoder.
    """
    base = Path(base)
    out = base / REHEARSAL
    refuse_existing(out)
    if not read_base(base).config.causal:
        raise UserError(f"{base}: an encoder, which writes nothing by itself; rehearsal is of decoders")
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    tokenizer, body = open_tokenizer(base / "pack"), load_body(base / "body")
    vocabulary = tokenizer.vocabulary
    eos = vocabulary.require("eos", "a rehearsal")
    model = exported(base, body, load_pack(base / "pack", body.space), vocabulary).module().eval()
    model.to(device, DTYPES[resolve_precision("auto", device)])
    begin = torch.tensor([_opening(base / "pack") or [eos if vocabulary.start is None else vocabulary.start]])
    length = min(LENGTH, body.config.max_positions - begin.shape[1])
    if length < 1:
        raise UserError(f"{base}: its chat template begins with more than the {body.config.max_positions} positions")
    model.generation_config = GenerationConfig(do_sample=True, top_k=0, max_new_tokens=length, pad_token_id=eos)
    batches = -(-tokens // (ROWS * length))
    progress = Progress("rehearsal", batches * ROWS * length, "tokens")
    with atomic_folder(out, is_new=True) as folder, torch.random.fork_rng(), torch.inference_mode():
        torch.manual_seed(seed)
        with write_shard(folder, 0, vocabulary.size, tokenizer.sha256) as add:
            for batch in range(batches):
                ids_RS = begin.to(device).repeat(ROWS, 1)
                found_RS = model.generate(ids_RS, attention_mask=torch.ones_like(ids_RS)).cpu().numpy()
                add(np.pad(found_RS, ((0, 0), (0, 1)), constant_values=eos).ravel(), [found_RS.shape[1] + 1] * ROWS)
                progress.update((batch + 1) * ROWS * length)
        facts = {"tokenizer_sha256": tokenizer.sha256, "shards": 1, "whole_documents": True, "seed": seed}
        write_manifest(folder, kind="token_store", **vocabulary.facts(), **facts)
    progress.close()
    return out


def _opening(pack: Path) -> list[int]:
    """Ids that stand before what a user says first, by the chat template; none where there is no template."""
    tokenizer = AutoTokenizer.from_pretrained(pack, local_files_only=True)
    if not tokenizer.chat_template:
        return []
    with one_line(pack, "its chat template does not run"):
        asked = tokenizer.apply_chat_template([{"role": "user", "content": _QUESTION}], tokenize=False)
    return tokenizer(asked.partition(_QUESTION)[0], add_special_tokens=False)["input_ids"]
