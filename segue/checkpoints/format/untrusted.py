"""Parses objects of a store. Others may have written these objects. This module does not import torch."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from segue.checkpoints.format.layout import MOST_LEVELS
from segue.errors import MalformedCheckpointError, SegueError

_MOST_SHOWN = 200


@contextmanager
def untrusted(key: str, *, what: str = "it") -> Iterator[None]:
    """A block that only parses. Any exception in the block is reported as damage of the object `key`.

    All exceptions are caught, because forged data may raise exceptions that no list contains, and one such exception
    would end every resume of the run. Errors of this machine (memory, files) are not damage and are passed on.

    Raises:
        MalformedCheckpointError: the object cannot be parsed.
    """
    try:
        yield
    except (SegueError, MemoryError, OSError):
        raise
    except Exception as error:
        why = f"{what} cannot be parsed ({type(error).__name__}: {str(error)[:_MOST_SHOWN]!r})"
        raise MalformedCheckpointError(key=key, why=why) from None


def refuse_deep(tree: Any) -> None:
    """Check that a JSON tree has at most the levels of a save. A deeper tree would exceed the recursion limit.

    Raises:
        ValueError: the tree has more levels than a save may have.
    """
    level = [tree]
    for _ in range(3 * MOST_LEVELS + 1):
        lists = (node.values() if isinstance(node, dict) else node for node in level if isinstance(node, (dict, list)))
        level = [inner for nodes in lists for inner in nodes if isinstance(inner, (dict, list))]
        if not level:
            return
    raise ValueError(f"it has more than {3 * MOST_LEVELS} levels")
