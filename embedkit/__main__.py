"""The command ``embedkit``, and ``python -m embedkit``."""

from embedkit.cli.main import main

if __name__ == "__main__":
    main()
