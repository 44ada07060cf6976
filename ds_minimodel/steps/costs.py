"""What the steps of a recipe cost."""

from ds_minimodel.base import read_base
from ds_minimodel.analysis.flops import recipe_costs


def costs(recipe):
    """Rows of cost for each step of the recipe (analysis/flops.py); none for the pretraining of a base."""
    model, mini, vocab_size = recipe.model, recipe.mini, recipe.tokenizer.vocab_size
    pretrain, source_vocab_size = recipe.pretrain.model_dump(), vocab_size
    if recipe.base is not None:
        pretrain, source_vocab_size = None, read_base(recipe.base).vocab_size
    return recipe_costs(recipe.systems, num_layers=model.num_layers, hidden_size=model.hidden_size,
                        ffn_size=model.ffn_size, vocab_size=vocab_size, source_vocab_size=source_vocab_size, mini_depth=mini.depth,
                        new_layers=mini.new_layers, depths=mini.depths, pretrain=pretrain,
                        build_mini=recipe.build_mini.model_dump(), adapt=recipe.adapt.model_dump())
