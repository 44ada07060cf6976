"""docs/launch.md: its commands are ones that the front door takes, its scripts are there."""

import re
import shlex
from pathlib import Path

import pytest

from ds_minimodel import cli

ROOT = Path(__file__).parent.parent
PAGE = (ROOT / "docs" / "launch.md").read_text(encoding="utf-8")
COMMANDS = re.findall(r"(?:ds-minimodel|-m ds_minimodel|--module ds_minimodel)((?: [\w./=-]+)+)", PAGE)


@pytest.mark.parametrize("command", COMMANDS)
def test_commands_are_taken(command):
    options = cli.parse(shlex.split(command))
    assert callable(options.run)


def test_files_are_there():
    assert len(COMMANDS) >= 8
    for name in re.findall(r"scripts/[\w/]+\.sh", PAGE):
        assert (ROOT / name).is_file(), name
    for name in re.findall(r"\]\(\.\./([\w./]+)\)", PAGE):
        assert (ROOT / name).is_file(), name
