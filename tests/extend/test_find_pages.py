"""The questions that the quickstart ends with."""

import pytest

from tests.docs import import_script
from tests.pipeline.sentence_world import save_sentence_model


def test_questions_whose_page_is_not_there_are_left_out(tmp_path, capsys):
    """Other editions of the text lack pages."""
    base = tmp_path / "base"
    save_sentence_model(base)
    pages = tmp_path / "pages.txt"
    pages.write_text("one heading\nfirst line\nsecond line\n\nanother\nfirst\nsecond\n")
    questions = tmp_path / "questions.tsv"
    questions.write_text("first line?\tone heading\nwhat is gone?\tgone\n")
    find_pages = import_script("scripts/find_pages.py")
    find_pages.main(str(base), str(base), str(pages), str(questions))
    assert "of 1 such questions find their page first among 2" in capsys.readouterr().out
    questions.write_text("what is gone?\tgone\n")
    with pytest.raises(SystemExit, match="no page that answers a question"):
        find_pages.main(str(base), str(base), str(pages), str(questions))
