"""What `calibrate` measures on this machine, from which a step is predicted."""

from synthetic import model

from ds_minimodel.common.files import write_json
from ds_minimodel.planning import calibration
from ds_minimodel.planning.devices import named
from ds_minimodel.planning.plans import Planner

from ..forks import Fork
from .test_forecast import SETUP, batch


def calibrate(path):
    """With models so small that it takes seconds."""
    calibration.MODEL_SIZES = {"cpu": (calibration.TINY, calibration.TINY)}
    calibration.PASSES = calibration.STEPS = 1
    calibration.LINK_BYTES, calibration.LARGE, calibration.TOGETHER = 1 << 16, (2, 1 << 10), 2
    write_json(path, calibration.calibrate(calibration.CLOCKS["cpu"]).model_dump())


def test_a_step_is_predicted_from_a_measured_machine(tmp_path):
    process = Fork(f"{__name__}:calibrate", tmp_path / "here.json")
    errors = process.communicate()[1]
    assert process.returncode == 0, errors
    device = named(str(tmp_path / "here.json"))
    assert device.measured.in_node.bandwidth > 0
    assert {"product", "copy", "attention", "update at ZeRO 3"} <= device.measured.rates["fp32"].keys()
    planner = Planner(model("pretrain"), batch, "fp32", device)
    total, parts = planner.seconds(planner.plan(SETUP._replace(precision="fp32")))
    assert 0 < total < 10 and parts["bound"]
