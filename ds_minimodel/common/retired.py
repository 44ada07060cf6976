"""What earlier commits had and this one has not, each with what to use instead.

Old recipes, commands and programs are refused by this table alone.
"""

_EMBEDDINGS = "use overlap, or embeddings that the packages focus or wechsel make"
INSTEAD = {
    # Of a recipe: keys, and values as `key=value`.
    "adapt.initialisation=ofa": _EMBEDDINGS,
    "adapt.word_vectors": _EMBEDDINGS,
}


def retired(name: str) -> str | None:
    """What is said of a name that the table has, as the end of a sentence; else None."""
    return f"is no longer there; {INSTEAD[name]}" if name in INSTEAD else None
