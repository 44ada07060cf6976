"""Loss rows {"system", "stage", "language", "step", "eflops", "loss"} out of a run's metrics.jsonl.

stage is the pipeline's step ("pretrain", "build-mini", "adapt"), step the optimizer's.
"""

import json


def read_losses(path, system, stage, language):
    """Loss rows of one run, by rising step.

    A run that was killed and resumed writes some steps again: the last record of a step counts. A line cut
    short by a kill, and records that hold no loss, are passed over.
    """
    by_step = {}
    with open(path, encoding="utf-8") as file:
        for line in file:
            try:
                record = json.loads(line)
            except ValueError:
                continue
            if "loss" in record:
                by_step[record["step"]] = {"system": system, "stage": stage, "language": language,
                                           "step": record["step"], "eflops": record["eflops"],
                                           "loss": record["loss"]}
    return [by_step[step] for step in sorted(by_step)]
