"""``python -m vspair`` is the command ``vspair``."""

from vspair.cli import main

if __name__ == "__main__":
    main()
