"""``python -m embedkit``."""

from embedkit.cli import main

main()
