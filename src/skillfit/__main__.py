"""`skillfit` and `python -m skillfit`. Ctrl-C is handled while the rest is still being imported."""

import gc
import sys


def main() -> None:
    # A large run keeps several 100,000 objects. With its default thresholds the garbage collector
    # looks through them so often that it takes a fifth of the processor time.
    gc.set_threshold(50_000, 20, 50)
    try:
        from skillfit.cli.app import main as command

        command()
    except KeyboardInterrupt:  # commands handle it themselves once they run
        sys.exit(130)


if __name__ == "__main__":
    main()
