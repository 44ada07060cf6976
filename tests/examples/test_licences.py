"""Licences as copyright files name them."""

import pytest
from ds_minimodel_examples.packages import copyright_of, licence_names

FORMAT = "Format: https://www.debian.org/doc/packaging-manuals/copyright-format/1.0/\n\n"


@pytest.mark.parametrize(
    "text, names",
    [
        (
            FORMAT + "Files: debian/*\nLicense: Expat\n\nFiles: *\nCopyright: someone\nLicense: GPL-2+\n full text\n",
            "GPL-2+, Expat",
        ),
        (FORMAT + "".join(f"Files: {name}\nLicense: {name}\n\n" for name in "ABCDE"), "A, B, C, D, and others"),
        ("On Debian systems, the GNU General\n   Public License is in /usr/share", "GPL"),
        ("It falls under the BSD license.", "BSD"),
        ("You may do as you like.", "see its copyright file"),
        (None, "no copyright file in the package"),
    ],
)
def test_licence_names(text, names):
    assert licence_names(text) == names


def test_a_doc_folder_may_be_shared_with_another_package(tmp_path):
    docs = tmp_path / "usr/share/doc"
    (docs / "common").mkdir(parents=True)
    (docs / "common/copyright").write_text("words")
    (docs / "manual-de").symlink_to("common")
    assert copyright_of(tmp_path, "common") == ("words", None)
    assert copyright_of(tmp_path, "manual-de") == (None, "common")
    assert copyright_of(tmp_path, "other") == (None, None)
