"""The order of imports that docs/architecture.md draws, and a light front door."""

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parent.parent / "ds_minimodel"

PAGE = PACKAGE.parent / "docs/architecture.md"


def rooms_of_the_page():
    """{room: rooms that it may import} from the table of docs/architecture.md, where "all above"
    is what its rows above name, but for those that a cell goes on to name.
    """
    rows = re.findall(r"^\| `(\w+)` \| [^|]* \| ([^|]*) \|$", PAGE.read_text(), re.MULTILINE)
    allowed = {}
    for room, cell in rows:
        named = set(re.findall(r"`(\w+)`", cell))
        assert named <= {*allowed}, f"{room}: imports go up only"
        allowed[room] = {*allowed} - named if cell.startswith("all above") else named
    return allowed


ALLOWED = {**rooms_of_the_page(), "__init__": set(), "__main__": {"cli"}}
STEPS = {
    "corpus",
    "tokenizer",
    "prepare",
    "pretrain",
    "build_mini",
    "adapt",
    "finetune",
    "evaluate",
    "report",
}
HEAVY = ["torch", "deepspeed", "numpy", "sentencepiece", "safetensors", "matplotlib", "lxml"]


def imported_modules(path, module):
    """(absolute dotted name, whether for types alone) of what `path` (the module `module`) imports,
    at any depth.

    `from a import b` gives a.b: b may be a module.
    """
    package = module if path.name == "__init__.py" else module.rpartition(".")[0]
    tree = ast.parse(path.read_text(), str(path))
    blocks = [
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
    ]
    for_types = {node for block in blocks for node in ast.walk(block)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((alias.name, node in for_types) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            parents = package.split(".")[: 1 - node.level or None] if node.level else []
            source = ".".join([*parents, *([node.module] if node.module else [])])
            yield from ((f"{source}.{alias.name}", node in for_types) for alias in node.names)


def faults(package):
    """One line for each import in the folder `package` that breaks the order."""
    parts = {path.stem for path in package.iterdir() if path.is_dir() or path.suffix == ".py"}
    for path in sorted(package.rglob("*.py")):
        inside = path.relative_to(package).with_suffix("").parts
        part = inside[0]
        if part not in ALLOWED:
            yield f"{path}: {part} has no place in the order of imports"
            continue
        names = inside[:-1] if inside[-1] == "__init__" else inside
        for name, for_types in imported_modules(path, ".".join([package.name, *names])):
            root, *rest = name.split(".")
            may = inside[:2] == ("training", "zero") or name.startswith("deepspeed.launcher")
            if root == "deepspeed" and not may and not for_types:
                yield f"{path}: only training/zero imports deepspeed"
            if root != package.name or not rest or rest[0] not in parts:
                continue
            if rest[0] != part and rest[0] not in ALLOWED[part]:
                yield f"{path}: {part} must not import {rest[0]}"
            if (
                rest[:2] == ["pipeline", "steps"]
                and inside[:2] == ("pipeline", "steps")
                and STEPS.intersection(rest[2:3])
            ):
                yield f"{path}: a step must not import a step ({rest[2]})"


def test_imports_follow_the_order():
    assert list(faults(PACKAGE)) == []


@pytest.mark.parametrize(
    "file, code, fault",
    [
        ("models/flops.py", "import ds_minimodel.config.schema", "models must not import config"),
        (
            "ops/norm.py",
            "def f():\n    from ds_minimodel.models import body",
            "ops must not import models",
        ),
        ("ops/norm.py", "from ..models.trainable import Model", "ops must not import models"),
        (
            "pipeline/steps/adapt.py",
            "from ds_minimodel.pipeline.steps.pretrain import run",
            "a step must not import a step (pretrain)",
        ),
        ("data/store.py", "import torch, deepspeed.comm", "only training/zero imports deepspeed"),
        ("novelty.py", "", "novelty has no place in the order of imports"),
    ],
)
def test_a_wrong_import_is_found(tmp_path, file, code, fault):
    package = tmp_path / "ds_minimodel"
    for part in ALLOWED:
        (package / part).mkdir(parents=True)
    (package / file).parent.mkdir(exist_ok=True)
    (package / file).write_text(code)
    assert [line.split(": ")[1] for line in faults(package)] == [fault]


def loaded_by(code):
    """Names of the modules that a process has loaded after `code`."""
    script = f"import sys\n{code}\nprint(*sys.modules, file=sys.stderr)"
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=PACKAGE.parent, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return done.stderr.split()


ALL_STEPS = ", ".join(
    f"ds_minimodel.{name}"
    for name in ("pipeline.run", *(f"pipeline.steps.{step}" for step in sorted(STEPS)))
)


def test_steps_load_neither_plans_nor_hugging_faces_libraries_unasked():
    modules = {*loaded_by(f"import {ALL_STEPS}, ds_minimodel.training.loop")}
    assert not {"ds_minimodel.pipeline.plan", "transformers", "huggingface_hub"} & modules


@pytest.mark.parametrize(
    "arguments, left_out",
    [
        (["--help"], HEAVY),
        (["adapt", "--help"], HEAVY),
        (["extend", "--help"], HEAVY),
        (["flops", "paper"], ["torch", "deepspeed"]),
    ],
)
def test_what_trains_nothing_loads_nothing_heavy(arguments, left_out):
    ended = "except SystemExit as end: assert not end.code"
    modules = loaded_by(f"from ds_minimodel.cli.main import main\ntry: main({arguments})\n{ended}")
    assert "ds_minimodel.cli.main" in modules
    assert not {*left_out} & {*modules}


def test_no_test_module_is_imported():
    """What several modules of tests share lies in helpers/, or in a module of their folder."""
    root = PACKAGE.parent
    files = [path for part in ("tests", "scripts") for path in (root / part).rglob("*.py")]
    found = []
    for path in files:
        module = ".".join(path.relative_to(root).with_suffix("").parts)
        for name, _ in imported_modules(path, module):
            if any(part.startswith("test_") for part in name.split(".")):
                found.append(f"{path}: {name}")
    assert found == []


def imports_of_files(package):
    """{module: modules of the package that its file imports, for types too}."""
    files = {}
    for path in package.rglob("*.py"):
        names = path.relative_to(package.parent).with_suffix("").parts
        files[".".join(names[:-1] if names[-1] == "__init__" else names)] = path
    return {
        module: {
            known
            for name, _ in imported_modules(path, module)
            for known in (name, name.rpartition(".")[0])
            if known in files
        }
        for module, path in files.items()
    }


def test_no_two_files_import_each_other():
    imports = imports_of_files(PACKAGE)
    pairs = {
        tuple(sorted((one, other)))
        for one, others in imports.items()
        for other in others
        if one != other and one in imports[other]
    }
    folders = {pair for pair in pairs if pair[1].startswith(f"{pair[0]}.")}  # a front and its file
    assert pairs - folders == set()
