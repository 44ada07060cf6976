"""The paper's systems: which body each pretrains, with heads at which depths, and what it adapts over."""

from ds_minimodel.model.transformer import BodyConfig

# minipost starts from bl_base's body and shares its finetuned models.
BODY_OF = {
    "bl_base": "bl_base",
    "bl_small": "bl_small",
    "minijoint": "minijoint",
    "minipost": "bl_base",
    "multijoint": "multijoint",
}


def bodies(recipe):
    """The bodies to pretrain and finetune, in the order of the recipe's systems."""
    return list(dict.fromkeys(BODY_OF[system] for system in recipe.systems))


def body_config(recipe, body):
    """Architecture of a body with its masked-LM heads."""
    model, mini = recipe.model, recipe.mini
    depths = {
        "bl_base": (model.num_layers,),
        "bl_small": (mini.depth,),
        "minijoint": tuple(sorted({mini.depth, model.num_layers})),
        "multijoint": tuple(mini.depths),
    }[body]
    return BodyConfig(
        depths[-1],
        model.hidden_size,
        model.num_heads,
        model.ffn_size,
        model.max_positions,
        depths,
        model.dropout,
        model.attention_dropout,
    )


def model_inputs(recipe, body):
    """What of the recipe decides the architecture of `body`, for a job's record."""
    config = body_config(recipe, body)
    return {"model": recipe.model.model_dump(), "head_depths": list(config.head_depths)}


def finetune_seeds(recipe):
    """Seeds of the independent finetuning runs."""
    return range(recipe.seed, recipe.seed + recipe.finetune.seeds)
