"""Cleaning of text lines, and what counts as a line of a language."""

import re

from ds_minimodel.sample.languages import LANGUAGES

MIN_CHARACTERS = 8
MIN_CJK_CHARACTERS = 4
# Function words that none of the other languages of the samples writes alike.
ENGLISH_WORDS = frozenset(
    "the of and to is that with are this it for from by which you not if has been can should must when".split()
)
_INVISIBLE = re.compile("[\u00ad\u200b\u200c\u200d\ufeff]")
_SPACE_IN_CJK = re.compile("(?<=[\u3000-\u9fff\uff00-\uffef]) (?=[\u3000-\u9fff\uff00-\uffef])")
_LETTER = re.compile(r"[^\W\d_]")
_WORD = re.compile(r"[^\W\d_]+")
_SCRIPTS = {code: re.compile(f"[{language.script}]") for code, language in LANGUAGES.items() if language.script}


def clean(text):
    """One line: runs of white space become one space, none in Chinese text; invisible marks go."""
    return _SPACE_IN_CJK.sub("", " ".join(_INVISIBLE.sub("", text).split()))


def same_text_key(line):
    """Two lines with the same key are the same text but for case, digits, spaces and punctuation."""
    return "".join(_LETTER.findall(line.casefold())) or line


def is_text(line, language):
    """Whether a clean line is text of the language: not code, a number or an untranslated English line."""
    letters = len(_LETTER.findall(line))
    if letters < 0.5 * len(line.replace(" ", "")):
        return False
    script = _SCRIPTS.get(language)
    if script:
        own = len(script.findall(line))
        if own < 0.4 * letters:
            return False
        if language == "zh":
            return own >= MIN_CJK_CHARACTERS
    if len(line) < MIN_CHARACTERS:
        return False
    return language == "en" or not looks_english(line)


def looks_english(line):
    """Whether at least a fifth of the words, and two of them, are English function words."""
    words = _WORD.findall(line.lower())
    english = sum(word in ENGLISH_WORDS for word in words)
    return english >= 2 and english >= 0.2 * len(words)
