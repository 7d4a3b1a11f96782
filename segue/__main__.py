"""Runs the `segue` command as `python -m segue`, for machines on which the `segue` script is not on the path."""

from segue.cli.main import main

if __name__ == "__main__":
    main()
