"""Pairs for the fifth study's part B: those of part A that hold no line of its tests."""

from collections.abc import Iterable
from pathlib import Path

from ds_minimodel_examples.tasks import strip_names

from ds_minimodel.common.files import atomic_folder, read_json_lines
from ds_minimodel.text.pairs import normalised


def key(line: str) -> str:
    """A line without names of LibreOffice's programs, case, spaces and digits."""
    return normalised(strip_names(line))


def topic_tests(sample: Path, language: str) -> list[str]:
    """The lines by which topics are tested in English and in a language."""
    files = (sample / f"tasks/topic/test.{code}.jsonl" for code in ("en", language))
    return [row["text"] for file in files for row in read_json_lines(file)]


def untested(texts: Path, tests: Iterable[str], out: Path) -> Path:
    """Write the tables of the folder `texts` without pairs that hold a test, unless that is done;
    return the folder of what is left.
    """
    if out.exists():
        return out
    asked = set(map(key, tests))
    out.parent.mkdir(parents=True, exist_ok=True)
    with atomic_folder(out) as folder:
        for path in sorted(texts.glob("*.tsv")):
            header, *lines = path.read_text("utf-8").splitlines(keepends=True)
            kept = [line for line in lines if asked.isdisjoint(map(key, line.split("\t")))]
            (folder / path.name).write_text("".join([header, *kept]), encoding="utf-8")
    return out
