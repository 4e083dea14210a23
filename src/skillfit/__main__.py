"""`skillfit` and `python -m skillfit`. Ctrl-C is heard while the rest is still being imported."""

import sys


def main() -> None:
    try:
        from skillfit.cli.app import main as command

        command()
    except KeyboardInterrupt:  # commands hear it themselves once they run
        sys.exit(130)


if __name__ == "__main__":
    main()
