"""Documents out of fortune files: a saying a document."""

import re

_COLOUR = re.compile(r"\x1b\[[0-9;]*m|.\x08")


def sayings_in(language):
    """extract(root) for a package of fortunes in one language; offensive ones (folder `off`) stay out."""

    def extract(root):
        for path in sorted(root.glob("usr/share/games/fortunes/**/*")):
            if path.is_file() and not path.is_symlink() and path.suffix != ".dat" and "off" not in path.parts:
                text = _COLOUR.sub("", path.read_text(encoding="utf-8", errors="replace"))
                for saying in re.split(r"^%+$", text, flags=re.MULTILINE):
                    lines = [" ".join(paragraph.split()) for paragraph in re.split(r"\n\s*\n", saying)]
                    if any(lines):
                        yield {"language": language, "lines": [line for line in lines if line]}

    return extract
