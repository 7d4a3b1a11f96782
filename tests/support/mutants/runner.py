"""Runs the nearest tests of mutants, each on a copy of the tree in a process of its own.

The processes are forked from one that has imported torch and pytest, and nothing of segue: a mutant costs the time of
its tests.
"""

from __future__ import annotations

import compileall
import os
import shutil
import signal
import sys
import time
import traceback
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from types import ModuleType

from tests.support.mutants.mutant import Mutant

ROOT = Path(__file__).parents[3]
_PARTS = ("segue", "tasks", "flows", "deployments", "tests", "examples", "benchmarks", "pyproject.toml")
_LIMIT_SECONDS = 120.0
"""After which the tests of a mutant hang: it is noticed by that."""
_POLL_SECONDS = 0.02
_FAILED = 1
_OPTIONS = ("-q", "-x", "-p", "no:cacheprovider", "-p", "no:randomly", "-n", "0", "--no-header", "--tb", "line")


class Outcome(StrEnum):
    """What became of a mutant."""

    KILLED = "killed"
    SURVIVED = "survived"
    NOT_RUN = "not run"
    """Its tests could not be run, as where it is no Python."""


@dataclass
class _Running:
    mutant: Mutant | None
    process: int
    tree: Path
    output: Path
    began_at: float


def copy_tree(into: Path) -> Path:
    """The sources and tests, with what they compile to: only the mutants are compiled again."""
    into.mkdir()
    for part in _PARTS:
        if (ROOT / part).is_dir():
            shutil.copytree(ROOT / part, into / part, symlinks=True)
        else:
            shutil.copy2(ROOT / part, into / part)
    compileall.compile_dir(into / "segue", quiet=2)
    return into


def run_all(
    mutants: Sequence[Mutant], folder: Path, *, at_once: int, is_proven: bool = False
) -> Iterator[tuple[Mutant, Outcome, str]]:
    """Each mutant with its outcome and the end of what its tests printed, as they end.

    The tests are run without a mutant first, unless it `is_proven` that they pass.

    Raises:
        RuntimeError: the tests fail on the code as it is.
    """
    _preload()
    trees = [copy_tree(folder / f"tree-{number}") for number in range(at_once)]
    tests = () if is_proven else tuple(dict.fromkeys(test for mutant in mutants for test in mutant.tests))
    if tests and (code := _ended(first := _start(None, tests, trees[0]), block=True)):
        raise RuntimeError(f"the tests fail without a mutant, with code {code}: {_tail(first.output)}")
    waiting, free, running = list(mutants), trees, list[_Running]()
    while waiting or running:
        while waiting and free:
            mutant, tree = waiting.pop(0), free.pop()
            running.append(_start(mutant, mutant.tests, tree))
        for one in list(running):
            code = _ended(one)
            if code is None or one.mutant is None:
                continue
            running.remove(one)
            free.append(one.tree)
            yield one.mutant, _outcome(code), _tail(one.output)
        time.sleep(_POLL_SECONDS)


def _outcome(code: int) -> Outcome:
    if code == 0:
        return Outcome.SURVIVED
    return Outcome.KILLED if code in (_FAILED, -signal.SIGKILL) else Outcome.NOT_RUN


def _preload() -> None:
    """What the tests of most mutants import, but nothing of segue."""
    import numpy
    import pydantic
    import pytest
    import torch

    assert all((numpy, pydantic, pytest, torch))
    assert "segue" not in sys.modules


def _start(mutant: Mutant | None, tests: Sequence[str], tree: Path) -> _Running:
    source = None if mutant is None else tree / mutant.file
    before = None if source is None else source.stat()
    if mutant is not None and source is not None and before is not None:
        shutil.copy2(source, tree / "before")
        mutant.apply(tree)
        # Another time, or what the file was compiled to before would be taken for it.
        os.utime(source, ns=(before.st_atime_ns, before.st_mtime_ns + 10**9))
    output = tree / "output"
    process = os.fork()
    if process == 0:
        _run_here(tests, tree, output, compiles=mutant is None)
    return _Running(mutant, process, tree, output, time.monotonic())


def _run_here(tests: Sequence[str], tree: Path, output: Path, *, compiles: bool) -> None:
    """The tests in this process, which ends with their exit code."""
    code = 3
    try:
        os.setsid()
        to = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        for stream in (1, 2):
            os.dup2(to, stream)
        os.chdir(tree)
        os.environ["PYTHONPATH"] = str(tree)
        sys.modules["__main__"] = ModuleType("__main__")  # What multiprocessing starts would import the runner.
        for name in [name for name in sys.modules if name == "tests" or name.startswith("tests.")]:
            del sys.modules[name]
        sys.path[:] = [str(tree), *(path for path in sys.path if path not in ("", str(ROOT)))]
        sys.dont_write_bytecode = not compiles
        import pytest

        # The quick tests first; only a mutant that they do not notice costs the time of those of the matrix.
        code = int(pytest.main([*_OPTIONS, *tests]))
        if code in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED):
            longer = int(pytest.main([*_OPTIONS, "-m", "matrix and not soak", *tests]))
            code = code if longer == pytest.ExitCode.NO_TESTS_COLLECTED else longer
        where = str(getattr(sys.modules.get("segue"), "__file__", ""))
        if not where.startswith(str(tree)):
            os.write(1, f"not the mutant was tested, but {where}\n".encode())
            code = 3
    except BaseException:  # The process ends here, whatever it is.
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _ended(one: _Running, *, block: bool = False) -> int | None:
    """The exit code of its tests, with everything they have started gone; None while they run."""
    while True:
        done, status = os.waitpid(one.process, os.WNOHANG)
        if not done and time.monotonic() - one.began_at > _LIMIT_SECONDS and one.mutant is not None:
            os.killpg(one.process, signal.SIGKILL)
            done, status = os.waitpid(one.process, 0)
        if done:
            break
        if not block:
            return None
        time.sleep(_POLL_SECONDS)
    with suppress(ProcessLookupError):
        os.killpg(one.process, signal.SIGKILL)
    if one.mutant is not None:
        shutil.move(one.tree / "before", one.tree / one.mutant.file)
    return os.waitstatus_to_exitcode(status)


def _tail(output: Path) -> str:
    return "\n".join(output.read_text(errors="replace").splitlines()[-12:])
