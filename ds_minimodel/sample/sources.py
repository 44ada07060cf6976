"""Which packages each set takes, and what turns their files into documents."""

from collections.abc import Callable
from dataclasses import dataclass

from ds_minimodel.sample import libreoffice_help
from ds_minimodel.sample.languages import LANGUAGES

HELP_PREFIX = "libreoffice-help-"


@dataclass(frozen=True)
class Package:
    """A Debian package; extract(folder) yields documents {language, lines, …}; `taken` is for LICENSES.md."""

    name: str
    extract: Callable
    taken: str
    required: bool = False


def help_packages(languages):
    """The packages of LibreOffice's help: text and all tasks."""
    for language in languages:
        suffix = "en-us" if language == "en" else LANGUAGES[language].package
        yield Package(HELP_PREFIX + suffix, libreoffice_help.extract,
                      f"help pages ({language}): text and tasks", required=True)


def packages(set_name, languages):
    """All packages of a set, English first: its text tells what is not translated in the others."""
    return list(help_packages(languages))
