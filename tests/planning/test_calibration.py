"""What `calibrate` measures on this machine, from which a step is predicted."""

import subprocess
import sys

from synthetic import model

from ds_minimodel.planning.devices import named
from ds_minimodel.planning.plans import Planner

from .test_forecast import SETUP, batch

SMALL_CALIBRATION = """
import sys
from ds_minimodel.common.files import write_json
from ds_minimodel.planning import calibration as at
at.MODEL_SIZES = {"cpu": (at.TINY, at.TINY)}
at.PASSES = at.STEPS = 1
at.LINK_BYTES, at.LARGE, at.TOGETHER = 1 << 16, (2, 1 << 10), 2
write_json(sys.argv[1], at.calibrate(at.CLOCKS["cpu"]).model_dump())
"""


def test_a_step_is_predicted_from_a_measured_machine(tmp_path):
    """With models so small that it takes seconds."""
    subprocess.run([sys.executable, "-c", SMALL_CALIBRATION, tmp_path / "here.json"], check=True)
    device = named(str(tmp_path / "here.json"))
    assert device.measured.in_node.bandwidth > 0
    assert {"product", "copy", "attention", "update at ZeRO 3"} <= device.measured.rates["fp32"].keys()
    planner = Planner(model("pretrain"), batch, "fp32", device)
    total, parts = planner.seconds(planner.plan(SETUP._replace(precision="fp32")))
    assert 0 < total < 10 and parts["bound"]
