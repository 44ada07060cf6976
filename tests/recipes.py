"""Recipes in one line: the paper's sizes but for what is given."""

from ds_minimodel.config.schema import PaperRecipe


def recipe_of(systems, targets=("de",), source="en", **sections):
    """A Recipe of `systems`; sections: those of the recipe that differ from the defaults, which are
    the paper's.
    """
    values = {
        "workdir": "runs/test",
        "systems": list(systems),
        "languages": {"source": source, "targets": list(targets)},
    }
    values["data"] = {"text": {language: f"{language}.txt" for language in (source, *targets)}}
    return PaperRecipe.model_validate(values | sections)
