"""Loss rows {"system", "stage", "language", "step", "eflops", "loss"} out of a run's metrics.jsonl.

stage is the pipeline's step ("pretrain", "build-mini", "adapt"), step the optimizer's.
"""

from ds_minimodel.files import read_json_lines


def read_losses(path, system, stage, language):
    """Loss rows of one run, by rising step.

    A run that was killed and resumed writes some steps again: the last record of a step counts. Records that
    hold no loss are passed over.
    """
    by_step = {}
    for record in read_json_lines(path):
        if "loss" in record:
            by_step[record["step"]] = {"system": system, "stage": stage, "language": language,
                                       "step": record["step"], "eflops": record["eflops"],
                                       "loss": record["loss"]}
    return [by_step[step] for step in sorted(by_step)]
