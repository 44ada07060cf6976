"""What a package's copyright file says, in a few words."""

import re

from ds_minimodel.sample.apt import stanzas

# For copyright files that are prose, not in Debian's machine-readable form.
PROSE = {
    "GFDL": r"GNU\s+Free\s+Documentation\s+License",
    "GPL": r"GNU\s+(General\s+Public\s+Licen[sc]e|GPL)",
    "PSF": r"PYTHON\s+SOFTWARE\s+FOUNDATION\s+LICENSE",
    "BSD": r"\bBSD\s+(copyright|licen[sc]e)",
    "copying and changing permitted under the same notice": r"Permission\s+is\s+granted\s+to\s+make\s+and\s+distribute\s+verbatim\s+copies",
    "public domain": r"public\s+domain",
}
MAX_NAMES = 4


def copyright_of(root, name):
    """(text of the copyright file or None, name of the package to ask instead or None) of an unpacked one.

    A package may share its doc folder with another one of the same source by a symbolic link.
    """
    folder = root / "usr/share/doc" / name
    if folder.is_symlink():
        return None, folder.readlink().name
    file = folder / "copyright"
    return (file.read_text(encoding="utf-8", errors="replace"), None) if file.is_file() else (None, None)


def licence_names(text):
    """Short names of the licences of a copyright file: first that of most files, then others, at most 4."""
    if text is None:
        return "no copyright file in the package"
    main, others = [], []
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


def licences_page(facts):
    """Text of LICENSES.md; facts: {package: {version, licence, taken}}."""
    rows = [
        f"| {name} | {fact['version']} | {fact['licence']} | {fact['taken']} |" for name, fact in sorted(facts.items())
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
