"""Format, lint and types of the whole tree, as pyproject.toml configures them; one assignment a
statement, and names that say what they are of.
"""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
# Words that stood for everything.
VAGUE = {"at", "own"}


@pytest.mark.slow
@pytest.mark.parametrize("check", ["ruff check", "ruff format --check", "mypy"])
def test_the_tree_passes(check):
    done = subprocess.run(
        [sys.executable, "-m", *check.split()], cwd=ROOT, capture_output=True, text=True
    )
    assert done.returncode == 0, f"{check}\n{done.stdout}{done.stderr}"


def is_list(node):
    return isinstance(node, (ast.Tuple, ast.List))


def is_packed(statement):
    """Whether a statement assigns several values that it lists: `a, b = f(x), g(y)`, `a = b = c`,
    or one value after another of such a list, `a, b = map(f, (x, y))`.

    An exchange (`a, b = b, a + b`) and the unpacking of one value are not.
    """
    if not isinstance(statement, ast.Assign):
        return False
    if len(statement.targets) > 1:
        return True
    target = statement.targets[0]
    value = statement.value
    if not is_list(target):
        return False
    if is_list(value):
        former = {ast.unparse(name) for name in target.elts}
        return not former.intersection(map(ast.unparse, value.elts))
    if isinstance(value, ast.Call) and ast.unparse(value.func) == "map":
        return is_list(value.args[1])
    return isinstance(value, ast.GeneratorExp) and is_list(value.generators[0].iter)


def is_vague(node):
    """Whether a node gives a value one of the names that say nothing."""
    if isinstance(node, ast.Name):
        return isinstance(node.ctx, ast.Store) and node.id in VAGUE
    return isinstance(node, ast.arg) and node.arg in VAGUE


def faults(folder):
    """One line, with file and line, for each packed assignment and vague name in a folder."""
    for path in sorted(folder.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if is_packed(node):
                yield f"{path}:{node.lineno}: several assignments in a statement"
            elif is_vague(node):
                yield f"{path}:{node.lineno}: a name that says nothing"


@pytest.mark.parametrize("folder", ["ds_minimodel", "tests"])
def test_a_statement_assigns_one_value_to_a_name_that_says_what_it_is(folder):
    assert list(faults(ROOT / folder)) == []


@pytest.mark.parametrize(
    "code, is_fault",
    [
        ("a, b = f(x), g(y)", True),
        ("[a, b] = 1, 2", True),
        ("self.a, b = a, {}", True),
        ("a = b = f(x)", True),
        ("a, b = map(f, (x, y))", True),
        ("a, b = (f(x) for x in (1, 2))", True),
        ("own = 1", True),
        ("def f(at): pass", True),
        ("for at in range(3): pass", True),
        ("a, b = b, a", False),
        ("left, right = right, left + right", False),
        ("a, (b, c) = f(x)", False),
        ("a, b = map(int, line.split())", False),
        ("a, b = (f(x) for x in values)", False),
        ("a = 1, 2", False),
        ("f(own=x.own)", False),
    ],
)
def test_faults_are_found(tmp_path, code, is_fault):
    path = tmp_path / "module.py"
    path.write_text(f"pass\n{code}\n")
    found = list(faults(tmp_path))
    assert [line.startswith(f"{path}:2: ") for line in found] == [True] * is_fault
