"""One text file a language out of the documents of all packages."""

from ds_minimodel.common.files import atomic_write
from ds_minimodel.sample.lines import clean, is_text, same_text_key


def merge(documents, english, held_out, language):
    """Lists of lines, one list a document.

    documents: iterable of lists of lines. Left out are lines that are not text of the language, repeat an
    earlier line, are an untranslated English line, or stand on a held-out page.
    english, held_out: sets of `same_text_key`; for the English text itself `english` is empty.
    """
    seen = set()
    for lines in documents:
        kept = []
        for line in map(clean, lines):
            key = same_text_key(line)
            if line in seen or key in held_out or key in english or not is_text(line, language):
                continue
            seen.add(line)
            kept.append(line)
        if kept:
            yield kept


def write_text(path, documents):
    """Write documents separated by blank lines, a line a paragraph; return {documents, lines, bytes}."""
    counts = {"documents": 0, "lines": 0, "bytes": 0}
    with atomic_write(path) as file:
        for lines in documents:
            block = ("\n".join(lines) + "\n\n").encode()
            file.write(block)
            counts["documents"] += 1
            counts["lines"] += len(lines)
            counts["bytes"] += len(block)
    return counts
