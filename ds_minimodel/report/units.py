"""Names of systems and units of compute, as tables and plots print them."""

from collections.abc import Iterable
from typing import NamedTuple

from ds_minimodel.models.flops import EFLOPS_PER_V100_DAY
from ds_minimodel.recipe.systems import SYSTEMS


def name_of(system: str) -> str:
    """Printed name of a system."""
    return SYSTEMS[system].title


def in_order(systems: Iterable[str]) -> list[str]:
    """Distinct systems in the paper's order."""
    there = set(systems)
    return [name for name in SYSTEMS if name in there]


class ComputeUnit(NamedTuple):
    """Unit of compute, and how many of it are an EFLOP."""

    name: str
    per_eflop: float

    def text(self, eflops: float) -> str:
        """`eflops` in this unit, printed with three significant digits at most; ∞ where it is infinite."""
        value = eflops * self.per_eflop
        if value == float("inf"):
            return "∞"
        decimals = 0 if value >= 99.95 else 1 if value >= 9.995 else 3 if 0 < value < 0.1 else 2
        return f"{value:.{decimals}f}"


_FLOPS = [ComputeUnit("EFLOPs", 1), ComputeUnit("PFLOPs", 1e3), ComputeUnit("TFLOPs", 1e6), ComputeUnit("GFLOPs", 1e9)]
_A_DAY = {"days": 1, "hours": 24, "minutes": 24 * 60, "seconds": 24 * 3600, "milliseconds": 24 * 3600 * 1000}
_V100 = [ComputeUnit(f"V100 {name}", per_day / EFLOPS_PER_V100_DAY) for name, per_day in _A_DAY.items()]


def flops_unit(largest_eflops: float) -> ComputeUnit:
    """Largest unit of FLOPs in which `largest_eflops` is at least 1: runs on a laptop cost PFLOPs, not EFLOPs."""
    return _largest_that_fits(_FLOPS, largest_eflops)


def v100_unit(largest_eflops: float) -> ComputeUnit:
    """Largest unit of one V100's time in which `largest_eflops` is at least 1."""
    return _largest_that_fits(_V100, largest_eflops)


def _largest_that_fits(units: list[ComputeUnit], eflops: float) -> ComputeUnit:
    return next((unit for unit in units if eflops * unit.per_eflop >= 1), units[-1])
