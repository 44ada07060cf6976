"""Which packages each set takes, and what turns their files into documents."""

from collections.abc import Callable
from dataclasses import dataclass

from ds_minimodel.sample import catalogues, fortunes, libreoffice_help, man_pages
from ds_minimodel.sample.html_pages import mallard_by_folder, pages_and_translations, pages_by_folder, pages_in
from ds_minimodel.sample.languages import LANGUAGES

HELP_PREFIX = "libreoffice-help-"
DESCRIPTIONS = "package-descriptions"  # not a package: apt's own indexes
DESCRIPTIONS_LICENCE = (
    "each package's own; translations by the Debian Description Translation Project (no licence file in the indexes)"
)
MANUAL = "manual"
CAMPAIGNS = "did dm dw ei httt l low nr sof sota sotbe thot trow tsg ttb utbs".split()


@dataclass(frozen=True)
class Package:
    """A Debian package; extract(folder) yields documents {language, lines, …}; `taken` is for LICENSES.md."""

    name: str
    extract: Callable
    taken: str
    required: bool = False


def packages(set_name, languages):
    """All packages of a set, as Debian 12 names them; those that another release lacks are left out.

    Of lines that are repeated the first one stays, so the best running text comes first.
    """
    chosen = list(help_packages(languages))
    if set_name == "repro":
        for language in languages:
            chosen += _manuals(language)
        chosen += _in_many_languages()
        if "en" in languages:
            chosen += _english_manuals()
    return chosen


def help_packages(languages):
    """LibreOffice's help: text, and all tasks."""
    for language in languages:
        suffix = "en-us" if language == "en" else LANGUAGES[language].package
        yield Package(HELP_PREFIX + suffix, libreoffice_help.extract, "help pages: text and tasks", required=True)


def _manuals(language):
    """Packages for one language; those that a language has not are unknown to apt and left out."""
    suffix = LANGUAGES[language].package
    short = suffix.split("-")[0]  # some packages say zh where others say zh-cn
    english = language == "en"
    tail, short_tail = ("", "") if english else (f"-{suffix}", f"-{short}")
    if language != "zh":  # that one is hardly translated, and 50 MB
        yield Package(f"gimp-help-{suffix}", pages_in("usr/share/gimp/*/help/*", language), MANUAL)
    yield Package(f"lilypond-doc-html{short_tail}", pages_in("usr/share/doc/lilypond/html", language), MANUAL)
    yield Package(f"debian-reference-{suffix}", pages_in("usr/share/debian-reference", language), MANUAL)
    yield Package(f"debian-faq{tail}", pages_in("usr/share/doc/debian/FAQ", language), MANUAL)
    yield Package(f"aptitude-doc-{suffix}", pages_in("usr/share/doc/aptitude/html", language), MANUAL)
    yield Package(f"developers-reference{tail}", pages_in("usr/share/developers-reference", language), MANUAL)
    yield Package(f"maint-guide{tail}", pages_in("usr/share/doc/maint-guide*", language), MANUAL)
    yield Package(f"manpages{short_tail}", man_pages.extract, "manual pages")
    yield Package("manpages-dev" if english else f"manpages-{short}-dev", man_pages.extract, "manual pages")
    yield Package(f"fortunes{short_tail}", fortunes.sayings_in(language), "sayings")
    if not english:
        yield Package(f"libreoffice-l10n-{suffix}", catalogues.extract, "messages of the programs")


def _in_many_languages():
    """Packages that hold many languages, English among them."""
    yield Package("debian-handbook", pages_by_folder("usr/share/doc/debian-handbook/html"), MANUAL)
    yield Package("installation-guide-amd64", pages_by_folder("usr/share/doc/installation-guide-amd64"), MANUAL)
    yield Package("gnome-user-docs", mallard_by_folder, MANUAL)
    for part in ["data", *CAMPAIGNS]:
        yield Package(f"wesnoth-1.16-{part}", catalogues.extract, "stories and messages of the game")


def _english_manuals():
    yield Package("python3.11-doc", pages_in("usr/share/doc/python3.11/html", "en"), MANUAL)
    yield Package("postgresql-doc-15", pages_in("usr/share/doc/postgresql-doc-15/html", "en"), MANUAL)
    yield Package("linux-doc-6.1", pages_and_translations("usr/share/doc/linux-doc-6.1/html"), MANUAL)
