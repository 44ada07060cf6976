"""What the steps of a recipe cost."""

from ds_minimodel.costs.flops import recipe_costs
from ds_minimodel.recipe.base import source_vocab_size


def costs(recipe):
    """Rows of cost for each step of the recipe (analysis/flops.py); none for the pretraining of a base."""
    model, mini = recipe.model, recipe.mini
    return recipe_costs(
        recipe.systems,
        num_layers=model.num_layers,
        hidden_size=model.hidden_size,
        ffn_size=model.ffn_size,
        vocab_size=recipe.tokenizer.vocab_size,
        source_vocab_size=source_vocab_size(recipe),
        mini_depth=mini.depth,
        new_layers=mini.new_layers,
        depths=mini.depths,
        pretrain=recipe.pretrain.model_dump() if recipe.base is None else None,
        build_mini=recipe.build_mini.model_dump(),
        adapt=recipe.adapt.model_dump(),
    )
