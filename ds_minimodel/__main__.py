"""The command `ds-minimodel`, also as `python -m ds_minimodel`."""

import sys
from typing import NoReturn


def main() -> NoReturn:
    """Run it; imports take a second, in which it may be interrupted, too."""
    try:
        from ds_minimodel.cli.main import main as run
    except KeyboardInterrupt:
        sys.exit("ds-minimodel: interrupted")
    run()


if __name__ == "__main__":
    main()
