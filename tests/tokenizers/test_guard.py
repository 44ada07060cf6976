"""Words of a base's language that new pieces must not cut otherwise."""

import sys
from importlib.metadata import version

import pytest

from ds_minimodel.tokenizers import guard
from ds_minimodel.tokenizers.guard import (
    COMMON,
    MIN_WORDS,
    QUOTED,
    guard_of,
    guarded_words,
    unguarded,
)

TEXT = {" und": MIN_WORDS}


def test_common_words_are_guarded_wherever_they_stand(monkeypatch):
    known = {"en": {"the": 0.05, "modular": COMMON, "arch": COMMON / 2}}
    monkeypatch.setattr(guard, "word_frequencies", lambda language: known.get(language, {}))
    assert guarded_words("en", "yy", TEXT) == {
        **dict.fromkeys((" the", " The", " THE", "the", "The", "THE"), 0.05),
        **dict.fromkeys((" modular", " Modular", " MODULAR"), COMMON),
        **dict.fromkeys(("modular", "Modular", "MODULAR"), COMMON),
        " arch": COMMON / 2,
    }
    assert guarded_words("xx", "yy", TEXT) == {}
    assert guarded_words("en", "yy", {" und": MIN_WORDS - 1}) == {}


def test_words_of_the_new_language_that_the_list_has_are_not_guarded(monkeypatch):
    known = {
        "en": {"schnell": 2e-7, "hier": 3e-7, "linker": 4e-7},
        "de": {"schnell": 2e-7 * QUOTED, "hier": 3e-3, "linker": 1e-5},
    }
    monkeypatch.setattr(guard, "word_frequencies", lambda language: known.get(language, {}))
    assert guarded_words("en", "de", TEXT) == {" linker": 4e-7}


def test_frequencies_of_the_package(capfd):
    pytest.importorskip("wordfreq")
    words = guard.word_frequencies("en")
    assert words["the"] > words["house"] > words["modular"] > 0
    assert guard.word_frequencies("hr")
    assert not guard.word_frequencies("xx")
    assert capfd.readouterr() == ("", "")


def test_the_list_that_guards_is_named_or_said_to_lack():
    pytest.importorskip("wordfreq")
    assert guard_of("en") == f"wordfreq {version('wordfreq')}"
    assert unguarded("en") is None
    assert guard_of("xx") is None
    assert unguarded("xx").startswith("wordfreq has no words of xx: ")


def test_without_the_package_nothing_is_known(monkeypatch):
    monkeypatch.setitem(sys.modules, "wordfreq", None)
    assert guarded_words("en", "de", TEXT) == {}
    assert guard_of("en") is None
    assert "pip install 'ds_minimodel[pairs]'" in unguarded("en")
