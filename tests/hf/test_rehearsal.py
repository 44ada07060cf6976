"""What a decoder writes by itself: by its own distribution, from where its chat template lets a user begin."""

import math

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from ds_minimodel.common.errors import UserError
from ds_minimodel.data.store import TokenStore
from ds_minimodel.hf.convert import import_hf
from ds_minimodel.hf.rehearsal import ROWS, rehearse

from .test_decoders import save_llama
from .test_modernbert import save_modernbert

TEMPLATE = "{% for m in messages %}<|begin|>{{ m.role }}: {{ m.content }}<|end|>{% endfor %}"


def base_of(folder, text_file, template):
    theirs = save_llama(text_file, folder / "theirs", "$A")
    tokenizer = AutoTokenizer.from_pretrained(theirs)
    tokenizer.chat_template = template
    tokenizer.save_pretrained(theirs)
    import_hf(theirs, folder / "base", "en")
    return folder / "base"


def documents(base):
    store = TokenStore(base / "rehearsal", verify=True)
    return [store.read(*store.document(number)).tolist() for number in range(store.num_documents)]


@pytest.mark.parametrize("template", [TEMPLATE, None])
def test_it_writes_by_its_own_distribution_after_the_template(text_file, tmp_path, template):
    base = base_of(tmp_path, text_file, template)
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "theirs")
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "theirs").eval()
    opening = tokenizer("<|begin|>user: ")["input_ids"] if template else [tokenizer.eos_token_id]
    written = documents(rehearse(base, tokens=12_000).parent)
    assert len(written) % ROWS == 0 and sum(len(ids) - 1 - len(opening) for ids in written) >= 12_000
    assert all(ids[: len(opening)] == opening and ids[-1] == tokenizer.eos_token_id for ids in written)
    ids_RS = torch.tensor(written)[:, :-1]
    with torch.inference_mode():
        log_RSV = model(ids_RS).logits[:, len(opening) - 1 : -1].log_softmax(-1)
    losses_P = -log_RSV.gather(-1, ids_RS[:, len(opening) :, None]).flatten()
    entropy = -(log_RSV.exp() * log_RSV).sum(-1).mean()
    assert abs(losses_P.mean() - entropy) < 4 * losses_P.std() / math.sqrt(len(losses_P)) + 0.01  # bf16's, at most


def test_a_seed_repeats_and_what_is_there_stays(text_file, tmp_path):
    base = base_of(tmp_path, text_file, None)
    found = []
    for seed in (1, 1, 2):
        found.append(documents(rehearse(base, 100, seed).parent))
        with pytest.raises(UserError, match="rehearsal: exists"):
            rehearse(base, 100, seed)
        (base / "rehearsal").rename(tmp_path / f"former-{len(found)}")
    assert found[0] == found[1] != found[2]


def test_an_encoder_writes_nothing(text_file, tmp_path):
    save_modernbert(text_file, tmp_path / "theirs")
    import_hf(tmp_path / "theirs", tmp_path / "base", "en")
    with pytest.raises(UserError, match="an encoder"):
        rehearse(tmp_path / "base")
