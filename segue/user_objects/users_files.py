"""Files of the user: their place in a traceback, their shortest path, and imports from the current folder."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from segue.user_objects import is_users_file


def users_line(text: str) -> str:
    """Return the file, the line and the function of the last frame in the user's own code, from the text of a
    traceback.

    The result is empty if the text has no frame. If all frames belong to installed packages, the last of these frames
    is returned.
    """
    frames = [found.groups() for found in _FRAME.finditer(text) if not found[1].startswith("<")]
    if not frames:
        return ""
    file, line, function = ([frame for frame in frames if is_users_file(frame[0])] or frames)[-1]
    where = f" in {function}" if function and not function.startswith("<") else ""
    return f"{short_path(Path(file))}, line {line}{where}"


_FRAME = re.compile(r'^\s*(?:\|\s*)?File "(.+?)", line (\d+)(?:, in (.+))?$', re.MULTILINE)


def short_path(file: Path) -> Path:
    """Return the path relative to the current folder.

    If the path is outside the current folder, it is returned unchanged.
    """
    here = Path.cwd()
    return file.relative_to(here) if file.is_relative_to(here) else file


@contextmanager
def current_folder_first() -> Iterator[None]:
    """A block in which imports search the current folder, as with `python -m`.

    The folder stays on the search path after the block.
    """
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    yield
