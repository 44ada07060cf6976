"""Pages of LibreOffice's help: elements, keys, and what is not the page's own."""

from ds_minimodel_examples.extractors import Element, read_page

PAGE = """<html><body><h1 id="menu">Menu</h1><div id="DisplayArea">
<h1 id="hd_1"><a name="x"></a>Fill
</h1><p id="par_1" class="paragraph">Before. <span class="avis">Fills   cells.</span></p>
<p id="par_1">The same id again &amp; a <b>bold</b> word</p><p id="empty"> </p>
<div class="note"><p>No id</p></div>
<div class="howtoget"><div class="embedded"><p id="par_2">Choose Fill</p></div></div></div>
<footer><p id="par_3">Debug</p></footer></body></html>"""


def test_elements_of_a_page(tmp_path):
    path = tmp_path / "page.html"
    path.write_text(PAGE)
    assert read_page(path) == [
        Element(True, "hd_1#0", "Fill", None, False),
        Element(False, "par_1#0", "Before. Fills cells.", "Fills cells.", False),
        Element(False, "par_1#1", "The same id again & a bold word", None, False),
        Element(False, None, "No id", None, False),
        Element(False, None, "Choose Fill", None, True),
    ]
