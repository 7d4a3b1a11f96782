"""A training loop of the user's own: `segue.session()` gives it what a recipe gets from segue's loop.

Outside a segment a session changes nothing and writes nothing: the script runs as if segue were not there.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Protocol, Self

from segue.errors import ProgramError, SessionError
from segue.recipe import current_folder_first

if TYPE_CHECKING:
    import torch

    Number = float | torch.Tensor


class Host(Protocol):
    """The attempt that a session belongs to."""

    @property
    def step(self) -> int:
        """Steps that the run has made."""
        ...

    def track(self, objects: dict[str, Any]) -> None:
        """Make these objects part of the run's state, and restore them if the run has a checkpoint."""
        ...

    def steps(self, goal: int | None) -> Iterator[int]:
        """The steps that are left."""
        ...

    def report(self, loss: Number, *, lr: Number | Sequence[Number] | None, grad_norm: Number | None) -> None:
        """What the current step looked like."""
        ...


_hosts: list[Host] = []
"""The attempt in this process; one at most."""


@contextmanager
def hosted(host: Host) -> Iterator[None]:
    """A block in which sessions belong to this attempt."""
    _hosts.append(host)
    try:
        yield
    finally:
        _hosts.remove(host)


def require_program(command: Sequence[str]) -> None:
    """Check that there is what a program's command names, as seen from the current folder, without running it.

    Raises:
        ProgramError: there is no such script or module, or the script is not Python.
    """
    if command[1] == "-m":
        with current_folder_first():
            try:
                found = importlib.util.find_spec(command[2])
            except ModuleNotFoundError:
                found = None
        if found is None:
            why = f"there is no module {command[2]!r}."
            raise ProgramError(command=command, why=why, fix="check its name and the current folder.")
        return
    script = Path(command[1])
    try:
        compile(script.read_bytes(), script, "exec")
    except OSError as error:
        why = f"{script} cannot be read ({error.strerror})."
        raise ProgramError(
            command=command, why=why, fix="check the path; it is relative to the current folder."
        ) from None
    except (SyntaxError, ValueError) as error:
        raise ProgramError(command=command, why=f"{script} is not Python ({error}).", fix="correct it.") from None


def session() -> Session:
    """The session of this training script, as a context manager.

    In a segment, what the session tracks is restored, saved and verified. Started in any other way, the script runs
    bare.
    """
    return Session(_hosts[0] if _hosts else None)


class Session:
    """Tracks the state of a training loop and counts its steps."""

    def __init__(self, host: Host | None) -> None:
        self._host = host
        self._done = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        return

    @property
    def is_active(self) -> bool:
        """Whether this is a segment of a run; outside one, every method only lets the script go on."""
        return self._host is not None

    @property
    def step(self) -> int:
        """Steps done since the run began; after a resume not 0."""
        return self._host.step if self._host is not None else self._done

    def track(self, **objects: Any) -> None:
        """Make objects part of the run's state; after a resume they are restored when this returns.

        Objects with `state_dict` and `load_state_dict` (modules, optimizers, schedulers, scalers, loaders with a state,
        your own), dicts of plain values (restored in place), and random generators of torch, NumPy and `random`. The
        global random streams of these three are tracked without a name, and restored before the first step.

        Raises:
            SessionError: an object has no state that can be saved, a name is taken, or training has begun.
        """
        if self._host is not None:
            self._host.track(objects)

    def steps(self, goal: int | None = None) -> Iterator[int]:
        """Yield the number of each step that is left: 0 to goal - 1 in a new run, later ones after a resume.

        The safe point is the top of an iteration: there the run is saved, and there it ends when the machine is taken
        away. The program then ends inside this call, and code after the loop runs only when the goal is reached.

        Raises:
            SessionError: the goal is not the run's, or a step reported nothing.
        """
        if self._host is not None:
            yield from self._host.steps(goal)
            return
        if goal is None:
            raise SessionError(what="run.steps() has no goal outside a segment.", fix="give it one: run.steps(1000).")
        for self._done in range(goal):
            yield self._done
        self._done = goal

    def report(
        self,
        loss: Number,
        *,
        lr: Number | Sequence[Number] | None = None,
        grad_norm: Number | None = None,
    ) -> None:
        """Report what this step looked like, once in each iteration: a resume must give the same numbers.

        `lr` is read from the tracked optimizers, and `grad_norm` measured at their steps, unless they are given.
        """
        if self._host is not None:
            self._host.report(loss, lr=lr, grad_norm=grad_norm)
