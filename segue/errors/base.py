"""The roots of the error tree."""

from __future__ import annotations


class SegueError(Exception):
    """Base of everything segue raises on purpose. `exit_code` is what the command line ends with."""

    exit_code = 1


class UsageError(SegueError):
    """Something asked for cannot be done as asked; nothing was started or changed."""

    exit_code = 2
