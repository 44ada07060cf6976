"""Hand-made help pages, packages and a package archive in a folder, so that nothing needs the
network.
"""

import hashlib
import shutil
import subprocess

import pytest

CONTROL = (
    "Package: {name}\nVersion: 1.0-1\nArchitecture: all\nMaintainer: Test "
    "<test@localhost>\nDescription: test\n"
)
COPYRIGHT = (
    "Format: https://www.debian.org/doc/packaging-manuals/copyright-format/1.0/\n\n"
    "Files: *\nLicense: MPL-2.0\n\nFiles: debian/*\nLicense: GPL-2+\n"
)
WORDS = {
    "en": "the quick brown fox jumps over every lazy dog near page number",
    "de": "der schnelle braune Fuchs springt über jeden faulen Hund bei Seite Nummer",
}
HEADINGS = {"en": "Command", "de": "Befehl"}


@pytest.fixture
def make_deb(tmp_path):
    """make_deb(name, {path: text}) -> path of a real .deb with those files and a copyright file."""
    if shutil.which("dpkg-deb") is None:
        pytest.skip("no dpkg-deb")

    def make(name, files):
        root = tmp_path / "build" / name
        files = {
            f"usr/share/doc/{name}/copyright": COPYRIGHT,
            **files,
            "DEBIAN/control": CONTROL.format(name=name),
        }
        for path, content in files.items():
            (root / path).parent.mkdir(parents=True, exist_ok=True)
            (root / path).write_text(content)
        deb = tmp_path / "archive" / f"{name}_1.0-1_all.deb"
        deb.parent.mkdir(exist_ok=True)
        subprocess.run(
            ["dpkg-deb", "--build", "--root-owner-group", root, deb],
            check=True,
            capture_output=True,
        )
        return deb

    return make


@pytest.fixture
def distribution(make_deb, tmp_path, monkeypatch):
    """distribution({name: files}, {index: text}) makes those packages the only ones that apt finds,
    from a folder.

    Further indexes, such as i18n/…, may be given; those of Packages are added: a package may be
    there without a file.
    """
    if shutil.which("apt-get") is None:
        pytest.skip("no apt-get")
    architecture = subprocess.run(
        ["dpkg", "--print-architecture"], capture_output=True, text=True
    ).stdout.strip()

    def build(packages, indexes=()):
        indexes = dict(indexes)
        stanzas = indexes.pop("Packages", "")
        for name, files in packages.items():
            deb = make_deb(name, files)
            stanzas += (
                CONTROL.format(name=name) + f"Filename: {deb.name}\nSize: {deb.stat().st_size}\n"
                f"SHA256: {hashlib.sha256(deb.read_bytes()).hexdigest()}\n\n"
            )
        indexes["binary-{architecture}/Packages"] = stanzas
        release = f"Suite: test\nArchitectures: {architecture} all\nComponents: main\nSHA256:\n"
        for name, text in indexes.items():
            path = tmp_path / "archive/dists/test/main" / name.format(architecture=architecture)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
            size = len(text.encode())
            digest = hashlib.sha256(text.encode()).hexdigest()
            release += f" {digest} {size} main/{name.format(architecture=architecture)}\n"
        (tmp_path / "archive/dists/test/Release").write_text(release)
        (tmp_path / "sources.list").write_text(
            f"deb [trusted=yes] file:{tmp_path}/archive test main\n"
        )
        (tmp_path / "apt.conf").write_text(
            f'Dir::Etc::sourcelist "{tmp_path}/sources.list";\nDir::Etc::sourceparts "/dev/null";\n'
        )
        monkeypatch.setenv("APT_CONFIG", str(tmp_path / "apt.conf"))

    return build


@pytest.fixture
def help_page():
    """help_page(language, number, untranslated=False) -> HTML like LibreOffice's: four described
    headings.
    """

    def page(language, number, *, untranslated=False):
        words = WORDS["en" if untranslated else language]
        sections = "".join(
            f'<h2 id="hd_{i}">{HEADINGS[language]} p{chr(97 + i)}{letters(number)}</h2>'
            f'<p id="par_{i}"><span class="avis">{words} {letters(number)} {letters(i)}.</span></p>'
            for i in range(4)
        )
        return (
            f'<html><body><p>Menu</p><div id="DisplayArea"><h1 id="hd_top">{HEADINGS[language]} '
            f'{letters(number)}</h1>{sections}<div class="howtoget"><p id="x">{words} '
            "elsewhere</p></div>"
            f'<p id="par_long">{words} LibreOffice Calc {letters(number)} {words}</p>'
            "</div></body></html>"
        )

    return page


def letters(number):
    """A word that differs by number: text that differs only in digits counts as the same."""
    return "".join("abcdefghij"[int(digit)] for digit in f"{number:03}")


@pytest.fixture
def help_packages(help_page):
    """{name: files} of the English and German help: 40 pages in four modules, every tenth
    untranslated.
    """

    def files(language, folder):
        return {
            f"usr/share/libreoffice/help/{folder}/text/{module}/{number:03}.html": help_page(
                language, number, untranslated=language != "en" and number % 10 == 9
            )
            for number in range(40)
            for module in [("scalc", "swriter", "sbasic", "smath")[number % 4]]
        }

    return {
        "libreoffice-help-en-us": files("en", "en-US"),
        "libreoffice-help-de": files("de", "de"),
    }
