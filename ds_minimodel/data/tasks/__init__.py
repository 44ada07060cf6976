"""Tasks with labels: records, encoding, batches, answers and scores.

Classification: read_table -> encode_table -> TaskSampler or evaluation_batches -> score_classification.
Questions: read_squad -> encode_questions -> the same batches -> best_spans, answer_texts -> score_qa.
"""

from ds_minimodel.data.tasks.batches import Examples, TaskSampler, evaluation_batches
from ds_minimodel.data.tasks.classification import encode_table
from ds_minimodel.data.tasks.forms import forms_of
from ds_minimodel.data.tasks.metrics import score_classification, score_qa
from ds_minimodel.data.tasks.qa import Windows, answer_texts, best_spans, encode_questions
from ds_minimodel.data.tasks.records import Records, read_table
from ds_minimodel.data.tasks.squad import Question, read_squad

__all__ = ["Examples", "Question", "Records", "TaskSampler", "Windows", "answer_texts", "best_spans",
           "encode_questions", "encode_table", "evaluation_batches", "forms_of", "read_squad", "read_table",
           "score_classification", "score_qa"]
