"""Debian packages as a source of text: apt without root, the text of each package kept, its
licence.

apt works on indexes and downloads of its own; nothing is installed.
"""

import contextlib
import functools
import itertools
import json
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from ds_minimodel.common.errors import UserError
from ds_minimodel.common.files import atomic_write, lock
from ds_minimodel_examples.text import LANGUAGES, Document

Log = Callable[[str], object]


# The machine's own settings are read first: lists must be cleared before they are set, and hooks
# that tidy the system's caches after an update must not run.
CONFIGURATION = """\
Dir::State "{folder}/state";
Dir::State::lists "{folder}/lists";
Dir::State::status "/dev/null";
Dir::Cache "{folder}/cache";
APT::Sandbox::User "";
Acquire::GzipIndexes "false";
#clear Acquire::Languages;
Acquire::Languages {{ {languages} }};
#clear APT::Update::Post-Invoke;
#clear APT::Update::Post-Invoke-Success;
"""
# AppStream's index of applications: few machines fetch it by themselves.
COMPONENTS = """\
Acquire::IndexTargets::deb::DEP-11 {
  MetaKey "$(COMPONENT)/dep11/Components-$(NATIVE_ARCHITECTURE).yml";
  ShortDescription "Components";
  Description "$(RELEASE)/$(COMPONENT) applications";
  DefaultEnabled "true";
  KeepCompressed "false";
};
"""


def require_tools() -> None:
    """Raise UserError where apt or dpkg is missing."""
    for tool in ("apt-get", "apt-cache", "dpkg", "dpkg-deb"):
        if shutil.which(tool) is None:
            raise UserError(
                f"{tool}: not found; fetch-sample takes its text from Debian packages: "
                "run it on Debian or Ubuntu (a container will do) and copy the folder"
            )


class Apt:
    """apt with the machine's sources and its state in `folder`; with the index of applications
    where it is wanted.
    """

    def __init__(self, folder: Path, log: Log, with_components: bool = False) -> None:
        require_tools()
        self.folder = Path(folder).resolve()
        self.log = log
        self.config = self.folder / "apt.conf"
        for name in ("lists/partial", "cache", "state"):
            (self.folder / name).mkdir(parents=True, exist_ok=True)
        languages = " ".join(f'"{language.translation}";' for language in LANGUAGES.values())
        with atomic_write(self.config, "w") as file:
            file.write(CONFIGURATION.format(folder=self.folder, languages=languages))
            file.write(COMPONENTS if with_components else "")

    def _run(
        self, tool: str, *arguments: str, cwd: str | None = None
    ) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [tool, "-c", self.config, *arguments],
            cwd=cwd,
            capture_output=True,
            text=True,
            errors="replace",
            env={**os.environ, "LC_ALL": "C.UTF-8"},
        )

    def update(self) -> None:
        """Refresh the indexes; retried once. A source that stays away is logged, the others
        serve.
        """
        for _ in range(2):
            result = self._run("apt-get", "update", "-o", "APT::Update::Error-Mode=any")
            if result.returncode == 0:
                return
        self.log(f"apt-get update: {last_line(result.stderr)}")

    def candidates(self, names: list[str]) -> dict[str, tuple[str, int]]:
        """Return {name: (version, bytes to download)} of those `names` that the indexes have."""
        result = self._run("apt-cache", "show", "--no-all-versions", *names)
        return {
            stanza["Package"]: (stanza["Version"], int(stanza["Size"]))
            for stanza in stanzas(result.stdout.splitlines())
            if "Filename" in stanza
        }

    def download(self, name: str, version: str, into: str | Path) -> Path:
        """Put the .deb of a package into the folder `into` and return its path; retried once.

        The second try follows a fresh update: after a point release the old file is gone from the
        mirror.
        """
        wanted = f"{name}={version}"
        for attempt in range(2):
            with tempfile.TemporaryDirectory(dir=into) as temporary:
                result = self._run("apt-get", "download", wanted, cwd=temporary)
                files = list(Path(temporary).glob("*.deb"))
                if result.returncode == 0 and files:
                    path = Path(into) / f"{name}.deb"
                    os.replace(files[0], path)
                    return path
            if attempt == 0:
                self.update()
                wanted = name
        raise UserError(
            f"package {name}: download failed: {last_line(result.stderr)}; "
            "check the network and run again (what is already there is kept)"
        )

    def translations(self) -> dict[Path, str]:
        """Return {path: apt's language name} of the indexes with package descriptions."""
        return self._indexes("Translations")

    def components(self) -> list[Path]:
        """Paths of the indexes of applications, YAML in the form of AppStream's DEP-11."""
        return list(self._indexes("DEP-11"))

    def sources(self) -> dict[str, tuple[str, str]]:
        """Return {package: (its source package, its section)} of all packages in the indexes."""
        found: dict[str, tuple[str, str]] = {}
        for path in self._indexes("Packages"):
            with open(path, encoding="utf-8", errors="replace") as file:
                for stanza in stanzas(file):
                    source = stanza.get("Source", stanza["Package"]).split()[0]
                    found.setdefault(
                        stanza["Package"], (source, stanza.get("Section", "").split("/")[-1])
                    )
        return found

    def _indexes(self, kind: str) -> dict[Path, str]:
        """Return {path: apt's language name} of the indexes of a kind that are there."""
        result = self._run(
            "apt-get", "indextargets", "--format", "$(FILENAME)\t$(LANGUAGE)", f"Created-By: {kind}"
        )
        rows = [line.split("\t") for line in result.stdout.splitlines()]
        return {Path(path): language for path, language in rows if Path(path).is_file()}


