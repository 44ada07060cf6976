"""`ds-minimodel recipes`: the recipes that come with the package."""

from ds_minimodel.cli.steps import Commands, Options
from ds_minimodel.common.errors import UserError


def add_arguments(commands: Commands) -> None:
    """Add the command to argparse's `commands`."""
    command = commands.add_parser("recipes", help="list the recipes that come with the package, or print one")
    command.add_argument("name", metavar="NAME", nargs="?", help="the recipe to print; every command takes it by name")
    command.set_defaults(run=_recipes)


def _recipes(options: Options) -> None:
    from ds_minimodel.recipe.reading import package_recipes

    recipes = package_recipes()
    if options.name is None:
        for name, text in recipes.items():
            print(f"{name:<12}{text.partition(chr(10))[0].removeprefix('# ')}")
    elif options.name in recipes:
        print(recipes[options.name], end="")
    else:
        raise UserError(f"{options.name}: no such recipe; there are {', '.join(recipes)}")
