"""Manuals, man pages, catalogues, sayings and package descriptions, each in its own format."""

import gzip
import struct
from pathlib import Path
from types import SimpleNamespace

import pytest
from ds_minimodel_examples.extractors import (
    MAGIC,
    application_documents,
    catalogue_documents,
    description_documents,
    mallard_by_folder,
    man_page_documents,
    pages_and_translations,
    pages_by_folder,
    pages_in,
    sayings_in,
)

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


def test_main_text_of_sphinx(tmp_path):
    write(tmp_path / "doc/a.html", '<html><body><p>Menu</p><div role="main"><p>Text</p></div></body></html>')
    assert texts(pages_in("doc", "en")(tmp_path)) == [("en", ["Text"])]


def test_html_folders_by_locale(tmp_path):
    for locale in ("de-DE", "zh-CN", "zh-TW", "pt-BR"):
        write(tmp_path / f"html/{locale}/a.html", HTML)
    assert texts(pages_by_folder("html")(tmp_path)) == [("de", LINES), ("zh", LINES)]


def test_translations_are_not_taken_for_english(tmp_path):
    write(tmp_path / "html/a.html", "<p>English</p>")
    write(tmp_path / "html/translations/zh_CN/a.html", "<p>中文</p>")
    write(tmp_path / "html/translations/it_IT/a.html", "<p>italiano</p>")
    assert texts(pages_and_translations("html")(tmp_path)) == [("en", ["English"]), ("zh", ["中文"])]


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


def test_labels_and_tips_of_a_dialog(tmp_path):
    messages = {
        "page|copy\x04_Copy": "_Kopieren",
        "page|extended_tip|copy\x04Copies <b>it</b>.": "Kopiert <b>es</b>.",
        "page|extended_tip|unnamed\x04A tip without a label.": "Ein Tipp ohne Beschriftung.",
    }
    path = tmp_path / "usr/lib/libreoffice/program/resource/de/LC_MESSAGES/sw.mo"
    path.parent.mkdir(parents=True)
    path.write_bytes(catalogue(messages, "<"))
    dialogs = [document for document in catalogue_documents(tmp_path) if "pairs" in document]
    assert dialogs == [
        {"language": "en", "lines": [], "page": "messages/sw/page", "pairs": [("Copy", "Copies it.")]},
        {"language": "de", "lines": [], "page": "messages/sw/page", "pairs": [("Kopieren", "Kopiert es.")]},
    ]


def test_fortunes(tmp_path):
    base = tmp_path / "usr/share/games/fortunes"
    write(base / "de/a", "Ein\nSpruch.\n%\n\x1b[32mZwei\x1b[0m\n\nAbsätze\n%\n")
    write(base / "de/a.dat", "index")
    write(base / "off/b", "rot13")
    (base / "de/a.u8").symlink_to("a")
    assert texts(sayings_in("de")(tmp_path)) == [("de", ["Ein Spruch."]), ("de", ["Zwei", "Absätze"])]


def test_package_descriptions(tmp_path):
    index = (
        "Package: a\nDescription-md5: 1\nDescription-de: Kurz\n Erster\n Absatz.\n .\n"
        "  * Punkt\n    eins\n  * Punkt zwei\n\nPackage: b\nDescription-md5: 1\nDescription-de: Kurz\n"
    )
    write(tmp_path / "Translation-de", index)
    apt = SimpleNamespace(
        translations=lambda: {Path(tmp_path / "Translation-de"): "de", Path("none"): "it"},
        sources=lambda: {"a": ("aaa", "games")},
    )
    documents = list(description_documents(apt))
    assert texts(documents) == [("de", ["Kurz", "Erster Absatz.", "Punkt eins", "Punkt zwei"])]
    assert [(one["page"], one["label"], one["names"]) for one in documents] == [("packages/aaa", "games", ["a", "aaa"])]


def test_application_descriptions(tmp_path):
    write(
        tmp_path / "Components.yml",
        "File: DEP-11\n---\nPackage: a\nName: {C: Editor}\n"
        "Summary: {C: Edit, de: Bearbeiten, en_GB: Edit, it: Modifica}\n"
        "Description: {C: '<p>One <em>line</em>.</p><ul><li>Item</li></ul>', it: '<p>Uno</p>'}\n---\nID: no package\n",
    )
    apt = SimpleNamespace(components=lambda: [tmp_path / "Components.yml"], sources=lambda: {"a": ("aaa", "editors")})
    documents = list(application_documents(apt))
    assert texts(documents) == [("en", ["Edit", "One line.", "Item"]), ("de", ["Bearbeiten"])]
    assert all(
        (one["page"], one["label"], one["names"]) == ("packages/aaa", "editors", ["Editor", "a", "aaa"])
        for one in documents
    )