def last_line(text: str) -> str:
    """Last line of a program's output that is not blank."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1] if lines else "no message"


def stanzas(lines: Iterable[str]) -> Iterator[dict[str, str]]:
    """Yield the stanzas of a Debian control file as {field: text}; continuation lines keep their
    line breaks.
    """
    stanza: dict[str, str] = {}
    field = None
    for line in lines:
        line = line.rstrip("\n")
        if not line:
            if stanza:
                yield stanza
            stanza, field = {}, None
        elif line[0] in " \t":
            if field:
                stanza[field] += "\n" + line[1:]
        else:
            field, _, value = line.partition(":")
            stanza[field] = value.strip()
    if stanza:
        yield stanza


@contextlib.contextmanager
def unpacked(deb: str | Path) -> Iterator[Path]:
    """Yield a temporary folder with the files of a .deb; nothing is installed."""
    deb = Path(deb)
    with tempfile.TemporaryDirectory(dir=deb.parent) as folder:
        result = subprocess.run(
            ["dpkg", "-x", deb, folder], capture_output=True, text=True, errors="replace"
        )
        if result.returncode:
            raise UserError(
                f"{deb}: cannot be unpacked: {last_line(result.stderr)}; delete it and run again"
            )
        yield Path(folder)


# --- the text of each package, extracted once and kept


EXTRACTION = 2  # raise it when an extractor changes: what the older one wrote is then done again


@dataclass(frozen=True)
class Package:
    """A Debian package; extract(folder with its files) yields its documents; `taken` is for
    LICENSES.md.
    """

    name: str
    extract: Callable[[Path], Iterable[Document]]
    taken: str
    required: bool = False


class PackageStore:
    """Folder with one NAME.jsonl a package: a line of facts {extraction, version, licence}, then
    documents.

    A package is fetched, unpacked and extracted in a temporary place and its file appears when all
    is done, so an interrupted run repeats one package at most.
    """

    def __init__(self, folder: Path, log: Log, with_components: bool = False) -> None:
        self.folder, self.log, self.with_components = Path(folder), log, with_components
        self.folder.mkdir(parents=True, exist_ok=True)

    @functools.cached_property
    def apt(self) -> Apt:
        """apt, started and its indexes refreshed when the first package turns out to be missing."""
        self.log("reading the package indexes")
        apt = Apt(self.folder / "apt", self.log, self.with_components)
        apt.update()
        return apt

    def fill(self, packages: list[Package]) -> None:
        """Fetch and extract what is missing of `packages`.

        Packages that the indexes do not know are left out and named in the log; UserError if one is
        required.
        """
        missing = [package for package in packages if not self.has(package.name)]
        if not missing:  # and the folder may be read-only
            return
        with self._locked():
            found = self.apt.candidates([package.name for package in missing])
            self._leave_out([package for package in missing if package.name not in found])
            missing = [package for package in missing if package.name in found]
            if missing:
                self.log(f"to download: {sum(size for _, size in found.values()) / 1e6:.0f} MB")
            for number, package in enumerate(missing, 1):
                version, size = found[package.name]
                self.log(f"package {number} of {len(missing)}: {package.name}, {size / 1e6:.1f} MB")
                self._add(package, version)

    def fill_from_indexes(
        self, name: str, extract: Callable[[Apt], Iterable[Document]], licence: str
    ) -> None:
        """Keep the documents extract(apt) of the package indexes themselves under `name`."""
        if not self.has(name):
            self.log(name)
            with self._locked():
                documents = iter(extract(self.apt))
                if (first := next(documents, None)) is None:
                    raise UserError(
                        f"{name}: the package indexes have none; check the network and run this "
                        "again"
                    )
                facts = {"version": "as of the indexes", "licence": licence}
                self._write(name, facts, itertools.chain([first], documents))

    def has(self, name: str) -> bool:
        """Whether the text of a package is there, as today's extractors write it."""
        return self._path(name).is_file() and self.facts(name)["extraction"] == EXTRACTION

    def facts(self, name: str) -> dict:
        """Return {extraction, version, licence} of a package that is there."""
        with open(self._path(name), encoding="utf-8") as file:
            return json.loads(file.readline())

    def documents(self, name: str) -> Iterator[Document]:
        """Yield the documents of a package; none where it was left out."""
        if not self._path(name).is_file():
            return
        with open(self._path(name), encoding="utf-8") as file:
            next(file)
            yield from map(json.loads, file)

    def _locked(self) -> contextlib.AbstractContextManager[None]:
        """Two at a time would fetch with one apt: its indexes are this folder's."""
        return lock(self.folder / "apt" / "lock")

    def _path(self, name: str) -> Path:
        return self.folder / f"{name}.jsonl"

    def _leave_out(self, unknown: list[Package]) -> None:
        for package in unknown:
            if package.required:
                raise UserError(
                    f"package {package.name}: not known to apt; check the machine's apt sources "
                    "(Debian's or Ubuntu's own are needed) and the network, then run again"
                )
        if unknown:
            self.log(
                "not in this release, left out: " + ", ".join(package.name for package in unknown)
            )

    def _add(self, package: Package, version: str) -> None:
        with self._fetched(package.name, version) as root:
            text, other = copyright_of(root, package.name)
            if other:
                text = self._copyright_in(other)
            self._write(
                package.name,
                {"version": version, "licence": licence_names(text)},
                package.extract(root),
            )

    @contextlib.contextmanager
    def _fetched(self, name: str, version: str) -> Iterator[Path]:
        """Yield a temporary folder with the package's files."""
        with (
            tempfile.TemporaryDirectory(dir=self.folder) as temporary,
            unpacked(self.apt.download(name, version, temporary)) as root,
        ):
            yield root

    def _copyright_in(self, name: str) -> str | None:
        """Text of the copyright file in another package of the same source; None where apt has
        none.
        """
        found = self.apt.candidates([name])
        if name not in found:
            return None
        with self._fetched(name, found[name][0]) as root:
            return copyright_of(root, name)[0]

    def _write(self, name: str, facts: dict[str, str], documents: Iterable[Document]) -> None:
        with atomic_write(self._path(name), "w") as file:
            for row in itertools.chain([{"extraction": EXTRACTION, **facts}], documents):
                file.write(json.dumps(row, ensure_ascii=False) + "\n")


