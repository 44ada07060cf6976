"""What people meet at a terminal: widths, tables, and hints for what they type in other tools' ways."""

import fcntl
import os
import pty
import struct
import subprocess
import sys
import termios
from pathlib import Path

import pytest

from ds_minimodel.cli import look
from ds_minimodel.cli.main import parse
from ds_minimodel.common.errors import UserError

ROOT = Path(__file__).parents[2]
PROGRESS = """
import sys
from ds_minimodel.common.progress import Progress
progress = Progress("adapt minijoint de", 1000, "steps")
progress.update(10, "loss " + "7" * 100)
progress.close("loss " + "7" * 100)
"""


def on_terminal(columns, *arguments, stream="stdout"):
    """What Python prints on one of its streams that is a terminal of so many columns."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    environment = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "LINES")}
    streams = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL, stream: theirs}
    process = subprocess.Popen([sys.executable, *arguments], cwd=ROOT, env=environment, **streams)
    os.close(theirs)
    shown = b""
    while True:
        try:
            part = os.read(ours, 1 << 16)
        except OSError:  # the other end is closed
            part = b""
        if not part:
            break
        shown += part
    os.close(ours)
    assert process.wait() == 0
    return shown.decode().replace("\r\n", "\n")


@pytest.mark.parametrize("columns", [40, 100])
def test_progress_stays_on_one_line(columns):
    lines = on_terminal(columns, "-c", PROGRESS, stream="stderr").strip().split("\r")
    assert all(line.startswith("adapt minijoint de:") and len(line) <= columns for line in lines)
    assert "1%|" in lines[-1] and "\n" not in "".join(lines)


@pytest.mark.parametrize(
    "arguments, meant",
    [
        (["--adapt.steps", "3"], "adapt.steps=3"),
        (["--adapt.steps=3"], "adapt.steps=3"),
        (["--data.text.de", "de.txt", "x=1"], "data.text.de=de.txt"),
        (["--adapt.steps"], "adapt.steps=VALUE"),
    ],
)
def test_a_key_given_as_an_option_gets_a_hint(arguments, meant):
    with pytest.raises(UserError, match=rf"unrecognized arguments: .* \(did you mean {meant}\?\)"):
        parse(["run", "paper", *arguments])


def test_doctor_finds_launchers_beside_its_python(tmp_path, monkeypatch):
    (tmp_path / "torchrun").write_text("#!/bin/sh\n")
    (tmp_path / "torchrun").chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    monkeypatch.setenv("PATH", str(tmp_path / "nothing"))
    lines = look.report().splitlines()
    assert f"launcher torchrun: {tmp_path}/torchrun" in lines and "launcher ssh: not found" in lines


def test_an_option_is_not_shortened():
    with pytest.raises(UserError, match="unrecognized arguments: --rank 2"):
        parse(["run", "quickstart", "--rank", "2"])
