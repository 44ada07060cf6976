"""Names that earlier versions had, each with what to use instead.

Old recipes, commands and programs are refused by this table alone.
"""

_BOTH = "add both languages at once, or extend the exported model again"
_EMBEDDINGS = "use overlap, or embeddings that the packages focus or wechsel make"
INSTEAD = {
    # Of a recipe: keys, and values as `key=value`.
    "adapt.initialisation=ofa": _EMBEDDINGS,
    "adapt.word_vectors": _EMBEDDINGS,
    "finetune.tasks.NAME.kind=multiple-choice": (
        "use lm-evaluation-harness over the folder that export-hf writes"
    ),
    # Commands.
    "ds-minimodel chats-from-text": "use `python -m ds_minimodel_examples.chats`",
    "ds-minimodel extend --keep": "use --strength S, or export-hf --strength after it",
    "ds-minimodel pack join": _BOTH,
    "ds-minimodel pack show": (
        "read manifest.json; `pack plug` and `export-hf` check all files of a pack"
    ),
    # Of Python.
    "ds_minimodel.api.join_packs": _BOTH,
}


def retired(name: str) -> str | None:
    """Return what is said of a name in the table, as the end of a sentence; else None."""
    return f"is no longer there; {INSTEAD[name]}" if name in INSTEAD else None
