"""Runs a child process that imports torch and the recipe, and reports the versions, the accelerators and errors.

The doctor's own process imports neither torch nor the recipe. `python -m segue.doctor.probe FILE_DESCRIPTOR [RECIPE]`
writes one line of JSON about torch to the file descriptor, then one line about the recipe.
"""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from typing import IO, Any, NamedTuple

from segue.credentials import redacted
from segue.doctor.check import Result, fail, ok
from segue.doctor.scratch import Scratch
from segue.process import Parent, end_with
from segue.units import duration

_LIMIT_SECONDS = 120.0
NO_TORCH = "install torch for this machine."


class TorchFacts(NamedTuple):
    """The versions of Python and torch on this machine, the number of accelerators, and whether torch has NCCL."""

    python: str
    torch: str
    accelerators: int
    has_nccl: bool


class Probed(NamedTuple):
    """The answer of the child process.

    If torch could not be imported, `torch` is None and `why` contains the reason.
    """

    torch: TorchFacts | None
    recipe: Result | None
    why: str = ""


def probe(
    recipe: str | None, *, environ: Mapping[str, str], scratch: Scratch, limit_seconds: float = _LIMIT_SECONDS
) -> Probed:
    """Run the probe in a child process for at most `limit_seconds`. Then kill the child and its own children."""
    # Files, not pipes: a process that the recipe starts may hold a pipe open, and its output is no answer.
    with tempfile.TemporaryFile() as answers, tempfile.TemporaryFile() as errors:
        named = [str(answers.fileno()), *([recipe] if recipe is not None else [])]
        command = [sys.executable, "-m", "segue.doctor.probe", *named]
        with scratch.child(command, stderr=errors, pass_fds=(answers.fileno(),), environ=dict(environ)) as child:
            with suppress(subprocess.TimeoutExpired):
                child.wait(limit_seconds)
            code = child.poll()
        how = f"it took more than {duration(limit_seconds)}" if code is None else _ended(code, errors)
        return understood([json.loads(line) for line in _lines(answers)], how, recipe)


def understood(said: list[Any], how: str, recipe: str | None) -> Probed:
    """Interpret the lines that a child process wrote. `how` describes how the child ended. The function is pure."""
    if not said:
        # The recipe was not reached.
        absent = fail(f"the recipe needs torch, which cannot be imported: {how}", fix=NO_TORCH)
        return Probed(None, absent if recipe is not None else None, how)
    facts = TorchFacts(**said[0])
    if recipe is None:
        return Probed(facts, None)
    unsaid = fail(f"importing the recipe failed: {how}", fix="correct the module: its import must succeed and end.")
    return Probed(facts, _result(said[1]) if len(said) > 1 else unsaid)


def _ended(code: int, errors: IO[bytes]) -> str:
    last = redacted((_lines(errors) or [""])[-1])
    return f"the process ended with code {code}{f': {last}' if last else ''}"


def _lines(file: IO[bytes]) -> list[str]:
    """Return the lines that a child process wrote, without empty lines. The last line may be incomplete."""
    file.seek(0)
    return [line for line in file.read().decode(errors="replace").splitlines() if line.strip()]


def _result(said: dict[str, Any]) -> Result:
    reason = redacted(said["reason"])
    return ok(reason) if not said["fix"] else fail(reason, fix=said["fix"])


def _say(answers: int, facts: dict[str, Any]) -> None:
    os.write(answers, json.dumps(facts).encode() + b"\n")


def main() -> None:
    """Report the version of torch and the accelerators. If an argument names a recipe, import the recipe."""
    end_with(Parent(), poll_seconds=1.0)  # A recipe that hangs at import must not outlive a doctor that was killed.
    answers = int(sys.argv[1])
    os.set_inheritable(answers, False)
    import torch

    _say(
        answers,
        {
            "python": ".".join(platform.python_version_tuple()[:2]),
            "torch": torch.__version__,
            "accelerators": torch.cuda.device_count(),
            "has_nccl": torch.distributed.is_available() and torch.distributed.is_nccl_available(),
        },
    )
    if sys.argv[2:]:
        _say(answers, _imported(sys.argv[2])._asdict())
    os._exit(0)  # A thread that the recipe has started must not keep this process alive.


def _imported(recipe: str) -> Result:
    from segue.doctor.check import refused
    from segue.errors import SegueError
    from segue.recipe import import_build

    try:
        import_build(recipe)
    except SegueError as error:
        return refused(error)
    return ok(f"{recipe} is imported")


if __name__ == "__main__":
    main()
