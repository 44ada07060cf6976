"""metrics.jsonl and TensorBoard events of a run."""

import json
from pathlib import Path

from ds_minimodel.files import atomic_write, clear_write_errors, read_json_lines


class Metrics:
    """Appends one record a call to `folder`/metrics.jsonl and to TensorBoard, on the rank where it is `enabled`.

    A resumed run drops the records after `start_step`, which it is about to write again.
    """

    def __init__(self, folder, start_step, enabled):
        self.enabled = enabled
        if not enabled:
            return
        from torch.utils.tensorboard import SummaryWriter

        path = Path(folder) / "metrics.jsonl"
        kept = [line for line in read_json_lines(path) if line["step"] <= start_step]
        with atomic_write(path, "w") as file:
            file.writelines(json.dumps(line) + "\n" for line in kept)
        self.file = open(path, "a", encoding="utf-8")
        self.events = SummaryWriter(Path(folder) / "events", purge_step=start_step + 1)

    def write(self, record):
        with clear_write_errors(self.file.name):
            self.file.write(json.dumps(record) + "\n")
            self.file.flush()
            for name, value in record.items():
                if name != "step":
                    self.events.add_scalar(name, value, record["step"])

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if self.enabled:
            self.file.close()
            self.events.close()
