"""Debian packages without root: own indexes, own downloads, nothing installed."""

import contextlib
import os
import shutil
import subprocess
import tempfile
from pathlib import Path

from ds_minimodel.common.errors import UserError
from ds_minimodel.common.files import atomic_write
from ds_minimodel.sample.languages import LANGUAGES

# The machine's own settings are read first: lists must be cleared before they are set, and hooks that
# tidy the system's caches after an update must not run.
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


def require_tools():
    """UserError where apt or dpkg is missing."""
    for tool in ("apt-get", "apt-cache", "dpkg", "dpkg-deb"):
        if shutil.which(tool) is None:
            raise UserError(
                f"{tool}: not found; fetch-sample takes its text from Debian packages: "
                "run it on Debian or Ubuntu (a container will do) and copy the folder"
            )


class Apt:
    """apt with the machine's sources and its state in `folder`."""

    def __init__(self, folder, log):
        require_tools()
        self.folder = Path(folder).resolve()
        self.log = log
        self.config = self.folder / "apt.conf"
        for name in ("lists/partial", "cache", "state"):
            (self.folder / name).mkdir(parents=True, exist_ok=True)
        languages = " ".join(f'"{language.translation}";' for language in LANGUAGES.values())
        with atomic_write(self.config, "w") as file:
            file.write(CONFIGURATION.format(folder=self.folder, languages=languages))

    def _run(self, tool, *arguments, cwd=None):
        return subprocess.run(
            [tool, "-c", self.config, *arguments],
            cwd=cwd,
            capture_output=True,
            text=True,
            errors="replace",
            env={**os.environ, "LC_ALL": "C.UTF-8"},
        )

    def update(self):
        """Refresh the indexes; retried once. A source that stays away is logged, the others serve."""
        for _ in range(2):
            result = self._run("apt-get", "update", "-o", "APT::Update::Error-Mode=any")
            if result.returncode == 0:
                return
        self.log(f"apt-get update: {last_line(result.stderr)}")

    def candidates(self, names):
        """{name: (version, bytes to download)} of those `names` that the indexes have."""
        result = self._run("apt-cache", "show", "--no-all-versions", *names)
        return {
            stanza["Package"]: (stanza["Version"], int(stanza["Size"]))
            for stanza in stanzas(result.stdout.splitlines())
            if "Filename" in stanza
        }

    def download(self, name, version, into):
        """Put the .deb of a package into the folder `into` and return its path; retried once.

        The second try follows a fresh update: after a point release the old file is gone from the mirror.
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

    def translations(self):
        """{path: apt's language name} of the indexes with package descriptions."""
        result = self._run(
            "apt-get", "indextargets", "--format", "$(FILENAME)\t$(LANGUAGE)", "Created-By: Translations"
        )
        rows = [line.split("\t") for line in result.stdout.splitlines()]
        return {Path(path): language for path, language in rows if Path(path).is_file()}


def last_line(text):
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1] if lines else "no message"


def stanzas(lines):
    """Stanzas of a Debian control file as {field: text}; continuation lines keep their line breaks."""
    stanza, field = {}, None
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
def unpacked(deb):
    """Yield a temporary folder with the files of a .deb; nothing is installed."""
    deb = Path(deb)
    with tempfile.TemporaryDirectory(dir=deb.parent) as folder:
        result = subprocess.run(["dpkg", "-x", deb, folder], capture_output=True, text=True, errors="replace")
        if result.returncode:
            raise UserError(f"{deb}: cannot be unpacked: {last_line(result.stderr)}; delete it and run again")
        yield Path(folder)
