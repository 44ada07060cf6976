"""The file that a harness of faults leaves: what it counted, and where, when and by which command."""

import json
import os
import time
from pathlib import Path
from typing import Any


def write_report(path: Path, counted: dict[str, Any], seed: int, began: float, arguments: str) -> str:
    """Write the report, and return it. began: of time.monotonic. arguments: of scripts/faults.sh."""
    import deepspeed
    import torch

    report = {
        **counted,
        "seed": seed,
        "minutes": round((time.monotonic() - began) / 60, 1),
        "device": f"CPU, {os.cpu_count()} cores",
        "torch": torch.__version__,
        "deepspeed": deepspeed.__version__,
        "date": time.strftime("%Y-%m-%d"),
        "command": f"bash scripts/faults.sh {arguments}",
    }
    text = json.dumps(report, indent=1)
    path.write_text(text + "\n")
    return text
