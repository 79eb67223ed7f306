"""The command ``embedkit``, and ``python -m embedkit``."""

from __future__ import annotations

import time

_STARTED = time.monotonic()  # before the imports, for which the user waits too

import atexit  # noqa: E402
import os  # noqa: E402
import sys  # noqa: E402
import threading  # noqa: E402
from typing import NoReturn  # noqa: E402

from embedkit.cli.main import main as run  # noqa: E402


def main() -> NoReturn:
    """Run the command line, and count its time from the start of the process.

    At the end Python would take apart what torch and transformers have made, object by object, for
    a second; the operating system frees it at once.
    """
    try:
        run(started=_STARTED)
    except SystemExit as ended:
        if not isinstance(ended.code, int) or any(not t.daemon for t in threading.enumerate()[1:]):
            raise
        sys.stdout.flush()
        sys.stderr.flush()
        atexit._run_exitfuncs()
        os._exit(ended.code)


if __name__ == "__main__":
    main()
