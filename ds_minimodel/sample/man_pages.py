"""Documents out of manual pages: a page a document, a paragraph a line."""

import gzip
import re

from ds_minimodel.sample.languages import language_of_locale
from ds_minimodel.sample.lines import clean

# Requests of man(7) whose arguments are text of the running paragraph.
FONTS = frozenset("B I R BR IR RB RI BI IB SM SB".split())
BLOCK_BEGIN, BLOCK_END = frozenset("nf EX TS EQ SY ig".split()), frozenset("fi EE TE EN YS .".split())
_REQUEST = re.compile(r"[.']\s*([A-Za-z.]*)\s*(.*)")
_GLYPHS = {
    "aq": "'",
    "dq": '"',
    "lq": "“",
    "rq": "”",
    "oq": "‘",
    "cq": "’",
    "en": "–",
    "em": "—",
    "bu": "",
    "ha": "^",
    "ti": "~",
    "rs": "\\",
    "co": "©",
    "hy": "-",
    "Fo": "«",
    "Fc": "»",
}


def extract(root):
    """Documents of the man pages in an unpacked package; those of mdoc(7) are left out: another language."""
    base = root / "usr/share/man"
    for path in sorted(base.rglob("*.gz")):
        locale = path.relative_to(base).parts[0]
        language = "en" if re.fullmatch(r"man\d\w*", locale) else language_of_locale(locale)
        if language and not path.is_symlink():
            try:
                source = gzip.decompress(path.read_bytes()).decode("utf-8")
            except UnicodeDecodeError:
                continue  # an old page in an 8-bit encoding that it does not name
            lines = [] if re.search(r"^\.Dd\b", source, re.MULTILINE) else list(paragraphs(source))
            if lines:
                yield {"language": language, "lines": lines}


def paragraphs(source):
    """Clean text lines of a man(7) page: headings and paragraphs; tables and literal blocks are left out."""
    words, in_block = [], False
    for line in source.split("\n"):
        request = _REQUEST.match(line)
        name, argument = request.groups() if request else ("", line)
        if name in BLOCK_BEGIN or name in BLOCK_END:
            in_block = name in BLOCK_BEGIN
        if in_block or (line.startswith(('.\\"', "'\\\""))):
            continue
        if request and name in FONTS:
            words.append(_font_text(name, argument))
        elif not request and line.strip():
            words.append(plain(line))
        else:
            yield from _paragraph(words)
            words = []
            if name in ("SH", "SS"):
                yield from _paragraph([plain(argument.replace('"', ""))])
    yield from _paragraph(words)


def _paragraph(words):
    text = clean(" ".join(words))
    if text:
        yield text


def _font_text(name, argument):
    """Arguments of a font request: alternating fonts (BR, IR, …) join them without spaces."""
    parts = [quoted or bare for quoted, bare in re.findall(r'"([^"]*)"|(\S+)', argument)]
    return plain(("" if len(name) == 2 and name not in ("SM", "SB") else " ").join(parts))


def plain(text):
    """Text without troff's escapes."""
    text = re.sub(r'\\".*', "", text)
    text = re.sub(r"\\f(\[[^]]*\]|\(..|.)", "", text)
    text = re.sub(r"\\[smhvwk]([+-]?\d+|'[^']*'|\[[^]]*\])", "", text)
    text = re.sub(r"\\(?:\((..)|\[([^]]*)\])", lambda match: _GLYPHS.get(match[1] or match[2], ""), text)
    text = re.sub(r"\\[*n](\[[^]]*\]|\(..|.)", "", text)
    return re.sub(
        r"\\(.)", lambda match: {"-": "-", "e": "\\", " ": " ", "~": " ", "0": " ", "\\": "\\"}.get(match[1], ""), text
    )
