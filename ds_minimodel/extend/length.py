"""How long `extend` trains: the steps that fit into hours, or that tokens take."""

import statistics
import time

from ds_minimodel.common.errors import UserError
from ds_minimodel.common.files import read_json_lines
from ds_minimodel.config.reading import load_recipe
from ds_minimodel.config.schema import Recipe
from ds_minimodel.data.store import TokenStore
from ds_minimodel.extend.call import Call, TrainingBudget, adaptation_of
from ds_minimodel.extend.recipe import BATCHES, MAX_PASSES, MIN_STEPS, WARM_STEPS
from ds_minimodel.extend.vocabulary_size import FEW_TOKENS
from ds_minimodel.pipeline.layout import WorkdirLayout
from ds_minimodel.pipeline.run import steps_to_run


def set_length(call: Call, budget: TrainingBudget) -> None:
    """Give the recipe the steps that a budget buys; UserError where it has more already."""
    adapt = call.recipe().adapt
    tokens_a_step = adapt.batch_size * adapt.seq_length
    former = call.state.steps
    if former and budget == (call.state.hours, call.state.tokens):
        steps = former
    elif budget.tokens is not None:
        steps = max(MIN_STEPS, budget.tokens // tokens_a_step)
        if steps * tokens_a_step > budget.tokens:
            call.say(
                f"{budget.tokens:,} tokens: {steps * tokens_a_step:,} are trained on, {steps} "
                "steps, the fewest"
            )
    else:
        assert budget.hours is not None
        steps = _steps_in(call, budget.hours)
    if steps < former:
        raise UserError(
            f"{call.path}: a training of {former * tokens_a_step:,} tokens is begun; a shorter "
            "one takes another --out"
        )
    # Beyond each of these counts of tokens other sizes are chosen.
    limits = (FEW_TOKENS, *BATCHES)
    former_tokens = former * tokens_a_step
    tokens = steps * tokens_a_step
    if former and any(former_tokens <= limit < tokens for limit in limits):
        call.say(
            f"new tokens and the batch stay as chosen for {former_tokens:,} tokens; another --out "
            "chooses anew"
        )
    # What would be refused is refused before anything is changed.
    if steps != adapt.steps:
        steps_to_run(load_recipe(call.path, [f"adapt.steps={steps}"]), ranks=1, rebuild=False)
    # What is chosen is noted first: after a kill it is not chosen again.
    call.note(hours=budget.hours, tokens=budget.tokens, steps=steps)
    if steps != adapt.steps:
        call.set("adapt", "steps", steps)


def measured_rate(recipe: Recipe) -> float:
    """Return the tokens per second of a recipe's training so far, without its first steps.

    A sample counts as `adapt.seq_length` tokens.
    """
    rows = read_json_lines(adaptation_of(recipe) / "run/metrics.jsonl")
    rates = [row["tokens_per_second"] for row in rows if "tokens_per_second" in row]
    return statistics.median(rates[WARM_STEPS:] or rates)


def _steps_in(call: Call, hours: float) -> int:
    """Train the first steps, and return how many fit into the hours by their time.

    In the first call what is done before the training counts as well.
    """
    begun = time.monotonic()
    recipe = call.recipe()
    adapt = recipe.adapt
    call.run(until="adapt")
    rate = measured_rate(recipe)
    tokens_a_step = adapt.batch_size * adapt.seq_length
    trained = adapt.steps * tokens_a_step
    seconds = 3600 * hours
    fewest = tokens_a_step
    if not call.state.steps:
        seconds -= max(0, time.monotonic() - begun - trained / rate)
        fewest = trained
    layout = WorkdirLayout(recipe.workdir)
    most = MAX_PASSES * TokenStore(layout.tokens(call.config.language)).num_tokens
    tokens = int(seconds * rate)
    passes = f", {MAX_PASSES} passes over the text, the most" if tokens >= most else ""
    tokens = max(min(tokens, most), fewest)
    call.say(
        f"{rate:,.0f} tokens a second here: {tokens:,} tokens{passes} in "
        f"{tokens / rate / 3600:.1f} hours of training"
    )
    return tokens // tokens_a_step
