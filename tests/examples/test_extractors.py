"""Manuals, man pages, catalogues and pages of LibreOffice's help, each in its own format."""

import gzip
import struct
from pathlib import Path

import pytest
from ds_minimodel_examples import extractors

HTML = """<html><head><title>T</title><style>p {}</style></head><body>
<div class="navheader">Next</div><div class="toc"><p>Contents</p></div>
<h1>Title<a class="headerlink">¶</a></h1><!-- no -->
<p>One <em>wrapped</em>
 line.</p><pre>code()</pre><ul><li>Lead text<ul><li>Nested<br>item</li></ul>after</li></ul>
<table><tr><td>cell</td></tr></table></body></html>"""
HTML_LINES = "es", ["Title", "One wrapped line.", "Lead text", "Nested item", "after", "cell"]
MALLARD = """<page xmlns="http://projectmallard.org/1.0/"><info>
<credit><name>N</name></credit><desc>About.</desc></info>
<title>Title</title><p>Some <gui>text</gui>.</p>
<screen>code</screen></page>"""
MALLARD_LINES = ["About.", "Title", "Some text."]
MAN = r"""'\" t
.\" a comment
.TH LN 1
.SH "SEE ALSO"
ln \- make links\&
.PP
The
.B \-\-force
option of
.BR ln (1)
is \fBbold\fP and \(lqquoted\(rq.
.nf
int x;
.fi
.TS
a b
.TE
.TP
\fB\-f\fR
last
"""
MAN_LINES = [
    "SEE ALSO",
    "ln - make links",
    "The --force option of ln(1) is bold and “quoted”.",
    "-f last",
]
MESSAGES = {
    "": "Content-Type: text/plain",
    "menu\x04_Open <b>it</b>": "Öff~ne <b>es</b>",
    "file\0files": "Datei\0Dateien",
    "female^She came.\n\nAnd went.": "Sie kam.\n\nUnd ging.",
}
TRANSLATED = [
    ["Open it"],
    ["Öffne es"],
    ["file"],
    ["Datei"],
    ["She came.", "And went."],
    ["Sie kam.", "Und ging."],
]
MESSAGE_LINES = [*zip(["en", "de"] * 3, TRANSLATED)]


def catalogue(messages, order):
    """Bytes of a .mo file; order: struct's byte order."""
    strings = [text.encode() for pair in zip(*messages.items(), strict=True) for text in pair]
    count = len(messages)
    start = 28 + 16 * len(messages)
    table = b""
    blob = b""
    for string in strings:
        table += struct.pack(f"{order}II", len(string), start + len(blob))
        blob += string + b"\0"
    return (
        struct.pack(f"{order}7I", extractors.MAGIC, 0, count, 28, 28 + 8 * count, 0, 0)
        + table
        + blob
    )


def man(text, encoding="utf-8"):
    return gzip.compress(text.encode(encoding))


def catalogues(order):
    content = catalogue(MESSAGES, order)
    return {
        f"usr/share/locale/{locale}/LC_MESSAGES/a.mo": content for locale in ("de", "en_GB", "pt")
    }


@pytest.mark.parametrize(
    "extract, files, documents",
    [
        (
            extractors.pages_in("doc", "es"),
            {"doc/a.html": HTML, "doc/a-big-page.html": HTML, "doc/b.html": ""},
            [HTML_LINES],
        ),
        (
            extractors.mallard_by_folder,
            {f"usr/share/help/{language}/gnome-help/a.page": MALLARD for language in ("C", "tr")},
            [("en", MALLARD_LINES), ("tr", MALLARD_LINES)],
        ),
        (
            extractors.man_page_documents,
            {
                f"usr/share/man/{folder}/ln.1.gz": man(MAN)
                for folder in ("de/man1", "man1", "zh_TW/man1")
            }
            | {"usr/share/man/man1/alias.1.gz": Path("ln.1.gz")}
            | {"usr/share/man/man1/latin.1.gz": man("\xe9t\xe9", "latin-1")},
            [("de", MAN_LINES), ("en", MAN_LINES)],
        ),
        (extractors.catalogue_documents, catalogues("<"), MESSAGE_LINES),
        (extractors.catalogue_documents, catalogues(">"), MESSAGE_LINES),
    ],
)
def test_documents_of_a_package(tmp_path, extract, files, documents):
    for name, content in files.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if isinstance(content, Path):
            path.symlink_to(content)
        else:
            path.write_bytes(content.encode() if isinstance(content, str) else content)
    assert [
        (document["language"], document["lines"]) for document in extract(tmp_path)
    ] == documents
