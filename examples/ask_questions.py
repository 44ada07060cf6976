"""Ask a question-answering model that `export-hf` wrote, whose task is of kind `qa`.

    python examples/ask_questions.py MODEL PACK QUESTION TEXT

transformers has no pipeline for questions any more. Its model gives the scores, and the search for
the answer is the one by which the task was scored.
"""

import sys
from collections.abc import Iterator

import numpy as np
import torch
from transformers import AutoModelForQuestionAnswering

from ds_minimodel.evaluation.batches import inference_batches
from ds_minimodel.evaluation.qa import Question, encode_questions, find_answers
from ds_minimodel.tokenizers.tokenizer import open_tokenizer


def answer(model_folder: str, pack_folder: str, question: str, text: str) -> str:
    """Return the part of a text that answers a question, by an exported model and its pack."""
    model = AutoModelForQuestionAnswering.from_pretrained(model_folder).eval()
    questions = [Question("asked", question, text)]
    windows = encode_questions(open_tokenizer(pack_folder), questions)

    def logits() -> Iterator[tuple[np.ndarray, np.ndarray]]:
        for index, batch in inference_batches(windows.examples, max_tokens=16384):
            tokens = torch.from_numpy(batch["tokens"])
            lengths = torch.from_numpy(batch["lengths"])
            # BERT takes token_type_ids, too, which follow from batch["second"].
            mask = torch.arange(tokens.shape[1]) < lengths[:, None]
            with torch.no_grad():
                scores = model(tokens, attention_mask=mask.long())
            yield index, torch.stack((scores.start_logits, scores.end_logits), -1).numpy()

    return find_answers(questions, windows, logits())["asked"]


if __name__ == "__main__":
    print(answer(*sys.argv[1:]))
