"""Finds the attempt of a program's session, and checks whether a program may train in this process."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Protocol

from segue.errors import ProgramError, SessionError
from segue.user_objects.users_files import current_folder_first

if TYPE_CHECKING:
    import torch

    from segue.records import Notice

    OnePass = Callable[[], Iterator[tuple[int, Any]]]
    Number = float | torch.Tensor
    Rates = Number | Sequence[Number] | None


class Host(Protocol):
    """The object that a session calls: the attempt of a segment, or `Bare` outside a segment."""

    @property
    def is_active(self) -> bool:
        """Whether the session belongs to an attempt."""
        ...

    @property
    def step(self) -> int:
        """Number of steps that the run has made."""
        ...

    @property
    def goal(self) -> int | None:
        """The step at which the run ends. Without a run, or if the step is unknown, the value is None."""
        ...

    @property
    def config(self) -> Mapping[str, Any]:
        """The config of the program.

        Raises:
            SessionError: the config of the program cannot be read.
        """
        ...

    @property
    def should_stop(self) -> bool:
        """Whether the attempt will end at the next safe point."""
        ...

    @property
    def should_save(self) -> bool:
        """Whether the run will save or end at the next safe point."""
        ...

    def measure(self, objects: Mapping[str, Any]) -> None:
        """Measure these objects, but do not save them."""
        ...

    def restore_folder(self, path: Path) -> Path | None:
        """Write the folder of the newest commit to this path. If no commit has a folder, return None."""
        ...

    def commit_folder(self, path: Path, *, instead: Mapping[str, bytes | Path], best: Mapping[str, str] | None) -> None:
        """Commit the folder at the next safe point. `instead` replaces the content of some files."""
        ...

    def track(self, objects: Mapping[str, Any]) -> None:
        """Make these objects part of the run's state. If the run has a checkpoint, restore the objects."""
        ...

    def track_variables(self, namespace: dict[str, Any], names: tuple[str, ...]) -> None:
        """Make these variables part of the run's state."""
        ...

    def carry(self, name: str, values: Mapping[str, Any]) -> SimpleNamespace:
        """Make these values part of the run's state under `name`.

        If this name is used again, the state takes the new values.
        """
        ...

    def batches(self, loader: Any) -> OnePass:
        """Return a function that yields one pass over the loader, or the rest of a pass, as numbered batches."""
        ...

    def steps(self, numbers: range | None) -> Iterator[int]:
        """Yield the numbers of the remaining steps."""
        ...

    def epochs(self, numbers: range) -> Iterator[int]:
        """Yield the numbers of the remaining epochs."""
        ...

    def report(self, loss: Number, *, lr: Rates, grad_norm: Number | None, metrics: Mapping[str, Number]) -> None:
        """Record the numbers of the current step."""
        ...

    def evaluating(self) -> AbstractContextManager[None]:
        """Return a block that makes no step and leaves the random streams unchanged."""
        ...

    def call_on_notice(self, function: Callable[[Notice], None]) -> None:
        """Call `function` when a notice announces that the provider takes the machine back."""
        ...

    def save_best(self, metric: float) -> None:
        """Save at the next safe point, with this metric."""
        ...

    @property
    def has_ended_early(self) -> bool:
        """Whether `finish` ended the training before the newest commit, so that no step is left."""
        ...

    def finish(self, reason: str) -> None:
        """End the run at the next safe point."""
        ...


class Bare:
    """The host outside an attempt. The host only counts the steps. It does not change the script's behaviour."""

    is_active = has_ended_early = should_save = False
    goal = None

    def __init__(self) -> None:
        self.step, self.should_stop = 0, False
        self._counts_batches = True

    @property
    def config(self) -> Mapping[str, Any]:
        from segue.data.config import config_of_environment

        return config_of_environment()

    def steps(self, numbers: range | None) -> Iterator[int]:
        require_training_here()
        if numbers is None:
            raise SessionError(what="run.steps() has no goal outside a segment.", fix="give a number: run.steps(1000).")
        self._counts_batches = False
        for number in self.epochs(numbers):
            yield number
            self.step += 1

    def epochs(self, numbers: range) -> Iterator[int]:
        require_training_here()
        for number in numbers:
            if self.should_stop:
                return
            yield number

    def batches(self, loader: Any) -> OnePass:
        def one_pass() -> Iterator[tuple[int, Any]]:
            for numbered in enumerate(loader):
                if self.should_stop:
                    return
                yield numbered
                self.step += self._counts_batches

        return one_pass

    def carry(self, name: str, values: Mapping[str, Any]) -> SimpleNamespace:
        return SimpleNamespace(**values)

    def evaluating(self) -> AbstractContextManager[None]:
        from segue.data.streams import streams_kept

        return streams_kept()

    def finish(self, reason: str) -> None:
        self.should_stop = True

    def track(self, objects: Mapping[str, Any]) -> None:
        return

    def track_variables(self, namespace: dict[str, Any], names: tuple[str, ...]) -> None:
        return

    def report(self, loss: Number, *, lr: Rates, grad_norm: Number | None, metrics: Mapping[str, Number]) -> None:
        return

    def restore_folder(self, path: Path) -> Path | None:
        return None

    def commit_folder(self, path: Path, *, instead: Mapping[str, bytes | Path], best: Mapping[str, str] | None) -> None:
        return

    def measure(self, objects: Mapping[str, Any]) -> None:
        return

    def call_on_notice(self, function: Callable[[Notice], None]) -> None:
        return

    def save_best(self, metric: float) -> None:
        return


_hosts: list[Host] = []
"""The attempt in this process. Without an attempt, the list is empty."""

_refused: list[str] = []
"""Reasons why this process must not train. If the process may train, the list is empty."""


@contextmanager
def hosted(host: Host) -> Iterator[None]:
    """While the block runs, let sessions belong to this attempt."""
    _hosts.append(host)
    try:
        yield
    finally:
        _hosts.remove(host)


@contextmanager
def without_training(why: str) -> Iterator[None]:
    """While the block runs, let training loops raise an error, because this process only imports functions."""
    _refused.append(why)
    try:
        yield
    finally:
        _refused.remove(why)


def require_training_here() -> None:
    """Raise an error if this process must not train.

    Raises:
        SessionError: this process must not train. The message gives the reason, and explains how to import a script
            without its loop.
    """
    if _refused:
        fix = 'put the loop into `if __name__ == "__main__":`, or move the imported functions to another module.'
        raise SessionError(what=f"{_refused[-1]}.", fix=fix)


def require_program(command: Sequence[str]) -> None:
    """Check that the script or module of a command exists, without running it.

    The search starts from the current folder.

    Raises:
        ProgramError: the script or module does not exist, or the script is not Python.
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


def host_here() -> Host | None:
    """Return the attempt to which sessions of this process belong. Outside an attempt, return None."""
    return _hosts[0] if _hosts else None
