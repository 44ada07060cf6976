"""Manuals, man pages, catalogues, sayings and package descriptions, each in its own format."""

import gzip
import struct

import pytest
from ds_minimodel_examples.extractors import MAGIC, catalogue_documents, mallard_by_folder, man_page_documents, pages_in

HTML = """<html><head><title>T</title><style>p {}</style></head><body><div class="navheader">Next</div>
<div class="toc"><p>Contents</p></div><h1>Title<a class="headerlink">¶</a></h1><!-- no -->
<p>One <em>wrapped</em>
 line.</p><pre>code()</pre><ul><li>Lead text<ul><li>Nested<br>item</li></ul>after</li></ul>
<table><tr><td>cell</td></tr></table></body></html>"""
LINES = ["Title", "One wrapped line.", "Lead text", "Nested item", "after", "cell"]


def write(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")


def texts(documents):
    return [(document["language"], document["lines"]) for document in documents]


def test_html_pages(tmp_path):
    write(tmp_path / "doc/a.html", HTML)
    write(tmp_path / "doc/b-big-page.html", HTML)
    write(tmp_path / "doc/empty.html", "")
    assert texts(pages_in("doc", "es")(tmp_path)) == [("es", LINES)]


def test_mallard(tmp_path):
    page = (
        '<page xmlns="http://projectmallard.org/1.0/"><info><credit><name>N</name></credit>'
        "<desc>About.</desc></info><title>Title</title><p>Some <gui>text</gui>.</p>"
        "<screen>code</screen></page>"
    )
    write(tmp_path / "usr/share/help/C/gnome-help/a.page", page)
    write(tmp_path / "usr/share/help/tr/gnome-help/a.page", page)
    lines = ["About.", "Title", "Some text."]
    assert texts(mallard_by_folder(tmp_path)) == [("en", lines), ("tr", lines)]


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


def test_man_pages(tmp_path):
    for folder in ("de/man1", "man1", "zh_TW/man1"):
        path = tmp_path / "usr/share/man" / folder / "ln.1.gz"
        path.parent.mkdir(parents=True)
        path.write_bytes(gzip.compress(MAN.encode()))
    (tmp_path / "usr/share/man/man1/alias.1.gz").symlink_to("ln.1.gz")
    (tmp_path / "usr/share/man/man1/latin.1.gz").write_bytes(gzip.compress("\xe9t\xe9".encode("latin-1")))
    lines = ["SEE ALSO", "ln - make links", "The --force option of ln(1) is bold and “quoted”.", "-f last"]
    assert texts(man_page_documents(tmp_path)) == [("de", lines), ("en", lines)]


def catalogue(messages, order):
    """Bytes of a .mo file; order: struct's byte order."""
    strings = [text.encode() for pair in zip(*messages.items(), strict=True) for text in pair]
    count, start = len(messages), 28 + 16 * len(messages)
    table, blob = b"", b""
    for string in strings:
        table += struct.pack(f"{order}II", len(string), start + len(blob))
        blob += string + b"\0"
    return struct.pack(f"{order}7I", MAGIC, 0, count, 28, 28 + 8 * count, 0, 0) + table + blob


@pytest.mark.parametrize("order", "<>")
def test_catalogues(tmp_path, order):
    messages = {
        "": "Content-Type: text/plain",
        "menu\x04_Open <b>it</b>": "Öff~ne <b>es</b>",
        "file\0files": "Datei\0Dateien",
        "female^She came.\n\nAnd went.": "Sie kam.\n\nUnd ging.",
    }
    for locale in ("de", "en_GB", "pt"):
        path = tmp_path / f"usr/share/locale/{locale}/LC_MESSAGES/a.mo"
        path.parent.mkdir(parents=True)
        path.write_bytes(catalogue(messages, order))
    assert texts(catalogue_documents(tmp_path)) == [
        ("en", ["Open it"]),
        ("de", ["Öffne es"]),
        ("en", ["file"]),
        ("de", ["Datei"]),
        ("en", ["She came.", "And went."]),
        ("de", ["Sie kam.", "Und ging."]),
    ]
