"""`skillfit` and `python -m skillfit`. Ctrl-C is handled while the rest is still being imported."""

import sys


def main() -> None:
    try:
        from skillfit.cli.app import main as command

        command()
    except KeyboardInterrupt:  # commands handle it themselves once they run
        sys.exit(130)


if __name__ == "__main__":
    main()
