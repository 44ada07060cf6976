"""Commands in this process, where torch is loaded."""

import contextlib
import io

import pytest

from ds_minimodel.cli.main import main

from ..forks import words


def answer(*command):
    """(exit code, standard output, standard error) of `ds-minimodel COMMAND`."""
    out = io.StringIO()
    err = io.StringIO()
    with (
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
        pytest.raises(SystemExit) as end,
    ):
        main(words(*command))
    return end.value.code, out.getvalue(), err.getvalue()


def answered(*command):
    """The standard output of a command that must succeed."""
    code, out, err = answer(*command)
    assert code == 0, err
    return out


def refused(*command):
    """The one line on standard error of a command that must be refused."""
    code, out, err = answer(*command)
    lines = [line for line in err.splitlines() if line.startswith("ds-minimodel: ")]
    assert code == 2, err
    assert len(lines) == 1
    assert "Traceback" not in err
    assert not out
    return lines[0]
