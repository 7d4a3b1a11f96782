"""Running a program's command inside the trainer process, as python would run it."""

from __future__ import annotations

import runpy
import sys
from collections.abc import Sequence
from pathlib import Path


def run_command(command: Sequence[str]) -> BaseException | None:
    """Run `python script.py ...` or `python -m module ...` here; return what it raised, if anything.

    `sys.exit(0)` is no error.
    """
    arguments = list(command[1:])
    try:
        if arguments[0] == "-m":
            sys.argv = arguments[1:]
            sys.path.insert(0, str(Path.cwd()))
            runpy.run_module(arguments[1], run_name="__main__", alter_sys=True)
        else:
            sys.argv = arguments
            sys.path.insert(0, str(Path(arguments[0]).resolve().parent))
            runpy.run_path(arguments[0], run_name="__main__")
    except BaseException as error:
        # Handed to the attempt, which reports it: a program may raise anything, and may end itself.
        is_success = type(error) is SystemExit and error.code in (0, None)
        return None if is_success else error
    return None
