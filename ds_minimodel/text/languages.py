"""Which language a text looks like, by py3langid, where that is installed."""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from functools import cache
from itertools import islice

# Pages that are looked at, and characters of each; shorter pages say nothing.
MAX_PAGES = 100
MAX_CHARACTERS = 1000
MIN_CHARACTERS = 40
# More pages than this share in another language, and fewer in the named one, are worth a word.
MIN_OTHER_SHARE = 0.5
MAX_NAMED_SHARE = 0.25


@cache
def language_scores() -> Callable[[str], Mapping[str, float]] | None:
    """Return a function that gives {language: log-probability} of a text.

    It is None where py3langid is not installed.
    """
    try:
        from py3langid.langid import MODEL_FILE, LanguageIdentifier
    except ImportError:
        return None
    identifier = LanguageIdentifier.from_model_file(MODEL_FILE)
    return lambda text: dict(identifier.rank(text))


def other_language(documents: Iterable[list[str]], language: str) -> str | None:
    """Say which other language the first documents of a text look like.

    It is None where they look like none, or `language` is none that py3langid knows.
    """
    scores_of = language_scores()
    if scores_of is None or language not in scores_of(""):
        return None
    counts = Counter[str]()
    for lines in islice(documents, MAX_PAGES):
        text = " ".join(lines)[:MAX_CHARACTERS]
        if len(text) >= MIN_CHARACTERS:
            scores = scores_of(text)
            counts[max(scores, key=scores.__getitem__)] += 1
    total = counts.total()
    for other, count in counts.most_common(1):
        if count > MIN_OTHER_SHARE * total and counts[language] < MAX_NAMED_SHARE * total:
            return f"{count} of {total} pages look like {other}; is it text in {language}?"
    return None
