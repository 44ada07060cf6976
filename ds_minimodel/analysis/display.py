"""How tables and plots name systems and print compute."""

from typing import NamedTuple

from ds_minimodel.analysis.flops import EFLOPS_PER_V100_DAY

SYSTEM_NAMES = {  # in the order of the paper's tables
    "bl_base": "BL_BASE", "bl_small": "BL_SMALL", "minipost": "MiniPost", "minijoint": "MiniJoint",
    "multijoint": "MultiJoint"}


class Unit(NamedTuple):
    name: str
    per_eflop: float

    def of(self, eflops):
        """`eflops` in this unit, as text with three significant digits at most; ∞ where it is infinite."""
        value = eflops * self.per_eflop
        if value == float("inf"):
            return "∞"
        return f"{value:.0f}" if value >= 100 else f"{value:.1f}" if value >= 10 else f"{value:.2f}"


_FLOPS = [Unit("EFLOPs", 1), Unit("PFLOPs", 1e3), Unit("TFLOPs", 1e6), Unit("GFLOPs", 1e9)]
_V100 = [Unit(f"V100 {name}", per_day / EFLOPS_PER_V100_DAY)
         for name, per_day in (("days", 1), ("hours", 24), ("minutes", 24 * 60), ("seconds", 24 * 3600))]


def flops_unit(largest_eflops):
    """The largest unit in which `largest_eflops` is at least 1: runs on a laptop cost PFLOPs, not EFLOPs."""
    return _largest_that_fits(_FLOPS, largest_eflops)


def v100_unit(largest_eflops):
    """The same for the time that one V100 would take."""
    return _largest_that_fits(_V100, largest_eflops)


def _largest_that_fits(units, eflops):
    return next((unit for unit in units if eflops * unit.per_eflop >= 1), units[-1])


def in_order(names, order=SYSTEM_NAMES):
    """Distinct `names`: those in `order` first and in its order, others after them as they come."""
    names = dict.fromkeys(names)
    return [*(name for name in order if name in names), *(name for name in names if name not in order)]
