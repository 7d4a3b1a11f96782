"""Computes hashes of the code of a program.

The code is the program's script and the user's modules that the script imports. The module reads the code from files
and does not run or import it. The hashes cover bytecode, so comments, docstrings and formatting do not change a hash.
The import statements of a file show which modules the file imports. Hashes are comparable only between processes with
the same Python version.
"""

from __future__ import annotations

import ast
import inspect
import json
import sys
import types
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import xxhash

from segue.continuity.code_hash import bytes_of, merged
from segue.spec import RunSpec
from segue.user_objects import installed_folders

_MOST_FILES = 500
"""Maximum number of files of a program that segue reads and compares."""


def program_hashes(command: Sequence[str], *, folder: Path) -> dict[str, str]:
    """Return a hash of each function of a program, and of the code outside of functions in each file and class.

    Each name consists of the file, relative to its import folder, and the function. The result covers imported modules
    next to the script, in `folder` (where the command runs) or on the import path of this process. It does not cover
    installed packages. The function ignores a file that cannot be read or compiled, because the error appears when the
    program runs.
    """
    hashes: dict[str, str] = {}
    for source in sources_of(command, folder=folder):
        for name, code in _parts(source.code):
            whole = ": ".join(filter(None, (source.file.relative_to(source.place).as_posix(), name)))
            hashes[whole] = merged(hashes.get(whole), xxhash.xxh3_64_hexdigest(bytes_of(code)))
    return dict(sorted(hashes.items()))


class SourceFile(NamedTuple):
    """A file of the user's code, parsed and compiled without docstrings."""

    file: Path
    place: Path
    """The import folder of the file."""
    tree: ast.Module
    code: types.CodeType


def sources_of(command: Sequence[str], *, folder: Path) -> Iterator[SourceFile]:
    """Return the files of the user that a command reaches. See `program_hashes`."""
    waiting, places = _run_by(command, folder=folder)
    read: set[Path] = set()
    while waiting and len(read) < _MOST_FILES:
        file, place = waiting.pop(0)
        if file in read:
            continue
        read.add(file)
        try:
            tree, compiled = _compiled(file)
        except (OSError, SyntaxError, ValueError):
            continue
        yield SourceFile(file, place, tree, compiled)
        for module in _imported(tree, file=file, place=place):
            waiting += _files_of(module, places)


def passed_to_program(spec: RunSpec) -> dict[str, str]:
    """Return the command, config and files that the run spec passes to its program, as stored in checkpoints."""
    assert spec.program is not None
    passed: dict[str, Any] = {"command": list(spec.program.command)}
    passed |= {f"config.{name}": value for name, value in spec.config.items()}
    if spec.data is not None:
        passed["data"] = [file.sha256 for file in spec.data.files]
    return {name: json.dumps(value, sort_keys=True) for name, value in passed.items()}


def script_of(command: Sequence[str], *, folder: Path) -> Path | None:
    """Return the script file that a command runs. Return None if no file of the user is found."""
    files, _ = _run_by(command, folder=folder)
    return files[-1][0] if files else None


def _run_by(command: Sequence[str], *, folder: Path) -> tuple[list[tuple[Path, Path]], list[Path]]:
    """Return the files that a command runs, each with its folder, and the import folders.

    The script is the last file.
    """
    is_module = command[1] == "-m"
    beside = folder if is_module else (folder / command[1]).resolve().parent
    on_path = (Path(entry) for entry in sys.path if entry)
    own = (place for place in on_path if not any(place.is_relative_to(each) for each in installed_folders()))
    places = list(dict.fromkeys((beside, folder, *own)))
    files = _files_of(command[2], places, runs=True) if is_module else [((folder / command[1]).resolve(), beside)]
    return files, places


def _files_of(module: str, places: Sequence[Path], *, runs: bool = False) -> list[tuple[Path, Path]]:
    """Return the files that an import of this module runs, each with its import folder.

    `runs` means that the command runs the module with `-m`.
    """
    parts = module.split(".")
    if parts[0] == "segue":
        return []
    found = []
    for place in places:
        base = place.joinpath(*parts)
        packages = [place.joinpath(*parts[: number + 1], "__init__.py") for number in range(len(parts))]
        itself = [base.with_suffix(".py"), *([base / "__main__.py"] if runs else [])]
        files = [file for file in (*packages, *itself) if file.is_file()]
        if any(file in (packages[-1], *itself) for file in files) or base.is_dir():
            found += [(file, place) for file in files]
            break
    return found


def _imported(tree: ast.Module, *, file: Path, place: Path) -> Iterator[str]:
    """Return the full names of the modules that a file imports, or may import with `from package import name`."""
    package = file.relative_to(place).parent.parts
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = package[: max(len(package) - node.level + 1, 0)] if node.level else ()
            start = ".".join((*above, *([node.module] if node.module else [])))
            if start:
                yield start
            yield from (".".join(filter(None, (start, alias.name))) for alias in node.names if alias.name != "*")


def _compiled(file: Path) -> tuple[ast.Module, types.CodeType]:
    """Return the file, parsed and compiled without docstrings. Warnings are not shown."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        tree = _without_docstrings(ast.parse(file.read_bytes()))
        return tree, compile(tree, "", "exec", dont_inherit=True)


def _without_docstrings(tree: ast.Module) -> ast.Module:
    kinds = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
    for node in [node for node in ast.walk(tree) if isinstance(node, kinds)]:
        if ast.get_docstring(node, clean=False) is not None:
            first, *rest = node.body
            node.body = rest or [ast.copy_location(ast.Pass(), first)]
    return tree


def _parts(code: types.CodeType, name: str = "") -> Iterator[tuple[str, types.CodeType]]:
    """Yield the code outside of functions, and each function including its nested functions."""
    if code.co_flags & inspect.CO_OPTIMIZED:
        yield name, code
        return
    inner = [const for const in code.co_consts if isinstance(const, types.CodeType)]
    consts = tuple(const.co_qualname if isinstance(const, types.CodeType) else const for const in code.co_consts)
    yield name, code.replace(co_consts=consts)
    for each in inner:
        yield from _parts(each, each.co_qualname)
