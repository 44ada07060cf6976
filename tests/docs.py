"""The commands, recipes and links that README.md, the pages of docs/ and comments of the recipes
hold.
"""

import importlib.util
import re
import shlex
from pathlib import Path

ROOT = Path(__file__).parents[1]
_OTHERS = [
    "README.md",
    "CONTRIBUTING.md",
    "CHANGELOG.md",
    "ds_configs/README.md",
    "benchmarks/README.md",
    "ds_minimodel/training/zero/README.md",
]
PAGES = [
    *map(ROOT.joinpath, _OTHERS),
    *sorted((ROOT / "docs").glob("*.md")),
    *sorted((ROOT / "study").rglob("*.md")),
]
_COMMAND = re.compile(
    r"(ds-minimodel [a-z]|deepspeed .* ds_minimodel|mpirun|torchrun"
    r"|(python|bash) (scripts|study|examples)/|python -m benchmarks)"
)


def name_of(page):
    return str(page.relative_to(ROOT))


def text_of(page):
    return (ROOT / page).read_text()


def blocks(page, language=""):
    """Contents of the page's fenced blocks in a language."""
    fenced = re.findall(r"^```(\w*)\n(.*?)^```", text_of(page), re.DOTALL | re.MULTILINE)
    return [content for of_block, content in fenced if of_block == language]


def prose(page):
    """The page without its fenced blocks."""
    return re.sub(r"^```.*?^```", "", text_of(page), flags=re.DOTALL | re.MULTILINE)


def inline_code(page):
    return re.findall(r"`([^`\n]+)`", prose(page))


def lines_to_type(page):
    """Lines of a page that a reader types: of blocks, fenced or indented, and of the comments of a
    recipe.
    """
    if str(page).endswith(".yaml"):
        text = re.sub(r"\\\n#? *", "", text_of(page))
        return re.findall(r"^# +(ds-minimodel .*)", text, re.MULTILINE)
    text = (
        "".join(blocks(page))
        + "\n"
        + "\n".join(re.findall(r"^    +(.*)", prose(page), re.MULTILINE))
    )
    return re.sub(r"\\\n *", "", text).splitlines()


def commands(page):
    """Command lines of a page as it has them: those to type, and whole ones within sentences and
    tables.
    """
    lines = lines_to_type(page)
    if str(page).endswith(".md"):
        lines += [code for code in inline_code(page) if len(code.split()) > 2]
    parts = [part.strip() for line in lines for part in re.sub(r"\s#.*", "", line).split("&&")]
    return list(dict.fromkeys(part for part in parts if _COMMAND.match(part)))


def words(command):
    """The words of a command; what follows the program's name in the second place."""
    found = shlex.split(command)
    program = next(
        (index for index, word in enumerate(found) if word in ("ds-minimodel", "ds_minimodel")),
        None,
    )
    return found, None if program is None else found[program + 1 :]


def import_script(path):
    """A script that docs or other scripts call, as a module."""
    spec = importlib.util.spec_from_file_location("script", ROOT / path)
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    return script
