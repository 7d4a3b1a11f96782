"""`python -m segue`: the `segue` command if its script is not on the path."""

from segue.cli.main import main

if __name__ == "__main__":
    main()
