"""Tasks with labels: records, encoding, batches, answers and scores.

Classification: read_table -> encode_table -> TaskSampler or evaluation_batches -> score_classification.
Questions: read_squad -> encode_questions -> the same batches -> find_answers -> score_qa.
"""

from ds_minimodel.data.tasks.batches import Examples, TaskSampler, evaluation_batches
from ds_minimodel.data.tasks.classification import encode_table
from ds_minimodel.data.tasks.forms import forms_of
from ds_minimodel.data.tasks.metrics import score_classification, score_qa
from ds_minimodel.data.tasks.qa import Windows, encode_questions, find_answers
from ds_minimodel.data.tasks.records import Records, read_table
from ds_minimodel.data.tasks.squad import Question, read_squad

__all__ = ["Examples", "Question", "Records", "TaskSampler", "Windows", "encode_questions", "encode_table",
           "evaluation_batches", "find_answers", "forms_of", "read_squad", "read_table",
           "score_classification", "score_qa"]
