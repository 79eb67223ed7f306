"""The command ``embedkit``, and ``python -m embedkit``."""

from embedkit.errors import EXIT_INTERRUPTED


def main() -> None:
    """Run the command line."""
    try:
        from embedkit.cli.main import main as run
    except KeyboardInterrupt:  # of the imports, before the command line can say so itself
        raise SystemExit(EXIT_INTERRUPTED) from None
    run()


if __name__ == "__main__":
    main()
