"""Which language a text looks like, and that it is said where it is not what was named."""

import pytest

from ds_minimodel.text.languages import other_language

pytest.importorskip("py3langid")
PAGES = {
    "en": (
        "The small boat has left the harbour, and the old men carry their nets home before night."
    ),
    "pl": "Mała łódź opuściła port, a starzy ludzie niosą swoje sieci do domu przed nocą.",
    "de": "Das kleine Boot hat den Hafen verlassen, und die alten Männer tragen ihre Netze heim.",
    "cs": "Malá loďka opustila přístav a staří muži nesou své sítě domů ještě před setměním.",
    "ru": "Маленькая лодка покинула гавань, и старики несут свои сети домой до наступления ночи.",
    "zh": "小船离开了港口，老人们在夜幕降临之前把渔网搬回家，风很大，海水很冷，月亮升起来了。" * 2,
}


@pytest.mark.parametrize("language", PAGES)
def test_a_text_in_its_language_is_taken_without_a_word(language):
    assert other_language([[PAGES[language]]] * 9, language) is None


@pytest.mark.parametrize("other", PAGES)
def test_another_language_is_named(other):
    language = "de" if other == "pl" else "pl"
    said = f"9 of 9 pages look like {other}; is it text in {language}?"
    assert other_language([PAGES[other].split(" ")] * 9, language) == said


def test_nothing_is_said_of_what_cannot_be_told():
    """A third of the pages in the language, little text, none, and a language that is not known."""
    mixed = [[PAGES["en"]], [PAGES["en"]], [PAGES["pl"]]]
    assert other_language(mixed, "pl") is None
    assert other_language([["The small boat"]], "pl") is None
    assert other_language([], "pl") is None
    assert other_language([[PAGES["en"]]], "szl") is None
