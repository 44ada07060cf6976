"""What each step cost, and the training losses it ended with, as tables."""

from ds_minimodel.analysis.display import flops_unit, in_order, name_of, v100_unit
from ds_minimodel.analysis.losses import LAST_SHARE
from ds_minimodel.analysis.table import EMPTY, Cell, Table


def cost_table(costs):
    """Cost of every step: the paper's formula, V100 time by it, and what this implementation executes."""
    largest = max((row["formula_eflops"] for row in costs), default=0)
    flops, days = flops_unit(largest), v100_unit(largest)
    systems = in_order(row["system"] for row in costs)
    rows = [[Cell(name_of(row["system"])), Cell(row["step"]), Cell(flops.of(row["formula_eflops"])),
             Cell(days.of(row["formula_eflops"])), Cell(flops.of(row["executed_eflops"])),
             Cell(f"{row['executed_eflops'] / row['formula_eflops']:.2f}")]
            for row in sorted(costs, key=lambda row: systems.index(row["system"]))]
    notes = ["Formula: the paper's appendix A.1, and V100 time by it at 30 TFLOP/s. Executed: the matrix "
             "products that run here. Both are computed from the sizes, not measured. adapt is the cost of "
             "one language; MiniPost's pretraining is BL_BASE's and is paid once."]
    if costs and not any(row["step"] == "pretrain" for row in costs):
        notes.append("The body was pretrained elsewhere: what that took is not known and not counted.")
    return Table("Cost of each step", ["System", "Step", f"formula, {flops.name}", days.name,
                                       f"executed, {flops.name}", "executed ÷ formula"], rows, notes=notes)


def loss_table(losses):
    """Final training loss of every step; loss rows as in losses.py."""
    finals = {}
    for row in losses:
        finals.setdefault((row["system"], row["stage"], row["language"]), []).append(row["final"])
    stages = in_order((stage for _, stage, _ in finals), ["pretrain", "build-mini", "adapt"])
    columns = list(dict.fromkeys((stage, language) for stage in stages for _, of_stage, language in finals
                                 if of_stage == stage))
    rows = [[Cell(name_of(system)), *(_mean_loss(finals.get((system, *column))) for column in columns)]
            for system in in_order(system for system, _, _ in finals)]
    notes = ["Mean training loss (nats a masked token, mean over heads) over the last "
             f"{LAST_SHARE:.0%} of the steps, mean over runs. Each language has a vocabulary of its own: "
             "losses compare within a language only."]
    return Table("Masked-language-model loss",
                 ["System", *(f"{stage} {language}" for stage, language in columns)], rows, notes=notes)


def _mean_loss(finals):
    return EMPTY if finals is None else Cell(f"{sum(finals) / len(finals):.3f}")
