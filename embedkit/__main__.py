"""The command ``embedkit``, and ``python -m embedkit``."""

from __future__ import annotations

import time

_STARTED = time.monotonic()  # before the imports, for which the user waits too

from typing import NoReturn  # noqa: E402

from embedkit.cli.main import main as run  # noqa: E402


def main() -> NoReturn:
    """Run the command line, and count its time from the start of the process."""
    run(started=_STARTED)


if __name__ == "__main__":
    main()
