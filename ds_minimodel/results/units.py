"""How tables and plots name systems and metrics, and print compute."""

from typing import NamedTuple

from ds_minimodel.costs import EFLOPS_PER_V100_DAY
from ds_minimodel.systems import SYSTEMS


def system_of(variant):
    """The system of a variant: what stands before the space of "SYSTEM N=2" (comparison.py)."""
    return variant.partition(" ")[0]


def name_of(variant):
    """How a variant is printed: "MiniJoint N=2"."""
    system, space, rest = variant.partition(" ")
    return SYSTEMS[system].title + space + rest


class Unit(NamedTuple):
    name: str
    per_eflop: float

    def of(self, eflops):
        """`eflops` in this unit, as text with three significant digits at most; ∞ where it is infinite."""
        value = eflops * self.per_eflop
        if value == float("inf"):
            return "∞"
        decimals = 0 if value >= 99.95 else 1 if value >= 9.995 else 3 if 0 < value < 0.1 else 2
        return f"{value:.{decimals}f}"


_FLOPS = [Unit("EFLOPs", 1), Unit("PFLOPs", 1e3), Unit("TFLOPs", 1e6), Unit("GFLOPs", 1e9)]
_V100 = [
    Unit(f"V100 {name}", per_day / EFLOPS_PER_V100_DAY)
    for name, per_day in (
        ("days", 1),
        ("hours", 24),
        ("minutes", 24 * 60),
        ("seconds", 24 * 3600),
        ("milliseconds", 24 * 3600 * 1000),
    )
]


def flops_unit(largest_eflops):
    """The largest unit in which `largest_eflops` is at least 1: runs on a laptop cost PFLOPs, not EFLOPs."""
    return _largest_that_fits(_FLOPS, largest_eflops)


def v100_unit(largest_eflops):
    """The same for the time that one V100 would take."""
    return _largest_that_fits(_V100, largest_eflops)


def _largest_that_fits(units, eflops):
    return next((unit for unit in units if eflops * unit.per_eflop >= 1), units[-1])


def in_order(names, order=SYSTEMS):
    """Distinct `names` in `order`, a system's variants behind it; those not in `order` last, as they come."""
    names, ranks = list(dict.fromkeys(names)), {name: rank for rank, name in enumerate(order)}
    return sorted(names, key=lambda name: ranks.get(system_of(name), len(ranks)))


def numbered(what, task):
    """The paper's name of a task's table or figure: XQuAD's stand in its appendix under other numbers."""
    in_appendix = {"Table 2": "Table A2", "Table 3": "Table A1", "Figure 3": "Figure A1"}
    return f"{in_appendix[what] if task.lower() == 'xquad' else what} ({task})"
