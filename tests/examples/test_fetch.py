"""The whole command, with real apt and dpkg on a package archive in a folder."""

import shutil
import sys

import pytest
from ds_minimodel_examples import packages
from ds_minimodel_examples.extractors import read_page
from ds_minimodel_examples.fetch import fetch
from ds_minimodel_examples.tasks import is_held_out
from ds_minimodel_examples.text import same_text_key

from ds_minimodel.cli.main import parse
from ds_minimodel.common.files import read_manifest
from tests.helpers.files import read_json_lines
from tests.helpers.refusals import refuses


@pytest.fixture
def sample(distribution, help_packages, tmp_path):
    """The quickstart set of the hand-made packages."""
    distribution(help_packages)
    manifest = fetch(tmp_path / "out", "quickstart", log=lambda line: None)
    return tmp_path / "out", manifest


def read_jsonl(path):
    return read_json_lines(path)


def test_what_a_sample_holds(sample):
    out, manifest = sample
    assert manifest == read_manifest(out, verify=True)
    assert manifest["set"] == "quickstart"
    assert manifest["languages"] == ["en", "de"]
    assert manifest["packages"] == {
        "libreoffice-help-en-us": "1.0-1",
        "libreoffice-help-de": "1.0-1",
    }
    chats = "de.jsonl de.test.jsonl en.jsonl en.test.jsonl"
    topic = "dev.en test.de test.en train.en"
    names = {"LICENSES.md", *(f"chats/{name}" for name in chats.split())}
    names |= {"pairs/de.tsv", "pairs/de.test.tsv"}
    names |= {f"{part}/{language}.txt" for part in ("text", "test") for language in ("de", "en")}
    assert manifest["files"].keys() == names | {
        f"tasks/topic/{name}.jsonl" for name in topic.split()
    }
    for name, count in manifest["tasks"]["topic"].items():
        assert len(read_jsonl(out / f"tasks/topic/{name}.jsonl")) == count > 0
    assert "| libreoffice-help-de | 1.0-1 | MPL-2.0, GPL-2+ |" in (out / "LICENSES.md").read_text()


def test_no_line_of_a_held_out_page_is_in_the_text(sample, help_packages, tmp_path):
    out, _ = sample
    for language, files in zip(("en", "de"), help_packages.values(), strict=True):
        texts = (
            (out / f"{part}/{language}.txt").read_text().split("\n") for part in ("text", "test")
        )
        text, test = (set(map(same_text_key, filter(None, lines))) for lines in texts)
        held_out = set()
        others = set()
        for name, content in files.items():
            (tmp_path / "page.html").write_text(content)
            keys = {same_text_key(element.text) for element in read_page(tmp_path / "page.html")}
            (held_out if is_held_out(name.split("/text/")[1]) else others).update(keys)
        assert held_out
        assert not held_out & text
        assert test
        assert test <= held_out
        missing = others - held_out - text
        assert bool(missing) == (language == "de")  # only what is not translated is missing


def test_pairs_are_of_pages_that_are_held_out_or_not(sample):
    out, manifest = sample
    learned = (out / "pairs/de.tsv").read_text().splitlines()
    tested = (out / "pairs/de.test.tsv").read_text().splitlines()
    assert learned[0] == tested[0] == "en\tde"
    assert len(learned) - 1 == manifest["text"]["de"]["pairs"] > 0
    assert len(tested) - 1 == manifest["text"]["de"]["pairs.test"] > 0
    sources = {pair.split("\t")[0] for pair in tested[1:]}
    assert sources <= {*(out / "test/en.txt").read_text().split("\n")}
    for pair in learned[1:]:
        source, target = pair.split("\t")
        assert source != target
        assert source not in sources


def test_fetching_again_changes_nothing_and_needs_no_apt(sample, monkeypatch):
    out, manifest = sample
    monkeypatch.setattr(packages, "Apt", None)
    before = (out / "manifest.json").stat().st_mtime_ns
    assert fetch(out, "quickstart", log=lambda line: None) == manifest
    assert (out / "manifest.json").stat().st_mtime_ns == before
    shutil.rmtree(out)  # what was extracted is still there
    assert fetch(out, "quickstart", log=lambda line: None) == manifest


def test_a_folder_with_other_contents_is_left_alone(tmp_path, sample):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine/thesis.txt").write_text("precious")
    with refuses("holds something else than a sample"):
        fetch(tmp_path / "mine", "quickstart")
    assert (tmp_path / "mine/thesis.txt").read_text() == "precious"
    with refuses("holds the set quickstart, not repro"):
        fetch(sample[0], "repro")
    (mine := sample[0] / "text/mine.txt").write_text("precious")
    with refuses(r"text/mine.txt: not of the sample, which is to be written anew; move it away"):
        fetch(sample[0], "quickstart", ["fr"])
    mine.unlink()


def test_a_machine_without_apt(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    with refuses("apt-get: not found.*run it on Debian or Ubuntu"):
        fetch(tmp_path / "out", "quickstart", log=lambda line: None)


@pytest.mark.parametrize("missing", ["ds_minimodel_examples", "lxml"])
def test_what_is_not_installed_is_named(tmp_path, monkeypatch, missing):
    monkeypatch.setitem(sys.modules, missing, None)
    for module in ("fetch", "extractors", "tasks"):
        monkeypatch.delitem(sys.modules, f"ds_minimodel_examples.{module}")
    options = parse(["fetch-sample", "--out", str(tmp_path / "out")])
    with refuses(f"fetch-sample: {missing}.* is not installed; run pip install"):
        options.run(options)
