"""Memory and traffic of real steps on two ranks are what the plan says."""

import pytest
from ranks import MEASURED, OFFLOADED

from tests.helpers.files import read_json

from ..forks import run_ranks

pytestmark = [pytest.mark.slow, pytest.mark.long]


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    folder = tmp_path_factory.mktemp("costs")
    codes, errors = run_ranks(2, "ranks:costs", folder)
    assert codes == [0, 0], errors
    return read_json(folder / "results.json")


@pytest.mark.parametrize("case", [*MEASURED, *OFFLOADED])
def test_a_step_takes_what_was_planned(results, case):
    """Also with state in host memory and with a second, smaller bucket. But for counters of steps,
    4 bytes each, and padding at the end of a rank's share.
    """
    measured = results[case]["measured"]
    planned = results[case]["planned"]
    assert measured["sent"] == planned["sent"]
    if case in MEASURED:
        assert measured["weights"] == pytest.approx(planned["weights"], abs=64, rel=0)
        assert measured["optimizer"] == pytest.approx(planned["optimizer"], abs=512, rel=0)


@pytest.mark.parametrize("case", [case for case in MEASURED if not case.startswith("pretrain")])
def test_frozen_weights_are_neither_sent_nor_optimised(results, case):
    """Against the same step with everything trainable: in proportion to what trains."""
    trained = results[case]["measured"]
    everything = results[case.replace(case.split()[0], "pretrain")]["measured"]
    share = trained["optimizer"] / everything["optimizer"]
    assert sum(trained["sent"].values()) == pytest.approx(
        share * sum(everything["sent"].values()), rel=0.02
    )
    assert trained["activations"] < everything["activations"]
