"""Tasks with labels, one object for each kind.

A task's life: `read` a file into records -> `encode` into Examples -> TaskSampler or evaluation_batches (batches.py)
-> the kind's `module` -> `score`, or `answers` to requests. kind.py has the interface.
"""

from ds_minimodel.tasks.classification import Classification
from ds_minimodel.tasks.kind import TaskKind
from ds_minimodel.tasks.pair import Pair
from ds_minimodel.tasks.qa import QuestionAnswering
from ds_minimodel.tasks.tagging import Tagging

# A kind of task is one of these and what its file says.
KINDS: dict[str, TaskKind] = {kind.name: kind for kind in (Classification(), Pair(), QuestionAnswering(), Tagging())}