# --- licences


# For copyright files that are prose, not in Debian's machine-readable form.
PROSE = {
    "GFDL": r"GNU\s+Free\s+Documentation\s+License",
    "GPL": r"GNU\s+(General\s+Public\s+Licen[sc]e|GPL)",
    "PSF": r"PYTHON\s+SOFTWARE\s+FOUNDATION\s+LICENSE",
    "BSD": r"\bBSD\s+(copyright|licen[sc]e)",
    "copying and changing permitted under the same notice": (
        r"Permission\s+is\s+granted\s+to\s+make\s+and\s+distribute\s+verbatim\s+copies"
    ),
    "public domain": r"public\s+domain",
}
MAX_NAMES = 4


def copyright_of(root: Path, name: str) -> tuple[str | None, str | None]:
    """Copyright file of an unpacked package: (its text or None, name of the package to ask instead
    or None).

    A package may share its doc folder with another one of the same source by a symbolic link.
    """
    folder = root / "usr/share/doc" / name
    if folder.is_symlink():
        return None, folder.readlink().name
    file = folder / "copyright"
    return (
        (file.read_text(encoding="utf-8", errors="replace"), None)
        if file.is_file()
        else (None, None)
    )


def licence_names(text: str | None) -> str:
    """Short names of the licences in a copyright file: first that of most files, then others, at
    most 4.
    """
    if text is None:
        return "no copyright file in the package"
    main: list[str] = []
    others: list[str] = []
    if re.match(r"Format:.*copyright", text):
        for stanza in stanzas(text.splitlines()):
            name = stanza.get("License", "").split("\n")[0].strip()
            if name and "Files" in stanza:
                (main if stanza["Files"].strip() == "*" else others).append(name)
    else:
        others = [name for name, pattern in PROSE.items() if re.search(pattern, text)]
    names = list(dict.fromkeys(main + others))
    if not names:
        return "see its copyright file"
    return ", ".join(names[:MAX_NAMES]) + (", and others" if len(names) > MAX_NAMES else "")


def licences_page(facts: Mapping[str, Mapping[str, str]]) -> str:
    """Text of LICENSES.md; facts: {package: {version, licence, taken}}."""
    rows = [
        f"| {name} | {fact['version']} | {fact['licence']} | {fact['taken']} |"
        for name, fact in sorted(facts.items())
    ]
    return "\n".join(
        [
            "# Where this text comes from",
            "Each package's own licence holds for what was taken from it. The licences are as its "
            "copyright file names them, that of most files first; the full text is in the package, "
            "`/usr/share/doc/PACKAGE/copyright`.",
            "",
            "| Debian package | version | licences | taken from it |",
            "|---|---|---|---|",
            *rows,
            "",
        ]
    )
