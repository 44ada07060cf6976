"""Names of systems, of the paper's tables, and units of compute, as tables and plots print them."""

from collections.abc import Iterable
from typing import NamedTuple

from ds_minimodel.costs import EFLOPS_PER_V100_DAY
from ds_minimodel.systems import SYSTEMS


def system_of(variant: str) -> str:
    """System of a variant: what stands before the space of "SYSTEM N=2" (comparison.py)."""
    return variant.partition(" ")[0]


def name_of(variant: str) -> str:
    """Printed name of a variant: its system's title, and what follows it."""
    system, space, rest = variant.partition(" ")
    return SYSTEMS[system].title + space + rest


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
_V100 = [
    ComputeUnit(f"V100 {name}", per_day / EFLOPS_PER_V100_DAY)
    for name, per_day in (
        ("days", 1),
        ("hours", 24),
        ("minutes", 24 * 60),
        ("seconds", 24 * 3600),
        ("milliseconds", 24 * 3600 * 1000),
    )
]


def flops_unit(largest_eflops: float) -> ComputeUnit:
    """Largest unit of FLOPs in which `largest_eflops` is at least 1: runs on a laptop cost PFLOPs, not EFLOPs."""
    return _largest_that_fits(_FLOPS, largest_eflops)


def v100_unit(largest_eflops: float) -> ComputeUnit:
    """Largest unit of one V100's time in which `largest_eflops` is at least 1."""
    return _largest_that_fits(_V100, largest_eflops)


def _largest_that_fits(units: list[ComputeUnit], eflops: float) -> ComputeUnit:
    return next((unit for unit in units if eflops * unit.per_eflop >= 1), units[-1])


def in_order(names: Iterable[str], order: Iterable[str] = SYSTEMS) -> list[str]:
    """Distinct `names` in `order`, a system's variants behind it; those not in `order` last, as they come."""
    names, ranks = list(dict.fromkeys(names)), {name: rank for rank, name in enumerate(order)}
    return sorted(names, key=lambda name: ranks.get(system_of(name), len(ranks)))


def paper_label(what: str, task: str) -> str:
    """The paper's name of a task's table or figure: XQuAD's stand in its appendix under other numbers."""
    in_appendix = {"Table 2": "Table A2", "Table 3": "Table A1", "Figure 3": "Figure A1"}
    return f"{in_appendix[what] if task.lower() == 'xquad' else what} ({task})"
