"""Documents out of apt's indexes: the descriptions of all packages and their translations."""

import re

from ds_minimodel.sample.apt import stanzas
from ds_minimodel.sample.languages import LANGUAGES
from ds_minimodel.sample.lines import clean


def extract(apt):
    """Documents of the Translation indexes that `apt` has: a package's description in a language each."""
    codes = {language.translation: code for code, language in LANGUAGES.items()}
    seen = set()
    for path, translation in apt.translations().items():
        if translation not in codes:
            continue
        language = codes[translation]
        with open(path, encoding="utf-8", errors="replace") as file:
            for stanza in stanzas(file):
                text = stanza.get(f"Description-{translation}")
                same = (language, stanza.get("Description-md5"))
                if text and same not in seen:
                    seen.add(same)
                    yield {"language": language, "lines": description_lines(text)}


def description_lines(text):
    """Synopsis, paragraphs and list items of a description.

    Debian Policy 5.6.13: " ." ends a paragraph, a line with two spaces before it is verbatim: list items.
    """
    synopsis, *rest = text.split("\n")
    lines, words = [synopsis], []
    for line in [*rest, "."]:
        item = re.match(r"\s*[-*•o+] ", line)
        if line.strip() == "." or item:
            lines.append(" ".join(words))
            words = [line[item.end() :]] if item else []
        else:
            words.append(line.strip())
    return [line for line in map(clean, lines) if line]
