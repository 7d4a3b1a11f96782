"""Manages the terminal: one console for output, one console for errors, and functions to show an error or a JSON
object.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from typing import Any

from rich.console import Console

from segue.errors import SegueError

console = Console(highlight=False)
errors = Console(stderr=True, highlight=False, soft_wrap=True)


def show_error(error: SegueError) -> None:
    """Print an error and its fix as one paragraph on standard error."""
    errors.print("[bold red]segue:[/] ", end="")
    # A message may quote the output of other programs, which has line breaks of its own.
    errors.print(" ".join(str(error).split()), markup=False)


def show_json(value: Mapping[str, Any]) -> None:
    """Print one JSON object on standard output, and nothing else."""
    sys.stdout.write(json.dumps(value, indent=2, default=str) + "\n")
