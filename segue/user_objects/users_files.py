"""Finds the user's files: in a traceback, by the shortest path, and among imported modules. Also finds the versions of
the installed packages that these files import."""

from __future__ import annotations

import re
import site
import sys
import sysconfig
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from importlib import metadata
from pathlib import Path
from types import ModuleType

from segue.user_objects import is_users_file


def users_line(text: str) -> str:
    """Return the file, the line and the function of the last frame in the user's code, from a traceback's text.

    If the text has no frame, the result is empty. If all frames belong to installed packages, use the last of these
    frames.
    """
    frames = [found.groups() for found in _FRAME.finditer(text) if not found[1].startswith("<")]
    if not frames:
        return ""
    file, line, function = ([frame for frame in frames if is_users_file(frame[0])] or frames)[-1]
    where = f" in {function}" if function and not function.startswith("<") else ""
    return f"{short_path(Path(file))}, line {line}{where}"


_FRAME = re.compile(r'^\s*(?:\|\s*)?File "(.+?)", line (\d+)(?:, in (.+))?$', re.MULTILINE)


def short_path(file: Path) -> Path:
    """Return the path relative to the current folder. If the path is outside of this folder, return it unchanged."""
    here = Path.cwd()
    return file.relative_to(here) if file.is_relative_to(here) else file


@contextmanager
def current_folder_first() -> Iterator[None]:
    """While the block runs, let imports search the current folder, as with `python -m`.

    The folder stays on the search path after the block.
    """
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    yield


_IMPORT = re.compile(r"^[ \t]*(?:from[ \t]+(\w+)[\w.]*[ \t]+import\b|import[ \t]+([\w.,\t ]+))", re.MULTILINE)
_NOT_LOOKED_UP = ("torch", "segue", *sys.stdlib_module_names)
_INSTALLED = tuple(
    f"{folder}/" for folder in (sysconfig.get_path("purelib"), sysconfig.get_path("platlib"), *site.getsitepackages())
)
_OF_OTHERS = (*_INSTALLED, f"{sysconfig.get_path('stdlib')}/", f"{Path(__file__).parents[1]}/")
_MOST_FILES = 500
_MOST_PACKAGES = 50


def imported_packages() -> dict[str, str]:
    """Return the sorted names and versions of the loaded packages that a file of the user imports.

    The result ignores files that cannot be read.
    """
    names = {name for file in _files_of_the_user() for name in _imported_in(file)}.difference(_NOT_LOOKED_UP)
    loaded = ((name, sys.modules.get(name)) for name in sorted(names))
    found = ((name, _version_of(name, module)) for name, module in loaded if module is not None)
    return dict([(name, version) for name, version in found if version][:_MOST_PACKAGES])


def _files_of_the_user() -> list[str]:
    found = []
    for module in list(sys.modules.values()):
        file = vars(module).get("__file__") if isinstance(module, ModuleType) else None
        # The cheap comparison of texts comes first, because only few of the thousands of files are the user's.
        if isinstance(file, str) and file.endswith(".py") and not file.startswith(_OF_OTHERS) and is_users_file(file):
            found.append(file)
    return found[-_MOST_FILES:]


@cache
def _imported_in(file: str) -> frozenset[str]:
    """Return the top-level names of the modules that a file imports, including imports in functions."""
    try:
        text = Path(file).read_text(encoding="utf-8", errors="replace")
    except OSError:
        return frozenset()
    return frozenset(_names(text))


def _names(text: str) -> Iterator[str]:
    for found in _IMPORT.finditer(text):
        for name in [found[1]] if found[1] else found[2].split(","):
            yield name.strip().partition(" ")[0].partition(".")[0]


def _version_of(name: str, module: ModuleType) -> str:
    """Return the version of a module's package. If the module was not installed, return an empty text."""
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:  # The package has another name than the module, such as PyYAML for yaml.
        file, version = (vars(module).get(fact) for fact in ("__file__", "__version__"))
        is_installed = isinstance(file, str) and file.startswith(_INSTALLED)
        return version if is_installed and isinstance(version, str) else ""
