"""``python -m embedkit``."""

from embedkit.cli.main import main

main()
