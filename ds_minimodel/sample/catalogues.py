"""Documents out of compiled message catalogues (gettext's .mo): a message a document."""

import re
import struct

from ds_minimodel.sample.languages import language_of_locale

MAGIC = 0x950412DE
_MARKUP = re.compile(r"<[^>]{1,80}>")
_CONTEXT = re.compile(r"^[^\n^]{1,40}\^")  # Wesnoth writes "female^text", "wesnoth^text"
_ACCELERATOR = re.compile(r"[~_&](?=\w)")


def extract(root):
    """Documents of all catalogues in an unpacked package: translations, and their English originals."""
    seen = set()
    for path in sorted(root.glob("usr/**/LC_MESSAGES/*.mo")):
        language = language_of_locale(path.parent.parent.name)
        if language is None or language == "en":
            continue
        for original, translation in messages(path.read_bytes()):
            for code, text in (("en", original), (language, translation)):
                lines = message_lines(text)
                if lines and (code, text) not in seen:
                    seen.add((code, text))
                    yield {"language": code, "lines": lines}


def messages(data):
    """(original, translation) pairs of a .mo file's bytes, singular forms, without contexts.

    Format: GNU gettext manual, "The Format of GNU MO Files".
    """
    order = "<" if struct.unpack_from("<I", data)[0] == MAGIC else ">"
    count, originals, translations = struct.unpack_from(f"{order}III", data, 8)
    for index in range(count):
        original = _string(data, order, originals + 8 * index)
        translation = _string(data, order, translations + 8 * index)
        original = original.split("\x04")[-1]
        if original:  # the empty one is the catalogue's own header
            yield original.split("\0")[0], translation.split("\0")[0]


def _string(data, order, at):
    length, start = struct.unpack_from(f"{order}II", data, at)
    return data[start : start + length].decode("utf-8", errors="replace")


def message_lines(text):
    """Lines of a message without markup, context marks and keyboard accelerators."""
    text = _ACCELERATOR.sub("", _MARKUP.sub("", _CONTEXT.sub("", text)))
    return [line.strip() for line in text.split("\n") if line.strip()]
