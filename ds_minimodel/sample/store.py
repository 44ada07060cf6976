"""The text of each package, extracted once and kept."""

import contextlib
import functools
import itertools
import json
import tempfile
from pathlib import Path

from ds_minimodel.common.errors import UserError
from ds_minimodel.common.files import atomic_write
from ds_minimodel.sample.apt import Apt, unpacked
from ds_minimodel.sample.licences import copyright_of, licence_names

EXTRACTION = 1  # raise it when an extractor changes: what the older one wrote is then done again


class PackageStore:
    """A folder with one NAME.jsonl a package: a line of facts {extraction, version, licence}, then documents.

    A package is fetched, unpacked and extracted in a temporary place and its file appears when all is done,
    so an interrupted run repeats one package at most.
    """

    def __init__(self, folder, log):
        self.folder, self.log = Path(folder), log
        self.folder.mkdir(parents=True, exist_ok=True)

    @functools.cached_property
    def apt(self):
        """Started, and its indexes refreshed, when the first package turns out to be missing."""
        self.log("reading the package indexes")
        apt = Apt(self.folder / "apt", self.log)
        apt.update()
        return apt

    def fill(self, packages):
        """Fetch and extract what is missing of `packages` (sources.Package).

        Packages that the indexes do not know are left out and named in the log; UserError if one is required.
        """
        missing = [package for package in packages if not self.has(package.name)]
        found = self.apt.candidates([package.name for package in missing]) if missing else {}
        self._leave_out([package for package in missing if package.name not in found])
        missing = [package for package in missing if package.name in found]
        if missing:
            self.log(f"to download: {sum(size for _, size in found.values()) / 1e6:.0f} MB")
        for number, package in enumerate(missing, 1):
            version, size = found[package.name]
            self.log(f"package {number} of {len(missing)}: {package.name}, {size / 1e6:.1f} MB")
            self._add(package, version)

    def fill_from_indexes(self, name, extract, licence):
        """Keep the documents extract(apt) of the package indexes themselves under `name`."""
        if not self.has(name):
            self.log(name)
            self._write(name, {"version": "as of the indexes", "licence": licence}, extract(self.apt))

    def has(self, name):
        return self._path(name).is_file() and self.facts(name)["extraction"] == EXTRACTION

    def facts(self, name):
        with open(self._path(name), encoding="utf-8") as file:
            return json.loads(file.readline())

    def documents(self, name):
        """Documents {language, lines, …} of a package; none where it was left out."""
        if not self._path(name).is_file():
            return
        with open(self._path(name), encoding="utf-8") as file:
            next(file)
            yield from map(json.loads, file)

    def _path(self, name):
        return self.folder / f"{name}.jsonl"

    def _leave_out(self, unknown):
        for package in unknown:
            if package.required:
                raise UserError(
                    f"package {package.name}: not known to apt; check the machine's apt sources "
                    "(Debian's or Ubuntu's own are needed) and the network, then run again"
                )
        if unknown:
            self.log("not in this release, left out: " + ", ".join(package.name for package in unknown))

    def _add(self, package, version):
        with self._fetched(package.name, version) as root:
            text, other = copyright_of(root, package.name)
            if other:
                text = self._copyright_elsewhere(other)
            self._write(package.name, {"version": version, "licence": licence_names(text)}, package.extract(root))

    @contextlib.contextmanager
    def _fetched(self, name, version):
        """Yield a temporary folder with the package's files."""
        with tempfile.TemporaryDirectory(dir=self.folder) as temporary:
            with unpacked(self.apt.download(name, version, temporary)) as root:
                yield root

    def _copyright_elsewhere(self, name):
        """Text of the copyright file in another package of the same source; None where apt has none."""
        found = self.apt.candidates([name])
        if name not in found:
            return None
        with self._fetched(name, found[name][0]) as root:
            return copyright_of(root, name)[0]

    def _write(self, name, facts, documents):
        with atomic_write(self._path(name), "w") as file:
            for row in itertools.chain([{"extraction": EXTRACTION, **facts}], documents):
                file.write(json.dumps(row, ensure_ascii=False) + "\n")
