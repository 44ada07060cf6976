"""Tasks with labels: records, encoding, batches, answers and scores.

Classification: read_table -> encode_table -> TaskSampler or evaluation_batches -> score_classification.
Questions: read_squad -> encode_questions -> the same batches -> find_answers -> score_qa.
"""

from ds_minimodel.tasks.batches import Examples, TaskSampler, evaluation_batches
from ds_minimodel.tasks.classification import encode_table
from ds_minimodel.tasks.metrics import score_classification, score_qa
from ds_minimodel.tasks.qa import Question, Windows, encode_questions, find_answers, read_squad
from ds_minimodel.tasks.tables import Records, forms_of, read_table

__all__ = [
    "Examples",
    "Question",
    "Records",
    "TaskSampler",
    "Windows",
    "encode_questions",
    "encode_table",
    "evaluation_batches",
    "find_answers",
    "forms_of",
    "read_squad",
    "read_table",
    "score_classification",
    "score_qa",
]
